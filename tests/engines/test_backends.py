"""Backends of joblib that need an extra."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
sys.modules["{package}"] = None  # as if it were not installed
import joblib, skfed
joblib.parallel_config(backend="{extra}")
"""


@pytest.mark.parametrize(
    ("extra", "package", "required"),
    [("dask", "distributed", "dask[distributed]>=2025.1"), ("ray", "ray", "ray>=2.49")],
)
def test_a_missing_extra_is_named_in_one_line(extra, package, required):
    run = [sys.executable, "-c", SCRIPT.format(extra=extra, package=package)]
    told = subprocess.run(run, capture_output=True, text=True, check=False).stderr
    assert told.splitlines()[-1] == (
        f'ImportError: backend={extra!r} needs {extra}: pip install "{required}".'
    )


def test_skfed_imports_neither_dask_nor_ray():
    script = "import sys, skfed; print(*sys.modules)"
    run = [sys.executable, "-c", script]
    told = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert not {"dask", "distributed", "ray"} & set(told.split())
    assert "skfed" in told.split()
