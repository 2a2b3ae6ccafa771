"""The seconds of rounds, worked out by hand; who is late, and what is lost with it.

As in test_ledger.py: four clients of 4 rows, a model of 16 bytes, scalars of 8. Batches of 2 rows,
3 local steps: 6 rows a training. The devices take 1 s for a model down and 1/2 s for a scalar, half
of that up, and 1/4 s of latency. A training of 6 rows takes a 1 s, b 2 s, c 3 s and d 6 s.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from clocked import CLIENTS, DEVICES, DRAWN, POW, RATES, Twice, X, Y, estimator, fit
from joblib import parallel_config
from rules import BY_SECONDS, COMPARED, deadline_of
from sklearn.base import clone
from torch import nn

from skfed import (
    ActiveFLSelector,
    FedAlignSelector,
    FederatedRegressor,
    PowerOfChoice,
    RandomSelector,
)
from skfed.aggregation import CoordinateMedian, NormClipping, Scaffold, ServerOptimizer, TrimmedMean
from skfed.availability import Dropout, IndependentAvailability, TraceAvailability
from skfed.devices import BaseDevices, ConstantDevices, LognormalDevices, Speeds, TraceDevices
from skfed.privacy import GaussianMechanism
from skfed.selection import BaseSelector, Cohort
from skfed.server import _rounds

TIMES = ["seconds", "elapsed", "slowest"]

# Latency, model down, 6 rows, model up; and without the model, which a poll has brought.
TRAINED = {k: 0.25 + 1 + 6 / rate + 0.5 for k, rate in RATES.items()}
TRAINED_AFTER_POLL = {k: seconds - 1 for k, seconds in TRAINED.items()}
# Latency, model down, 4 rows at a third, scalar up.
POLLED = {k: 0.25 + 1 + 4 / 3 / rate + 0.25 for k, rate in RATES.items()}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.net_.module_.parameters()])


def times(history):
    assert history["elapsed"].tolist() == history["seconds"].cumsum().tolist()
    return history["seconds"].tolist(), history["slowest"].tolist()


def test_seconds_of_a_training_and_of_a_poll():
    assert TRAINED == {"a": 2.75, "b": 3.75, "c": 4.75, "d": 7.75}
    assert POLLED["a"] == pytest.approx(1.5 + 2 / 9)
    assert POLLED["d"] == pytest.approx(1.5 + 4 / 3)


def test_three_rounds_of_random_selection():
    history = fit(selector=RandomSelector(2, "uniform", False)).history_
    assert len(set(history["cohort"])) > 1
    for row in history.itertuples():
        last = max(row.cohort)  # clients are slower in the order of their names
        assert (row.seconds, row.slowest) == (TRAINED[last], (last,))
    times(history)


@pytest.mark.parametrize(("loss", "rows"), [("full", 4), ("batch", 2)])
def test_three_rounds_of_pow_d_and_cpow_d_are_a_poll_and_a_training(loss, rows):
    history = fit(selector=PowerOfChoice(**POW, loss=loss)).history_
    poll = {k: 1.5 + rows / 3 / rate for k, rate in RATES.items()}
    for row in history.itertuples():
        assert row.seconds == pytest.approx(poll["d"] + TRAINED_AFTER_POLL[max(row.cohort)])
        both = {k: poll[k] + TRAINED_AFTER_POLL[k] * (k in row.cohort) for k in "abcd"}
        assert row.slowest == (max(both, key=both.get),)
    times(history)


@pytest.mark.parametrize(
    "selector",
    [PowerOfChoice(**POW, loss="reported"), ActiveFLSelector(2, ignore_priority=True)],
)
def test_three_rounds_without_a_poll_are_a_training(selector):
    history = fit(selector=selector).history_
    assert history["seconds"].tolist() == [TRAINED[max(cohort)] for cohort in history["cohort"]]


def test_three_rounds_of_fedalign_are_a_training_then_two_polls_and_a_training():
    """After the warm-up a and b are polled, then c and d, which are sent the bound too."""
    selector = FedAlignSelector(eps=np.inf, warmup=1)
    seconds, slowest = times(fit(selector=selector, priority=["a", "b"]).history_)
    both = POLLED["b"] + (0.5 + POLLED["d"]) + TRAINED_AFTER_POLL["d"]
    assert seconds == pytest.approx([3.75, both, both])
    assert both == pytest.approx(1.5 + 4 / 9 + 2 + 4 / 3 + 6.75)
    assert slowest == [("b",), ("d",), ("d",)]


def test_silent_clients_send_nothing_up():
    """At first c and d are on the bound and answer; later they are above it."""
    selector = FedAlignSelector(eps=0, warmup=0)
    seconds, slowest = times(fit(selector=selector, priority=["a", "b"]).history_)
    polls = POLLED["b"] + 0.5 + POLLED["d"]
    assert seconds == pytest.approx([polls + 2.75, polls - 0.25 + 2.75, polls - 0.25 + 2.75])
    assert slowest == [("b",)] * 3  # in one poll and the training: 4.69 s


def test_what_clients_send_before_round_0_is_in_its_seconds():
    """The default net takes three moments of the column and two shares of classes: 40 bytes up."""
    history = estimator(n_rounds=2).set_params(estimator=None).fit(X, Y, clients=CLIENTS).history_
    # 4 float32, at first with the layer's mean and deviation; batches of 16 rows, so that a step
    # has 4.
    first, later = (0.25 + down / 16 + 12 / 1 + 16 / 32 for down in (24, 16))
    assert history["seconds"].tolist() == [0.25 + 40 / 32 + first, later]


COPIES = 0.25 + 1 + 2 * 1 + 2 * 0.5  # of a: a model down, two trainings, two models up


def test_copies_of_a_client_share_its_device():
    history = fit(selector=Twice()).history_
    assert times(history) == ([COPIES] * 3, [("a",)] * 3)


def test_ties_are_all_slowest():
    history = fit(devices=ConstantDevices(6, 16, 32)).history_
    assert times(history) == ([2.5] * 3, [tuple("abcd")] * 3)


def test_unavailable_clients_take_no_time():
    trace = TraceAvailability([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    for deadline in (None, 5.0):
        history = fit(availability=trace, deadline=deadline).history_
        assert times(history) == ([3.75, 0, 2.75], [("b",), (), ("a",)])


def test_a_trace_of_devices_in_a_round_without_clients():
    everybody_away = TraceAvailability([[0, 0, 0, 0]])
    history = fit(availability=everybody_away, devices=slow_in(0, "a"), report_goal=0.5).history_
    assert times(history) == ([0] * 3, [()] * 3)


def test_who_does_not_reply_is_waited_for_until_the_deadline():
    history = fit(availability=Dropout(1.0)).history_
    assert times(history) == ([0, 0, 0], [(), (), ()])
    history = fit(availability=Dropout(1.0), deadline=5.0).history_
    assert times(history) == ([5, 5, 5], [(), (), ()])
    assert history["causes"].tolist() == [("no answer",) * 4] * 3


class Refuses(nn.Linear):
    """Raises on the rows of client d."""

    def __init__(self):
        super().__init__(1, 2)

    def forward(self, rows):
        if (rows == 7).any():
            raise RuntimeError("out of memory")
        return super().forward(rows)


def test_a_client_that_fails_at_once_takes_latency_and_download():
    rows = X.copy()
    rows[CLIENTS == "d"] = 7
    model = estimator().set_params(estimator__module=Refuses, engine="loop")
    for name in ("module__n_features", "module__n_classes"):
        delattr(model.estimator, name)
    history = model.fit(rows, Y, clients=CLIENTS).history_
    assert history["failed"].tolist() == [("d",)] * 3
    assert times(history) == ([4.75] * 3, [("c",)] * 3)  # d: 1.25
    history = model.set_params(report_goal=4, deadline=8.0).fit(rows, Y, clients=CLIENTS).history_
    assert times(history)[0] == [4.75] * 3  # a failure is an answer
    only_d = RandomSelector(1.0, "uniform", False)
    trace = TraceAvailability([[1, 0, 0, 0], [0, 0, 0, 1]])
    model.set_params(selector=only_d, availability=trace, n_rounds=2)
    assert model.fit(rows, Y, clients=CLIENTS).history_["seconds"].tolist() == [2.75, 1.25]


def test_late_rounds_are_warned_of_after_earlier_ones_that_worked():
    model = fit(warm_start=True).set_params(deadline=2.0, n_rounds=8)
    with pytest.warns(UserWarning, match=r"in none of the 5 rounds .* deadline=2.0"):
        model.fit(X, Y, clients=CLIENTS)


@pytest.mark.parametrize(
    "selector",
    [PowerOfChoice(**POW, loss="reported"), ActiveFLSelector(2, ignore_priority=True)],
)
@pytest.mark.parametrize("limit", [{"deadline": 5.0}, {"report_goal": 1}])
def test_a_client_that_is_chosen_again_and_again_and_always_late_is_named(selector, limit):
    """Client d never reports a loss, so its place in the ranking stays the first."""
    with pytest.warns(UserWarning, match=r"client\(s\), such as 'd', late in .* rounds") as caught:
        model = fit(selector=selector, n_rounds=12, **limit)
    assert len(caught) == 1
    n_late = sum("d" in failed for failed in model.history_["failed"])
    assert n_late >= 5 and f"late in {n_late} of 12 rounds" in str(caught[0].message)


def test_a_client_that_is_late_at_times_is_not_warned_of():
    history = fit(devices=slow_in(1, "a"), deadline=8.0, n_rounds=15).history_
    assert history["failed"].tolist() == [(), ("a",), ()] * 5


def test_the_error_of_the_only_client_in_time_says_that_others_were_late():
    rows = X.copy()
    rows[CLIENTS == "d"] = 7
    slow = ConstantDevices({"a": 0.1, "b": 0.1, "c": 0.1, "d": 1000}, 16, 32)
    model = estimator(devices=slow, deadline=5.0, engine="loop")
    model.set_params(estimator__module=Refuses)
    for name in ("module__n_features", "module__n_classes"):
        delattr(model.estimator, name)
    with pytest.raises(RuntimeError, match="out of memory") as error:
        model.fit(rows, Y, clients=CLIENTS)
    assert any("client 'd'; every client failed or was late" in n for n in error.value.__notes__)


def test_a_client_that_fails_is_not_taken_for_a_fast_one():
    seen = []

    class Looking(RandomSelector):
        def _select(self, round):
            seen.append(round.seconds.tolist())
            return super()._select(round)

    rows = X.copy()
    rows[CLIENTS == "d"] = 7
    model = estimator(selector=Looking(1.0, "uniform", False), n_rounds=2, engine="loop")
    model.set_params(estimator__module=Refuses)
    for name in ("module__n_features", "module__n_classes"):
        delattr(model.estimator, name)
    model.fit(rows, Y, clients=CLIENTS)
    np.testing.assert_array_equal(seen[1], [2.75, 3.75, 4.75, np.nan])


def test_elapsed_goes_on_after_rounds_without_devices():
    model = fit(n_rounds=2, warm_start=True)
    model.set_params(devices=None, n_rounds=3).fit(X, Y, clients=CLIENTS)
    model.set_params(devices=DEVICES, n_rounds=4).fit(X, Y, clients=CLIENTS)
    np.testing.assert_array_equal(model.history_["elapsed"], [7.75, 15.5, np.nan, 23.25])


def test_members_without_weight_send_nothing_where_the_others_are_late():
    class WeightOnLast(BaseSelector):
        def _select(self, round):
            return Cohort(np.array([0, 1, 2]), np.array([0.0, 0.0, 1.0]))

    history = fit(selector=WeightOnLast(), report_goal=2, n_rounds=1).history_
    assert history[["models_down", "models_up", "n_trained"]].to_numpy().tolist() == [[3, 0, 0]]


# Without devices, and with equal ones


def test_without_devices_there_is_no_simulated_time():
    history = fit(devices=None).history_
    assert not set(TIMES) & set(history)
    with pytest.raises(ValueError, match=r"deadline=3.0 needs devices.*skfed.devices"):
        fit(devices=None, deadline=3.0)
    with pytest.raises(ValueError, match=r"report_goal=3 needs devices.*skfed.devices"):
        fit(devices=None, report_goal=3)


@pytest.mark.parametrize(
    "selector",
    [
        RandomSelector(3, ignore_priority=True),
        PowerOfChoice(**POW),
        FedAlignSelector(eps=0.1, warmup=0),
        FedAlignSelector(eps=0.5, warmup=0, participation=0.5),
        ActiveFLSelector(2, ignore_priority=True),
        *COMPARED,
    ],
)
@pytest.mark.parametrize("devices", [ConstantDevices(1, 1, 1), LognormalDevices(1, 1, 1, jitter=1)])
def test_with_devices_and_no_deadline_models_and_ledgers_are_as_without(selector, devices):
    n_rounds = 1 if selector in BY_SECONDS else 4  # until seconds are known
    params = {"selector": selector, "priority": ["a", "b"], "n_rounds": n_rounds}
    timed, plain = fit(devices=devices, **params), fit(devices=None, **params)
    assert torch.equal(weights(timed), weights(plain))
    columns = [c for c in plain.history_ if not c.endswith("_seconds")]
    pd.testing.assert_frame_equal(timed.history_[columns], plain.history_[columns])


# Deadlines


def test_a_late_client_is_charged_for_what_was_sent_and_its_update_lost():
    model = fit(deadline=5.0, n_rounds=2)
    row = model.history_.iloc[1]
    assert (row["failed"], row["causes"], row["n_failed"]) == (("d",), ("late",), 1)
    assert row["cohort"] == ("a", "b", "c")
    expected = {
        "models_down": 4,
        "models_up": 3,
        "bytes_down": 64,
        "bytes_up": 48,
        "samples_trained": 18,
        "n_trained": 3,
        "n_aggregated": 3,
        "seconds": 5.0,
        "elapsed": 10.0,
    }
    assert row[list(expected)].to_dict() == expected
    assert row["slowest"] == ("d",)
    without = fit(availability=TraceAvailability([[1, 1, 1, 0]]), n_rounds=2)
    torch.testing.assert_close(weights(model), weights(without))


def test_at_the_deadline_is_in_time():
    history = fit(deadline=7.75).history_
    assert history["n_failed"].tolist() == [0, 0, 0]
    assert times(history)[0] == [7.75] * 3


def test_a_deadline_that_nobody_meets_keeps_the_model_and_moves_the_clock():
    with pytest.warns(UserWarning, match=r"in none of the 3 rounds .* deadline=2.0: raise it"):
        model = fit(deadline=2.0)
    assert not weights(model).any()
    history = model.history_
    assert history["failed"].tolist() == [tuple("abcd")] * 3
    assert history["models_down"].tolist() == [4] * 3
    assert history["models_up"].tolist() == history["samples_trained"].tolist() == [0] * 3
    assert history["train_loss"].isna().all()
    assert times(history) == ([2.0] * 3, [("d",)] * 3)


def test_a_poll_has_a_deadline_too_and_who_is_late_in_it_does_not_train():
    """d is late in the poll, at 2.83 s; c in the training, at 3.75 s, if it is chosen."""
    history = fit(selector=PowerOfChoice(**POW), deadline=2.8).history_
    for row in history.itertuples():
        chosen = row.n_aggregated + row.n_failed - 1
        assert (chosen, row.failed[0]) == (2, "d")
        assert sorted(row.polled) == list("abcd")
        assert (row.scalars_up, row.samples_evaluated, row.models_down) == (3, 12, 4)
        assert "c" not in row.cohort and set(row.causes) == {"late"}
        ended = 2.8 if "c" in row.failed else TRAINED_AFTER_POLL[max(row.cohort)]
        assert row.seconds == pytest.approx(2.8 + ended)
        assert np.isnan(row.objective)  # of all priority clients
    assert any("c" in failed for failed in history["failed"])


def test_to_be_late_is_no_error_and_sends_nothing():
    """Client d is late in each poll, and so sends no loss under noise."""
    noise = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
    selector = PowerOfChoice(**POW)
    model = fit(selector=selector, deadline=2.8, on_client_error="raise", loss_privacy=noise)
    assert all(failed[0] == "d" for failed in model.history_["failed"])
    n_losses = {k: n.get(("loss", 1.0), 0) for k, n in model._server.messages.items()}
    assert len([n for n in n_losses.values() if n >= 3]) == 3  # a, b and c, in each of 3 rounds
    assert sum(n_losses.values()) == 9 + model.history_["n_trained"].sum()


class Watches(BaseSelector):
    """Notes what is known of the clients, and chooses all."""

    seen = []

    def _select(self, round):
        self.seen.append((round.reported.copy(), round.seconds.copy()))
        return Cohort.by_size(np.arange(4), round.sizes)


@pytest.fixture
def seen():
    Watches.seen.clear()
    return Watches.seen


def slow_in(t, client):
    """Return the devices as a trace of three rounds, where one client is slow in one."""
    rows = [
        {"client": k, "round": i, "rows_per_second": rate / (1 + 99 * (i == t and k == client))}
        for i in range(3)
        for k, rate in RATES.items()
    ]
    others = {"bytes_down_per_second": 16, "bytes_up_per_second": 32, "latency": 0.25}
    return TraceDevices(pd.DataFrame(rows).assign(**others))


def test_a_late_client_keeps_what_it_reported_and_was_waited_for(seen):
    model = fit(selector=Watches(), devices=slow_in(1, "b"), deadline=9.0)
    assert times(model.history_) == ([7.75, 9.0, 7.75], [("d",), ("b",), ("d",)])
    losses, seconds = zip(*seen, strict=True)
    assert np.isinf(losses[0]).all() and np.isnan(seconds[0]).all()
    assert seconds[1].tolist() == list(TRAINED.values())
    assert losses[2][1] == losses[1][1]
    assert (losses[2][[0, 2, 3]] != losses[1][[0, 2, 3]]).all()
    assert seconds[2].tolist() == [2.75, 9.0, 4.75, 7.75]


def test_without_devices_no_client_has_seconds(seen):
    fit(selector=Watches(), devices=None)
    assert all(np.isnan(seconds).all() for _, seconds in seen)


# A goal of reports


@pytest.mark.parametrize("goal", [2, 0.5, 0.7])
def test_with_enough_reports_the_round_ends_and_the_others_are_late(goal):
    model = fit(report_goal=goal, n_rounds=2)
    assert times(model.history_) == ([3.75] * 2, [("d",)] * 2)
    row = model.history_.iloc[1]
    assert (row["cohort"], row["failed"], row["causes"]) == (("a", "b"), ("c", "d"), ("late",) * 2)
    assert (row["models_down"], row["models_up"], row["samples_trained"]) == (4, 2, 12)
    without = fit(availability=TraceAvailability([[1, 1, 0, 0]]), n_rounds=2)
    torch.testing.assert_close(weights(model), weights(without))


@pytest.mark.parametrize("goal", [4, 1.0, 9])
def test_a_goal_of_all_or_more_waits_for_all(goal):
    assert times(fit(report_goal=goal).history_)[0] == [7.75] * 3


def test_all_that_answer_at_the_end_count():
    history = fit(devices=ConstantDevices(6, 16, 32), report_goal=1).history_
    assert history["n_aggregated"].tolist() == [4] * 3


def test_a_goal_and_copies_of_a_client():
    one = fit(selector=Twice(), report_goal=1).history_
    assert (one["cohort"][0], one["failed"][0], one["seconds"][0]) == (("b",), ("a",), 3.75)
    assert (one["models_down"][0], one["models_up"][0], one["n_failed"][0]) == (2, 1, 1)
    two = fit(selector=Twice(), report_goal=2).history_
    assert (two["cohort"][0], two["failed"][0], two["seconds"][0]) == (tuple("aab"), (), COPIES)


def test_the_deadline_may_come_before_the_goal():
    history = fit(report_goal=3, deadline=4.0).history_
    assert times(history)[0] == [4.0] * 3
    assert history["cohort"].tolist() == [("a", "b")] * 3
    assert times(fit(report_goal=2, deadline=4.0).history_)[0] == [3.75] * 3


@pytest.mark.filterwarnings("ignore:the fit ends with")  # half of the labels are wrong
def test_who_does_not_reply_does_not_count_for_the_goal():
    history = fit(report_goal=3, availability=Dropout(0.5), n_rounds=20).history_
    for row in history.itertuples():
        away = {k for k, cause in zip(row.failed, row.causes, strict=True) if cause != "late"}
        replying = [k for k in "abcd" if k not in away]
        assert list(row.cohort) == replying[:3]
        assert row.seconds == max([0, *(TRAINED[k] for k in row.cohort)])


def test_too_few_reports_keep_the_model():
    model = fit(report_goal=2, min_clients=3)
    assert not weights(model).any()


# With all else

AGGREGATORS = [CoordinateMedian(), TrimmedMean(0.25), NormClipping(1.0), Scaffold()]


@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=repr)
def test_every_aggregator_leaves_out_the_late(aggregator):
    devices = clone(DEVICES).set_params(rows_per_second=RATES | {"d": 0.1})
    late = fit(aggregator=aggregator, deadline=40.0, devices=devices)
    without = fit(aggregator=aggregator, availability=TraceAvailability([[1, 1, 1, 0]]))
    assert late.history_["failed"].tolist() == [("d",)] * 3
    torch.testing.assert_close(weights(late), weights(without))


def test_variates_of_the_late_do_not_move():
    """SCAFFOLD sends twice as many models: a training of a takes 0.25 + 2 + 1 + 1 s, d 9.25 s."""
    late = fit(aggregator=Scaffold(), deadline=8.0)
    assert times(late.history_)[0] == [8.0] * 3
    assert late.history_["models_down"].tolist() == [8] * 3
    assert late.history_["models_up"].tolist() == [6] * 3
    without = fit(aggregator=Scaffold(), availability=TraceAvailability([[1, 1, 1, 0]]))
    variates = [model._server.variates for model in (late, without)]
    assert len(variates[0]) == 3
    torch.testing.assert_close(*variates)
    torch.testing.assert_close(late._server.variate, without._server.variate)


@pytest.mark.filterwarnings("ignore:.*never replied to a training in time")
@pytest.mark.parametrize(
    "selector",
    [
        RandomSelector(3, ignore_priority=True),
        PowerOfChoice(**POW),
        PowerOfChoice(**POW, loss="reported"),
        FedAlignSelector(eps=1.0, warmup=0),
        FedAlignSelector(eps=2.0, warmup=0, participation=0.5, match="accuracy"),
        ActiveFLSelector(2, ignore_priority=True),
        *COMPARED,
    ],
)
@pytest.mark.parametrize("availability", [IndependentAvailability(0.6), Dropout(0.4)])
def test_with_every_selector_and_availability(selector, availability, monkeypatch):
    """Each exchange has its seconds, and the sums are the history's."""
    recorded, deadline = [], deadline_of(selector, 5.0)
    make_row = _rounds.make_row
    monkeypatch.setattr(
        _rounds,
        "make_row",
        lambda **given: recorded.append(given["exchanges"]) or make_row(**given),
    )
    model = fit(
        selector=selector,
        availability=availability,
        priority=["a", "b"],
        devices=LognormalDevices(3, 16, 32, 0.25, jitter=0.5),
        deadline=deadline,
        report_goal=0.8,
        n_rounds=12,
        server_optimizer=ServerOptimizer(torch.optim.SGD, lr=0.5),
    )
    history = model.history_
    times(history)
    assert "late" in {cause for causes in history["causes"] for cause in causes}
    for row, exchanges in zip(history.itertuples(), recorded, strict=True):
        assert row.seconds == sum(e.duration for e in exchanges)
        assert all(e.duration <= deadline for e in exchanges)
        assert row.n_failed == len(row.failed) == len(set(row.failed)) == len(row.causes)
        assert not set(row.failed) & set(row.cohort)
        counts = [16 * e.models_down.sum() + 8 * e.scalars_down.sum() for e in exchanges]
        assert row.bytes_down == sum(counts)


# The same bit for bit

KEPT = [*TIMES, "cohort", "failed", "causes", "polled", "bytes_up", "bytes_down"]


@pytest.mark.parametrize(
    "params", [{"n_jobs": 2}, {"engine": "stacked"}, {"engine": "loop", "n_jobs": 2}], ids=repr
)
def test_seconds_do_not_depend_on_jobs_or_engine(params):
    plain = fit(engine="loop", **DRAWN).history_
    assert len(set(plain["seconds"])) == 6
    with parallel_config(backend="loky" if params.get("engine") == "loop" else "threading"):
        pd.testing.assert_frame_equal(plain[KEPT], fit(**DRAWN | params).history_[KEPT])


class Quickest(BaseSelector):
    """Chooses those that have not trained, else the two of least last seconds."""

    def _select(self, round):
        order = np.argsort(np.nan_to_num(round.seconds, nan=-1.0), kind="stable")
        return Cohort.mean(order[:2])


@pytest.mark.parametrize("selector", [Quickest(), PowerOfChoice(**POW)])
def test_a_resumed_fit_has_the_seconds_of_one_that_was_not_interrupted(selector, tmp_path):
    params = DRAWN | {"selector": selector, "warm_start": True}
    whole = fit(**params)
    fit(**params | {"n_rounds": 3}, checkpoint=tmp_path)
    resumed = fit(**params, checkpoint=tmp_path)
    pd.testing.assert_frame_equal(whole.history_[KEPT], resumed.history_[KEPT])
    assert torch.equal(weights(whole), weights(resumed))
    whole.save(tmp_path / "model")
    loaded = estimator(**params).load(tmp_path / "model")
    one, other = (m.partial_fit(X, Y, clients=CLIENTS).history_ for m in (whole, loaded))
    pd.testing.assert_frame_equal(one[KEPT], other[KEPT])
    assert one["elapsed"].tolist() == one["seconds"].cumsum().tolist()


def test_devices_that_are_added_later_start_the_clock():
    model = fit(devices=None, warm_start=True)
    model.set_params(devices=DEVICES, n_rounds=5).fit(X, Y, clients=CLIENTS)
    assert model.history_["elapsed"][3:].tolist() == [7.75, 15.5]
    assert model.history_["elapsed"][:3].isna().all()


# Only who is asked is looked at


class Counts(BaseDevices):
    """Notes which clients are asked for."""

    asked = []

    def _speeds(self, federation, clients, round, streams, fixed_streams):
        self.asked.extend(clients.tolist())
        drawn = [rng.random() for rng in fixed_streams(clients)]
        return Speeds(1 + np.array(drawn), 16.0, 32.0, 0.0)


def test_speeds_are_drawn_for_who_is_asked_alone():
    Counts.asked.clear()
    n_clients = 5000
    rows = np.zeros((n_clients, 1), dtype=np.float32)
    y = np.arange(n_clients) % 2
    model = estimator(selector=PowerOfChoice(d=6, clients_per_round=2), devices=Counts())
    history = model.fit(rows, y, clients=np.arange(n_clients)).history_
    assert set(Counts.asked) == {k for polled in history["polled"] for k in polled}


# What selectors see


class Expects(BaseSelector):
    """Notes the expected seconds of all, then of all after a poll of the first two."""

    seen = []

    def _select(self, round):
        before = round.expected_seconds([3, 0])
        round.poll([0, 1])
        self.seen.append((before.tolist(), round.expected_seconds(np.arange(4)).tolist()))
        return Cohort.mean(np.arange(4))


@pytest.mark.parametrize(
    "devices",
    [
        DEVICES,
        LognormalDevices(
            *(1, 16, 32, 0.25), rows_sigma=0, bytes_down_sigma=0, bytes_up_sigma=0, jitter=1.0
        ),
    ],
)
def test_public_devices_tell_what_to_expect(devices):
    Expects.seen.clear()
    with pytest.raises(ValueError, match=r"expected_seconds needs devices.*public=True"):
        fit(selector=Expects(), devices=devices)
    model = fit(selector=Expects(), devices=clone(devices).set_params(public=True))
    rates = RATES if isinstance(devices, ConstantDevices) else dict.fromkeys("abcd", 1)
    trained = {k: 1.75 + 6 / rate for k, rate in rates.items()}
    expected = [trained["a"] - 1, trained["b"] - 1, trained["c"], trained["d"]]
    assert Expects.seen == [([trained["d"], trained["a"]], expected)] * 3
    if devices is DEVICES:
        assert model.history_["seconds"][0] == POLLED["b"] + TRAINED["d"]


# Parameters


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"deadline": 0}, "'deadline' parameter.*0"),
        ({"deadline": np.nan}, "'deadline' parameter.*nan"),
        ({"report_goal": 0}, "'report_goal' parameter.*0"),
        ({"report_goal": 1.5}, "'report_goal' parameter.*1.5"),
        ({"devices": 3}, "'devices' parameter.*3"),
        ({"deadline": 0.2}, "deadline=0.2 is below the latency of client 'a', 0.25 seconds"),
        ({"devices": ConstantDevices({"a": 1}, 1, 1)}, "rows_per_second lacks 3 client.*'b'"),
    ],
)
def test_bad_parameters(params, match):
    with pytest.raises(ValueError, match=match):
        fit(**params)


def test_the_regressor_has_a_clock_too():
    model = FederatedRegressor(devices=DEVICES, deadline=20.0, report_goal=0.5, n_rounds=2)
    history = model.fit(X, X[:, 0], clients=CLIENTS).history_
    assert history["n_failed"].tolist() == [2, 2]
    assert (history["seconds"] > 0).all()
