"""What is needed only by some, and the command that installs it."""

# As in pyproject.toml's extras. The packages themselves, since skfed's own name is known to pip
# only where it comes from an index, not in a clone.
_PACKAGES = {
    "dask": "dask[distributed]>=2025.1",
    "flower": "flwr>=1.41,<1.42",
    "plot": "matplotlib>=3.10.8",
    "privacy": "opacus>=1.5.4",
    "ray": "ray>=2.49",
}


def needs(what: str, extra: str) -> str:
    """Return a message: what needs the package of an extra, and how to get it."""
    package = _PACKAGES[extra]
    name = package.partition("[")[0].partition(">")[0]
    return f'{what} needs {name}: pip install "{package}".'
