"""A line of JSON for each client and round, of the same numbers as the tables."""

import json
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from local_grid import late
from mishaps import PowerCut, at_round, estimator, node_of

from skfed import FedAlignSelector, RandomSelector
from skfed.flower import FederatedStrategy
from skfed.metrics import client_exchanges


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_lines_have_what_each_client_was_asked_and_what_it_cost(federate, tmp_path):
    aligned = FedAlignSelector(eps=0.0, warmup=1)
    model = estimator(selector=aligned, priority=["a", "b"], n_rounds=3)
    strategy, grid = federate(model, log_json=tmp_path / "rounds.jsonl")
    node_of(grid, "a").delays.update(poll=0.3, train=0.5)
    strategy.start(grid)
    lines = pd.DataFrame(read(tmp_path / "rounds.jsonl"))
    history, table = strategy.model_.history_, client_exchanges(strategy.model_)
    asked = table.groupby(["round", "client"])
    assert len(lines) == asked.ngroups
    of_client = lines.set_index(["round", "client"]).sort_index()
    for column in ("seconds", "bytes_down", "bytes_up"):
        np.testing.assert_allclose(of_client[column], asked[column].sum(), atol=0.001)
    for column in ("bytes_down", "bytes_up"):
        assert lines.groupby("round")[column].sum().tolist() == history[column].tolist()
    assert of_client.loc[(1, "a"), "seconds"] >= 0.8
    silent = {"kind": "poll", "outcome": "silent"}
    n_silent = sum(silent in exchanges for exchanges in lines["exchanges"])
    assert n_silent == (table["outcome"] == "silent").sum() > 0
    assert of_client.loc[(1, "a"), "exchanges"] == [
        {"kind": "poll", "outcome": "answered"},
        {"kind": "training", "outcome": "answered"},
    ]
    assert "cause" not in lines
    written = pd.to_datetime(lines["time"])
    assert (abs(written - datetime.now(UTC)) < timedelta(hours=1)).all()


def test_who_fails_is_in_it_with_the_cause_and_without_seconds(federate, tmp_path):
    strategy, grid = federate(estimator(n_rounds=2), log_json=str(tmp_path / "rounds.jsonl"))

    def hang(grid):
        node_of(grid, "c").answer = late

    at_round(1, hang)(grid)
    strategy.start(grid)
    (line,) = [one for one in read(tmp_path / "rounds.jsonl") if "cause" in one]
    assert (line["round"], line["client"], line["seconds"]) == (1, "c", None)
    assert line["cause"] == strategy.model_.history_["causes"][1][0]
    assert line["exchanges"] == [{"kind": "training", "outcome": "failed"}]


def test_a_client_that_is_drawn_twice_took_its_seconds_once(federate, tmp_path):
    model = estimator(selector=RandomSelector(6), n_rounds=1)
    strategy, grid = federate(model, log_json=tmp_path / "rounds.jsonl")
    for node in grid.nodes.values():
        node.delays["train"] = 1.0
    strategy.start(grid)
    lines = {line["client"]: line for line in read(tmp_path / "rounds.jsonl")}
    (cohort,) = strategy.model_.history_["cohort"]
    twice = next(name for name in cohort if cohort.count(name) > 1)
    assert lines[twice]["seconds"] == pytest.approx(1.0, abs=0.1)
    assert lines.keys() == set(cohort)


def test_a_run_that_continues_appends_its_rounds(federate, tmp_path):
    def cut(grid):
        raise PowerCut

    log, model = tmp_path / "rounds.jsonl", estimator(n_rounds=3, checkpoint=tmp_path / "runs")
    strategy, grid = federate(model, log_json=log)
    at_round(2, cut)(grid)
    with pytest.raises(PowerCut):
        strategy.start(grid)
    assert {line["round"] for line in read(log)} == {0, 1}
    strategy, grid = federate(model, log_json=log)
    strategy.start(grid)
    assert [line["round"] for line in read(log)] == [0] * 6 + [1] * 6 + [2] * 6


@pytest.mark.parametrize("path", ["no folder/rounds.jsonl", True, 3, "", "."])
def test_a_log_that_cannot_be_written_is_an_error_before_the_run(path):
    with pytest.raises(ValueError, match=r"log_json=.* must be the path of a file"):
        FederatedStrategy(estimator(), log_json=path)


def test_if_it_cannot_be_written_any_more_the_run_goes_on(federate, tmp_path, caplog):
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "rounds.jsonl"
    strategy, grid = federate(estimator(n_rounds=3), log_json=log)
    at_round(1, lambda grid: shutil.rmtree(log.parent))(grid)
    strategy.start(grid)
    assert len(strategy.model_.history_) == 3
    warned = [one.getMessage() for one in caplog.records if "log_json" in one.getMessage()]
    assert warned == [
        f"round {t} is not in log_json={log}: No such file or directory" for t in (1, 2)
    ]
