"""One round after another: poll, select, train, aggregate, record."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from skorch import NeuralNetClassifier

from skfed._federation import Federation
from skfed.aggregation._tensors import finite_where_changed, settled
from skfed.engines import Evaluator, LocalTraining, TrainRequest, Updates
from skfed.history import Ledger
from skfed.nets import State, get_state, model_bytes, set_state
from skfed.selection import Cohort, Round
from skfed.server._conclusion import conclude
from skfed.server._config import RoundConfig
from skfed.server._poll import NO_ANSWER, Failures, LossPrivatizer, Poll, Returns, in_words
from skfed.server._requests import make_train_request, noise_of
from skfed.server._state import ServerState
from skfed.server._validation import Validation
from skfed.utils._seeding import Purpose, stream


class Watcher(Protocol):
    """What is told of every round."""

    def begin_round(self) -> None:
        """Learn that a round begins."""

    def end_round(self, row: dict[str, Any]) -> bool:
        """See the row of the history that a round has made; tell whether to stop."""


logger = logging.getLogger(__name__)


@dataclass
class PendingRound:
    """A round between the selection and the aggregate."""

    started: float
    selected: float  # when, both in seconds
    view: Round
    poll: Poll  # with the ledger
    chosen: Cohort  # but those whose poll failed
    scheduled: dict[str, float]
    answers: np.ndarray  # whose update arrives, a mask of the chosen
    order: TrainRequest  # to those
    returns: Returns


class Rounds:
    """The rounds of a fit, one after another.

    ``begin`` polls, selects and says what the cohort is to do; ``finish`` takes what it sends back.
    In between the clients train: by an engine in this process, or wherever they are.

    Parameters
    ----------
    server : ServerState
        What moves on with each round.
    federation : Federation
        Who the clients are.
    polls : Evaluator
        Carries polls to the clients.
    rules : RoundConfig
        How rounds are run.
    until : int
        Rounds that the server is to have finished in the end, unless a watcher stops it.
    validation : Validation or None
        Measures the global model after a round.
    watchers : sequence of Watcher
        Each sees each round.
    keep : callable, default=None
        Writes the server to disk; told whether the round is the last.
    """

    def __init__(
        self,
        server: ServerState,
        federation: Federation,
        polls: Evaluator,
        rules: RoundConfig,
        *,
        until: int,
        validation: Validation | None,
        watchers: Sequence[Watcher],
        keep: Callable[[bool], None] | None = None,
    ):
        self.server, self.federation, self.polls, self.rules = server, federation, polls, rules
        self.until, self.validation, self.watchers, self.keep = until, validation, watchers, keep
        self._reported = np.full(len(federation), np.inf)
        if server.reported:
            for k in range(len(federation)):
                self._reported[k] = server.reported.get(federation.digest(k), np.inf)
        self._first: tuple[int, Exception] | None = None  # failure of all rounds
        self._overflows: dict[int, Exception] = {}  # rounds whose aggregate was not finite
        self._begun: PendingRound | None = None

    def begin(self) -> TrainRequest | None:
        """Poll and select; return what the cohort is asked to do, or None after the last round."""
        server, federation, rules = self.server, self.federation, self.rules
        if server.round >= self.until or server.stopped >= self.until:
            return None
        for watcher in self.watchers:
            watcher.begin_round()
        started = perf_counter()
        model, t = get_state(server.net), server.round
        ledger = Ledger(model_bytes(server.net), scalars_up=0 if t else server.first_scalars)
        failures = Failures(federation, t, server.told, fatal=not rules.drop_failing)
        noise = None if self.polls.clients_add_noise else rules.loss_privacy
        discretion = LossPrivatizer(noise, partial(noise_of, server, federation))
        has_errors = isinstance(server.net, NeuralNetClassifier)
        poll = Poll(self.polls, model, t, ledger, failures, discretion, has_errors)
        view = _view(server, federation, rules, self._reported, poll)
        chosen = rules.selector.select(view)
        # Whoever chose it: a client that has failed in the poll has failed in this round.
        chosen = chosen.keep(~np.isin(chosen.clients, list(failures.causes)))
        scheduled = rules.selector.scheduled(view)
        selected = perf_counter()
        answers = _answers(server, federation, rules, chosen.clients)
        order = make_train_request(server, federation, rules, model, chosen.keep(answers))
        returns = Returns(order, failures, discretion)
        self._begun = PendingRound(
            started, selected, view, poll, chosen, scheduled, answers, order, returns
        )
        return order

    def finish(self, arriving: Iterable[Updates]) -> None:
        """Aggregate what the cohort sends back, and record the round.

        The model, and what the server remembers, move on after all clients' work.
        """
        begun, self._begun = self._begun, None
        assert begun is not None
        row = self._take(begun, arriving)
        causes = begun.returns.failures.causes
        # Each watcher sees each round.
        stops = any([watcher.end_round(row) for watcher in self.watchers])
        server = self.server
        if stops and self.validation is not None:
            started = perf_counter()
            row.update(self.validation.after_stop(server.net, row["round"]))
            row["round_seconds"] += perf_counter() - started
        server.stopped = self.until if stops else 0
        self._first = self._first or next(iter(causes.items()), None)
        if row["round"] not in self._overflows:
            server.succeeded = server.succeeded or bool(begun.returns.good.any()) or not causes
        if self.keep is not None and server.succeeded:
            self.keep(stops or server.round == self.until)

    def end(self) -> None:
        """Raise the first cause, if every client failed in every round; nothing is written then.

        So if no aggregate was finite. Else warn of what went wrong.
        """
        if self._first is not None and not self.server.succeeded:
            k, cause = self._first
            name = self.federation.names([k])[0]
            cause.add_note(f"client {name!r}; every client failed in every round")
            raise cause
        if self._overflows and not self.server.succeeded:
            raise next(iter(self._overflows.values()))
        conclude(self.server, self.federation, self.rules, self.until, self._overflows)

    def run(self, train: Callable[[TrainRequest], Iterable[Updates]]) -> None:
        """Let an engine train the cohorts, to the last round."""
        while (order := self.begin()) is not None:
            self.finish(train(order))
        self.end()

    def _take(self, begun: PendingRound, arriving: Iterable[Updates]) -> dict[str, Any]:
        """Move the model by what arrives; return the row of the history."""
        server, federation, rules = self.server, self.federation, self.rules
        order, returns, ledger = begun.order, begun.returns, begun.poll.ledger
        model, asked = order.state, order.cohort
        parts = returns.parts(arriving)
        aggregate = rules.aggregator.combine(model, parts, asked, order.parameters)
        aggregate = settled(model, aggregate, returns.changed)
        cohort, nobody = asked.keep(returns.good), asked.keep(np.zeros_like(returns.good))
        if len(np.unique(cohort.clients)) < rules.min_clients:
            cohort = nobody
        _charge(begun, rules)
        trained = perf_counter()
        with _all_or_nothing(server, model):
            if len(cohort.clients):
                overflow = _move(server, federation, rules, order, aggregate, returns)
                if overflow is not None:
                    logger.warning("%s", overflow)
                    self._overflows[server.round] = overflow
                    cohort = nobody
            if returns.good.any():
                server.proven = model
            measured = {}
            if self.validation is not None:
                measured = self.validation.after_round(server.net, server.round)
            _note_messages(server, federation, rules, ledger, returns)
            losses = dict(zip(asked.clients.tolist(), returns.losses.tolist(), strict=True))
            server.reported = server.reported | {federation.digest(k): v for k, v in losses.items()}
            self._reported[list(losses)] = list(losses.values())
            row = _row(server, federation, begun, cohort, measured, trained)
            server.rows.append(row)
        return row


@contextmanager
def _all_or_nothing(server: ServerState, model: State) -> Iterator[None]:
    """Put back what the server remembers, if a round is interrupted before its row is written."""
    t = server.round
    names = "optimizer_state", "variates", "reported", "messages", "private_rounds", "proven"
    before = {name: getattr(server, name) for name in names}
    try:
        yield
    except BaseException:
        if server.round == t:
            set_state(server.net, model)
            vars(server).update(before)
        raise


def _note_messages(
    server: ServerState,
    federation: Federation,
    rules: RoundConfig,
    ledger: Ledger,
    returns: Returns,
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
    server: ServerState,
    federation: Federation,
    rules: RoundConfig,
    order: TrainRequest,
    aggregate: State,
    returns: Returns,
) -> ValueError | None:
    """Move the global model, and with it the server optimizer's state and SCAFFOLD's variates.

    What would not be finite is not taken; then return what to say of it.
    """
    optimizer_state = server.optimizer_state
    if rules.server_optimizer is not None:
        aggregate, optimizer_state = rules.server_optimizer.step(
            order.state, aggregate, order.parameters, optimizer_state
        )
    for name, w in order.state.items():
        if not finite_where_changed(aggregate[name], w):
            return ValueError(
                f"{name} of the global model is not finite after round {server.round}, though the "
                "updates were: lower the server's learning rate (server_optimizer__lr), or the "
                "clients'."
            )
    set_state(server.net, aggregate)
    server.optimizer_state = optimizer_state
    if rules.aggregator.uses_variates:
        server.variates = server.variates.moved(_new_variates(federation, returns), len(federation))
    return None


def _charge(begun: PendingRound, rules: RoundConfig) -> None:
    """Charge the training: an update that is not finite was sent, one that raised was not."""
    returns, sent = begun.returns, begun.answers.copy()
    if len(begun.order.cohort.clients):  # nobody is asked if those that answer had no weight
        sent[np.flatnonzero(begun.answers)] = returns.sent
    n_samples, with_variates = int(returns.n_samples.sum()), rules.aggregator.uses_variates
    begun.poll.ledger.charge_training(begun.chosen.clients, sent, n_samples, with_variates)


def _objective(begun: PendingRound) -> float:
    """Return F(w_t), where the selector or the polls tell it."""
    told = begun.chosen.objective
    return told if np.isfinite(told) else begun.poll.objective(begun.view)


def _row(
    server: ServerState,
    federation: Federation,
    begun: PendingRound,
    cohort: Cohort,
    measured: dict[str, float],
    trained: float,
) -> dict[str, Any]:
    """Return the round's row of the history; ``trained`` is when the training ended."""
    order, returns = begun.order, begun.returns
    return {
        "round": server.round,
        "objective": _objective(begun),
        "train_loss": _train_loss(returns.losses, order.cohort, returns.good),
        **measured,
        "lr": _rate(server, order.training),
        **begun.scheduled,
        **begun.poll.ledger.totals(),
        **_participation_columns(federation, begun, cohort),
        "select_seconds": begun.selected - begun.started,
        "train_seconds": trained - begun.selected,
        "round_seconds": perf_counter() - begun.started,
    }


def _participation_columns(
    federation: Federation, begun: PendingRound, cohort: Cohort
) -> dict[str, Any]:
    """Return the columns of the history that say who did what."""
    silent = np.unique(begun.chosen.clients[~begun.answers])  # copies are silent together
    causes, polled = begun.returns.failures.causes, begun.poll.ledger.polled
    return {
        "n_polled": len(polled),
        "n_trained": int(begun.returns.sent.sum()),
        "n_aggregated": len(cohort.clients),
        "n_failed": len(silent) + len(causes),
        "polled": federation.names(polled),
        "cohort": federation.names(cohort.clients),
        "failed": federation.names([*silent, *causes]),
        "causes": (NO_ANSWER,) * len(silent) + tuple(map(in_words, causes.values())),
    }


def _view(
    server: ServerState,
    federation: Federation,
    rules: RoundConfig,
    reported: np.ndarray,
    poll: Poll,
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
    server: ServerState, federation: Federation, rules: RoundConfig, chosen: np.ndarray
) -> np.ndarray:
    """Return a mask of the chosen whose update arrives; copies of a client fail together."""
    distinct, position = np.unique(chosen, return_inverse=True)
    rng = server.stream(Purpose.ANSWERS)
    return rules.availability.answers(federation, distinct, rng)[position]


def _rate(server: ServerState, training: LocalTraining) -> float:
    """Return the rate of the first local iteration: of who has the net's own, if anybody."""
    rates = server.rates if training.rates is None else training.rates[0]
    own = server.own_rate
    return rates[server.rates.index(own) if own in server.rates else 0]


def _new_variates(federation: Federation, returns: Returns) -> dict[bytes, list[State]]:
    """Return SCAFFOLD's new c_k of a cohort, one a copy of a client."""
    new: dict[bytes, list[State]] = {}
    for k, variate in zip(returns.clients, returns.variates, strict=True):
        if variate is not None:
            new.setdefault(federation.digest(k), []).append(variate)
    return new


def _train_loss(losses: np.ndarray, cohort: Cohort, good: np.ndarray) -> float:
    """Return the mean training loss of those that succeeded, weighted as their updates are."""
    weights = cohort.weights[good]
    return float(np.average(losses[good], weights=weights)) if weights.any() else float("nan")
