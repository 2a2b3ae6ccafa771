"""Check what is in a wheel and an sdist: ``python .ci/contents.py FOLDER AGAIN``.

Each folder has both, built from the same files.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from zlib import crc32

# Tracked files that are not in the sdist: how the repository is run, and megabytes of results.
LEFT_OUT = re.compile(
    r"\.|benchmarks/(papers|selection)/(pictures/|tables/|.*\.xz$)"
    r"|tests/project/test_repository\.py$"
)
IN_SDIST = {"PKG-INFO", "setup.cfg"}  # what setuptools adds
IN_WHEEL = {"METADATA", "RECORD", "WHEEL", "licenses/LICENSE", "top_level.txt"}

Contents = dict[str, int]  # the checksum of each file


def wheel(path: Path) -> Contents:
    """Return what a wheel has, its metadata under ``dist-info/``."""
    with zipfile.ZipFile(path) as file:
        members = [one for one in file.infolist() if not one.is_dir()]
    return {re.sub(r"^skfed-[^/]+\.dist-info", "dist-info", m.filename): m.CRC for m in members}


def sdist(path: Path) -> Contents:
    """Return what an sdist has, without its folder."""
    with tarfile.open(path) as file:
        members = [(one.name, file.extractfile(one)) for one in file.getmembers()]
        return {name.partition("/")[2]: crc32(m.read()) for name, m in members if m is not None}


def contents(folder: Path) -> tuple[Contents, Contents]:
    """Return what the wheel and the sdist of a folder have."""
    (of_wheel,), (of_sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel(of_wheel), sdist(of_sdist)


def differences(found: set[str], expected: set[str]) -> list[str]:
    """Return a line for each file that is missing or too many."""
    missing = [f"is missing: {name}" for name in sorted(expected - found)]
    return missing + [f"does not belong: {name}" for name in sorted(found - expected)]


def problems(tracked: set[str], wheel: set[str], sdist: set[str]) -> list[str]:
    """Return what is wrong with the names in a wheel and an sdist of the tracked files."""
    package = {name for name in tracked if name.startswith("skfed/")}
    source = {name for name in tracked if not LEFT_OUT.match(name)}
    own = {name for name in sdist if not name.startswith("skfed.egg-info/")}
    in_wheel = differences(wheel, package | {f"dist-info/{name}" for name in IN_WHEEL})
    in_sdist = differences(own, source | IN_SDIST)
    return [f"wheel: {line}" for line in in_wheel] + [f"sdist: {line}" for line in in_sdist]


def main(first: Path, again: Path) -> None:
    """Print how many files there are, or exit with what is wrong."""
    of_wheel, of_sdist = contents(first)
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    found = problems(set(listed.stdout.splitlines()), set(of_wheel), set(of_sdist))
    if contents(again) != (of_wheel, of_sdist):
        found.append("a second build has other contents")
    if found:
        sys.exit("\n".join(found))
    print(f"the wheel has {len(of_wheel)} files, the sdist {len(of_sdist)}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
