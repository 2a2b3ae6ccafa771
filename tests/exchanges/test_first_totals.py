"""What exchanges before the first round have cost each client."""

import pickle

import numpy as np
import pytest

from skfed import FederatedClassifier, RandomSelector
from skfed.contribution import LeaveOneOut
from skfed.devices import ConstantDevices
from skfed.inspection import participation_report
from skfed.selection import BaseSelector, Cohort

RNG = np.random.default_rng(0)
X, Y, CLIENTS = RNG.normal(size=(120, 4)), RNG.integers(0, 3, 120), np.arange(120) % 10
SOME = CLIENTS < 6


def estimator(**params):
    return FederatedClassifier(n_rounds=2, random_state=0, warm_start=True, **params)


def assert_sums_are_those_of_the_history(model):
    report = participation_report(model)
    for column in ("bytes_down", "bytes_up"):
        assert report[column].sum() == model.history_[column].sum()
    return report


@pytest.mark.parametrize(
    "params", [{}, {"priority": [1, 2]}, {"class_weight": "balanced"}], ids=str
)
def test_clients_that_leave_and_come_back_keep_their_share(params, tmp_path):
    model = estimator(**params).fit(X, Y, clients=CLIENTS)
    report = assert_sums_are_those_of_the_history(model)
    model.save(tmp_path / "model")
    loaded = estimator(**params).load(tmp_path / "model")
    for other in (loaded, pickle.loads(pickle.dumps(model))):
        assert participation_report(other).equals(report)
    # Their sums are those of the history only when all are there again.
    loaded.set_params(n_rounds=4).fit(X[SOME], Y[SOME], clients=CLIENTS[SOME])
    assert participation_report(loaded)["bytes_up"].sum() < loaded.history_["bytes_up"].sum()
    loaded.set_params(n_rounds=6).fit(X, Y, clients=CLIENTS)
    assert_sums_are_those_of_the_history(loaded)


def test_only_priority_clients_have_sent_statistics():
    class Third(BaseSelector):
        def _select(self, round):
            return Cohort.mean(np.array([3]))

    devices = ConstantDevices(1000.0, 1e4, 1e4, latency=1.0)
    model = estimator(priority=[3], devices=devices, selector=Third()).set_params(n_rounds=1)
    report = assert_sums_are_those_of_the_history(model.fit(X, Y, clients=CLIENTS))
    one, others = report.loc[3], report.drop(index=3)
    assert (others["bytes_up"] == 0).all() and one["bytes_up"] > 0
    assert (others["seconds"] == 0).all()
    np.testing.assert_allclose(one["seconds"], model.history_["seconds"].sum())


def test_an_interrupt_in_a_valuation_leaves_the_rounds_before_as_they_were():
    """What the round asked of clients is not counted yet then."""

    class Interrupting(LeaveOneOut):
        n_rounds = 0

        def _values(self, gains, n_players, rng):
            Interrupting.n_rounds += 1
            if Interrupting.n_rounds == 2:
                raise KeyboardInterrupt
            return super()._values(gains, n_players, rng)

    model = estimator(contribution=Interrupting(), selector=RandomSelector(2))
    with pytest.warns(UserWarning, match="interrupted"), pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, clients=CLIENTS)
    assert model.n_rounds_ == 1
    assert_sums_are_those_of_the_history(model)


def test_a_round_that_fails_leaves_nothing_of_it():
    """A selector that raises in the first round of a later fit, whose clients send again."""

    class Failing(RandomSelector):
        def _select(self, round):
            if round.index == 2:
                raise RuntimeError("no")
            return super()._select(round)

    model = estimator(selector=Failing(2)).fit(X, Y, clients=CLIENTS)
    report = assert_sums_are_those_of_the_history(model)
    with pytest.raises(RuntimeError):
        model.set_params(n_rounds=4).fit(X + 1, Y, clients=CLIENTS)
    assert participation_report(model).equals(report)
    model.set_params(selector=RandomSelector(2)).fit(X + 1, Y, clients=CLIENTS)
    assert_sums_are_those_of_the_history(model)
