"""One round after another: poll, select, train, aggregate, record."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from skorch import NeuralNet

from skfed._federation import Federation
from skfed._nets import Model, get_model, model_bytes, parameter_names, set_model
from skfed.aggregation import BaseAggregator, ServerOptimizer
from skfed.aggregation._scaffold import Variates
from skfed.availability import BaseAvailability
from skfed.engines import Engine, LocalTraining, Order, Updates
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


@dataclass
class Poll:
    """Carries a selector's questions of one round to the engine, and charges for them."""

    engine: Engine
    model: Model
    round: int
    ledger: Ledger
    losses: dict[int, float] = field(default_factory=dict)  # F_k(w_t) of who said it

    def __call__(self, clients, metric, max_samples, at_most):
        told = self.engine.evaluate(self.model, clients, self.round, max_samples)
        values = told.losses if metric == "loss" else told.errors
        if metric == "error" and np.isnan(values).any():
            raise ValueError(
                "selector polls the error, 1 - accuracy, which a regressor has not: let it match "
                "losses (FedAlignSelector(match='loss'))."
            )
        # A client above the bound keeps its value to itself.
        answered = np.ones(len(values), bool) if at_most is None else values <= at_most
        self.ledger.charge_poll(clients, answered, told.n_samples, with_bound=at_most is not None)
        if metric == "loss" and max_samples is None:
            self.losses.update(zip(clients[answered].tolist(), values[answered], strict=True))
        return np.where(answered, values, np.nan)

    def objective(self, view: Round) -> float:
        """Return F(w_t) = sum of s_k p_k F_k(w_t), where all of P in reach told their loss."""
        reached = view.priority & view.available
        if not 0 < np.count_nonzero(reached) <= len(self.losses):  # spares the look at each
            return float("nan")
        priority = np.flatnonzero(reached)
        if not self.losses.keys() >= set(priority.tolist()):
            return float("nan")
        weights = (view.priority_weights * view.sizes)[priority]
        return float(np.average([self.losses[k] for k in priority.tolist()], weights=weights))


class Returns:
    """What a cohort has sent back, in its order; the models go to the aggregation rule."""

    def __init__(self, order: Order, names: tuple):
        n_members = len(order.cohort.clients)
        self.round, self.names = order.round, names
        self.losses = np.full(n_members, np.nan)
        self.n_samples = np.zeros(n_members, dtype=int)
        self.variates: list[Model | None] = [None] * n_members

    def parts(self, arriving: Iterable[Updates]) -> Iterator[tuple[np.ndarray, Any]]:
        """Note what comes and pass the models on; refuse to average one that has diverged."""
        for updates in arriving:
            self.losses[updates.members] = updates.losses
            self.n_samples[updates.members] = updates.n_samples
            for i, variate in zip(updates.members, updates.variates, strict=True):
                self.variates[i] = variate
            for i in updates.members[~updates.finite]:
                raise ValueError(
                    f"the update of client {self.names[i]!r} in round {self.round} is not finite "
                    f"(its training loss was {self.losses[i]}): lower the learning rate, or scale "
                    "X."
                )
            yield updates.members, updates.part


def run_rounds(
    server: Server,
    federation: Federation,
    engine: Engine,
    rules: Rules,
    *,
    until: int,
    validate: Callable[[NeuralNet], dict[str, float]],
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Run rounds until the server has finished ``until`` of them.

    ``validate`` measures the global model after a round, and ``report`` is shown each row of the
    history.
    """
    reported = np.full(len(federation), np.inf)
    if server.reported:
        for k in range(len(federation)):
            reported[k] = server.reported.get(federation.digest(k), np.inf)
    while server.round < until:
        row = _run_round(server, federation, engine, rules, reported, validate)
        server.rows.append(row)
        report(row)


def _run_round(
    server: Server,
    federation: Federation,
    engine: Engine,
    rules: Rules,
    reported: np.ndarray,
    validate: Callable[[NeuralNet], dict[str, float]],
) -> dict[str, Any]:
    """Run one round; the model and what the server remembers move on after all clients' work."""
    started = perf_counter()
    model, t = get_model(server.net), server.round
    ledger = Ledger(model_bytes(server.net))
    poll = Poll(engine, model, t, ledger)
    view = _view(server, federation, rules, reported, poll)
    chosen = rules.selector.select(view)
    scheduled = rules.selector.scheduled(view)
    selected = perf_counter()

    answers = _answers(server, federation, rules, chosen.clients)
    cohort = chosen.keep(answers)
    order = _order(server, federation, rules, model, cohort)
    returns = Returns(order, federation.names(cohort.clients))
    parts = returns.parts(engine.train(order))
    aggregate = rules.aggregator.combine(model, parts, cohort, order.parameters)
    n_samples = int(returns.n_samples.sum())
    ledger.charge_training(chosen.clients, answers, n_samples, rules.aggregator.uses_variates)
    trained = perf_counter()

    _move(server, federation, rules, order, aggregate, returns)
    for k, loss in zip(cohort.clients, returns.losses.tolist(), strict=True):
        reported[k] = server.reported[federation.digest(k)] = loss
    return {
        "round": t,
        "objective": cohort.objective if np.isfinite(cohort.objective) else poll.objective(view),
        "train_loss": _train_loss(returns.losses, cohort),
        **validate(server.net),
        "lr": _rate(server, order.training),
        **scheduled,
        **ledger.totals(),
        **_who(federation, ledger, chosen, cohort, answers),
        "select_seconds": selected - started,
        "train_seconds": trained - selected,
        "round_seconds": perf_counter() - started,
    }


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


def _who(
    federation: Federation, ledger: Ledger, chosen: Cohort, cohort: Cohort, answers: np.ndarray
) -> dict[str, Any]:
    """Return the columns of the history that say who did what."""
    return {
        "n_polled": len(ledger.polled),
        "n_trained": len(cohort.clients),
        "n_aggregated": len(cohort.clients),
        "n_failed": len(chosen.clients) - len(cohort.clients),
        "polled": federation.names(ledger.polled),
        "cohort": federation.names(cohort.clients),
        "failed": federation.names(chosen.clients[~answers]),
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
    if rules.lr_schedule is None:
        return rules.training
    n_steps = rules.training.n_iterations
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


def _move(
    server: Server,
    federation: Federation,
    rules: Rules,
    order: Order,
    aggregate: Model,
    returns: Returns,
) -> None:
    """Move the global model, and the server's optimizer and variates with it."""
    if not len(order.cohort.clients):
        return
    if rules.server_optimizer is not None:
        aggregate, server.optimizer_state = rules.server_optimizer.step(
            order.model, aggregate, order.parameters, server.optimizer_state
        )
    set_model(server.net, aggregate)
    if rules.aggregator.uses_variates:
        new: dict[bytes, list[Model]] = {}
        for k, variate in zip(order.cohort.clients, returns.variates, strict=True):
            if variate is not None:
                new.setdefault(federation.digest(k), []).append(variate)
        server.variates.move(new, len(federation))


def _train_loss(losses: np.ndarray, cohort: Cohort) -> float:
    """Return the cohort's mean training loss, weighted as its updates are."""
    if not cohort.weights.any():
        return float("nan")
    return float(np.average(losses, weights=cohort.weights))
