"""The ledger and the history are computed from records of exchanges alone."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from sklearn.base import clone
from torch import nn

from skfed import FederatedClassifier, RandomSelector
from skfed.aggregation import CoordinateMedian
from skfed.exchanges import (
    POLL,
    STATISTICS,
    TRAINING,
    Exchange,
    Message,
    Messages,
    ModelHolders,
    Outcome,
)
from skfed.history import make_row
from skfed.selection import Cohort
from skfed.server import _training
from skfed.server._training import members_to_aggregate, training_messages

NOTHING = Messages()


def exchange(kind, clients, messages=NOTHING, **columns):
    n = len(clients)
    given = {name: np.array(columns.pop(name, [0] * n)) for name in ("rows", "lacked")}
    outcomes = np.array(columns.pop("outcomes", [Outcome.OK] * n))
    return Exchange(
        kind=kind,
        messages=messages,
        clients=np.array(clients),
        outcomes=outcomes,
        replied=np.array(columns.pop("replied", [True] * n)),
        answers=np.full(n, np.nan),
        **given,
        **columns,
    )


def row(*exchanges, cohort=(), model_bytes=100):
    return make_row(
        round=0,
        exchanges=exchanges,
        model_bytes=model_bytes,
        names=lambda ks: tuple("abcdef"[k] for k in ks),
        cohort=np.array(cohort, dtype=int),
        objective=np.nan,
        train_loss=np.nan,
        validation={},
        lr=0.1,
        scheduled={},
        seconds={},
    )


def test_a_round_with_a_silent_a_failed_and_an_absent_client():
    """Worked out by hand: a, b, c are polled with a bound; b fails; c is silent; a, d, d train."""
    statistics = exchange(
        STATISTICS, [0, 1], Messages(up=Message(scalars={"mean": 6})), replied=[True, False]
    )
    polled = exchange(
        POLL,
        [0, 1, 2],
        Messages(Message(model=True, scalars={"bound": 1}), Message(scalars={"loss": 1})),
        outcomes=[Outcome.OK, Outcome.FAILED, Outcome.SILENT],
        rows=[10, 20, 30],
        lacked=[1, 1, 1],
        replied=[True, False, False],
        causes={1: ValueError("broken\nsecond line")},
    )
    trained = exchange(
        TRAINING,
        [0, 3, 3, 4],
        training_messages(with_variates=False),
        outcomes=[Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.AWAY],
        rows=[8, 16, 16, 0],
        lacked=[0, 1, 0, 1],
        replied=[True, True, True, False],
        causes={2: ValueError("not finite")},
    )
    found = row(statistics, polled, trained, cohort=[0, 3])
    assert (found["models_down"], found["models_up"]) == (5, 3)
    assert (found["scalars_down"], found["scalars_up"]) == (3, 7)
    assert (found["bytes_down"], found["bytes_up"]) == (524, 356)
    assert (found["samples_evaluated"], found["samples_trained"]) == (60, 40)
    counts = [found[f"n_{name}"] for name in ("polled", "trained", "aggregated", "failed")]
    assert counts == [3, 3, 2, 3]
    assert found["polled"] == ("a", "b", "c")
    assert found["failed"] == ("e", "b", "d")
    assert found["causes"] == ("no answer", "ValueError: broken", "ValueError: not finite")


def test_a_client_that_fails_twice_is_counted_once():
    polled = exchange(POLL, [1], outcomes=[Outcome.FAILED], causes={0: ValueError("first")})
    trained = exchange(TRAINING, [1], outcomes=[Outcome.FAILED], causes={0: ValueError("last")})
    found = row(polled, trained)
    assert (found["n_failed"], found["causes"]) == (1, ("ValueError: first",))


def test_a_model_is_sent_to_a_client_once_a_round():
    holders = ModelHolders(5)
    assert holders.lacking(np.array([3, 1])).tolist() == [1, 1]
    holders.note(np.array([3, 1]))
    assert holders.lacking(np.array([1, 2, 2, 0])).tolist() == [0, 1, 0, 1]


def test_variates_are_sent_to_a_client_once_and_sent_back_by_each_copy():
    trained = exchange(
        TRAINING, [0, 3, 3], training_messages(with_variates=True), lacked=[0, 1, 0], rows=[1, 1, 1]
    )
    assert trained.models_down.tolist() == [1, 2, 0]
    assert trained.models_up.tolist() == [2, 2, 2]
    assert trained.n_bytes(10)[0].tolist() == [10, 20, 0]


def test_tensors_that_differ_by_client_are_bytes_up_and_no_scalars():
    sent = {"values": np.array([3, 0, 12]), "counts": np.array([8, 0, 24])}
    messages = Messages(Message(tensors={"edges": 16}), Message(tensors={"rows": 1}))
    found = exchange(STATISTICS, [0, 1, 2], messages, tensors=sent, replied=[True, False, True])
    down, up = found.n_bytes(1000)
    assert (down.tolist(), up.tolist()) == ([16, 16, 16], [12, 0, 37])
    assert (row(found)["scalars_up"], row(found)["bytes_up"]) == (0, 49)


def test_an_exchange_does_not_change():
    settled = exchange(POLL, [1, 2])
    with pytest.raises(FrozenInstanceError):
        settled.rows = np.ones(2)
    for values in (settled.rows, settled.answers, settled.outcomes):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_the_aggregate_leaves_out_failed_members_and_all_if_too_few_remain():
    cohort = Cohort(np.array([0, 2, 4]), np.array([0.5, 0.3, 0.2]))
    finite = np.array([True, False, True])
    assert members_to_aggregate(cohort, finite, min_clients=2).tolist() == [True, False, True]
    assert not members_to_aggregate(cohort, finite, min_clients=3).any()


def test_copies_of_a_client_count_once_for_min_clients():
    cohort = Cohort.mean(np.array([1, 1, 2]))
    assert not members_to_aggregate(cohort, np.array([True, True, False]), min_clients=2).any()


def test_a_client_that_is_left_out_is_not_aggregated(blobs, monkeypatch):
    X, y, clients = blobs
    model = FederatedClassifier(
        nn.Linear(5, 3), aggregator=CoordinateMedian(), engine="loop", n_rounds=1, random_state=0
    )
    model.set_params(selector=RandomSelector(1.0, "uniform", False))
    rows = clients != "c"
    expected = clone(model).fit(X[rows], y[rows], clients=clients[rows])
    monkeypatch.setattr(_training, "members_to_aggregate", lambda cohort, *_: cohort.clients != 2)
    found = model.fit(X, y, clients=clients)
    assert found.history_["cohort"][0] == ("a", "b", "d", "e", "f")
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    with pytest.raises(ValueError, match=r"WeightedMean\(\) has added up models"):
        model.set_params(aggregator=None).fit(X, y, clients=clients)
