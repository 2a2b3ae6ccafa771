"""Finished runs are not repeated; interrupted runs are."""

import lzma
import subprocess
import sys
from dataclasses import replace
from functools import partial
from shutil import copytree

import pandas as pd
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.runs.problems import Problem, noisy_synthetic
from benchmarks.runs.runner import run_missing
from benchmarks.runs.settings import Setting
from benchmarks.runs.tables import Tables
from skfed import RandomSelector
from skfed.modules import SoftmaxRegression

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of short runs


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


@pytest.fixture(scope="module")
def finished(tmp_path_factory, make_in_this_process):
    """Return tables with all runs."""
    tables = Tables(tmp_path_factory.mktemp("finished"))
    make_in_this_process(tables, RUNS, jobs=1)
    return tables


@pytest.fixture
def filled(finished, tables):
    """Return a copy of the tables with all runs."""
    copytree(finished.folder, tables.folder)
    return tables


def test_a_table_has_a_row_for_each_round_strategy_and_seed(finished):
    table = finished.read(SETTING)
    assert table.groupby(["strategy", "seed"]).size().tolist() == [4] * 4
    assert table["round"].tolist() == [0, 1, 2, 3] * 4
    assert (table.groupby("strategy")["n_trained"].mean() == [1, 3]).all()
    assert table["global_loss"].notna().all()  # in each of the last ten rounds
    assert table["test_accuracy"].between(0, 1).all()


def test_processes_make_the_same_tables(finished, tables):
    run_missing(tables, RUNS, jobs=2)
    pd.testing.assert_frame_equal(tables.read(SETTING), finished.read(SETTING))


def test_only_unfinished_runs_are_made(filled, in_this_process):
    whole = filled.read(SETTING)
    kept = whole[(whole["strategy"] == "one") & (whole["seed"] == 1)]
    old = kept.assign(models_up=99)  # shows which rows are old
    filled.path(SETTING, "one").write_bytes(lzma.compress(old.to_csv(index=False).encode()))
    run_missing(filled, RUNS, jobs=1)
    again = filled.read(SETTING)
    assert again[again["models_up"] == 99].index.tolist() == kept.index.tolist()
    pd.testing.assert_frame_equal(again.assign(models_up=0), whole.assign(models_up=0))


def test_a_table_holds_complete_runs_if_a_write_is_interrupted(filled, monkeypatch):
    path = filled.path(SETTING, "one")
    before = path.read_bytes()

    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(filled.folder), "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        filled.append(SETTING, filled.read(SETTING).iloc[:4].assign(seed=2))
    assert path.read_bytes() == before


HOLD = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_process_at_a_time_fills_the_tables(tables, in_this_process):
    tables.folder.mkdir()
    command = [sys.executable, "-c", HOLD, str(tables.folder / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match=r"another process is filling.*another --out"):
            run_missing(tables, RUNS[:1], jobs=1)
        other.kill()
    run_missing(tables, RUNS[:1], jobs=1)
    assert len(tables.read(SETTING)) == 4
    with tables.locked(), pytest.raises(ValueError, match="another process is filling"):
        run_missing(Tables(tables.folder), RUNS[:1], jobs=1)


def test_nothing_is_run_when_nothing_is_missing(filled):
    path = filled.path(SETTING, "one")
    before = path.read_bytes()
    run_missing(filled, RUNS[:1], jobs=1)
    assert path.read_bytes() == before


def test_results_of_another_configuration_are_not_mixed_in(finished):
    for other in (
        replace(SETTING, n_rounds=5),
        replace(SETTING, loss_every=3),
        replace(SETTING, training={"local_steps": 3}),
        replace(SETTING, problem=partial(noisy_synthetic, skew=0.5)),
        replace(SETTING, strategies={"one": {"selector": RandomSelector(2)}}),
    ):
        with pytest.raises(ValueError, match=r"another configuration.*another --out"):
            finished.read(other)
    # A strategy that is new to the setting changes nothing for those that are there.
    more = SETTING.strategies | {"two": {"selector": RandomSelector(2)}}
    assert len(finished.read(replace(SETTING, strategies=more))) == 16


def failing(seed: int) -> Problem:
    raise RuntimeError(f"no data for seed {seed}")


def test_a_run_that_fails_raises_and_the_others_are_kept(tables, in_this_process):
    bad = replace(SETTING, name="bad", problem=failing)
    with pytest.raises(RuntimeError, match="no data for seed 7") as caught:
        run_missing(tables, [(bad, "one", 7), *RUNS[:2]], jobs=1)
    assert "in bad: one, seed 7" in caught.value.__notes__
    assert len(tables.read(SETTING)) == 8


def test_a_table_without_its_configuration_is_refused(filled):
    (filled.folder / "small" / "configuration.json").unlink()
    with pytest.raises(ValueError, match=r"configuration.json is missing.*put it back"):
        filled.read(SETTING)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_runs_on_a_gpu(tables):
    run_missing(tables, RUNS[:1], device="cuda")
    assert len(tables.read(SETTING)) == 4
