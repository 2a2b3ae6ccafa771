"""FedALIGN's Figure 3: what a free client gains over training alone."""

import itertools
from dataclasses import dataclass

import numpy as np

from benchmarks.runs.problems import Problem
from benchmarks.runs.settings import N_LAST, Setting, logits, measured_history, to_tensors
from skfed.selection import BaseSelector, Cohort

LOCAL = "local models"  # strategy: each free client trains alone


class Only(BaseSelector):
    """Select one client in every round, so that the global model is its local model."""

    def __init__(self, client=0):
        self.client = client

    def _select(self, round):
        return Cohort.mean(np.array([self.client]))


@dataclass(frozen=True, kw_only=True)
class WithLocalModels(Setting):
    """A setting that also measures accuracy on the test rows with a free client's labels.

    In the strategy ``LOCAL`` each free client trains a model of its own, with as many steps.
    """

    def run(self, strategy, seed, device="cpu", tick=int):
        if strategy != LOCAL:
            return super().run(strategy, seed, device, tick)
        problem = self.data(seed)
        held = held_labels(problem)
        histories = []
        free = np.setdiff1d(problem.clients, problem.priority)
        ticks = itertools.count(1)
        for k in free:
            local = self._when_due(self._local_measure(problem, device, held[[k]]))
            # A round of each of the clients is one round of the run.
            measure = self.ticking(local, lambda: next(ticks) % len(free) or tick())
            only = Only(int(k))
            estimator = self.estimator(strategy, seed, device, measure, selector=only)
            histories.append(measured_history(estimator, problem))
        mean = histories[0].copy()
        for column in ("test_accuracy", "local_accuracy"):
            mean[column] = np.mean([history[column] for history in histories], axis=0)
        return self.results(strategy, seed, mean)

    def measures(self, problem, device):
        usual = super().measures(problem, device)
        free = np.setdiff1d(problem.clients, problem.priority)
        local = self._local_measure(problem, device, held_labels(problem)[free])
        local = self._when_due(local)
        return lambda net: usual(net) | local(net)

    def _when_due(self, measure):
        """Return ``measure`` for each ``loss_every``-th round and the last ones, else NaN."""
        rounds = itertools.count()

        def measured(net):
            t = next(rounds)
            if t % self.loss_every == 0 or t >= self.n_rounds - N_LAST:
                return measure(net)
            return {"test_accuracy": np.nan, "local_accuracy": np.nan}

        return measured

    def _local_measure(self, problem: Problem, device: str, held: np.ndarray):
        """Return a function that measures clients' mean accuracy on the labels in ``held``."""
        X, y = to_tensors(problem.X_test, problem.y_test, device)
        totals = np.bincount(y.cpu().numpy(), minlength=held.shape[1])

        def measure(net):
            right = y[logits(net, X).argmax(1) == y]
            hits = np.bincount(right.cpu().numpy(), minlength=len(totals))
            own = (held @ hits) / (held @ totals)
            return {"test_accuracy": hits.sum() / totals.sum(), "local_accuracy": own.mean()}

        return measure


def held_labels(problem: Problem) -> np.ndarray:
    """Return which labels each client holds, of shape (n_clients, n_classes)."""
    held = np.zeros((problem.clients.max() + 1, problem.y_test.max() + 1), dtype=bool)
    held[problem.clients, problem.y] = True
    return held
