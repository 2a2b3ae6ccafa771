"""Times the engines and other packages on the same workloads, beside the floor of the machine.

``SKFED_PEERS=DIR python -m pytest benchmarks -k workload --benchmark-json=bench.json`` also
measures the other packages, each in an environment of its own under DIR. All contestants of a
workload run in the same test, in turns, on one core, each in a process of its own; the median of
all their rounds is reported, and the median of the ratios of two contestants in the same turn.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import well_written_loop
from benchmarks.comparison import Comparison
from benchmarks.fits import fit_files, fit_on_gpu, fit_rounds, load, make_classifier
from benchmarks.machine import Floor, last_cache_bytes
from benchmarks.peers import PEERS, Peer, PeerUnavailable
from benchmarks.torch_models import Convolutions, Recurrent, make_module
from benchmarks.workloads import MLP, ROW_BYTES, WORKLOADS, Workload
from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.utils._torch_context import one_torch_thread

needs_two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
ROUNDS = {"W1": 5, "W2": 1, "W3": 5, "W4": 1, "W5": 5}  # of each contestant in a turn
# Six is the least that has an interval; on W1, W4 and W5 the next contestant is near.
TURNS = {"W1": 21, "W2": 6, "W3": 6, "W4": 21, "W5": 21}
ROUNDS_OF_JOBS = {"W1": 25, "W2": 3, "W3": 25, "W4": 3, "W5": 25}  # enough to see 3%
# More where two jobs gain much: there medians of 15 turns differ between runs.
TURNS_OF_JOBS = {"W1": 15, "W2": 45, "W3": 45, "W4": 15, "W5": 15}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_workload(benchmark, compare, one_core, own_process, folders, workload):
    work, folder, floor, absent = WORKLOADS[workload], folders[workload], Floor(), {}
    X, y, clients = load(folder)
    taken = make_classifier(work, n_rounds=1).fit(X, y, clients=clients).engine_
    with ExitStack() as peers:
        found = compare(
            "workloads",
            contestants_of_skfed(own_process, work, folder, ROUNDS[workload], floor)
            | contestants_by_hand(own_process, workload, folder)
            | contestants_of_peers(workload, folder, peers, absent),
            base=f"skfed {taken.split(':')[0]}",
            n_turns=TURNS[workload],
        )
    benchmark.extra_info |= {"workload": workload, "auto": taken, "absent": absent, **floor.info()}
    print(f"\n{workload}: {floor}; engine='auto' takes {taken}")
    print("\n".join(found.lines(floor.info()["floor"])))
    for name, reason in absent.items():
        print(f"  {name} is left out: {reason}")


def contestants_of_skfed(
    own_process, work: Workload, folder: Path, rounds: int, floor: Floor
) -> dict:
    fit_stacked = own_process(fit_files, work, folder, rounds, engine="stacked")
    fit_loop = own_process(fit_files, work, folder, max(1, rounds // 5), engine="loop")

    def stacked() -> list[float]:
        history = fit_stacked()
        done = history[["samples_evaluated", "samples_trained"]].to_numpy()
        cache = last_cache_bytes()
        floor.add((work.flops(*rows), work.bytes_read(*rows, cache)) for rows in done)
        return history["round_seconds"].tolist()

    return {"skfed stacked": stacked, "skfed loop": lambda: fit_loop()["round_seconds"].tolist()}


def contestants_by_hand(own_process, workload: str, folder: Path) -> dict:
    arguments = workload, folder, ROUNDS[workload]
    loops = well_written_loop.loops(WORKLOADS[workload])
    return {
        name: own_process(well_written_loop.time_rounds, *arguments, train)
        for name, train in loops.items()
    }


def contestants_of_peers(workload: str, folder: Path, opened: ExitStack, absent: dict) -> dict:
    """Return the peers that can be had, at work until ``opened`` ends; tell why others cannot."""

    def time_rounds(name: str, peer: Peer, rounds: int) -> list[float]:
        try:
            return peer.time(rounds)
        except PeerUnavailable as reason:
            absent[name] = str(reason)
            return []

    contestants = {}
    for name in PEERS:
        try:
            if "SKFED_PEERS" not in os.environ:
                raise PeerUnavailable("set SKFED_PEERS to a folder for its environment")
            peer = opened.enter_context(Peer(name, workload, folder))
            rounds = ROUNDS[workload] if peer.time(1)[0] < 1 else 1
        except PeerUnavailable as reason:
            absent[name] = str(reason)
        else:
            contestants[name] = partial(time_rounds, name, peer, rounds)
    return contestants


@pytest.mark.parametrize("workload", WORKLOADS)
def test_flops(images, workload):
    """Check the FLOPs of a workload against torch's count."""
    work = WORKLOADS[workload]
    counted = flops_of_a_row(make_module(work.model), *images)
    if workload == "W5":  # torch multiplies the first state of the GRU, which is zero, as well
        counted -= 2 * 2 * 16 * 48
    assert work.flops(0, 1) == counted


@needs_two_cores
@pytest.mark.parametrize("workload", WORKLOADS)
def test_two_jobs(benchmark, compare, own_process, folders, workload):
    """Compare two jobs on two cores with one."""
    arguments = WORKLOADS[workload], folders[workload], ROUNDS_OF_JOBS[workload]
    found = compare_jobs(compare, own_process, *arguments, TURNS_OF_JOBS[workload])
    benchmark.extra_info["workload"] = workload
    print(f"\n{workload}:", *found.lines(), sep="\n")


@needs_two_cores
@pytest.mark.parametrize("clients_per_round", [3, 10, 30, 100])
def test_two_jobs_of_the_loop(benchmark, compare, own_process, folders, clients_per_round):
    """Compare two jobs with one for rounds of the loop engine: small ones are not shared."""
    work = replace(WORKLOADS["W3"], clients_per_round=clients_per_round)
    arguments = work, folders["W3"], ROUNDS["W3"]
    found = compare_jobs(compare, own_process, *arguments, 15, engine="loop")
    name = benchmark.extra_info["workload"] = f"W3 of {clients_per_round} a round, loop"
    print(f"\n{name}:", *found.lines(), sep="\n")


def compare_jobs(
    compare, own_process, work: Workload, folder: Path, rounds: int, n_turns: int, **params
) -> Comparison:
    fit = own_process(fit_files, work, folder, rounds, **params)

    def time_rounds(n_jobs: int) -> list[float]:
        return fit(n_jobs=n_jobs)["round_seconds"].tolist()

    contestants = {f"n_jobs={n_jobs}": partial(time_rounds, n_jobs) for n_jobs in (1, 2)}
    return compare("jobs", contestants, base="n_jobs=2", n_turns=n_turns)


@needs_two_cores
@pytest.mark.parametrize("workload", ["W2", "W3", "W4"])
def test_two_processes(benchmark, compare, own_process, folders, workload):
    """Compare two fits at once, of half the clients a round each, with one of all.

    Unlike two jobs of one fit, they exchange nothing and do not wait for each other.
    """
    work, *arguments = WORKLOADS[workload], folders[workload], ROUNDS_OF_JOBS[workload]
    half = replace(work, clients_per_round=work.clients_per_round // 2)
    one = own_process(fit_files, work, *arguments)
    two = [own_process(fit_files, half, *arguments) for _ in range(2)]

    def time_rounds(fits: Sequence[Callable]) -> list[float]:
        with ThreadPoolExecutor(len(fits)) as pool:
            histories = pool.map(lambda fit: fit(), fits)
            return [s for history in histories for s in history["round_seconds"]]

    contestants = {"one fit": partial(time_rounds, [one]), "two": partial(time_rounds, two)}
    found = compare("processes", contestants, base="two", n_turns=15)
    benchmark.extra_info["workload"] = workload
    print(f"\n{workload}:", *found.lines(), sep="\n")


@needs_two_cores
def test_two_cores(benchmark, compare):
    """Compare two threads with one for products in cache: the most that two jobs can gain."""
    a = torch.randn(256, 256)

    def multiply(n_products: int) -> None:
        with one_torch_thread():
            for _ in range(n_products):
                torch.mm(a, a)

    def time_products(n_jobs: int) -> list[float]:
        with ThreadPoolExecutor(n_jobs) as pool:
            started = time.perf_counter()
            list(pool.map(multiply, [400 // n_jobs] * n_jobs))
            return [time.perf_counter() - started]

    contestants = {f"n_jobs={n_jobs}": partial(time_products, n_jobs) for n_jobs in (1, 2)}
    found = compare("jobs", contestants, base="n_jobs=2", n_turns=9)
    benchmark.extra_info["workload"] = "400 products alone"
    print(*found.lines(), sep="\n")


@needs_two_cores
def test_grid_of_two_jobs(benchmark, compare, wisdm):
    """Compare two jobs with one for a grid of 8 candidates on three folds of WISDM."""
    X, y, clients = wisdm
    grid = {"selector__d": [3, 6, 9, 12], "estimator__lr": [0.01, 0.1]}

    def search(n_jobs: int) -> list[float]:
        net = NeuralNetClassifier(
            nn.Linear(X.shape[1], 6), criterion=nn.CrossEntropyLoss, batch_size=64
        )
        model = FederatedClassifier(
            net, selector=PowerOfChoice(6, 3), local_steps=30, n_rounds=100, random_state=0
        )
        started = time.perf_counter()
        GridSearchCV(model, grid, cv=3, n_jobs=n_jobs).fit(X, y, clients=clients)
        return [time.perf_counter() - started]

    contestants = {f"n_jobs={n_jobs}": partial(search, n_jobs) for n_jobs in (1, 2)}
    found = compare("grid", contestants, base="n_jobs=2", n_turns=6)
    print("\ngrid:", *found.lines(), sep="\n")


class Normalised(nn.Module):
    """Linear layers with a layer normalisation in between."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 64)
        self.norm = nn.LayerNorm(64)
        self.out = nn.Linear(64, 10)

    def forward(self, X):
        return self.out(self.norm(self.hidden(X)).relu())


MODULES = {
    "CNN": Convolutions,
    "GRU": Recurrent,
    "GRU, 64 units": partial(Recurrent, n_units=64),
    "GRU, 256 units": partial(Recurrent, n_units=256),
    "RNN, 64 units": partial(Recurrent, nn.RNN, 64),
    "layer normalisation": Normalised,
}


@pytest.mark.parametrize("module", MODULES)
def test_other_modules(benchmark, compare, one_core, images, module):
    """Time 12 of 500 clients of about 120 rows, SGD with momentum, E=1, b=32, on each engine."""
    X, y = images
    clients = np.sort(np.random.default_rng(0).integers(0, 500, len(y)))
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        MODULES[module](), criterion=nn.CrossEntropyLoss, batch_size=32, optimizer__momentum=0.9
    )
    row, floor, taken = flops_of_a_row(MODULES[module](), X, y), Floor(), {}

    def time_rounds(engine: str) -> list[float]:
        model = FederatedClassifier(
            net, engine=engine, selector=RandomSelector(12), n_rounds=7, random_state=0
        ).fit(X, y, clients=clients)
        rounds = model.history_[2:]
        taken[engine] = model.engine_
        floor.add((row * n, ROW_BYTES * n) for n in rounds["samples_trained"])
        return rounds["round_seconds"].tolist()

    contestants = {name: partial(time_rounds, name) for name in ("auto", "stacked", "loop")}
    found = compare("modules", contestants, base="stacked", n_turns=6)
    benchmark.extra_info |= {"module": module, "auto": taken["auto"], **floor.info()}
    print(f"\n{module}: {floor}; engine='auto' takes {taken['auto']}", *found.lines(), sep="\n")


def flops_of_a_row(module: nn.Module, X: np.ndarray, y: np.ndarray) -> float:
    """Return the FLOPs of products and convolutions, forward and backward, as torch counts them."""
    batch = 32
    with FlopCounterMode(display=False) as counter:
        output = module(torch.from_numpy(X[:batch]))
        nn.functional.cross_entropy(output, torch.from_numpy(y[:batch])).backward()
    return counter.get_total_flops() / batch


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_gpu(benchmark, compare, own_process, folders, workload):
    """Compare the engines on a GPU, and the stacked engine without CUDA graphs."""
    fit, found = own_process(fit_on_gpu, WORKLOADS[workload], folders[workload]), {}

    def time_rounds(engine: str, n_before: int, n_rounds: int, **params) -> list[float]:
        times, found[engine] = fit(engine=engine, n_before=n_before, n_rounds=n_rounds, **params)
        return times

    contestants = {
        "auto": partial(time_rounds, "auto", 3, 15),
        "stacked without CUDA graphs": partial(time_rounds, "stacked", 3, 15, graphs=False),
        "loop": partial(time_rounds, "loop", 0, 1),
    }
    times = compare("gpu", contestants, base="auto", n_turns=6)
    info = found["auto"] | {"workload": workload}
    benchmark.extra_info |= info
    print(
        f"\n{workload}: engine='auto' takes {info['auto']}", *times.lines(info["floor"]), sep="\n"
    )


def test_polling(benchmark, compare, one_core, images):
    """Time polls of 100 of 1000 clients, in rounds that train one client for a step."""
    X, y = images
    clients = np.arange(len(y)) % 1000
    work = Workload(1000, MLP, 1, 20, candidates=100, local_steps=1)
    floor = Floor()

    def time_polls(engine: str) -> list[float]:
        history = fit_rounds(work, (X, y, clients), 10, engine=engine)
        cache = last_cache_bytes()
        polled = history["samples_evaluated"]
        floor.add((work.flops(n, 0), work.bytes_read(n, 0, cache)) for n in polled)
        return history["select_seconds"].tolist()

    contestants = {engine: partial(time_polls, engine) for engine in ("stacked", "loop")}
    found = compare("polling", contestants, base="stacked", n_turns=6)
    benchmark.extra_info |= floor.info()
    print(f"\npolls: {floor}", *found.lines(), sep="\n")


@pytest.mark.parametrize("workload", ["W3", "W4", "W5"])
def test_predict(benchmark, compare, one_core, images, workload):
    """Time ``predict`` on 10,000 images, and torch by hand in batches of two sizes."""
    X, y = (array[:10_000] for array in images)
    work = WORKLOADS[workload]
    model = make_classifier(work, n_rounds=1).fit(X, y, clients=np.arange(len(y)) % work.n_clients)

    def by_hand(batch_size: int) -> np.ndarray:
        module = model.net_.module_.eval()
        with torch.no_grad():
            batches = torch.from_numpy(X).split(batch_size)
            return torch.cat([module(batch).argmax(1) for batch in batches]).numpy()

    def time_calls(predict: Callable[[], np.ndarray]) -> list[float]:
        times = [time.perf_counter()]
        for _ in range(5):
            predict()
            times.append(time.perf_counter())
        return np.diff(times).tolist()

    contestants = {
        "predict": partial(model.predict, X),
        "by hand": partial(by_hand, work.batch_size),
        "by hand, 512 rows": partial(by_hand, 512),
    }
    assert np.mean(model.predict(X) == by_hand(512)) > 0.999
    timed = {name: partial(time_calls, one) for name, one in contestants.items()}
    found = compare("predict", timed, base="predict", n_turns=6)
    benchmark.extra_info |= {"model of": workload, "batch": work.batch_size}
    print(f"\n{workload}:", *found.lines(), sep="\n")


@pytest.mark.parametrize("workload", ["W3", "W4", "W5"])
def test_probe(benchmark, compare, one_core, images, workload):
    """Time fits of one round without the round: all but the loop engine probe the net there."""
    X, y = (array[:6000] for array in images)  # a tenth of the clients, whose rounds are as of all
    work, rounds = WORKLOADS[workload], {}
    clients = np.arange(len(y)) % (work.n_clients // 10)

    def time_around(engine: str) -> list[float]:
        taken = []
        for _ in range(3):
            model = make_classifier(work, n_rounds=1, engine=engine)
            start = time.perf_counter()
            model.fit(X, y, clients=clients)
            seconds = time.perf_counter() - start
            (rounds[engine],) = model.history_["round_seconds"]
            taken.append(seconds - rounds[engine])
        return taken

    contestants = {name: partial(time_around, name) for name in ("loop", "auto", "stacked")}
    found = compare("probe", contestants, base="loop", n_turns=6)
    benchmark.extra_info |= {"workload": workload, "a round": f"{rounds['auto']:.4f}"}
    print(f"\n{workload}, a round {rounds['auto']:.4f} s:", *found.lines(), sep="\n")
