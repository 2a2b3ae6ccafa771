"""Check that the repository may be published under a tag: ``python .ci/release.py TAG``."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
PLACEHOLDER = "OWNER"  # of the repository
# Files that explain it.
ABOUT_IT = {".ci/release.py", "RELEASING.md", "tests/project/test_repository.py"}


def project() -> dict[str, Any]:
    """Return what pyproject.toml says of the package, its version among it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def newest(changelog: str) -> tuple[str, str]:
    """Return the version of a changelog's first section, and its date or "unreleased"."""
    heading = HEADING.search(changelog)
    if heading is None:
        raise ValueError("CHANGELOG.md has no heading like '## 0.1.0 (unreleased)'.")
    return heading[1], heading[2]


def with_placeholders() -> list[str]:
    """Return the tracked files that still name a placeholder."""
    search = ["git", "grep", "-l", PLACEHOLDER]
    found = subprocess.run(search, cwd=ROOT, capture_output=True, text=True, check=False)
    return [name for name in found.stdout.splitlines() if name not in ABOUT_IT]


def problems(tag: str, stated: str, changelog: str, placeholders: list[str]) -> list[str]:
    """Return what is in the way of a release."""
    found = [f"{name} still says {PLACEHOLDER}: RELEASING.md" for name in placeholders]
    if tag != f"v{stated}":
        found.append(f"the tag is {tag!r}, pyproject.toml's version {stated!r}: tag v{stated}")
    name, date = newest(changelog)
    if name != stated:
        found.append(f"CHANGELOG.md begins with {name}, pyproject.toml's version is {stated}")
    if date == "unreleased":
        found.append(f"CHANGELOG.md says that {name} is unreleased: give its first heading a date")
    return found


if __name__ == "__main__":
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sys.exit(
        "\n".join(problems(sys.argv[1], project()["version"], changelog, with_placeholders()))
        or None
    )
