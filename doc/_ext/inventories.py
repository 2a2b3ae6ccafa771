"""Inventories of other projects for intersphinx, made of the names in use, without a network."""

import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path

HEADER = "# Sphinx inventory version 2\n# Project: {}\n# Version: \n# zlib-compressed\n"


def write_inventories(source: Path, folder: Path) -> dict[str, tuple[str, str]]:
    """Write an inventory of each project of a TOML file; return an intersphinx mapping."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for project, listed in tomllib.loads(source.read_text(encoding="utf-8")).items():
        lines = "".join(f"{name} py:{role} 1 {page} -\n" for role, name, page in entries(listed))
        path = folder / f"{project}.inv"
        path.write_bytes(HEADER.format(project).encode() + zlib.compress(lines.encode()))
        mapping[project] = (listed["url"], str(path))
    return mapping


def entries(listed: dict) -> Iterator[tuple[str, str, str]]:
    """Yield role, name and page of a project's names."""
    for role in ("class", "function"):
        for entry in listed.get(role, []):
            by_name = isinstance(entry, str)
            name, page = (entry, listed["page"].replace("{}", entry)) if by_name else entry
            yield role, name, page
