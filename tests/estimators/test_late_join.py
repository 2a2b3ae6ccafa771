"""Clients that join in a later round, and those that do not answer and are left alone."""

import numpy as np
import pandas as pd
import pytest

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed._federation import make_federation
from skfed.availability import BackOff, BaseAvailability, Dropout, LateJoin
from skfed.devices import TraceDevices
from skfed.selection import BaseSelector, Cohort


class Everybody(BaseSelector):
    """Chooses all in reach, and keeps what it has seen."""

    seen = None

    def _select(self, round):
        type(self).seen.append(round)
        return Cohort.mean(np.flatnonzero(round.available))


@pytest.fixture
def rounds():
    Everybody.seen = []
    return Everybody.seen


def fitted(blobs, availability, model=None, **params):
    X, y, clients = blobs
    params = {"n_rounds": 4, "random_state": 0, **params}
    model = FederatedClassifier() if model is None else model
    return model.set_params(availability=availability, **params).fit(X, y, clients=clients)


def test_until_it_joins_a_client_has_no_size_and_no_part_in_p_k(blobs, rounds):
    model = fitted(blobs, LateJoin({"b": 2, "f": 1}), selector=Everybody())
    sizes = [round.sizes.tolist() for round in rounds]
    assert sizes[0] == [10, 0, 15, 30, 25, 0]
    assert sizes[1] == [10, 0, 15, 30, 25, 40]
    assert sizes[2] == sizes[3] == [10, 20, 15, 30, 25, 40]
    assert rounds[0].fractions.tolist() == pytest.approx([1 / 8, 0, 3 / 16, 3 / 8, 5 / 16, 0])
    assert rounds[0].priority.tolist() == [True, False, True, True, True, False]
    assert rounds[0].ends.tolist() == [10, 10, 25, 55, 80, 80]
    history = model.history_
    assert history["not_joined"].tolist() == [("b", "f"), ("b",), (), ()]
    assert [set(cohort) for cohort in history["cohort"]] == [
        set("acde"),
        set("acdef"),
        set("abcdef"),
        set("abcdef"),
    ]


def test_before_round_0_only_those_who_are_there_are_asked(blobs):
    """The columns are scaled by their moments alone."""
    X, y, clients = blobs
    model = fitted(blobs, LateJoin({"b": 1, "f": 1}), n_rounds=1)
    there = ~np.isin(clients, ["b", "f"])
    alone = FederatedClassifier(n_rounds=1, random_state=0)
    alone.fit(X[there], y[there], clients=clients[there])
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-6)
    assert model.history_["scalars_up"][0] == alone.history_["scalars_up"][0]
    assert model.sizes_.tolist() == [10, 20, 15, 30, 25, 40]


def test_rounds_until_the_first_joins_are_those_without_it(blobs):
    X, y, clients = blobs
    selector = FedAlignSelector(eps=0.3, warmup=1)
    params = {"selector": selector, "priority": ["a", "c"], "n_rounds": 3}
    model = fitted(blobs, LateJoin({"d": 3}), **params)
    there = clients != "d"
    alone = FederatedClassifier(random_state=0, **params)
    alone.fit(X[there], y[there], clients=clients[there])
    columns = ["objective", "train_loss", "cohort", "polled", "bytes_down", "bytes_up"]
    pd.testing.assert_frame_equal(model.history_[columns], alone.history_[columns])


def test_of_a_regressor_a_late_client_s_rate_is_safe(blobs):
    """Its rows are long, and it has not told so before round 0."""
    X, _, clients = blobs
    X = np.where((clients == "f")[:, None], 30 * X, X)
    data = X, X[:, 0], clients
    model = fitted(data, LateJoin({"f": 1}), FederatedRegressor(), n_rounds=20)
    assert np.isfinite(model.history_["train_loss"]).all()
    assert (model.history_["train_loss"].iloc[1:] < 1e3).all()


class SilentInRounds(BaseAvailability):
    """Client d is chosen and does not answer in some rounds."""

    def __init__(self, rounds=()):
        self.rounds = rounds

    def _reachable(self, federation, round, rng, fixed_rng):
        self._round = round
        return np.ones(len(federation), dtype=bool)

    def _answers(self, federation, chosen, rng):
        return ~((chosen == 3) & (self._round in self.rounds))


def test_who_does_not_answer_is_left_alone_for_1_2_4_and_8_rounds(blobs):
    never = SilentInRounds(tuple(range(60)))
    history = fitted(blobs, BackOff(never), selector=Everyone(), n_rounds=45).history_
    asked = [t for t, failed in enumerate(history["failed"]) if failed == ("d",)]
    assert asked == [0, 2, 5, 10, 19, 28, 37]
    assert np.diff(asked).tolist() == [1 + 1, 1 + 2, 1 + 4, 1 + 8, 1 + 8, 1 + 8]


def Everyone():
    return RandomSelector(1.0, probability="uniform", replace=False)


def test_after_an_answer_it_begins_anew(blobs):
    model = fitted(blobs, BackOff(SilentInRounds((0, 2, 6))), selector=Everyone(), n_rounds=10)
    there = ["d" in cohort for cohort in model.history_["cohort"]]
    #        misses 0, 2; is back in 5, misses 6, is back in 8
    expected = [False, False, False, False, False, True, False, False, True, True]
    assert there == expected
    assert model.history_["n_failed"].tolist() == [1, 0, 1, 0, 0, 0, 1, 0, 0, 0]


def test_without_it_who_does_not_answer_is_asked_in_each_round(blobs):
    never = SilentInRounds(tuple(range(9)))
    history = fitted(blobs, never, selector=Everyone(), n_rounds=9).history_
    assert history["failed"].tolist() == [("d",)] * 9


def test_a_fit_that_goes_on_leaves_it_alone_as_long(blobs):
    never = SilentInRounds(tuple(range(60)))
    whole = fitted(blobs, BackOff(never), selector=Everyone(), n_rounds=12)
    parts = fitted(blobs, BackOff(never), selector=Everyone(), n_rounds=4)
    X, y, clients = blobs
    parts.set_params(n_rounds=12, warm_start=True).fit(X, y, clients=clients)
    assert parts.history_["failed"].tolist() == whole.history_["failed"].tolist()


def test_who_is_late_for_the_report_goal_alone_is_asked_as_before(blobs):
    """In each round one of six, d; by the deadline it is left alone."""
    columns = ["client", "round", "latency"]
    rows = [(k, t, 9.0 if k == "d" and t < 4 else 0.1) for k in "abcdef" for t in range(5)]
    speeds = {"rows_per_second": 1e6, "bytes_down_per_second": 1e9, "bytes_up_per_second": 1e9}
    frame = pd.DataFrame(rows, columns=columns).assign(**speeds)
    params = {"selector": Everyone(), "devices": TraceDevices(frame), "n_rounds": 4}
    by_goal = fitted(blobs, BackOff(), report_goal=5, **params)
    assert by_goal.history_["failed"].tolist() == [("d",)] * 4
    by_deadline = fitted(blobs, BackOff(), deadline=5.0, **params)
    assert by_deadline.history_["failed"].tolist() == [("d",), (), ("d",), ()]


def test_they_may_be_combined(blobs):
    availability = Dropout(0.5, availability=BackOff(LateJoin({"a": 2})))
    assert availability.backs_off
    history = fitted(blobs, availability, selector=Everyone(), n_rounds=6).history_
    assert history["not_joined"].tolist() == [("a",), ("a",), (), (), (), ()]
    assert 0 < history["n_failed"].sum() < 30


def test_what_it_refuses(blobs):
    with pytest.raises(ValueError, match="rounds names 'z', which is none of the clients"):
        fitted(blobs, LateJoin({"z": 1}))
    for first in ("x", 1.5, -1, None):
        with pytest.raises(ValueError, match="for client 'b': the first round of a client is 0"):
            fitted(blobs, LateJoin({"b": first}))
    federation = make_federation(["a", "b"], 2)
    assert LateJoin({"b": 1}).joined(federation, 0).tolist() == [True, False]
    assert LateJoin({"b": 1}).joined(federation, 1).tolist() == [True, True]
    assert BackOff().joined(federation, 0) is None


def test_labels_of_priority_clients_that_join_later_cannot_be_counted(blobs):
    """Those of free clients are not counted."""
    late, params = LateJoin({"b": 1}), {"class_weight": "balanced"}
    with pytest.raises(ValueError, match="'balanced' counts the labels .* client 'b' joins later"):
        fitted(blobs, late, priority=["a", "b"], **params)
    model = fitted(blobs, late, priority=["a"], **params)
    assert model.history_["not_joined"].tolist() == [("b",), (), (), ()]


def test_if_no_priority_client_has_joined_the_model_stays(blobs):
    with pytest.warns(UserWarning, match="no priority client has sent the means"):
        model = fitted(
            blobs, LateJoin({"a": 2}), priority=["a"], selector=FedAlignSelector(eps=5.0, warmup=0)
        )
    assert model.history_["n_aggregated"].gt(0).tolist() == [False, False, True, True]
