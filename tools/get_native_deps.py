"""Fills a prefix with the headers of ONNX Runtime and with Google Highway, taken from Debian's packages without root.

    python tools/get_native_deps.py [PREFIX]        (default: .deps beside this folder)

The packages come from Debian 13 ("trixie") on the mirror that this system's apt uses already. apt runs on lists of its
own, so that neither root nor a fresh "apt-get update" is needed and nothing on the system changes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = "trixie"
PACKAGES = ("libonnxruntime-dev", "libhwy-dev", "libhwy1t64")
KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
)


def run(command: list[str], cwd: Path | None = None) -> str:
    """Returns what the command prints; raises CalledProcessError with its messages if it fails."""
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def mirrors() -> list[str]:
    """The addresses from which this system gets packages, those that look like Debian's own first."""
    uris = run(["apt-get", "update", "--print-uris"])
    sites = dict.fromkeys(re.findall(r"'(\S+)/dists/[a-z]+/", uris))  # a suite like trixie-updates is not the main one
    return sorted(sites, key=lambda site: "debian" not in site)


def download(mirror: str, folder: Path) -> None:
    """Puts the packages into the folder, checked against Debian's keys."""
    lists, cache, parts = folder / "lists", folder / "cache", folder / "sources"
    for needed in (lists / "partial", cache / "archives" / "partial", parts):
        needed.mkdir(parents=True)
    stanza = f"Types: deb\nURIs: {mirror}\nSuites: {SUITE}\nComponents: main\n"
    for keyring in [keyring for keyring in KEYRINGS if keyring.exists()][:1]:
        stanza += f"Signed-By: {keyring}\n"
    (parts / "debian.sources").write_text(stanza)
    apt = ["apt-get", "-q", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={parts}"]
    apt += ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User="]
    run([*apt, "update"])
    run([*apt, "download", *(f"{package}/{SUITE}" for package in PACKAGES)], cwd=folder)


def fill(prefix: Path, scratch: Path) -> None:
    failures = ["apt has no sources on this system"]
    for number, mirror in enumerate(mirrors()):
        folder = scratch / str(number)
        try:
            download(mirror, folder)
        except subprocess.CalledProcessError as error:
            failures.append(f"{mirror}: {error.stderr.strip()}")
            continue
        for package in sorted(folder.glob("*.deb")):
            run(["dpkg", "-x", str(package), str(scratch / "prefix")])
        shutil.rmtree(prefix, ignore_errors=True)
        shutil.move(scratch / "prefix", prefix)  # only now: a prefix that exists is complete
        return
    sys.exit(f"No source of Debian {SUITE}: " + "\n".join(failures[1:] or failures))


def main() -> None:
    prefix = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / ".deps").resolve()
    missing = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"{' and '.join(missing)} not found: this way of getting the headers needs a Debian system")
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".deps-", dir=prefix.parent) as scratch:
        fill(prefix, Path(scratch))
    print(f"{', '.join(PACKAGES)} ({SUITE}) are in {prefix}")


if __name__ == "__main__":
    main()
