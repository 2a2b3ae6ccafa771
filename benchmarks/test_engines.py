"""Times the engines and other packages on the same workloads, beside the floor of the machine.

``SKFED_PEERS=DIR python -m pytest benchmarks -k workload --benchmark-json=bench.json`` also
measures the other packages, each in an environment of its own under DIR. All contestants of a
workload run in the same test, in turns, on one core; the median of all their rounds is reported.
"""

import os
from statistics import median

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import well_written_loop
from benchmarks.machine import gemm_peak
from benchmarks.peers import PEERS, PeerUnavailable, run_peer
from benchmarks.torch_models import Convolutions, Recurrent, make_module
from benchmarks.workloads import MLP, WORKLOADS, Workload
from skfed import FederatedClassifier, PowerOfChoice, RandomSelector

ROUNDS = {"W1": 15, "W2": 3, "W3": 15, "W4": 3, "W5": 15}  # of each contestant in a turn


def make_classifier(work: Workload, device="cpu", **params) -> FederatedClassifier:
    torch.manual_seed(0)
    selector = RandomSelector(work.clients_per_round, probability="uniform", replace=False)
    if work.candidates is not None:
        selector = PowerOfChoice(work.candidates, work.clients_per_round)
    net = NeuralNetClassifier(
        make_module(work.model),
        criterion=nn.CrossEntropyLoss,
        optimizer=getattr(torch.optim, work.optimizer),
        lr=work.lr,
        batch_size=work.batch_size,
        device=device,
    )
    params = {"local_steps": work.local_steps, "local_epochs": work.local_epochs, **params}
    return FederatedClassifier(net, selector=selector, random_state=0, **params)


def load(folder):
    return [np.load(folder / f"{name}.npy") for name in ("X", "y", "clients")]


def fit_rounds(work: Workload, data, n_rounds: int, **params):
    """Return the history of ``n_rounds`` rounds, after two that fill caches."""
    X, y, clients = data
    model = make_classifier(work, n_rounds=n_rounds + 2, **params).fit(X, y, clients=clients)
    return model.history_.iloc[2:]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_workload(benchmark, compare, one_core, folders, workload):
    work, data = WORKLOADS[workload], load(folders[workload])
    rounds, floors, absent = ROUNDS[workload], [], {}

    def turn(seconds):
        peak = gemm_peak()
        for engine in ("stacked", "loop"):
            n_rounds = rounds if engine == "stacked" else max(1, rounds // 5)
            history = fit_rounds(work, data, n_rounds, engine=engine)
            seconds[f"skfed {engine}"] += history["round_seconds"].tolist()
            if engine == "stacked":
                done = history[["samples_evaluated", "samples_trained"]].to_numpy()
                floors.extend(work.flops(*row) / peak for row in done)
        for name, train in well_written_loop.loops(work).items():
            seconds[name] += well_written_loop.time_rounds(
                workload, folders[workload], rounds, train
            )
        for name in PEERS:
            try:
                times = peer(name, workload, folders, rounds)
            except PeerUnavailable as reason:
                absent[name] = str(reason)
            else:
                seconds[name] += times

    medians = compare("workloads", turn)
    benchmark.extra_info |= {"workload": workload, "floor": median(floors), "absent": absent}
    print(f"\n{workload}: floor {median(floors):.4f} s")
    for name, value in medians.items():
        print(f"  {name:22} {value:.4f} s, {value / median(floors):.1f} floors")
    for name, reason in absent.items():
        print(f"  {name} is left out: {reason}")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_flops(images, workload):
    """Check the FLOPs of a workload against torch's count."""
    work = WORKLOADS[workload]
    counted = flops_of_a_row(make_module(work.model), *images)
    if workload == "W5":  # torch multiplies the first state of the GRU, which is zero, as well
        counted -= 2 * 2 * 16 * 48
    assert work.flops(0, 1) == counted


def peer(name: str, workload: str, folders, rounds: int) -> list[float]:
    if "SKFED_PEERS" not in os.environ:
        raise PeerUnavailable("set SKFED_PEERS to a folder for its environment")
    return run_peer(name, workload, folders[workload], rounds)["seconds"]


@pytest.mark.parametrize("workload", ["W2", "W3"])
def test_two_jobs(benchmark, compare, folders, workload):
    """Compare two jobs on two cores with one."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    work, data = WORKLOADS[workload], load(folders[workload])

    def turn(seconds):
        for n_jobs in (1, 2):
            history = fit_rounds(work, data, ROUNDS[workload], engine="stacked", n_jobs=n_jobs)
            seconds[f"n_jobs={n_jobs}"] += history["round_seconds"].tolist()

    medians = compare("jobs", turn)
    benchmark.extra_info["workload"] = workload
    print(f"\n{workload}: {medians}, {medians['n_jobs=1'] / medians['n_jobs=2']:.2f}x")


class Normalised(nn.Module):
    """Linear layers with a layer normalisation in between."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 64)
        self.norm = nn.LayerNorm(64)
        self.out = nn.Linear(64, 10)

    def forward(self, X):
        return self.out(self.norm(self.hidden(X)).relu())


MODULES = {"CNN": Convolutions, "GRU": Recurrent, "layer normalisation": Normalised}


@pytest.mark.parametrize("module", MODULES)
def test_other_modules(benchmark, compare, one_core, images, module):
    """Time 12 of 500 clients of about 120 rows, SGD with momentum, E=1, b=32, on each engine."""
    X, y = images
    clients = np.sort(np.random.default_rng(0).integers(0, 500, len(y)))
    net = NeuralNetClassifier(
        MODULES[module], criterion=nn.CrossEntropyLoss, batch_size=32, optimizer__momentum=0.9
    )
    floors = []

    def turn(seconds):
        row = flops_of_a_row(MODULES[module](), X, y) / gemm_peak()
        for engine in ("auto", "stacked", "loop"):
            model = FederatedClassifier(
                net, engine=engine, selector=RandomSelector(12), n_rounds=7, random_state=0
            ).fit(X, y, clients=clients)
            seconds[engine] += model.history_["round_seconds"][2:].tolist()
            floors.extend(row * model.history_["samples_trained"][2:])
            benchmark.extra_info[engine] = model.engine_

    medians = compare("modules", turn)
    benchmark.extra_info |= {"module": module, "floor": median(floors)}
    print(f"\n{module}: floor {median(floors):.4f} s, {medians}")
    print(f"  auto takes {benchmark.extra_info['auto']}")


def flops_of_a_row(module: nn.Module, X: np.ndarray, y: np.ndarray) -> float:
    """Return the FLOPs of products and convolutions, forward and backward, as torch counts them."""
    batch = 32
    with FlopCounterMode(display=False) as counter:
        output = module(torch.from_numpy(X[:batch]))
        nn.functional.cross_entropy(output, torch.from_numpy(y[:batch])).backward()
    return counter.get_total_flops() / batch


def test_gpu(benchmark, compare, folders):
    """Compare the stacked engine with the loop engine on W3 on a GPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    work, data = WORKLOADS["W3"], load(folders["W3"])

    def turn(seconds):
        for engine, n_rounds in (("stacked", 15), ("loop", 3)):
            history = fit_rounds(work, data, n_rounds, engine=engine, device="cuda")
            seconds[engine] += history["round_seconds"].tolist()

    medians = compare("gpu", turn)
    card = benchmark.extra_info["card"] = torch.cuda.get_device_name()
    print(f"\n{card}: {medians}, {medians['loop'] / medians['stacked']:.1f}x")


def test_polling(benchmark, compare, one_core, images):
    """Time polls of 100 of 1000 clients, in rounds that train one client for a step."""
    X, y = images
    clients = np.arange(len(y)) % 1000
    work = Workload(1000, MLP, 1, 20, candidates=100, local_steps=1)
    floors = []

    def turn(seconds):
        peak = gemm_peak()
        for engine in ("stacked", "loop"):
            history = fit_rounds(work, (X, y, clients), 10, engine=engine)
            seconds[engine] += history["select_seconds"].tolist()
            floors.extend(work.flops(n, 0) / peak for n in history["samples_evaluated"])

    medians = compare("polling", turn)
    benchmark.extra_info["floor"] = median(floors)
    print(f"\npolls: {medians}, floor {median(floors):.4f} s")
