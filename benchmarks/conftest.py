"""Real data for the benchmarks, found through SKFED_DATA."""

import os

import pytest

from skfed.datasets import load_fashion_mnist, load_wisdm, partition_dirichlet


@pytest.fixture(scope="session", autouse=True)
def data_home():
    """Return the folder of the real data sets, or skip."""
    home = os.environ.get("SKFED_DATA")
    if not home:
        pytest.skip("SKFED_DATA is unset: nothing to measure on")
    return home


@pytest.fixture(scope="session")
def wisdm():
    """36 phone users: X, y, clients."""
    data = load_wisdm()
    X = data.X.fillna(data.X.mean())
    X = ((X - X.mean()) / X.std().clip(lower=1e-9)).to_numpy("float32")
    return X, data.y, data.clients


@pytest.fixture(scope="session")
def fashion_mnist():
    """60,000 images over 100 clients, alpha = 0.3: X, y, clients."""
    data = load_fashion_mnist()
    X = (data.X.reshape(len(data.X), -1).astype("float32") / 255 - 0.1307) / 0.3081
    return X, data.y, partition_dirichlet(data.y, 100, alpha=0.3, random_state=0)
