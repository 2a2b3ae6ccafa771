"""Skips these tests where Flower is not installed."""

import importlib.util

import pytest

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["*.py"]


@pytest.fixture
def grid_time(monkeypatch):
    """Let nobody sleep: return a time that moves on when the server waits."""
    from local_grid import Time

    from skfed.flower import _discovery, _nodes, _waiting

    time = Time()
    for module in (_discovery, _nodes, _waiting):
        monkeypatch.setattr(module, "time", time)
    return time


@pytest.fixture
def federate(blobs, grid_time):
    """Return a function that fits an estimator over the blobs' clients, each on its own node."""
    from local_grid import LocalGrid, Node

    from skfed.flower import FederatedStrategy, client_app

    X, y, clients = blobs

    def load_data(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows]

    def make(estimator, at_client=None, load=load_data, names="fedcba", **params):
        app = client_app(at_client or estimator, load)
        grid = LocalGrid(grid_time, *(Node(app, {"client-name": name}) for name in names))
        params = {"clients": 6, "timeout": 5, **params}
        return FederatedStrategy(estimator, **params), grid

    return make
