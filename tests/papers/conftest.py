"""Runs of the papers' benchmarks in this process, since a process takes seconds to start."""

import pytest
from in_a_thread import runs_in_a_thread

from benchmarks.runs import runner


@pytest.fixture
def in_this_process():
    """Make runs in a thread of this process."""
    with runs_in_a_thread():
        yield


@pytest.fixture(scope="session")
def make_in_this_process():
    """Return a function that makes runs in a thread of this process."""
    return runs_in_a_thread()(runner.run_missing)
