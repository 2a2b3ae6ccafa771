import importlib
from pathlib import Path

from generated import N_INPUTS


def test_a_thousand_bad_inputs_are_generated():
    for path in Path(__file__).parent.glob("test_bad_*.py"):
        importlib.import_module(path.stem)
    assert sum(N_INPUTS.values()) >= 1000
