"""Skips these tests where Flower is not installed."""

import importlib.util

import pytest

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["*.py"]


@pytest.fixture
def federate(blobs, monkeypatch):
    """Return a function that fits an estimator over the blobs' clients, each on its own node."""
    from local_grid import LocalGrid, Node

    from skfed.flower import FederatedStrategy, _discovery, _nodes, client_app

    for module in (_discovery, _nodes):  # a node in this process replies at once
        monkeypatch.setattr(module, "PULL_INTERVAL", 0.05)
    X, y, clients = blobs

    def load_data(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows]

    def make(estimator, at_client=None, load=load_data, names="fedcba", **params):
        app = client_app(at_client or estimator, load)
        grid = LocalGrid(*(Node(app, {"client-name": name}) for name in names))
        params = {"clients": 6, "timeout": 5, **params}
        return FederatedStrategy(estimator, **params), grid

    return make
