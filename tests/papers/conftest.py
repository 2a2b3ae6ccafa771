"""Runs of the papers' benchmarks in this process, since a process takes seconds to start."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from benchmarks.papers import runner


class OneThread(ThreadPoolExecutor):
    """Takes the place of the pool of processes."""

    def __init__(self, max_workers, mp_context, **settings):
        super().__init__(1, **settings)


@pytest.fixture
def in_this_process(monkeypatch):
    """Make runs in a thread of this process."""
    n_threads = torch.get_num_threads()
    monkeypatch.setattr(runner, "ProcessPoolExecutor", OneThread)
    yield
    torch.set_num_threads(n_threads)
