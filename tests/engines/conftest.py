"""Ragged federations for the engines."""

import numpy as np
import pytest

from skfed.datasets import load_wisdm


@pytest.fixture(scope="session")
def wisdm(data_home):
    """36 phone users with 16 to 214 rows: X, y, clients."""
    data = load_wisdm(data_home=data_home)
    X = data.X.fillna(data.X.mean())
    X = ((X - X.mean()) / X.std().clip(lower=1e-9)).to_numpy()
    return X, np.unique(data.y, return_inverse=True)[1], data.clients


@pytest.fixture(scope="session")
def ragged():
    """Nine clients of 2 to 40 rows in 21 dimensions, six classes: X, y, clients."""
    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(9), [2, 40, 7, 18, 20, 34, 10, 25, 6])
    y = rng.integers(0, 6, len(clients))
    y[:6] = range(6)
    return rng.normal(size=(len(y), 21)) + 2 * np.eye(21)[y], y, clients
