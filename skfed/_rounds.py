"""One round after another: poll, select, train, aggregate, record."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from skorch import NeuralNet, NeuralNetClassifier

from skfed._callbacks import memory_of
from skfed._exchanges import Discretion, Failures, Poll, Returns, in_words
from skfed._federation import Federation
from skfed._nets import Model, get_model, model_bytes, parameter_names, set_model
from skfed.aggregation import BaseAggregator, ServerOptimizer
from skfed.aggregation._scaffold import Variates
from skfed.availability import BaseAvailability
from skfed.engines import Engine, LocalTraining, Order, numbered
from skfed.history import Ledger
from skfed.privacy import GaussianMechanism
from skfed.schedules import Scheduled, value_at
from skfed.selection import BaseSelector, Cohort, Round
from skfed.utils._seeding import Purpose, stream

_LARGEST_RATE = float(np.finfo(np.float32).max)


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
    # What clients have sent under noise: by digest, "update" or "loss", and noise multiplier.
    messages: Counter[tuple[bytes, str, float]] = field(default_factory=Counter)
    private_rounds: tuple[int, ...] = ()  # which these were
    stopped: int = 0  # the number of rounds that were planned when a callback stopped them
    succeeded: bool = False  # some client, in some round of this fit
    reminder: dict[str, Any] | None = None  # of what the net's callbacks knew, read from a file

    def __post_init__(self) -> None:
        self.rate = float(self.net.optimizer_.param_groups[0]["lr"])  # before any callback

    def __getstate__(self) -> dict[str, Any]:
        # skorch pickles a scheduler apart from the optimizer whose rates it sets.
        return vars(self) | {"reminder": self.memory()}

    def memory(self) -> dict[str, Any]:
        """Return what the net's callbacks remember."""
        return memory_of(self.net)[0] if self.reminder is None else self.reminder

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
    update_privacy: GaussianMechanism | None = None
    loss_privacy: GaussianMechanism | None = None


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
    keep: Callable[[bool], None] | None = None,
) -> None:
    """Run rounds until the server has finished ``until`` of them, or a watcher stops.

    ``validate`` measures the global model after a round; ``keep`` writes the server to disk, told
    whether the round is the last. Where every client failed in every round, nothing is written and
    the first cause is raised.
    """
    reported = np.full(len(federation), np.inf)
    if server.reported:
        for k in range(len(federation)):
            reported[k] = server.reported.get(federation.digest(k), np.inf)
    first = None
    while server.round < until and server.stopped < until:
        for watcher in watchers:
            watcher.begin_round()
        row, failures, some_succeeded = _run_round(
            server, federation, engine, rules, reported, validate
        )
        # Each watcher sees each round.
        stops = [watcher.end_round(row) for watcher in watchers]
        server.stopped = until if any(stops) else 0
        first = first or next(iter(failures.causes.items()), None)
        server.succeeded = server.succeeded or some_succeeded
        if keep is not None and server.succeeded:
            keep(any(stops) or server.round == until)
    if first is not None and not server.succeeded:
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
    discretion = Discretion(rules.loss_privacy, partial(_noise, server, federation))
    has_errors = isinstance(server.net, NeuralNetClassifier)
    poll = Poll(engine, model, t, ledger, failures, discretion, has_errors)
    view = _view(server, federation, rules, reported, poll)
    chosen = rules.selector.select(view)
    scheduled = rules.selector.scheduled(view)
    selected = perf_counter()

    answers = _answers(server, federation, rules, chosen.clients)
    asked = chosen.keep(answers)
    order = _order(server, federation, rules, model, asked)
    returns = Returns(order, failures, discretion)
    aggregate = rules.aggregator.combine(
        model, returns.parts(engine.train(order)), asked, order.parameters
    )
    cohort = asked.keep(returns.good)
    if len(cohort.clients) < rules.min_clients:
        cohort = asked.keep(np.zeros(len(asked.clients), dtype=bool))
    _charge(ledger, chosen, answers, asked, returns, rules)
    trained = perf_counter()

    with _all_or_nothing(server, model):
        if len(cohort.clients):
            _move(server, federation, rules, order, aggregate, returns)
        measured = validate(server.net)
        _note_messages(server, federation, rules, ledger, returns)
        losses = dict(zip(asked.clients.tolist(), returns.losses.tolist(), strict=True))
        server.reported = server.reported | {federation.digest(k): v for k, v in losses.items()}
        reported[list(losses)] = list(losses.values())
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
        server.rows.append(row)
    return row, failures, bool(returns.good.any()) or not failures.causes


@contextmanager
def _all_or_nothing(server: Server, model: Model) -> Iterator[None]:
    """Put back what the server remembers, if a round is interrupted before its row is written."""
    t = server.round
    names = "optimizer_state", "variates", "reported", "messages", "private_rounds"
    before = {name: getattr(server, name) for name in names}
    try:
        yield
    except BaseException:
        if server.round == t:
            set_model(server.net, model)
            vars(server).update(before)
        raise


def _note_messages(
    server: Server, federation: Federation, rules: Rules, ledger: Ledger, returns: Returns
) -> None:
    """Note what clients have sent in a round with noise; with each update goes a loss."""
    if rules.update_privacy is None and rules.loss_privacy is None:
        return
    of_updates, of_losses = (
        0.0 if mechanism is None else float(mechanism.noise_multiplier)
        for mechanism in (rules.update_privacy, rules.loss_privacy)
    )
    trained = [federation.digest(k) for k in returns.clients[returns.sent].tolist()]
    said = [*trained, *map(federation.digest, ledger.polled)]
    sent = [(key, "update", of_updates) for key in trained]
    sent += [(key, "loss", of_losses) for key in said]
    server.messages = server.messages + Counter(sent)
    server.private_rounds = (*server.private_rounds, server.round)


def _move(
    server: Server,
    federation: Federation,
    rules: Rules,
    order: Order,
    aggregate: Model,
    returns: Returns,
) -> None:
    """Move the global model, and with it the server optimizer's state and SCAFFOLD's variates."""
    if rules.server_optimizer is not None:
        aggregate, server.optimizer_state = rules.server_optimizer.step(
            order.model, aggregate, order.parameters, server.optimizer_state
        )
    if not all(torch.isfinite(aggregate[name]).all() for name in order.parameters):
        raise ValueError(
            f"the global model is not finite after round {server.round}, though the updates were: "
            "lower the server's learning rate (server_optimizer__lr), or the clients'."
        )
    set_model(server.net, aggregate)
    if rules.aggregator.uses_variates:
        server.variates = server.variates.moved(_new_variates(federation, returns), len(federation))


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
        privacy=rules.update_privacy,
        noise=_update_noise(server, federation, rules, cohort),
    )


def _noise(
    server: Server, federation: Federation, purpose: Purpose, k: int, copy: int
) -> np.random.Generator:
    """Return where the noise comes from that a client adds in this round."""
    return stream(server.seed, purpose, server.round, federation.digest(k), copy)


def _update_noise(
    server: Server, federation: Federation, rules: Rules, cohort: Cohort
) -> list[np.random.Generator] | None:
    """Return the noise of each member's update."""
    if rules.update_privacy is None:
        return None
    members = numbered(cohort.clients.tolist())
    return [_noise(server, federation, Purpose.UPDATE_NOISE, k, copy) for k, copy in members]


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
        rate = float(server.net.optimizer_.param_groups[0]["lr"])
        if rate == server.rate:
            return rules.training
        # A callback, such as skorch's LRScheduler, has changed it.
        return replace(rules.training, rates=(rate,) * n_steps)
    rates = tuple(
        value_at(rules.lr_schedule, "lr_schedule", server.round, rules.n_rounds, step, n_steps)
        for step in range(n_steps)
    )
    if max(rates) > _LARGEST_RATE:
        raise ValueError(
            f"lr_schedule is {max(rates)} in round {server.round}: it must be at most "
            f"{_LARGEST_RATE:.2g}, the largest number that float32 holds."
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


def _new_variates(federation: Federation, returns: Returns) -> dict[bytes, list[Model]]:
    """Return SCAFFOLD's new c_k of a cohort, one a copy of a client."""
    new: dict[bytes, list[Model]] = {}
    for k, variate in zip(returns.clients, returns.variates, strict=True):
        if variate is not None:
            new.setdefault(federation.digest(k), []).append(variate)
    return new


def _train_loss(losses: np.ndarray, cohort: Cohort, good: np.ndarray) -> float:
    """Return the mean training loss of those that succeeded, weighted as their updates are."""
    weights = cohort.weights[good]
    return float(np.average(losses[good], weights=weights)) if weights.any() else float("nan")
