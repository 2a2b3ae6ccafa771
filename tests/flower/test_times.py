"""Measured seconds, deadlines and goals of reports, on nodes that reply after a delay.

The server looks for replies after 0, 0.1, 0.2 ... seconds, and less often after 2 seconds.
"""

from itertools import count

import numpy as np
import pandas as pd
import pytest
import torch
from local_grid import requests
from mishaps import PowerCut, at_round, estimator, node_of, reply
from sklearn.base import clone

from skfed import FedAlignSelector, PowerOfChoice, RandomSelector
from skfed.aggregation import Scaffold
from skfed.availability import TraceAvailability
from skfed.devices import TraceDevices
from skfed.flower import _client
from skfed.metrics import client_exchanges
from skfed.selection import BaseSelector, Cohort

TIMES = ["seconds", "elapsed", "slowest"]


@pytest.fixture
def measure(federate):
    """Return a function that runs an estimator over nodes with delays, by client and message."""

    def run(model, delays, watch=lambda grid: None, **params):
        strategy, grid = federate(model, **params)
        for name, of_kinds in delays.items():
            node_of(grid, name).delays.update(of_kinds)
        watch(grid)
        strategy.start(grid)
        return strategy.model_, grid

    return run


def test_an_exchange_takes_as_long_as_its_last_answer(measure):
    delays = {"b": {"train": 0.45}, "e": {"train": 0.25, "moments": 0.15}}
    model, _ = measure(estimator(estimator=None, n_rounds=3), delays)
    history = model.history_
    assert history["seconds"].tolist() == pytest.approx([0.2 + 0.5, 0.5, 0.5])
    assert history["elapsed"].tolist() == pytest.approx([0.7, 1.2, 1.7])
    assert history["slowest"].tolist() == [("b", "e"), ("b",), ("b",)]
    records = client_exchanges(model)
    assert set(records["outcome"]) == {"answered"}
    first = records[records["kind"] == "statistics"].set_index("client")
    assert first["seconds"].to_dict() == pytest.approx(dict.fromkeys("abcdf", 0.0) | {"e": 0.2})
    second = records[records["round"] == 1].set_index("client")
    assert second["seconds"].to_dict() == pytest.approx(
        dict.fromkeys("acdf", 0.0) | {"b": 0.5, "e": 0.3}
    )


def test_a_round_is_the_sum_of_its_exchanges(measure):
    """Two polls and a training; c is slow in the second poll, a in the first and the training."""
    aligned = FedAlignSelector(eps=np.inf, warmup=0)
    delays = {"a": {"poll": 0.35, "train": 0.15}, "c": {"poll": 0.75}}
    model, _ = measure(estimator(selector=aligned, priority=["a", "b"], n_rounds=2), delays)
    assert model.history_["seconds"].tolist() == pytest.approx([0.4 + 0.8 + 0.2] * 2)
    assert model.history_["slowest"].tolist() == [("c",)] * 2
    records = client_exchanges(model)
    by_round = records.groupby(["round", "exchange"])["duration"].first().groupby("round").sum()
    assert by_round.tolist() == model.history_["seconds"].tolist()


def test_long_waits_look_less_often(measure):
    model, _ = measure(estimator(n_rounds=1), {"b": {"train": 100.0}}, timeout=600)
    assert 100 <= model.history_["seconds"][0] <= 105


SLOW = {"b": {"poll": 0.1, "train": 0.9}, "e": {"poll": 0.1, "train": 0.6}}


@pytest.mark.parametrize(
    ("limit", "seconds", "late", "aggregator"),
    [
        ({"deadline": 0.7}, 0.7, ("b",), None),
        ({"deadline": 0.55}, 0.55, ("b", "e"), Scaffold()),
        ({"report_goal": 4}, 0.0, ("b", "e"), None),
        ({"report_goal": 5}, 0.6, ("b",), Scaffold()),
        ({"report_goal": 5, "deadline": 0.3}, 0.3, ("b", "e"), None),
    ],
    ids=str,
)
def test_who_is_late_is_lost_as_in_the_simulation(limit, seconds, late, aggregator, measure, blobs):
    X, y, clients = blobs
    given = {"n_rounds": 3, "engine": "loop", "aggregator": aggregator}
    model, _ = measure(estimator(**given, **limit), SLOW)
    history = model.history_
    assert [tuple(sorted(failed)) for failed in history["failed"]] == [late] * 3
    assert history["causes"].tolist() == [("late",) * len(late)] * 3
    assert history["seconds"].tolist() == pytest.approx([seconds] * 3)
    factor = 1 if aggregator is None else 2
    assert history["models_down"].tolist() == [6 * factor] * 3  # the late are charged
    assert history["models_up"].tolist() == [(6 - len(late)) * factor] * 3
    away = TraceAvailability([[name not in late for name in "abcdef"]])
    simulated = estimator(**given, availability=away).fit(X, y, clients=clients)
    states = (m.net_.module_.state_dict().values() for m in (model, simulated))
    for found, expected in zip(*states, strict=True):
        torch.testing.assert_close(found, expected)
    counts = ["cohort", "samples_trained", "n_aggregated", "train_loss", "bytes_up"]
    pd.testing.assert_frame_equal(history[counts], simulated.history_[counts])


def test_late_replies_are_never_taken_for_those_of_another_exchange(measure):
    """Those of b arrive in the next round, or in the one after it."""
    model, grid = measure(estimator(n_rounds=4, deadline=0.6), {"b": {"train": 0.95}})
    assert model.history_["failed"].tolist() == [("b",)] * 4
    assert grid.time.now > 1000 + 3 * 0.6
    taken = {m.metadata.src_node_id for m in grid.received if "state-0" in m.content}
    assert len(taken) == 5
    b = next(i for i, node in grid.nodes.items() if node.config["client-name"] == "b")
    assert b not in taken


class Watches(BaseSelector):
    """Chooses all, and notes what each client has reported, and its seconds."""

    def __init__(self, seen):
        self.seen = seen

    def _select(self, round):
        self.seen.append((round.reported.copy(), round.seconds.copy()))
        return Cohort.mean(np.arange(6))


def test_what_a_late_client_had_reported_stays(measure):
    selector = Watches([])

    def slow_down(grid):
        at_round(1, lambda grid: node_of(grid, "c").delays.update(train=2.0))(grid)
        at_round(2, lambda grid: node_of(grid, "c").delays.clear())(grid)

    model = estimator(selector=selector, n_rounds=4, deadline=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skfed.flower._strategy.clone", lambda one: one)  # to see what is noted
        model, _ = measure(model, {"d": {"train": 0.25}}, slow_down)
    assert model.history_["failed"].tolist() == [(), ("c",), (), ()]
    (first, nothing), (second, known), (third, waited), (fourth, again) = selector.seen
    assert np.isinf(first).all() and np.isnan(nothing).all()
    assert third[2] == second[2] and fourth[2] != second[2]
    assert (third[[0, 1, 3, 4, 5]] != second[[0, 1, 3, 4, 5]]).all()
    np.testing.assert_allclose(known, [0, 0, 0, 0.3, 0, 0])
    np.testing.assert_allclose(waited, [0, 0, 0.5, 0.3, 0, 0])
    np.testing.assert_allclose(again, known)


def test_who_is_late_in_a_poll_is_not_trained(measure):
    selector = PowerOfChoice(d=6, clients_per_round=6)
    delays = {"a": {"poll": 1.0}}
    model, grid = measure(estimator(selector=selector, n_rounds=2, deadline=0.3), delays)
    history = model.history_
    assert history["failed"].tolist() == [("a",)] * 2
    assert history["seconds"].tolist() == pytest.approx([0.3] * 2)  # the others train at once
    assert history["scalars_up"].tolist() == history["models_up"].tolist() == [5, 5]
    assert {request["client"] for request in requests(grid.sent, "train")} == set("bcdef")
    outcomes = client_exchanges(model).groupby("kind")["outcome"].agg(set).to_dict()
    assert outcomes == {"poll": {"answered", "late"}, "training": {"answered"}}


def test_copies_of_a_client_count_once_for_the_goal(measure):
    class Twice(BaseSelector):
        def _select(self, round):
            return Cohort.mean(np.array([0, 0, 1, 2]))

    delays = {"a": {"train": 0.15}, "b": {"train": 0.45}, "c": {"train": 0.75}}
    model, _ = measure(estimator(selector=Twice(), report_goal=2, n_rounds=2), delays)
    history = model.history_
    assert history["cohort"].tolist() == [("a", "a", "b")] * 2
    assert history["failed"].tolist() == [("c",)] * 2
    assert history["seconds"].tolist() == pytest.approx([0.5] * 2)


def test_a_deadline_that_nobody_meets_keeps_the_model(measure):
    model = estimator(n_rounds=2, deadline=0.2, local_epochs=3)
    delays = {name: {"train": 1.0} for name in "abcdef"}
    with pytest.warns(UserWarning, match="in none of the 2 rounds has one trained by deadline=0.2"):
        model, _ = measure(model, delays)
    assert model.history_["elapsed"].tolist() == pytest.approx([0.2, 0.4])
    assert model.history_["slowest"].tolist() == [tuple("abcdef")] * 2
    assert model.history_["n_trained"].tolist() == [0, 0]


def test_without_a_limit_silence_lasts_until_the_timeout_and_is_a_failure(measure):
    def hang(grid):
        node_of(grid, "b").answer = lambda message: None

    model, _ = measure(estimator(n_rounds=2), {}, lambda grid: at_round(0, hang)(grid), timeout=3)
    history = model.history_
    assert history["seconds"].tolist() == pytest.approx([3, 3])
    assert history["causes"].tolist() == [("TimeoutError: no answer",)] * 2
    assert history["slowest"].tolist() == [tuple("acdef")] * 2
    records = client_exchanges(model)
    assert records["seconds"][records["client"] == "b"].isna().all()


def test_a_node_that_is_gone_is_no_answer_and_not_waited_for(measure):
    def stop(grid):
        node_of(grid, "b").online = False

    model, _ = measure(
        estimator(n_rounds=1, report_goal=5),
        {"c": {"train": 0.35}, "d": {"train": 0.65}},
        at_round(0, stop),
    )
    row = model.history_.iloc[0]
    assert (row["failed"], row["cohort"]) == (("b",), tuple("acdef"))
    assert row["seconds"] == pytest.approx(0.7)


def test_a_failure_is_an_answer(measure):
    def spoil(grid):
        node_of(grid, "a").answer = lambda message: reply(message)

    model, _ = measure(estimator(n_rounds=1, report_goal=5), SLOW, at_round(0, spoil))
    row = model.history_.iloc[0]
    assert set(row["failed"]) == {"a", "b"}
    assert row["seconds"] == pytest.approx(0.6)


def test_a_round_in_which_nobody_is_asked_takes_no_time(measure):
    trace = TraceAvailability([[1] * 6, [0] * 6, [1] * 6])
    model, _ = measure(estimator(n_rounds=3, availability=trace), {"b": {"train": 0.15}})
    assert model.history_["seconds"].tolist() == pytest.approx([0.2, 0, 0.2])
    assert model.history_["slowest"].tolist() == [("b",), (), ("b",)]


def test_elapsed_goes_on_in_a_continued_run(measure, tmp_path):
    delays = {"b": {"train": 0.35}}
    given = {"n_rounds": 4, "checkpoint": tmp_path, "deadline": 0.5}

    def cut(grid):
        raise PowerCut

    with pytest.raises(PowerCut):
        measure(estimator(**given), delays, at_round(2, cut))
    model, _ = measure(estimator(**given), {"b": {"train": 0.15}})
    assert model.history_["elapsed"].tolist() == pytest.approx([0.4, 0.8, 1.0, 1.2])
    assert client_exchanges(model)["start"].unique().tolist() == pytest.approx([0, 0.4, 0.8, 1.0])
    model.save(tmp_path / "model")
    loaded = estimator(**given).load(tmp_path / "model")
    pd.testing.assert_frame_equal(client_exchanges(loaded), client_exchanges(model))


@pytest.fixture
def computing(monkeypatch):
    """Let each computation of a client take 0.05 seconds."""
    looks = count()
    monkeypatch.setattr(_client, "perf_counter", lambda: 0.05 * next(looks))


def simulate(blobs, model, frame, **params):
    X, y, clients = blobs
    devices = TraceDevices(frame)
    return clone(model).set_params(devices=devices, **params).fit(X, y, clients=clients)


def test_a_simulation_begins_with_the_measured_times(measure, computing, blobs):
    """Two sites are slow, one of them only in the first round."""
    slow = {name: {"train": 0.2} for name in "acdf"} | {"b": {"train": 0.9}, "e": {"train": 1.3}}
    recovers = at_round(1, lambda grid: node_of(grid, "e").delays.update(train=0.6))
    model, _ = measure(estimator(n_rounds=3), slow, recovers)
    assert model.history_["seconds"].tolist() == pytest.approx([1.3, 0.9, 0.9])
    frame = client_exchanges(model)
    assert frame["computing"].tolist() == pytest.approx([0.05] * 18)
    simulated = simulate(blobs, model, frame)
    pd.testing.assert_frame_equal(simulated.history_[TIMES], model.history_[TIMES])
    assert simulated.history_["slowest"].tolist() == [("e",), ("b",), ("b",)]
    other = simulate(blobs, model, frame, local_epochs=3).history_
    # Three times the rows: 0.1 seconds more.
    assert other["seconds"].tolist() == pytest.approx([1.4, 1.0, 1.0])
    late = simulate(blobs, model, frame, deadline=1.0).history_
    assert late["failed"].tolist() == [("e",), (), ()]


def test_polls_and_trainings_of_a_round_are_one_speed(measure, computing, blobs):
    """A client takes as long in a round as measured; a poll's row counts as a third."""
    everyone = {name: {"poll": 0.4, "train": 0.8} for name in "abcdef"}
    selector = PowerOfChoice(d=6, clients_per_round=6)
    model, _ = measure(estimator(selector=selector, n_rounds=2), everyone)
    simulated = simulate(blobs, model, client_exchanges(model))
    assert model.history_["seconds"].tolist() == pytest.approx([1.2, 1.2])
    assert simulated.history_["seconds"].tolist() == pytest.approx([1.2, 1.2])


def test_silent_clients_are_as_fast_as_the_others(measure, computing, blobs):
    aligned = FedAlignSelector(eps=0.0, warmup=0)
    delays = {name: {"poll": 0.4, "train": 0.4} for name in "abcdef"}
    model, _ = measure(estimator(selector=aligned, priority=["a", "b"], n_rounds=3), delays)
    frame = client_exchanges(model)
    assert set(frame["outcome"]) == {"answered", "silent"}
    assert frame["computing"][frame["outcome"] == "silent"].isna().all()
    simulated = simulate(blobs, model, frame)
    pd.testing.assert_series_equal(simulated.history_["seconds"], model.history_["seconds"])


def test_copies_are_one_measurement(measure, computing, blobs):
    model, _ = measure(
        estimator(selector=RandomSelector(9), n_rounds=4),
        {name: {"train": 0.3} for name in "abcdef"},
    )
    frame = client_exchanges(model)
    assert frame.duplicated(["client", "round"]).any()
    simulated = simulate(blobs, model, frame)
    pd.testing.assert_frame_equal(simulated.history_[TIMES], model.history_[TIMES])


@pytest.mark.filterwarnings("ignore:.*never replied to a training in time")
def test_a_client_that_never_replied_has_no_times(measure, computing, blobs):
    delays = {name: {"train": 0.3} for name in "acdef"} | {"b": {"train": 9.0}}
    model, _ = measure(estimator(n_rounds=2, deadline=0.5), delays)
    frame = client_exchanges(model)
    with pytest.raises(ValueError, match=r"no row for 1 client.*'b'.*those of replies count"):
        simulate(blobs, model, frame)
    with pytest.raises(ValueError, match="computing has no seconds of clients, which only"):
        simulate(blobs, model, frame.assign(computing=np.nan))
