"""One round after another: poll, select, train, aggregate, record."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from skorch import NeuralNetClassifier

from skfed._federation import Federation
from skfed._nets import Model, get_model, model_bytes, set_model
from skfed.aggregation import aggregate_mean
from skfed.engines import LoopEngine, Update
from skfed.history import Ledger
from skfed.selection import BaseSelector, Cohort, Round
from skfed.utils._seeding import Purpose, stream


@dataclass
class Server:
    """All that the server remembers between rounds."""

    net: NeuralNetClassifier  # holds the global model
    seed: int
    reported: dict[bytes, float] = field(default_factory=dict)  # by client digest
    rows: list[dict[str, Any]] = field(default_factory=list)  # the history, one a round

    @property
    def round(self) -> int:
        """The number of finished rounds, t."""
        return len(self.rows)


@dataclass
class Poll:
    """Carries a selector's questions of one round to the engine, and charges for them."""

    engine: LoopEngine
    model: Model
    round: int
    ledger: Ledger
    losses: dict[int, float] = field(default_factory=dict)  # F_k(w_t) of who said it

    def __call__(self, clients, metric, max_samples, at_most):
        values, n_samples = self.engine.evaluate(
            self.model, clients, self.round, metric, max_samples
        )
        # A client above the bound keeps its value to itself.
        answered = np.ones(len(values), bool) if at_most is None else values <= at_most
        self.ledger.charge_poll(clients, answered, n_samples, with_bound=at_most is not None)
        if metric == "loss" and max_samples is None:
            self.losses.update(zip(clients[answered].tolist(), values[answered], strict=True))
        return np.where(answered, values, np.nan)

    def objective(self, view: Round) -> float:
        """Return F(w_t) = sum over P of p_k F_k(w_t), where all of P in reach told their loss."""
        priority = np.flatnonzero(view.priority & view.available)
        if not len(priority) or not self.losses.keys() >= set(priority.tolist()):
            return float("nan")
        return float(
            np.average([self.losses[k] for k in priority.tolist()], weights=view.sizes[priority])
        )


def run_rounds(
    server: Server,
    federation: Federation,
    engine: LoopEngine,
    selector: BaseSelector,
    *,
    until: int,
    n_rounds: int,
    validate: Callable[[NeuralNetClassifier], dict[str, float]],
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Run rounds until the server has finished ``until`` of them.

    ``n_rounds`` is what schedules plan for, ``validate`` measures the global model after a round,
    and ``report`` is shown each row of the history.
    """
    reported = np.full(len(federation), np.inf)
    if server.reported:
        for k in range(len(federation)):
            reported[k] = server.reported.get(federation.digest(k), np.inf)
    while server.round < until:
        report(_run_round(server, federation, engine, selector, reported, n_rounds, validate))


def _run_round(
    server: Server,
    federation: Federation,
    engine: LoopEngine,
    selector: BaseSelector,
    reported: np.ndarray,
    n_rounds: int,
    validate: Callable[[NeuralNetClassifier], dict[str, float]],
) -> dict[str, Any]:
    """Run one round; the model and what the server remembers move on together, at its end."""
    started = perf_counter()
    model, t = get_model(server.net), server.round
    ledger = Ledger(model_bytes(server.net))
    poll = Poll(engine, model, t, ledger)
    view = Round(
        index=t,
        n_rounds=n_rounds,
        rng=stream(server.seed, Purpose.SELECTION, t),
        sizes=federation.sizes,
        fractions=federation.fractions,
        priority=federation.priority,
        available=np.ones(len(federation), bool),
        reported=reported,
        ask=poll,
    )
    cohort = selector.select(view)
    selected = perf_counter()
    updates = engine.train(model, cohort.clients, t)
    _check_finite(updates, federation.names(cohort.clients), t)
    ledger.charge_training(cohort.clients, sum(update.n_samples for update in updates))
    trained = perf_counter()
    set_model(server.net, aggregate_mean(model, [update.model for update in updates], cohort))
    for k, update in zip(cohort.clients, updates, strict=True):
        reported[k] = server.reported[federation.digest(k)] = update.loss
    row = {
        "round": t,
        "objective": poll.objective(view),
        "train_loss": _train_loss(updates, cohort),
        **validate(server.net),
        "lr": float(server.net.optimizer_.param_groups[0]["lr"]),
        **ledger.totals(),
        "n_polled": len(ledger.polled),
        "n_trained": len(updates),
        "n_aggregated": len(cohort.clients),
        "polled": federation.names(ledger.polled),
        "cohort": federation.names(cohort.clients),
        "select_seconds": selected - started,
        "train_seconds": trained - selected,
        "round_seconds": perf_counter() - started,
    }
    server.rows.append(row)
    return row


def _train_loss(updates: list[Update], cohort: Cohort) -> float:
    """Return the cohort's mean training loss, weighted as its updates are."""
    if not updates:
        return float("nan")
    return float(np.average([update.loss for update in updates], weights=cohort.weights))


def _check_finite(updates: list[Update], names: tuple, t: int) -> None:
    """Refuse to average a model that has diverged."""
    for name, update in zip(names, updates, strict=True):
        finite = all(tensor.isfinite().all() for tensor in update.model.values())
        if not (finite and np.isfinite(update.loss)):
            raise ValueError(
                f"the update of client {name!r} in round {t} is not finite (its training loss was "
                f"{update.loss}): lower the learning rate, or scale X."
            )
