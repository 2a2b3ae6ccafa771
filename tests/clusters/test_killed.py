"""A worker that is killed costs the time of its round; a client that kills workers is left out."""

import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector

EVERYBODY = RandomSelector(1.0, probability="uniform", replace=False)


def parameters(model):
    return [p.detach() for p in model.net_.module_.parameters()]


def deadly():
    """Return modules that kill their process at rows that hold 7, unless it is this one."""
    spared = os.getpid()

    class Deadly(nn.Linear):  # in here, since joblib sends such a class by value
        def __init__(self):
            super().__init__(5, 3)

        def forward(self, X):
            if os.getpid() != spared and (X == 7).any():
                os.kill(os.getpid(), signal.SIGKILL)
            return super().forward(X)

    return Deadly


def ambushed(flag):
    """Return modules that kill their process once, where there is a file, unless it is this one.

    They have more than linear layers: the forward of linear layers alone is not called in polls.
    """
    path, spared = str(flag), os.getpid()

    class Ambushed(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(5, 3), nn.LayerNorm(3))

        def forward(self, X):
            if os.getpid() != spared and os.path.exists(path):
                os.unlink(path)
                os.kill(os.getpid(), signal.SIGKILL)
            return super().forward(X)

    return Ambushed


class Arming(PowerOfChoice):
    """Lays the ambush in the second round."""

    def __init__(self, flag=None, d=6, clients_per_round=1, loss="full"):
        super().__init__(d, clients_per_round, loss)
        self.flag = flag

    def _select(self, round):
        if round.index == 1:
            self.flag.touch()
        return super()._select(round)


@pytest.fixture
def deaths_allowed(request):
    """Return a function that sets how often Dask itself runs work again whose worker died."""

    def allow(backend, n_deaths):
        if backend == "dask":
            request.getfixturevalue("dask").cluster.scheduler.allowed_failures = n_deaths

    return allow


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loky", "dask"])
def test_a_client_that_kills_its_process_is_left_out(blobs, on, deaths_allowed, backend):
    X, y, clients = blobs
    X = X.copy()
    X[np.flatnonzero(clients == "a")[-1]] = 7  # not the first row, which the net is tried on
    net = deadly()
    given = {"selector": EVERYBODY, "n_rounds": 1, "engine": "loop", "random_state": 0}
    deaths_allowed(backend, 0)
    with on(backend):
        model = FederatedClassifier(net, **given).fit(X, y, clients=clients)
    assert model.history_["failed"][0] == ("a",)
    cause = {"loky": "terminated", "dask": "KilledWorker"}
    assert cause[backend] in model.history_["causes"][0][0]
    assert model.history_["cohort"][0] == tuple("bcdef")
    others = clients != "a"
    alone = FederatedClassifier(net, **given).fit(X[others], y[others], clients=clients[others])
    for one, other in zip(parameters(model), parameters(alone), strict=True):
        torch.testing.assert_close(one, other)  # weights are rescaled, which rounds


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "n_deaths"), [("loky", 0), ("dask", 0), ("dask", 3)])
def test_a_worker_killed_in_a_round_costs_its_time_only(
    blobs, tmp_path, on, deaths_allowed, backend, n_deaths
):
    X, y, clients = blobs
    flag = tmp_path / "flag"
    params = {"n_rounds": 2, "random_state": 0, "memory_budget": 2**12, "engine": "stacked"}
    net = ambushed(flag)
    whole = FederatedClassifier(net, selector=PowerOfChoice(d=6, clients_per_round=1), **params)
    whole.fit(X, y, clients=clients)
    armed = FederatedClassifier(net, selector=Arming(flag), **params)
    deaths_allowed(backend, n_deaths)
    with on(backend):
        armed.fit(X, y, clients=clients)
    assert not flag.exists()
    assert armed.history_["n_failed"].tolist() == [0, 0]
    for one, other in zip(parameters(armed), parameters(whole), strict=True):
        assert torch.equal(one, other)
