"""Rows are sent to a worker of a cluster once; after that only states are sent."""

import pickle

import numpy as np
import pytest

from skfed import FederatedClassifier, PowerOfChoice
from skfed.engines._worker_data import ClientData
from skfed.modules import SoftmaxRegression

N_ROUNDS, N_CLIENTS = 20, 8


@pytest.fixture
def sent(monkeypatch):
    """The bytes of rows sent with each piece of work, round by round."""
    rounds = []
    payload, select = ClientData.payload, PowerOfChoice._select

    def counted(self, clients, complete=False):
        result = payload(self, clients, complete)
        rounds[-1].append(len(pickle.dumps(result)))
        return result

    def begun(self, round):
        rounds.append([])
        return select(self, round)

    monkeypatch.setattr(ClientData, "payload", counted)
    monkeypatch.setattr(PowerOfChoice, "_select", begun)
    return rounds


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_after_some_rounds_only_states_are_sent(sent, on, engine):
    rng = np.random.default_rng([ord(letter) for letter in engine])  # rows of its own
    X = rng.normal(size=(200 * N_CLIENTS, 100)).astype("float32")
    y, clients = rng.integers(0, 3, len(X)), np.arange(len(X)) % N_CLIENTS
    model = FederatedClassifier(
        SoftmaxRegression(100, 3),
        selector=PowerOfChoice(d=N_CLIENTS, clients_per_round=N_CLIENTS // 2),
        n_rounds=N_ROUNDS,
        engine=engine,
        memory_budget=2**20,
        random_state=0,
    )
    data = X.nbytes + y.nbytes
    with on("dask"):
        model.fit(X, y, clients=clients)
        n_bytes = [sum(a_round) for a_round in sent]
        assert data < sum(n_bytes) < N_ROUNDS / 2 * data  # not 1.5 data a round
        assert max(n_bytes[-2:]) < data / 20
        model.set_params(n_rounds=1).fit(X, y, clients=clients)
        assert sum(sent[-1]) < data / 20  # what a fit has sent serves the next
