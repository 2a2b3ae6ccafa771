"""Times selections, without polls and training, as the number of clients grows.

The rules are those of ``benchmarks/rules.py``; ``GROUPING`` names those that cluster or fit. With
public devices, rules that look at seconds are timed in a fit, in which devices draw what they tell.
``python -m pytest benchmarks -k selection``.
"""

from functools import partial
from time import perf_counter

import numpy as np
import pytest

from benchmarks.rules import RULES
from skfed import FedCorSelector, FederatedClassifier, OptimalSelector
from skfed.devices import LognormalDevices
from skfed.selection._base import admission_of
from skfed.selection._mock_round import mock_round
from skfed.selection._past import SKETCH_SIZE

M, N_ROUNDS = 100, 5
SELECTORS = {name: rule(M) for name, rule in RULES.items()} | {
    "optimal, approximate": OptimalSelector(M, approximate=True),
    "FedCor": FedCorSelector(M, warmup=1, interval=1),  # fitted in each round
}
GROUPING = {"clustered by updates", "DivFL", "FedCor", "HiCS-FL"}
QUICK = [name for name in SELECTORS if name not in GROUPING]
PUBLIC = ", public devices"
BY_SECONDS = [name + PUBLIC for name in ("FedCS", "TiFL", "Oort")]


def view_of(n_clients: int, t: int, memory: dict):
    """Return round t of clients of all sizes, who have all trained before."""
    rng = np.random.default_rng((n_clients, t))
    losses = rng.lognormal(size=n_clients)
    seconds = rng.lognormal(size=n_clients)
    past = {
        "n_polled": np.zeros(n_clients, int),
        "n_chosen": rng.integers(1, 9, n_clients),
        "last_chosen": rng.integers(0, t, n_clients),
        "loss_mean": losses,
        "loss_std": 0.1 * losses,
        "loss_rms": 1.1 * losses,
        "seconds": seconds,
        "updates": rng.normal(size=(n_clients, SKETCH_SIZE)),
        "last_layer": rng.normal(size=(n_clients, 10)),
    }
    return mock_round(
        losses,
        sizes=rng.integers(1, 500, n_clients),
        reported=losses,
        seconds=seconds,
        norms=losses,
        trial_losses=0.9 * losses,
        sketches=rng.normal(size=(n_clients, SKETCH_SIZE)),
        index=t,
        n_rounds=1000,
        rng=rng,
        past=past,
        memory=memory,
    )


def time_selections(name: str, n_clients: int) -> list[float]:
    """Return the seconds of selections, one round after the other, without the first."""
    selector, memory, seconds = SELECTORS[name], {}, []
    admit = admission_of(selector)
    for t in range(50, 51 + N_ROUNDS):
        view = view_of(n_clients, t, memory)
        start = perf_counter()
        cohort = selector.select(view)
        if admit is not None:
            admit(view, view.reports(cohort))
        seconds.append(perf_counter() - start)
        memory = memory if cohort.memory is None else cohort.memory
    return seconds[1:]


def time_selections_of_a_fit(name: str, n_clients: int) -> list[float]:
    """Return the seconds of selections, without the first and last: these poll, or draw devices."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * n_clients, 8)).astype("float32")
    y, clients = rng.integers(0, 3, len(X)), np.arange(len(X)) % n_clients
    model = FederatedClassifier(
        selector=SELECTORS[name.removesuffix(PUBLIC)],
        devices=LognormalDevices(public=True),
        n_rounds=N_ROUNDS + 2,
        random_state=0,
    )
    return model.fit(X, y, clients=clients).history_["select_seconds"][1:-1].tolist()


def time_growth(benchmark, compare, group, name, sizes):
    time = time_selections_of_a_fit if name.endswith(PUBLIC) else time_selections
    contestants = {f"K={n}": partial(time, name, n) for n in sizes}
    found = compare(group, contestants, base=f"K={sizes[0]}", n_turns=6)
    benchmark.extra_info |= {"selector": name}
    print(f"\n{name}:", *found.lines(), sep="\n")
    return found.seconds


@pytest.mark.parametrize("name", [*QUICK, *BY_SECONDS])
def test_selection(benchmark, compare, one_core, name):
    seconds = time_growth(benchmark, compare, "selection", name, (1000, 10_000))
    assert seconds["K=10000"] < 0.02


@pytest.mark.parametrize("name", sorted(GROUPING))
def test_selection_of_rules_that_cluster_or_fit(benchmark, compare, one_core, name):
    seconds = time_growth(benchmark, compare, "grouping", name, (1000, 4000))
    assert seconds["K=1000"] < 1
