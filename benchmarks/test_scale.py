"""Measures time and memory with a million clients, and with data larger than memory.

``python -m pytest benchmarks -k scale``.
"""

import subprocess
import sys
import tracemalloc
from functools import partial

import numpy as np
import pytest

from skfed import FederatedClassifier, PowerOfChoice
from skfed.devices import LognormalDevices

SIZES = (10**3, 10**4, 10**5, 10**6)


def federation(n_clients: int):
    """Return X, y and clients: two rows of eight values a client."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * n_clients, 8)).astype("float32")
    return X, rng.integers(0, 3, len(X)), np.arange(len(X)) % n_clients


def fit(data, n_rounds=40, devices=None):
    X, y, clients = data
    selector = PowerOfChoice(d=100, clients_per_round=10)
    model = FederatedClassifier(
        selector=selector, n_rounds=n_rounds, devices=devices, random_state=0
    )
    return model.fit(X, y, clients=clients)


def test_scale_in_clients(compare, one_core):
    """Time a round of power-of-choice, m=10 of d=100, with a thousand to a million clients."""
    data = {n: federation(n) for n in SIZES}

    def time_rounds(n_clients: int) -> list[float]:
        return fit(data[n_clients]).history_["round_seconds"][5:].tolist()

    contestants = {str(n): partial(time_rounds, n) for n in SIZES}
    found = compare("scale", contestants, base=str(SIZES[0]), n_turns=6)
    print("\nseconds a round by clients:", *found.lines(), sep="\n")


def test_scale_in_clients_with_devices(compare, one_core):
    """Time the same rounds with devices, whose speeds are drawn for the clients that are asked.

    A million clients may cost 1.5 times what a thousand cost. The first rounds, in one of which all
    clients send moments of columns, are left out.
    """
    sizes = SIZES[0], SIZES[-1]
    data = {n: federation(n) for n in sizes}
    devices = LognormalDevices(100, 1e6, 1e6, jitter=0.1)

    def time_rounds(n_clients: int) -> list[float]:
        return fit(data[n_clients], devices=devices).history_["round_seconds"][5:].tolist()

    contestants = {str(n): partial(time_rounds, n) for n in sizes}
    found = compare("devices", contestants, base=str(sizes[0]), n_turns=6)
    print("\nseconds a round by clients, with devices:", *found.lines(), sep="\n")


def test_scale_in_memory_of_clients(benchmark):
    """Measure the peak memory of a fit in bytes a client, beyond X, y and the ids of the rows."""
    X, y, clients = federation(10**6)

    def peak():
        tracemalloc.start()
        fit((X, y, clients), n_rounds=3)
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    benchmark.group = "memory"
    n_bytes = benchmark.pedantic(peak, rounds=1) / 10**6
    benchmark.extra_info["bytes a client"] = n_bytes
    print(f"\n{n_bytes:.0f} bytes a client")


MEMMAP = """
import sys
import numpy as np
from skfed import FederatedClassifier, PowerOfChoice
from skfed.devices import LognormalDevices

path, n_rows = sys.argv[1], int(sys.argv[2])
X = np.lib.format.open_memmap(path, mode="w+", dtype="float32", shape=(n_rows, 1000))
rng = np.random.default_rng(0)
for start in range(0, n_rows, 10_000):
    X[start : start + 10_000] = rng.standard_normal((10_000, 1000), dtype="float32")
X.flush()
del X
X = np.load(path, mmap_mode="r")
y, clients = rng.integers(0, 10, n_rows), rng.integers(0, 100, n_rows)
FederatedClassifier(selector=PowerOfChoice(), n_rounds=3).fit(X, y, clients=clients)
status = dict(line.split(":") for line in open("/proc/self/status"))
print(status["RssAnon"].split()[0])
"""


def test_scale_in_memory_of_a_memmap(benchmark, tmp_path):
    """Measure a process's memory beyond the page cache with a memory map of 4 GB."""
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    n_rows = 1_000_000
    arguments = [sys.executable, "-c", MEMMAP, str(tmp_path / "X.npy"), str(n_rows)]

    def run():
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        return int(done.stdout.split()[-1]) * 1024

    benchmark.group = "memory"
    resident = benchmark.pedantic(run, rounds=1)
    (tmp_path / "X.npy").unlink()
    benchmark.extra_info |= {"bytes of X": 4 * 1000 * n_rows, "bytes resident": resident}
    print(
        f"\n{resident / 1e9:.2f} GB resident beyond the page cache, X has {4 * n_rows / 1e6:.0f} GB"
    )
