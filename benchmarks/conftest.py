"""Fixtures: real data from the folder SKFED_DATA, one core, processes, and timing in turns."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.comparison import Comparison, compare_turns
from benchmarks.machine import cache_sizes
from benchmarks.workloads import WORKLOADS, equal_shares
from skfed.datasets import load_fashion_mnist, load_wisdm, partition_dirichlet


@pytest.fixture(scope="session")
def data_home():
    """Return the folder of the real data sets, or skip."""
    folder = os.environ.get("SKFED_DATA")
    if not folder:
        pytest.skip("SKFED_DATA is unset: there are no data to measure on")
    return folder


@pytest.fixture(scope="session")
def wisdm(data_home):
    """Return X, y and clients of 36 phone users."""
    data = load_wisdm()
    X = data.X.fillna(data.X.mean())
    X = ((X - X.mean()) / X.std().clip(lower=1e-9)).to_numpy("float32")
    return X, data.y, data.clients


@pytest.fixture(scope="session")
def images(data_home):
    """Return 60,000 images of Fashion-MNIST as rows, and their labels."""
    data = load_fashion_mnist()
    X = (data.X.reshape(len(data.X), -1).astype("float32") / 255 - 0.1307) / 0.3081
    return X, data.y.astype(np.int64)


@pytest.fixture(scope="session")
def fashion_mnist(images):
    """Return X, y and clients of the images, partitioned among 100 clients with alpha = 0.3."""
    X, y = images
    return X, y, partition_dirichlet(y, 100, alpha=0.3, random_state=0)


@pytest.fixture(scope="session")
def folders(images, tmp_path_factory) -> dict[str, Path]:
    """Return folders with X.npy, y.npy and clients.npy, by workload."""
    X, y = images
    parent = tmp_path_factory.mktemp("workloads")
    np.save(parent / "X.npy", X)
    result = {}
    for name, work in WORKLOADS.items():
        result[name] = parent / name
        result[name].mkdir()
        (result[name] / "X.npy").symlink_to(parent / "X.npy")
        np.save(result[name] / "y.npy", y)
        clients = equal_shares(len(y), work.n_clients)
        if work.alpha is not None:
            clients = partition_dirichlet(y, work.n_clients, alpha=work.alpha, random_state=0)
        np.save(result[name] / "clients.npy", clients)
    return result


@pytest.fixture
def one_core() -> Iterator[None]:
    """Run on one thread, and on the last of this process's cores where the system allows it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    can_choose = hasattr(os, "sched_setaffinity")
    cores = os.sched_getaffinity(0) if can_choose else set()
    if can_choose:
        os.sched_setaffinity(0, {max(cores)})
    yield
    if can_choose:
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)


@pytest.fixture
def own_process() -> Iterator[Callable]:
    """Return a function that takes a function and arguments, and binds them to a new process.

    What it returns runs the function there, with more keyword arguments if there are any. The
    process starts at the first call, on the cores that this one may use then. Other packages run
    in processes of their own too; in pytest's, rounds of recurrent layers took longer.
    """
    with ExitStack() as opened:

        def bind(function: Callable, *args, **kwargs) -> Callable:
            pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
            opened.enter_context(pool)
            return lambda **more: pool.submit(function, *args, **kwargs, **more).result()

        yield bind


@pytest.fixture
def compare(benchmark) -> Callable[..., Comparison]:
    """Return a function that times several contestants in turns.

    Each contestant is called without arguments and returns the seconds of some rounds; every other
    turn has the reverse order. The medians of all rounds, and what the others take over what
    ``base`` takes, turn by turn, are found under ``group`` by ``results.py``. A contestant that
    returns nothing in a turn is left out.
    """

    def run(
        group: str, contestants: Mapping[str, Callable[[], list[float]]], base: str, n_turns: int
    ) -> Comparison:
        turns: list[dict[str, list[float]]] = []

        def turn() -> None:
            order = list(contestants)[:: -1 if len(turns) % 2 else 1]
            turns.append({name: contestants[name]() for name in order})

        benchmark.group = group
        benchmark.pedantic(turn, rounds=n_turns, iterations=1)
        names = [name for name in contestants if all(turn[name] for turn in turns)]
        found = compare_turns(turns, names, base)
        benchmark.extra_info |= {"seconds": found.seconds, "ratios": found.ratios, "base": base}
        return found

    return run


def pytest_benchmark_update_machine_info(config, machine_info):
    """Add the version of torch and the sizes of the caches."""
    machine_info["torch"] = torch.__version__
    machine_info["caches"] = cache_sizes()
