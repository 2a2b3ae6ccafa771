"""Times evaluations of the averages of subsets of a cohort against the round that they value.

On Fashion-MNIST, with 100 clients of 600 rows, two of them priority clients, who evaluate.
``python -m pytest benchmarks -k contributions``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.torch_models import linear_layers
from benchmarks.workloads import equal_shares
from skfed._federation import make_federation
from skfed.aggregation import WeightedMean
from skfed.engines import (
    Batching,
    CombinationsRequest,
    LocalTraining,
    StackedEngine,
    TrainRequest,
    make_engine,
)
from skfed.engines._combinations import evaluate_each
from skfed.nets import NetPool, State, get_state, parameter_names
from skfed.selection import Cohort

NETS = {"linear": (784, 10), "MLP 784-64-10": (784, 64, 10)}
PRIORITY = np.array([0, 1])
N_CALLS = 5  # of a turn, of which the first warms up


@dataclass(frozen=True)
class Workplace:
    """An engine, and requests to it."""

    engine: StackedEngine
    state: State
    parameters: list[str]

    def training(self, n_clients: int) -> TrainRequest:
        """Return a round: clients train for one epoch."""
        cohort = Cohort(np.arange(n_clients), np.full(n_clients, 1 / n_clients))
        return TrainRequest(
            round=0,
            state=self.state,
            parameters=self.parameters,
            cohort=cohort,
            training=LocalTraining(epochs=1),
            aggregator=WeightedMean(),
        )

    def valuation(
        self, n_clients: int, n_subsets: int, metric: str = "loss"
    ) -> CombinationsRequest:
        """Return the evaluation of the model and of the averages of subsets of a cohort."""
        torch.manual_seed(0)
        models = {
            name: torch.stack([w, *(w + 0.01 * torch.randn_like(w) for _ in range(n_clients))])
            for name, w in self.state.items()
        }
        subsets = np.random.default_rng(0).random((n_subsets, n_clients)) < 0.5
        subsets[:, 0] |= ~subsets.any(1)
        means = subsets / subsets.sum(1, keepdims=True)
        coefficients = np.zeros((n_subsets + 1, n_clients + 1))
        coefficients[0, 0], coefficients[1:, 1:] = 1, means
        return CombinationsRequest(0, self.state, models, coefficients, PRIORITY, metric)

    def time_round(self, n_clients: int) -> list[float]:
        """Return the seconds of rounds."""
        return timed(partial(self.engine.train, self.training(n_clients)))

    def time_valuation(self, n_clients: int, n_subsets: int, metric: str = "loss") -> list[float]:
        """Return the seconds of evaluations of combinations."""
        request = self.valuation(n_clients, n_subsets, metric)
        return timed(partial(self.engine.evaluate_combinations, request))

    def time_written(self, n_clients: int, n_subsets: int) -> list[float]:
        """Return the seconds of evaluations of each combination's state, written and polled."""
        request = self.valuation(n_clients, n_subsets)
        n_samples = self.engine.batching.n_polled(PRIORITY, None)
        return timed(partial(evaluate_each, request, self.engine.evaluate, n_samples))


def timed(function) -> list[float]:
    """Return the seconds of calls, without the first."""
    seconds = []
    for _ in range(N_CALLS):
        start = perf_counter()
        function()
        seconds.append(perf_counter() - start)
    return seconds[1:]


@contextmanager
def workplace(images, net_name: str) -> Iterator[Workplace]:
    """Context manager for an engine on one core."""
    X, y = images
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        linear_layers(NETS[net_name]), criterion=nn.CrossEntropyLoss, lr=0.01, batch_size=32
    ).initialize()
    federation = make_federation(equal_shares(len(y), 100), len(y))
    engine, _ = make_engine(
        *("stacked", NetPool(net, X[:1]), X, y, Batching(federation, 0, 32), 2**30, 1)
    )
    assert isinstance(engine, StackedEngine)
    try:
        yield Workplace(engine, get_state(net), parameter_names(net))
    finally:
        engine.close()


@pytest.mark.parametrize("net_name", NETS)
def test_subsets_against_the_round_that_they_value(benchmark, compare, one_core, images, net_name):
    """A round of 10 clients, and 64 subsets of them."""
    with workplace(images, net_name) as place:
        contestants = {
            "round": partial(place.time_round, 10),
            "combinations": partial(place.time_valuation, 10, 64),
            "combinations, errors": partial(place.time_valuation, 10, 64, "error"),
            "each model written": partial(place.time_written, 10, 64),
        }
        found = compare("contributions", contestants, base="round", n_turns=6)
    benchmark.extra_info |= {"net": net_name}
    print(f"\n{net_name}:", *found.lines(), sep="\n")
    if net_name == "linear":
        assert found.seconds["combinations"] < found.seconds["round"]
        assert found.seconds["combinations, errors"] < found.seconds["round"]


@pytest.mark.parametrize("net_name", NETS)
@pytest.mark.parametrize("grows", ["m", "subsets"])
def test_growth_with_clients_and_subsets(benchmark, compare, one_core, images, net_name, grows):
    sizes = {
        "m": {f"m={m}": (m, 64) for m in (5, 10, 20, 50)},
        "subsets": {f"{n} subsets": (10, n) for n in (16, 64, 256)},
    }[grows]
    with workplace(images, net_name) as place:
        contestants = {name: partial(place.time_valuation, *size) for name, size in sizes.items()}
        contestants |= {
            f"{name}, each model written": partial(place.time_written, *size)
            for name, size in sizes.items()
        }
        found = compare(f"contributions, {grows}", contestants, base=next(iter(sizes)), n_turns=4)
    benchmark.extra_info |= {"net": net_name}
    print(f"\n{net_name}, growing {grows}:", *found.lines(), sep="\n")
