"""The rules that papers compare with, in the cases that all of them have to stand."""

import numpy as np
import pytest
from rules import COMPARED

from skfed import (
    ClusteredSelector,
    FederatedClassifier,
    KVibSelector,
    OptimalSelector,
    RandomSelector,
)
from skfed.availability import Dropout
from skfed.selection._mock_round import mock_round
from skfed.selection._past import SKETCH_SIZE

N_ROUNDS = 4
N_MANY = 4000
compared = pytest.mark.parametrize("rule", COMPARED, ids=repr)


def fitted(rule, X, y, clients, **params):
    """Return a fitted model, of which is asserted that it is finite and has a history."""
    model = FederatedClassifier(selector=rule, n_rounds=N_ROUNDS, random_state=0, **params)
    model.fit(X, y, clients=clients)
    assert all(p.isfinite().all() for p in model.net_.module_.parameters())
    assert np.isfinite(model.predict_proba(X)).all()
    assert len(model.history_) == N_ROUNDS
    return model


def rows_of(n_clients, n_rows=8):
    """Return the rows of clients a, b, ..., each of them with both classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_clients * n_rows, 3)).astype("float32")
    y = np.tile([0, 1], n_clients * n_rows // 2)
    return X + y[:, None], y, np.repeat(list("abcdef")[:n_clients], n_rows)


def weights_of(model):
    return [p.detach().numpy() for p in model.net_.module_.parameters()]


@compared
def test_clients_of_one_class_each(rule):
    X, _, clients = rows_of(3)
    y = np.unique(clients, return_inverse=True)[1]
    model = fitted(rule, X, y, clients)
    assert model.classes_.tolist() == [0, 1, 2]
    assert set().union(*model.history_["cohort"]) <= {"a", "b", "c"}
    assert any(w.any() for w in weights_of(model))


@compared
def test_clients_of_equal_rows(rule):
    X, y, _ = rows_of(1)
    clients = np.repeat(["a", "b", "c"], len(X))
    model = fitted(rule, np.tile(X, (3, 1)), np.tile(y, 3), clients)
    assert model.score(X, y) > 0.5


@compared
def test_nobody_answers(rule):
    """Each who is asked drops out; the model stays as it was."""
    model = fitted(rule, *rows_of(3), availability=Dropout(1.0))
    history = model.history_
    assert not any(w.any() for w in weights_of(model))
    assert history["n_aggregated"].tolist() == [0] * N_ROUNDS
    assert history["n_failed"].sum() > 0


@compared
def test_one_client_alone(rule):
    """It trains whenever anybody does, with all the weight: as in a fit without a choice."""
    X, y, clients = rows_of(1)
    model = fitted(rule, X, y, clients)
    assert model.history_["cohort"].tolist() == [("a",)] * N_ROUNDS
    everybody = fitted(RandomSelector(1.0, "uniform", False), X, y, clients)
    for found, expected in zip(weights_of(model), weights_of(everybody), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def round_of_many(index, needs, memory):
    """Return a round of 4,000 clients; after the first round, all were chosen and are known."""
    rng = np.random.default_rng(index)
    losses = rng.uniform(0.5, 2, N_MANY)
    seconds = rng.lognormal(size=N_MANY)
    past = {
        "n_polled": rng.integers(0, 5, N_MANY),
        "n_chosen": rng.integers(1, 5, N_MANY),
        "last_chosen": rng.integers(0, max(index, 1), N_MANY),
        "seconds": seconds,
        "loss_mean": losses,
        "loss_std": 0.1 * losses,
        "loss_rms": 1.1 * losses,
        "updates": rng.normal(size=(N_MANY, SKETCH_SIZE)),
        "last_layer": rng.normal(size=(N_MANY, 10)),
    }
    known = {"past": past, "reported": losses, "seconds": seconds} if index else {}
    return mock_round(
        rng.permutation(losses),
        sizes=rng.integers(10, 100, N_MANY),
        index=index,
        n_rounds=100,
        rng=rng,
        needs=needs,
        memory=memory,
        **known,
    )


def assert_about_a_tenth(rule, view, cohort):
    """Assert that 400 of 4,000 are chosen, distinct ones unless the rule draws otherwise."""
    clients = cohort.clients
    if isinstance(rule, OptimalSelector):  # everybody trains, who uploads is drawn independently
        assert len(clients) == N_MANY
        clients = rule.admit(view, view.reports(cohort)).clients
    if isinstance(rule, OptimalSelector | KVibSelector):  # six standard deviations
        assert abs(len(clients) - 400) < 6 * np.sqrt(400)
    else:
        assert len(clients) == 400
    if not isinstance(rule, ClusteredSelector):  # of two urns the same client may come
        assert len(np.unique(clients)) == len(clients)


DEFAULTS = [*{type(rule): type(rule)() for rule in COMPARED}.values(), ClusteredSelector("updates")]


@pytest.mark.parametrize("rule", DEFAULTS, ids=repr)
def test_defaults_choose_a_tenth_of_4000_clients(rule):
    """In the first round, and when all are known: of FedCor, at the end of its warm-up."""
    memory = {}
    for index in range(1 + getattr(rule, "warmup", 1)):
        view = round_of_many(index, rule.needs, memory)
        cohort = rule.select(view)
        memory = cohort.memory or memory
        assert_about_a_tenth(rule, view, cohort)
