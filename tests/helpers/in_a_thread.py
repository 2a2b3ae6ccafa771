"""Runs of benchmarks in this process, since a process takes seconds to start."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from benchmarks.runs import runner


class OneThread(ThreadPoolExecutor):
    """Takes the place of the pool of processes."""

    def __init__(self, max_workers, mp_context, **settings):
        super().__init__(1, **settings)


@contextmanager
def runs_in_a_thread():
    n_threads = torch.get_num_threads()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "ProcessPoolExecutor", OneThread)
            yield
    finally:
        torch.set_num_threads(n_threads)
