"""Times selections, without polls and training, as the number of clients grows.

A rule is a line in ``SELECTORS``, or in ``GROUPING`` if it clusters or fits.
``python -m pytest benchmarks -k selection``.
"""

from functools import partial
from time import perf_counter

import numpy as np
import pytest

from skfed import (
    ActiveFLSelector,
    ClusteredSelector,
    DivFLSelector,
    FedCorSelector,
    FedCSSelector,
    HicsFLSelector,
    KVibSelector,
    LossProportionalSelector,
    OortSelector,
    OptimalSelector,
    PowerOfChoice,
    RandomSelector,
    RoundRobinSelector,
    TiflSelector,
    UcbSelector,
)
from skfed.selection._base import admission_of
from skfed.selection._mock_round import mock_round
from skfed.selection._past import SKETCH_SIZE

M, N_ROUNDS = 100, 5
SELECTORS = {
    "random": RandomSelector(M),
    "power-of-choice": PowerOfChoice(2 * M, M),
    "AFL": ActiveFLSelector(M),
    "round robin": RoundRobinSelector(M),
    "loss-proportional": LossProportionalSelector(M),
    "FedCS": FedCSSelector(M),
    "UCB-CS": UcbSelector(M),
    "clustered by size": ClusteredSelector("size", M),
    "optimal": OptimalSelector(M),
    "optimal, approximate": OptimalSelector(M, approximate=True),
    "Oort": OortSelector(M),
    "TiFL": TiflSelector(M),
    "K-Vib": KVibSelector(M),
}
GROUPING = {
    "clustered by updates": ClusteredSelector("updates", M),
    "DivFL": DivFLSelector(M),
    "FedCor, fitted in each round": FedCorSelector(M, warmup=1, interval=1),
    "HiCS-FL": HicsFLSelector(M),
}


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


def time_selections(selector, n_clients: int) -> list[float]:
    """Return the seconds of selections, one round after the other, without the first."""
    memory, seconds = {}, []
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


def time_growth(benchmark, compare, group, name, selector, sizes):
    contestants = {f"K={n}": partial(time_selections, selector, n) for n in sizes}
    found = compare(group, contestants, base=f"K={sizes[0]}", n_turns=6)
    benchmark.extra_info |= {"selector": name}
    print(f"\n{name}:", *found.lines(), sep="\n")
    return found.seconds


@pytest.mark.parametrize("name", SELECTORS)
def test_selection(benchmark, compare, one_core, name):
    seconds = time_growth(benchmark, compare, "selection", name, SELECTORS[name], (1000, 10_000))
    assert seconds["K=10000"] < 0.02


@pytest.mark.parametrize("name", GROUPING)
def test_selection_of_rules_that_cluster_or_fit(benchmark, compare, one_core, name):
    seconds = time_growth(benchmark, compare, "grouping", name, GROUPING[name], (1000, 4000))
    assert seconds["K=1000"] < 1
