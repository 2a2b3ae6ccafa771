"""Evaluation of the global model by the clients, on rows that they keep aside."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import numpy as np

from skfed._federation import Federation, find_ids
from skfed.engines import EvaluateRequest, Evaluation, Evaluator
from skfed.evaluation import Metric
from skfed.exchanges import (
    EVALUATION,
    Answers,
    Message,
    Messages,
    ModelHolders,
    missing_clients,
    pack_evaluations,
)
from skfed.history import Row
from skfed.nets import State
from skfed.selection import Round
from skfed.server._current_round import CurrentRound, answers_of
from skfed.server._validation import is_due


class HeldOutRequest(NamedTuple):
    """A request for metrics of a state on the rows that some clients keep aside."""

    round: int
    state: State
    clients: np.ndarray
    metrics: Sequence[Metric]


class HeldOutEvaluator(Protocol):
    """Evaluates a state on the rows that clients keep aside."""

    @property
    def held_out_sizes(self) -> np.ndarray:
        """How many rows each client keeps aside, of shape (n_clients,)."""

    def evaluate_held_out(self, request: HeldOutRequest) -> Evaluation:
        """Return values of shape (n_clients, n_metrics); a client that raises for one has none."""


@dataclass(frozen=True)
class HeldOutRows:
    """Evaluates on rows in this process.

    Parameters
    ----------
    evaluator : Evaluator
        Of these rows, by client.
    positions : ndarray of int of shape (n_clients,)
        Where ``evaluator`` has each client of the federation, -1 of one without rows.
    held_out_sizes : ndarray of int of shape (n_clients,)
        Their numbers of rows.
    """

    evaluator: Evaluator
    positions: np.ndarray
    held_out_sizes: np.ndarray

    @classmethod
    def of(cls, evaluator: Evaluator, own: Federation, federation: Federation) -> Self:
        """Return that of a federation's clients, of which ``own`` are those in the evaluator."""
        positions = find_ids(own.ids, federation.ids)
        return cls(evaluator, positions, np.where(positions < 0, 0, own.sizes[positions]))

    def evaluate_held_out(self, request: HeldOutRequest) -> Evaluation:
        """Evaluate one metric after the other."""
        t, state, clients, metrics = request
        raised: dict[int, Exception] = {}
        values = np.empty((len(clients), len(metrics)))
        for i, metric in enumerate(metrics):
            polled = EvaluateRequest(t, state, self.positions[clients], metric.evaluated)
            found = self.evaluator.evaluate(polled)
            values[:, i] = metric.of_evaluated(found.values)
            raised = {**found.raised, **raised}
        return Evaluation(values, self.held_out_sizes[clients], raised)


@dataclass(frozen=True)
class HeldOutEvaluation:
    """Asks the clients in reach for metrics of the new model.

    Parameters
    ----------
    metrics : sequence of Metric
        What they are asked for.
    min_answers : int
        With fewer answers nothing of them is kept but their number.
    evaluator : HeldOutEvaluator
        Evaluates the model on their rows.
    every : int
        Rounds from one evaluation to the next.
    n_rounds : int
        The last of them has one.
    """

    metrics: Sequence[Metric]
    min_answers: int
    evaluator: HeldOutEvaluator
    every: int
    n_rounds: int

    def after_round(self, current: CurrentRound, view: Round, state: State) -> Row:
        """Return the columns of ``history_`` for a round, and what is kept of each client.

        The exchange is added to those of the round.
        """
        clients, values = np.zeros(0, dtype=int), np.zeros((0, len(self.metrics)))
        if is_due(current.server.round, self.every, self.n_rounds):
            asked = view.available & (self.evaluator.held_out_sizes > 0)
            # Who has not answered in this round is not waited for again.
            asked[missing_clients(current.exchanges.settled, current.config.deadline)] = False
            clients = np.flatnonzero(asked)
            if len(clients):
                values = self._ask(current, clients, state)
            answered = np.isfinite(values).all(axis=1)
            clients, values = clients[answered], values[answered]
        kept = len(clients) >= max(1, self.min_answers)
        row = self._columns(view, clients, values) if kept else self._nothing()
        row["n_evaluated"] = len(clients)
        if kept:
            columns = {one.name: values[:, i] for i, one in enumerate(self.metrics)}
            sizes, priority = self.evaluator.held_out_sizes[clients], view.priority[clients]
            row["evaluations"] = pack_evaluations(
                current.federation, clients, {"n_samples": sizes, "priority": priority, **columns}
            )
        return row

    def _ask(self, current: CurrentRound, clients: np.ndarray, state: State) -> np.ndarray:
        """Return the metrics of each client, NaN of one that has not told all."""
        names = [one.name for one in self.metrics]
        request = HeldOutRequest(current.server.round, state, clients, self.metrics)

        def send(asked: np.ndarray) -> Answers:
            reply = self.evaluator.evaluate_held_out(request._replace(clients=clients[asked]))
            cause = f"its {' or '.join(names)} is NaN or infinite on the rows that it keeps aside"
            return answers_of(reply, "metrics", reply.values, lambda _: ValueError(cause))

        # It measures the model: a failure does not end the fit.
        exchanges = current.exchanges
        apart = replace(exchanges, failures=replace(exchanges.failures, fatal=False))
        exchange = apart.ask(
            EVALUATION,
            Messages(Message(model=True), Message(scalars=dict.fromkeys(names, 1))),
            clients,
            send,
            rows=self.evaluator.held_out_sizes[clients],
            holders=ModelHolders.like(exchanges.holders),  # nobody has the new model yet
        )
        return exchange.extras["metrics"].copy()

    def _columns(self, view: Round, clients: np.ndarray, values: np.ndarray) -> Row:
        """Return the means over all rows and over those of priority clients, and the worst."""
        sizes = self.evaluator.held_out_sizes[clients].astype(float)
        weights = sizes * view.priority_weights[clients]
        row: Row = {}
        for i, one in enumerate(self.metrics):
            own, name = values[:, i], f"eval_{one.name}"
            row[name] = float(np.average(own, weights=sizes))
            of_priority = np.average(own, weights=weights) if weights.any() else np.nan
            row[f"{name}_priority"] = float(of_priority)
            row[f"{name}_worst"] = one.worst(own)
        return row

    def _nothing(self) -> Row:
        """Return the columns of a round of which nothing is kept."""
        kinds = "", "_priority", "_worst"
        return {f"eval_{one.name}{kind}": float("nan") for one in self.metrics for kind in kinds}
