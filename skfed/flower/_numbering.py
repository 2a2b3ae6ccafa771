"""Numbers the rounds of a continued run after those before it, where Flower counts from 1 again."""

from collections.abc import Callable

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from skfed._estimator import BaseFederated
from skfed.server import ServerState, is_due


def evaluations(evaluate_fn: Callable, server: ServerState, estimator: BaseFederated) -> Callable:
    """Return ``evaluate_fn`` for the rounds that are due, numbered after those before the run."""
    done, every, until = server.round, estimator.validate_every, estimator.n_rounds

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord | None:
        n_finished = done + t
        if n_finished > server.round:  # a callback has stopped the rounds, and Flower continues
            return None
        stopped = server.stopped >= until
        if t == 0 or stopped or is_due(n_finished - 1, every, until):
            return evaluate_fn(n_finished, arrays)
        return None

    return evaluate


def renumbered(result: Result, done: int, arrays: ArrayRecord) -> Result:
    """Number the rounds of a result after those done before, and set its model."""
    for name in ("train_metrics_clientapp", "evaluate_metrics_serverapp"):
        metrics = getattr(result, name)
        setattr(result, name, {done + t: record for t, record in metrics.items()})
    result.arrays = arrays
    return result
