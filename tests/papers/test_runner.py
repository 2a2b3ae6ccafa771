"""What is there is not run again, and what was cut short is."""

from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.papers.problems import Problem, noisy_synthetic
from benchmarks.papers.runner import Tables, run_missing
from benchmarks.papers.settings import Setting
from skfed import RandomSelector
from skfed.modules import SoftmaxRegression


def net() -> NeuralNetClassifier:
    return NeuralNetClassifier(
        SoftmaxRegression, module__n_features=60, module__n_classes=10,
        criterion=nn.CrossEntropyLoss, lr=0.1,
    )  # fmt: skip


SETTING = Setting(
    name="small",
    problem=partial(noisy_synthetic, skew=1.5),
    net=net,
    training={"local_steps": 2},
    strategies={"one": {"selector": RandomSelector(1)}, "three": {"selector": RandomSelector(3)}},
    n_rounds=4,
    loss_every=2,
)
RUNS = [(SETTING, strategy, seed) for strategy in ("one", "three") for seed in (0, 1)]


@pytest.fixture
def tables(tmp_path):
    return Tables(tmp_path / "tables")


def by_run(table):
    return table.sort_values(["strategy", "seed", "round"]).reset_index(drop=True)


def timeless(table):
    return by_run(table).drop(columns="seconds")


def test_a_row_a_round_strategy_and_seed(tables):
    run_missing(tables, RUNS, jobs=2)
    table = tables.read(SETTING)
    assert table.groupby(["strategy", "seed"]).size().tolist() == [4] * 4
    assert by_run(table)["round"].tolist() == [0, 1, 2, 3] * 4
    assert (table.groupby("strategy")["n_trained"].mean() == [1, 3]).all()
    # F is measured every other round, and after the last.
    measured = by_run(table)["global_loss"].notna().tolist()
    assert measured == [True, False, True, True] * 4
    assert table["test_accuracy"].between(0, 1).all()


def test_it_resumes_where_it_was_cut(tables, monkeypatch):
    run_missing(tables, RUNS, jobs=2)
    whole = tables.read(SETTING)
    path = tables.folder / "small.csv"
    # Two runs are complete, the third was being written.
    pd.concat([whole.iloc[:8], whole.iloc[8:10]]).to_csv(path, index=False)
    kept = by_run(tables.read(SETTING))
    assert len(kept) == 8
    run_missing(tables, RUNS, jobs=1)
    again = tables.read(SETTING)
    pd.testing.assert_frame_equal(timeless(again), timeless(whole))
    # The times show which rows are old.
    old = again.merge(kept[["strategy", "seed", "round", "seconds"]])
    assert len(old) == 8


def test_nothing_is_run_when_nothing_is_missing(tables):
    run_missing(tables, RUNS[:1], jobs=1)
    before = (tables.folder / "small.csv").read_bytes()
    run_missing(tables, RUNS[:1], jobs=1)
    assert (tables.folder / "small.csv").read_bytes() == before


def test_results_of_another_configuration_are_not_mixed_in(tables):
    run_missing(tables, RUNS[:1], jobs=1)
    for other in (
        replace(SETTING, n_rounds=5),
        replace(SETTING, training={"local_steps": 3}),
        replace(SETTING, problem=partial(noisy_synthetic, skew=0.5)),
        replace(SETTING, strategies={"one": {"selector": RandomSelector(2)}}),
    ):
        with pytest.raises(ValueError, match=r"another configuration.*another --out"):
            tables.read(other)
    # A strategy that is new to the setting changes nothing for those that are there.
    more = SETTING.strategies | {"two": {"selector": RandomSelector(2)}}
    assert len(tables.read(replace(SETTING, strategies=more))) == 4


def failing(seed: int) -> Problem:
    raise RuntimeError(f"no data for seed {seed}")


def test_a_failing_run_is_told_and_the_others_are_kept(tables):
    run_missing(tables, RUNS[:1], jobs=1)
    with pytest.raises(RuntimeError, match="no data for seed 7"):
        run_missing(tables, [(replace(SETTING, name="bad", problem=failing), "one", 7)], jobs=1)
    assert len(tables.read(SETTING)) == 4
