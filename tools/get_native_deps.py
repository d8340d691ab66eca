"""Fills a prefix with the headers of ONNX Runtime and with Google Highway, taken from Debian's packages without root.

    python tools/get_native_deps.py [PREFIX]        (default: .deps beside this folder)

The packages come from Debian 13 ("trixie") on the mirror that this system's apt uses already. apt runs on lists of its
own, so that neither root nor a fresh "apt-get update" is needed and nothing on the system changes.
"""

from __future__ import annotations

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
    """Returns what the command prints; ends this program with its messages if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def debian_mirror() -> str:
    """The address from which this system gets Debian's main packages."""
    sources = run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"])
    for line in sources.splitlines():
        site, release, component = line.split()
        if component == "main" and "-" not in release and "debian" in site:
            return site
    sys.exit("apt has no source of Debian packages on this system")


def fill(prefix: Path, scratch: Path) -> None:
    lists, cache, parts = scratch / "lists", scratch / "cache", scratch / "sources"
    for folder in (lists / "partial", cache / "archives" / "partial", parts):
        folder.mkdir(parents=True)
    stanza = f"Types: deb\nURIs: {debian_mirror()}\nSuites: {SUITE}\nComponents: main\n"
    for keyring in [keyring for keyring in KEYRINGS if keyring.exists()][:1]:
        stanza += f"Signed-By: {keyring}\n"
    (parts / "debian.sources").write_text(stanza)
    apt = ["apt-get", "-q", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={parts}"]
    apt += ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User="]
    run([*apt, "update"])
    run([*apt, "download", *(f"{package}/{SUITE}" for package in PACKAGES)], cwd=scratch)

    unpacked = scratch / "prefix"
    for package in sorted(scratch.glob("*.deb")):
        run(["dpkg", "-x", str(package), str(unpacked)])
    shutil.rmtree(prefix, ignore_errors=True)
    shutil.move(unpacked, prefix)  # only now: a prefix that exists is complete


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
