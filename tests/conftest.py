"""Fixtures: small federations, and the real data where SKFED_DATA says it is.

torch and skfed are imported where they are used: the process that starts the workers runs no test.
"""

import os
import signal

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

if "PYTEST_XDIST_WORKER" in os.environ:  # workers, and processes that they start, share the cores
    import torch

    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    torch.manual_seed(0)  # for modules that test files make as they are imported
    threadpool_limits(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let a worker that is done take over what the other has not begun.

    Until then each keeps half of the tests in their order, so that those of a module share its
    fixtures. Not as an option in pyproject.toml: pytest-benchmark would take it for a run with
    workers.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(items):
    """Begin with what takes long, so that at the end no worker waits for the other."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def _weights():
    """Draw the same first weights of a module in each test, whatever was tested before."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _sigint():
    """Let SIGINT raise KeyboardInterrupt: a shell ignores it in what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
    from skfed.selection._mock_round import mock_round

    def make(losses, *, priority=None, seed=0, **others):
        rng = np.random.default_rng(seed)
        view = mock_round(losses, priority_weights=priority, rng=rng, **others)
        return view, view.polls

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
    import torch

    states = one.net_.module_.state_dict(), other.net_.module_.state_dict()
    return all(torch.equal(a, b) for a, b in zip(*(s.values() for s in states), strict=True))


@pytest.fixture(name="same_model", scope="session")
def same_model_fixture():
    return same_model
