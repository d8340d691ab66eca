#!/bin/sh
# Says in one sentence what to install if something that the build needs is missing. $1: the Python to build with.
python=$1

missing() {
  echo "$1: on Debian, apt-get install $2" >&2
  exit 1
}

command -v "$python" >/dev/null || missing "There is no $python" "python3 python3-dev python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "$python is older than Python 3.11: name a newer one, make PYTHON=python3.12" >&2; exit 1; }
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing "$python cannot make virtual environments" python3-venv
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
  missing "The headers of $python (Python.h) are missing" python3-dev
command -v "${CXX:-c++}" >/dev/null || missing "There is no C++ compiler (${CXX:-c++})" g++
echo '#include <concepts>' | "${CXX:-c++}" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null ||
  missing "${CXX:-c++} does not compile C++20" g++
