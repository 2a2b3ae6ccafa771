"""Rows are sent to a worker of a cluster that lacks them; otherwise only states are sent."""

import joblib
import numpy as np
import pytest
from sklearn.base import clone

from skfed import FederatedClassifier, PowerOfChoice
from skfed._federation import make_federation
from skfed.engines._data import Dataset
from skfed.engines.workers._remote import _worker_cache
from skfed.engines.workers._worker_data import ClientData
from skfed.modules import SoftmaxRegression

N_ROUNDS, N_CLIENTS, BUDGET = 20, 8, 2**20


@pytest.fixture
def sent(monkeypatch):
    """The bytes of rows sent with each task, round by round."""
    rounds = []
    payload, select = ClientData.payload, PowerOfChoice._select

    def counted(self, clients, complete=False):
        result = payload(self, clients, complete)
        n_bytes = sum(array.nbytes for arrays in result.arrays.values() for array in arrays)
        rounds[-1].append(n_bytes)
        return result

    def begun(self, round):
        rounds.append([])
        return select(self, round)

    monkeypatch.setattr(ClientData, "payload", counted)
    monkeypatch.setattr(PowerOfChoice, "_select", begun)
    return rounds


def keep_rows(X, y, clients):
    """Keep the rows of each client in this worker, as if a task had used them."""
    whole = ClientData(Dataset(X, y), make_federation(clients, len(X)), budget=BUDGET)
    _worker_cache.load(whole.payload(range(N_CLIENTS), complete=True))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_rows_are_sent_only_to_workers_that_lack_them(sent, on, dask, engine):
    rng = np.random.default_rng([ord(letter) for letter in engine])  # rows of its own
    X = rng.normal(size=(200 * N_CLIENTS, 100)).astype("float32")
    y, clients = rng.integers(0, 3, len(X)), np.arange(len(X)) % N_CLIENTS
    model = FederatedClassifier(
        SoftmaxRegression(100, 3),
        selector=PowerOfChoice(d=N_CLIENTS, clients_per_round=N_CLIENTS // 2),
        n_rounds=N_ROUNDS,
        engine=engine,
        memory_budget=BUDGET,
        random_state=0,
    )
    data = X.nbytes + y.nbytes
    with on("dask"):
        model.fit(X, y, clients=clients)
        model.fit(X, y, clients=clients)  # what a fit has sent serves the next
        n_bytes = [sum(a_round) for a_round in sent]
        # Each client goes to both workers once, and at most one that is known with each of them.
        assert data <= sum(n_bytes) <= 4 * data  # not 1.5 data a round
        assert np.median(n_bytes) == 0
        # Dask may not yet have given each client to both workers.
        dask.run(keep_rows, X, y, clients)
        model.fit(X, y, clients=clients)
        assert sum(sum(a_round) for a_round in sent[2 * N_ROUNDS :]) == 0


def test_options_of_the_users_for_tasks_are_left_as_they_are(blobs, same_model, dask, monkeypatch):
    """They may say which workers are allowed, so tasks are not sent to an address."""
    X, y, clients = blobs
    given, submit = [], type(dask).submit

    def kept(self, *arguments, **options):
        given.append(options)
        return submit(self, *arguments, **options)

    monkeypatch.setattr(type(dask), "submit", kept)
    model = FederatedClassifier(engine="loop", n_rounds=3, random_state=0)
    with joblib.parallel_config(backend="dask", priority=1):
        elsewhere = clone(model).fit(X + 1, y, clients=clients)
    assert given and all(options == {"pure": False, "priority": 1} for options in given)
    assert same_model(elsewhere, model.fit(X + 1, y, clients=clients))
