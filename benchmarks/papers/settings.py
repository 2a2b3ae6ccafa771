"""One problem and the strategies tried on it: what becomes one table of results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from skorch import NeuralNetClassifier

from benchmarks.papers.claims import LAST
from benchmarks.papers.problems import Problem
from skfed import FederatedClassifier

# The columns of history_ that a table of results keeps.
KEPT = [
    "n_polled",
    "n_trained",
    "models_down",
    "models_up",
    "bytes_down",
    "bytes_up",
    "samples_evaluated",
    "samples_trained",
    "lr",
]
_ROWS_AT_ONCE = 2000  # of images, so that a convolution's output stays small
_OF_THE_NET = {"module", "criterion", "optimizer", "lr", "batch_size"}

Measure = Callable[[NeuralNetClassifier], dict[str, float]]


@dataclass(frozen=True)
class Measurement:
    """Stands where an estimator measures a net on validation data."""

    measure: Measure
    rows: None = None  # callbacks of the net are shown none

    def is_due(self, t: int) -> bool:
        return True

    def after_round(self, net: NeuralNetClassifier, t: int) -> dict[str, float]:
        return self.measure(net)

    def after_stop(self, net: NeuralNetClassifier, t: int) -> dict[str, float]:
        return {}


class Measured(FederatedClassifier):
    """A FederatedClassifier whose ``history_`` shows ``measure(net)`` after each round.

    Validation data would do for one test set; the figures show the training loss as well.
    """

    measure: Measure

    def _validation(self, *validation):
        return Measurement(self.measure)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One problem, how clients train, and by which strategies they are selected.

    Parameters
    ----------
    name : str
        Of its table of results.
    problem : callable
        Seed to :class:`Problem`.
    net : callable
        Returns the skorch net.
    training : mapping
        Parameters of FederatedClassifier for all strategies.
    strategies : mapping of str to mapping
        Parameters of FederatedClassifier for each.
    n_rounds : int
        Rounds of a run.
    loss_every : int, default=1
        F(w), over all training rows, is measured every so many rounds, and in each of the last.
    thin : int, default=1
        Each so many-th row of a client, or of the test, counts: more than 1 is for a quick look.
    with_cohorts : bool, default=False
        Whether the results say who was in the cohort.
    """

    name: str
    problem: Callable[[int], Problem]
    net: Callable[[], NeuralNetClassifier]
    training: Mapping[str, Any]
    strategies: Mapping[str, Mapping[str, Any]]
    n_rounds: int
    loss_every: int = 1
    thin: int = 1
    with_cohorts: bool = False

    def run(
        self, strategy: str, seed: int, device: str = "cpu", tick: Callable[[], None] = int
    ) -> pd.DataFrame:
        """Train by one strategy; return a row a round. ``tick`` is called after each."""
        problem = self.data(seed)
        model = self.model(strategy, seed, device)
        model.measure = self.ticking(self.measures(problem, device), tick)
        model.set_params(priority=problem.priority)
        history = model.fit(problem.X, problem.y, clients=problem.clients).history_
        return self.results(strategy, seed, history)

    def data(self, seed: int) -> Problem:
        """Return the problem, thinned out for a quick look."""
        problem = self.problem(seed)
        return problem if self.thin == 1 else problem.thinned(self.thin)

    def model(self, strategy: str, seed: int, device: str) -> Measured:
        """Return the estimator of a run, not fitted."""
        return Measured(
            self.net().set_params(device=device),
            n_rounds=self.n_rounds,
            random_state=seed,
            **self.training,
            **self.strategies[strategy],
        )

    def measures(self, problem: Problem, device: str) -> Measure:
        """Return what measures a global model: its test accuracy and loss, and F."""
        test = to_tensors(problem.X_test, problem.y_test, device)
        rows = problem.in_objective
        whole = to_tensors(problem.X[rows], problem.y[rows], device)
        rounds = iter(range(self.n_rounds))

        def measure(net: NeuralNetClassifier) -> dict[str, float]:
            loss, accuracy = evaluate(net, *test)
            t = next(rounds)
            due = t % self.loss_every == 0 or t >= self.n_rounds - LAST
            F = evaluate(net, *whole)[0] if due else float("nan")
            return {"test_accuracy": accuracy, "test_loss": loss, "global_loss": F}

        return measure

    @staticmethod
    def ticking(measure: Measure, tick: Callable[[], None]) -> Measure:
        """Return ``measure`` with a tick after it."""

        def ticked(net: NeuralNetClassifier) -> dict[str, float]:
            measured = measure(net)
            tick()
            return measured

        return ticked

    def results(self, strategy: str, seed: int, history: pd.DataFrame) -> pd.DataFrame:
        """Bring a history into the form of a table of results."""
        measured = [c for c in history if c.startswith(("test_", "global_", "local_"))]
        scheduled = [c for c in ("eps", "d") if c in history]
        frame = history[["round", *measured, *KEPT, *scheduled]].copy()
        frame["seconds"] = history["select_seconds"] + history["train_seconds"]
        if self.with_cohorts:
            frame["cohort"] = [" ".join(map(str, cohort)) for cohort in history["cohort"]]
        frame.insert(0, "strategy", strategy)
        frame.insert(1, "seed", seed)
        return frame

    def describe(self) -> dict[str, Any]:
        """Return what its results depend on, as text."""
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


def to_tensors(X: np.ndarray, y: np.ndarray, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(X).to(device), torch.from_numpy(y).to(device)


@torch.no_grad()
def logits(net: NeuralNetClassifier, X: torch.Tensor) -> torch.Tensor:
    """Return a net's outputs, random layers off."""
    net.module_.eval()
    return torch.cat([net.module_(rows) for rows in X.split(_ROWS_AT_ONCE)])


def evaluate(net: NeuralNetClassifier, X: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Return a net's mean loss and accuracy."""
    output = logits(net, X)
    return net.criterion_(output, y).item(), (output.argmax(1) == y).float().mean().item()
