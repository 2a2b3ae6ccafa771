"""Tables of results are small, and the same bytes for the same runs."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import benchmarks.papers
from benchmarks.papers.catalogue import experiments
from benchmarks.runs.tables import Tables

COMMITTED = Path(benchmarks.papers.__file__).parent / "tables"
SETTING = experiments()["power-of-choice-fig5"].panels[0].setting


def run(strategy, seed):
    """Return made-up results."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"strategy": strategy, "seed": seed, "round": range(3)}).assign(
        test_accuracy=rng.random(3), global_loss=[2.345678, np.nan, 0.000123456], models_up=3
    )


def test_values_are_rounded_to_what_the_report_needs(tmp_path):
    tables = Tables(tmp_path)
    tables.append(SETTING, run("rand", 0).assign(test_accuracy=[1 / 3, 0.5, 2 / 30_000]))
    found = tables.read(SETTING)
    assert found["test_accuracy"].tolist() == [0.33333, 0.5, 0.00007]
    assert found["global_loss"].iloc[[0, 2]].tolist() == [2.3457, 0.00012346]
    assert np.isnan(found["global_loss"].iloc[1])
    assert found["models_up"].dtype == int


def test_the_order_of_the_runs_leaves_no_trace(tmp_path):
    runs = [run("rand", 0), run("rand", 1), run("afl", 0)]
    written = set()
    for i, order in enumerate(permutations(runs)):
        tables = Tables(tmp_path / str(i))
        for one in order:
            tables.append(SETTING, one)
        paths = sorted(path for path in tables.folder.rglob("*") if path.is_file())
        written.add(tuple((path.name, path.read_bytes()) for path in paths))
    assert len(written) == 1
    assert [name for name, _ in written.pop()] == [
        "afl.csv.xz",
        "configuration.json",
        "rand.csv.xz",
    ]


@pytest.mark.parametrize("name", experiments())
def test_each_strategy_has_a_file_of_its_own(name):
    for panel in experiments()[name].panels:
        strategies = panel.setting.strategies
        paths = {Tables(COMMITTED).path(panel.setting, strategy) for strategy in strategies}
        assert len(paths) == len(strategies)


def test_committed_tables_are_small():
    sizes = [path.stat().st_size for path in COMMITTED.rglob("*") if path.is_file()]
    assert max(sizes, default=0) < 200_000
    assert sum(sizes) < 5_000_000
