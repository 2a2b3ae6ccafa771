"""Fixtures: small federations, and the real data where SKFED_DATA says it is."""

import os

import numpy as np
import pytest
import torch

from skfed.selection import Round


@pytest.fixture(scope="session")
def blobs():
    """Three classes in 5 dimensions over 6 clients of different sizes: X, y, clients."""
    rng = np.random.default_rng(0)
    clients = np.repeat(["a", "b", "c", "d", "e", "f"], [10, 20, 15, 30, 25, 40])
    y = rng.integers(0, 3, len(clients))
    y[[0, 1, 2]] = [0, 1, 2]  # the first client has every class
    X = rng.normal(size=(len(y), 5)) + np.eye(5)[y] * 2
    return X.astype(np.float32), y, clients


@pytest.fixture
def make_round():
    """Return a function that makes a round view whose clients answer with given losses."""

    def make(
        losses,
        *,
        sizes=None,
        priority=None,
        available=None,
        reported=None,
        seed=0,
        index=0,
        n_rounds=10,
    ):
        losses = np.asarray(losses, float)
        sizes = np.ones(len(losses), int) if sizes is None else np.asarray(sizes)
        everyone = np.ones(len(losses), bool)
        weights = np.ones(len(losses)) if priority is None else np.asarray(priority, float)
        polls = []

        def ask(clients, metric, max_samples, at_most):
            polls.append((clients.tolist(), metric, max_samples, at_most))
            values = losses[clients]
            return values if at_most is None else np.where(values <= at_most, values, np.nan)

        view = Round(
            index=index,
            n_rounds=n_rounds,
            rng=np.random.default_rng(seed),
            sizes=sizes,
            fractions=sizes / (weights * sizes).sum(),
            priority=weights > 0,
            priority_weights=weights,
            available=everyone if available is None else np.asarray(available),
            reported=np.full(len(losses), np.inf) if reported is None else reported,
            ask=ask,
        )
        return view, polls

    return make


@pytest.fixture(scope="session")
def data_home():
    """Return the folder of the real data sets, or skip."""
    home = os.environ.get("SKFED_DATA")
    if not home:
        pytest.skip("SKFED_DATA is unset: real data sets are not tested")
    return home


def same_model(one, other):
    """Tell whether two fitted classifiers hold the same model, bit for bit."""
    states = one.net_.module_.state_dict(), other.net_.module_.state_dict()
    return all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))


@pytest.fixture(name="same_model", scope="session")
def same_model_fixture():
    return same_model
