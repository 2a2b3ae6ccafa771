import importlib
from pathlib import Path

from generated import N_INPUTS


def test_a_thousand_bad_inputs_are_generated(monkeypatch):
    folder = Path(__file__).parent
    monkeypatch.syspath_prepend(folder)
    for path in folder.glob("test_bad_*.py"):
        importlib.import_module(path.stem)
    assert sum(N_INPUTS.values()) >= 1000
