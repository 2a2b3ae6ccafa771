"""One round after another: poll, select, train, aggregate, record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from skorch import NeuralNet, NeuralNetClassifier

from skfed._exchanges import Failures, Poll, Returns, in_words
from skfed._federation import Federation
from skfed._nets import Model, get_model, model_bytes, parameter_names, set_model
from skfed.aggregation import BaseAggregator, ServerOptimizer
from skfed.aggregation._scaffold import Variates
from skfed.availability import BaseAvailability
from skfed.engines import Engine, LocalTraining, Order
from skfed.history import Ledger
from skfed.schedules import Scheduled, value_at
from skfed.selection import BaseSelector, Cohort, Round
from skfed.utils._seeding import Purpose, stream


@dataclass
class Server:
    """All that the server remembers between rounds."""

    net: NeuralNet  # holds the global model
    seed: int
    reported: dict[bytes, float] = field(default_factory=dict)  # by client digest
    optimizer_state: dict[str, Any] | None = None
    variates: Variates = field(default_factory=Variates)
    rows: list[dict[str, Any]] = field(default_factory=list)  # the history, one a round
    told: set[tuple] = field(default_factory=set)  # failures that were logged

    @property
    def round(self) -> int:
        """The number of finished rounds, t."""
        return len(self.rows)

    def stream(self, purpose: Purpose) -> np.random.Generator:
        """Return the generator of this round's draws of one kind."""
        return stream(self.seed, purpose, self.round)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How rounds are run."""

    selector: BaseSelector
    aggregator: BaseAggregator
    server_optimizer: ServerOptimizer | None
    availability: BaseAvailability
    training: LocalTraining
    lr_schedule: Scheduled | None
    n_rounds: int  # what schedules plan for
    drop_failing: bool = True  # else the first failure of a client ends the fit
    min_clients: int = 1  # fewer that succeed keep the model


class Watcher(Protocol):
    """What is told of every round."""

    def begin_round(self) -> None:
        """Learn that a round begins."""

    def end_round(self, row: dict[str, Any]) -> bool:
        """See the row of the history that a round has made; tell whether to stop."""


def run_rounds(
    server: Server,
    federation: Federation,
    engine: Engine,
    rules: Rules,
    *,
    until: int,
    validate: Callable[[NeuralNet], dict[str, float]],
    watchers: Sequence[Watcher],
) -> None:
    """Run rounds until the server has finished ``until`` of them, or a watcher stops.

    ``validate`` measures the global model after a round. Where every client failed in every round,
    the first cause is raised.
    """
    reported = np.full(len(federation), np.inf)
    if server.reported:
        for k in range(len(federation)):
            reported[k] = server.reported.get(federation.digest(k), np.inf)
    first, some_good, stopped = None, False, False
    while server.round < until and not stopped:
        for watcher in watchers:
            watcher.begin_round()
        row, failures, some_succeeded = _run_round(
            server, federation, engine, rules, reported, validate
        )
        stopped = any([watcher.end_round(row) for watcher in watchers])  # each sees each round
        first = first or next(iter(failures.causes.items()), None)
        some_good = some_good or some_succeeded
    if first is not None and not some_good:
        k, cause = first
        cause.add_note(f"client {federation.names([k])[0]!r}; every client failed in every round")
        raise cause


def _run_round(
    server: Server,
    federation: Federation,
    engine: Engine,
    rules: Rules,
    reported: np.ndarray,
    validate: Callable[[NeuralNet], dict[str, float]],
) -> tuple[dict[str, Any], Failures, bool]:
    """Run one round: the model and what the server remembers move on after all clients' work.

    Return the row of the history, who failed, and whether it was not everybody.
    """
    started = perf_counter()
    model, t = get_model(server.net), server.round
    ledger = Ledger(model_bytes(server.net))
    failures = Failures(federation, t, server.told, fatal=not rules.drop_failing)
    poll = Poll(engine, model, t, ledger, failures, isinstance(server.net, NeuralNetClassifier))
    view = _view(server, federation, rules, reported, poll)
    chosen = rules.selector.select(view)
    scheduled = rules.selector.scheduled(view)
    selected = perf_counter()

    answers = _answers(server, federation, rules, chosen.clients)
    asked = chosen.keep(answers)
    order = _order(server, federation, rules, model, asked)
    returns = Returns(order, failures)
    aggregate = rules.aggregator.combine(
        model, returns.parts(engine.train(order)), asked, order.parameters
    )
    cohort = asked.keep(returns.good)
    if len(cohort.clients) < rules.min_clients:
        cohort = asked.keep(np.zeros(len(asked.clients), dtype=bool))
    _charge(ledger, chosen, answers, asked, returns, rules)
    trained = perf_counter()

    optimizer_state = server.optimizer_state
    if len(cohort.clients) and rules.server_optimizer is not None:
        aggregate, optimizer_state = rules.server_optimizer.step(
            model, aggregate, order.parameters, optimizer_state
        )
    try:
        set_model(server.net, aggregate if len(cohort.clients) else model)
        measured = validate(server.net)
    except BaseException:  # an interrupted round has not been
        set_model(server.net, model)
        raise
    row = {
        "round": t,
        "objective": asked.objective if np.isfinite(asked.objective) else poll.objective(view),
        "train_loss": _train_loss(returns.losses, asked, returns.good),
        **measured,
        "lr": _rate(server, order.training),
        **scheduled,
        **ledger.totals(),
        **_who(federation, ledger, chosen, answers, cohort, returns),
        "select_seconds": selected - started,
        "train_seconds": trained - selected,
        "round_seconds": perf_counter() - started,
    }
    server.optimizer_state = optimizer_state
    if len(cohort.clients) and rules.aggregator.uses_variates:
        _move_variates(server, federation, asked, returns)
    for k, loss in zip(asked.clients, returns.losses.tolist(), strict=True):
        reported[k] = server.reported[federation.digest(k)] = loss
    server.rows.append(row)
    return row, failures, bool(returns.good.any()) or not failures.causes


def _order(
    server: Server, federation: Federation, rules: Rules, model: Model, cohort: Cohort
) -> Order:
    """Return what the round's cohort is asked to do."""
    return Order(
        round=server.round,
        model=model,
        parameters=parameter_names(server.net),
        cohort=cohort,
        training=_training(server, rules),
        rule=rules.aggregator,
        corrections=_corrections(server, federation, rules, cohort),
    )


def _charge(
    ledger: Ledger,
    chosen: Cohort,
    answers: np.ndarray,
    asked: Cohort,
    returns: Returns,
    rules: Rules,
) -> None:
    """Charge the training: an update that is not finite was sent, one that raised was not."""
    sent = answers.copy()
    if len(asked.clients):  # nobody is asked if those that answer had no weight
        sent[np.flatnonzero(answers)] = returns.sent
    n_samples = int(returns.n_samples.sum())
    ledger.charge_training(chosen.clients, sent, n_samples, rules.aggregator.uses_variates)


def _who(
    federation: Federation,
    ledger: Ledger,
    chosen: Cohort,
    answers: np.ndarray,
    cohort: Cohort,
    returns: Returns,
) -> dict[str, Any]:
    """Return the columns of the history that say who did what."""
    silent = chosen.clients[~answers]
    causes = returns.failures.causes
    return {
        "n_polled": len(ledger.polled),
        "n_trained": int(returns.sent.sum()),
        "n_aggregated": len(cohort.clients),
        "n_failed": len(silent) + len(causes),
        "polled": federation.names(ledger.polled),
        "cohort": federation.names(cohort.clients),
        "failed": federation.names([*silent, *causes]),
        "causes": ("no answer",) * len(silent) + tuple(map(in_words, causes.values())),
    }


def _view(
    server: Server, federation: Federation, rules: Rules, reported: np.ndarray, poll: Poll
) -> Round:
    """Show the selector what it may know of the coming round."""
    available = rules.availability.reachable(
        federation,
        server.round,
        server.stream(Purpose.AVAILABILITY),
        stream(server.seed, Purpose.FIXED_AVAILABILITY),
    )
    return Round(
        index=server.round,
        n_rounds=rules.n_rounds,
        rng=server.stream(Purpose.SELECTION),
        sizes=federation.sizes,
        fractions=federation.fractions,
        priority=federation.priority,
        priority_weights=federation.priority_weights,
        available=available,
        reported=reported,
        ends=federation.ends,
        ask=poll,
    )


def _answers(
    server: Server, federation: Federation, rules: Rules, chosen: np.ndarray
) -> np.ndarray:
    """Return a mask of the chosen whose update arrives; copies of a client fail together."""
    distinct, position = np.unique(chosen, return_inverse=True)
    rng = server.stream(Purpose.ANSWERS)
    return rules.availability.answers(federation, distinct, rng)[position]


def _training(server: Server, rules: Rules) -> LocalTraining:
    """Return how clients train in this round, learning rates included."""
    n_steps = rules.training.n_iterations
    if rules.lr_schedule is None:
        group = server.net.optimizer_.param_groups[0]
        if group["lr"] == group.get("initial_lr", group["lr"]):
            return rules.training
        # A callback, such as skorch's LRScheduler, has changed it.
        return replace(rules.training, rates=(float(group["lr"]),) * n_steps)
    rates = tuple(
        value_at(rules.lr_schedule, "lr_schedule", server.round, rules.n_rounds, step, n_steps)
        for step in range(n_steps)
    )
    return replace(rules.training, rates=rates)


def _rate(server: Server, training: LocalTraining) -> float:
    """Return the learning rate of the round's first local iteration."""
    if training.rates is not None:
        return training.rates[0]
    return float(server.net.optimizer_.param_groups[0]["lr"])


def _corrections(
    server: Server, federation: Federation, rules: Rules, cohort: Cohort
) -> list[Model] | None:
    """Return SCAFFOLD's c - c_k of each member of the cohort."""
    if not rules.aggregator.uses_variates:
        return None
    return [server.variates.correction(federation.digest(k)) for k in cohort.clients]


def _move_variates(
    server: Server, federation: Federation, cohort: Cohort, returns: Returns
) -> None:
    """Take over SCAFFOLD's new c_k of a cohort, and move c."""
    new: dict[bytes, list[Model]] = {}
    for k, variate in zip(cohort.clients, returns.variates, strict=True):
        if variate is not None:
            new.setdefault(federation.digest(k), []).append(variate)
    server.variates.move(new, len(federation))


def _train_loss(losses: np.ndarray, cohort: Cohort, good: np.ndarray) -> float:
    """Return the mean training loss of those that succeeded, weighted as their updates are."""
    weights = cohort.weights[good]
    return float(np.average(losses[good], weights=weights)) if weights.any() else float("nan")
