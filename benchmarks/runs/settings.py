"""A setting: a problem and the strategies tried on it. Its results are one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback

from benchmarks.runs.problems import Problem
from skfed import FederatedClassifier

N_LAST = 10  # rounds in which F(w) is always measured; their mean is a run's final value
KEPT = ["n_polled", "n_trained", "models_down", "models_up"]  # of history_, in a table of results
MEASURED = ("test_", "val_", "global_", "local_")  # prefixes of the columns that a Measure adds
_ROWS_AT_ONCE = 2000  # of images, so that a convolution's output stays small
_OF_THE_NET = {"module", "criterion", "optimizer", "lr", "batch_size"}

Measure = Callable[[NeuralNetClassifier], dict[str, float]]


class Measurements(Callback):
    """Records what ``measure`` returns for the global net after each round."""

    def __init__(self, measure: Measure):
        self.measure = measure

    def on_epoch_end(self, net, **kwargs):
        for name, value in self.measure(net).items():
            net.history.record(name, value)


class Runs(Protocol):
    """What can be run and kept in a table: a setting, or what else has these."""

    @property
    def name(self) -> str: ...

    @property
    def n_rounds(self) -> int: ...

    @property
    def strategies(self) -> Mapping[str, Mapping[str, Any]]: ...

    def run(
        self, strategy: str, seed: int, device: str = "cpu", tick: Callable[[], None] = int
    ) -> pd.DataFrame: ...

    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One problem, how clients train, and by which strategies they are selected.

    Parameters
    ----------
    name : str
        Name of its table of results.
    problem : callable
        Takes a seed; returns a :class:`Problem`.
    net : callable
        Returns the skorch net.
    training : mapping
        Parameters of FederatedClassifier for all strategies.
    strategies : mapping of str to mapping
        Parameters of FederatedClassifier for each strategy.
    n_rounds : int
        Rounds of a run.
    loss_every : int, default=1
        Rounds between two measurements of F(w) on all training rows. In the last rounds it is
        always measured.
    thin : int, default=1
        Keep one row in ``thin`` of each client and of the test; more than 1 for a quick run.
    """

    name: str
    problem: Callable[[int], Problem]
    net: Callable[[], NeuralNetClassifier]
    training: Mapping[str, Any]
    strategies: Mapping[str, Mapping[str, Any]]
    n_rounds: int
    loss_every: int = 1
    thin: int = 1

    def run(
        self, strategy: str, seed: int, device: str = "cpu", tick: Callable[[], None] = int
    ) -> pd.DataFrame:
        """Train by one strategy; return a row a round. ``tick`` is called after each round."""
        problem = self.data(seed)
        measure = self.ticking(self.measures(problem, device), tick)
        estimator = self.estimator(strategy, seed, device, measure, priority=problem.priority)
        return self.results(strategy, seed, measured_history(estimator, problem))

    def data(self, seed: int) -> Problem:
        """Return the problem, with fewer rows if ``thin`` is more than 1."""
        problem = self.problem(seed)
        return problem if self.thin == 1 else problem.thinned(self.thin)

    def estimator(
        self, strategy: str, seed: int, device: str, measure: Measure, **params: Any
    ) -> FederatedClassifier:
        """Return the unfitted estimator of a run."""
        return FederatedClassifier(
            self.net().set_params(device=device, callbacks=[Measurements(measure)]),
            n_rounds=self.n_rounds,
            random_state=seed,
            **self.training | self.strategies[strategy] | params,
        )

    def measures(self, problem: Problem, device: str) -> Measure:
        """Return a function that measures a net: its test accuracy and loss, and F(w)."""
        test = to_tensors(problem.X_test, problem.y_test, device)
        rows = problem.in_objective
        whole = to_tensors(problem.X[rows], problem.y[rows], device)
        rounds = iter(range(self.n_rounds))

        def measure(net: NeuralNetClassifier) -> dict[str, float]:
            accuracy = evaluate(net, *test)[1]
            t = next(rounds)
            due = t % self.loss_every == 0 or t >= self.n_rounds - N_LAST
            F = evaluate(net, *whole)[0] if due else float("nan")
            return {"test_accuracy": accuracy, "global_loss": F}

        return measure

    @staticmethod
    def ticking(measure: Measure, tick: Callable[[], None]) -> Measure:
        """Return ``measure``, followed by a call of ``tick``."""

        def measure_and_tick(net: NeuralNetClassifier) -> dict[str, float]:
            measured = measure(net)
            tick()
            return measured

        return measure_and_tick

    def results(self, strategy: str, seed: int, history: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of the table of results for a history."""
        measured = [c for c in history if c.startswith(MEASURED)]
        frame = history[["round", *measured, *KEPT]].copy()
        frame.insert(0, "strategy", strategy)
        frame.insert(1, "seed", seed)
        return frame

    def describe(self) -> dict[str, Any]:
        """Return the configuration that its results depend on, as text."""
        problem, net = self.problem, self.net().get_params()
        named = (
            {"problem": problem.func.__name__, **problem.keywords}
            if isinstance(problem, partial)
            else {"problem": problem.__name__}
        )
        return {
            "n_rounds": self.n_rounds,
            "loss_every": self.loss_every,
            "problem": str(named),
            "net": str({k: v for k, v in net.items() if k.split("__")[0] in _OF_THE_NET}),
            "training": str(dict(self.training)),
            "strategies": {name: str(dict(given)) for name, given in self.strategies.items()},
        }


def measured_history(estimator: FederatedClassifier, problem: Problem) -> pd.DataFrame:
    """Fit an estimator; return its ``history_`` with what was measured after each round."""
    estimator.fit(problem.X, problem.y, clients=problem.clients)
    rounds = pd.DataFrame(list(estimator.net_.history))
    return estimator.history_.join(rounds[[c for c in rounds if c.startswith(MEASURED)]])


def to_tensors(X: np.ndarray, y: np.ndarray, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(X).to(device), torch.from_numpy(y).to(device)


@torch.no_grad()
def logits(net: NeuralNetClassifier, X: torch.Tensor) -> torch.Tensor:
    """Return a net's outputs in evaluation mode."""
    net.module_.eval()
    return torch.cat([net.module_(rows) for rows in X.split(_ROWS_AT_ONCE)])


def evaluate(net: NeuralNetClassifier, X: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Return a net's mean loss and accuracy."""
    output = logits(net, X)
    return net.criterion_(output, y).item(), (output.argmax(1) == y).float().mean().item()
