"""The loop over rounds: poll and select, train, aggregate, record."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from skorch import NeuralNetClassifier

from skfed._federation import Federation
from skfed.aggregation._scaffold import updated_variates
from skfed.aggregation._tensors import finite_where_changed
from skfed.engines import Engine, LocalTraining, TrainRequest
from skfed.history import Row, make_row
from skfed.nets import State, get_state, model_bytes, set_state
from skfed.selection import Cohort, Round
from skfed.server._config import RoundConfig
from skfed.server._divergence import warn_at_end
from skfed.server._exchange import Exchange, ModelHolders, failed_clients
from skfed.server._poll import FailureLog, LossPrivatizer, Poll, objective
from skfed.server._requests import make_train_request, noise_stream
from skfed.server._state import ServerState
from skfed.server._updates import RoundUpdates
from skfed.server._validation import Validation
from skfed.utils._seeding import Purpose, stream
from skfed.utils._torch_context import one_torch_thread

logger = logging.getLogger(__name__)


class RoundCallback(Protocol):
    """Called in every round."""

    def begin_round(self) -> None:
        """Called at the start."""

    def end_round(self, row: Row) -> bool:
        """Called with the round's row of the history, before the checkpoint; True stops the fit."""


@dataclass
class PendingRound:
    """A round in progress, from its selection on."""

    view: Round
    chosen: Cohort  # without clients whose poll failed
    replies: np.ndarray  # a mask of the chosen clients: those that will reply
    request: TrainRequest  # sent to those
    updates: RoundUpdates
    exchanges: list[Exchange]  # so far, one record of each client in each
    holders: ModelHolders
    scheduled: dict[str, float]  # values of the selector's schedules
    started: float  # a time of perf_counter, as the other two
    selected: float
    trained: float = float("nan")


class Rounds:
    """The rounds of a fit."""

    def __init__(
        self,
        server: ServerState,
        federation: Federation,
        engine: Engine,
        config: RoundConfig,
        *,
        until: int,  # rounds in total, those of earlier fits included
        validation: Validation | None,
        callbacks: Sequence[RoundCallback],
        checkpoint: Callable[[bool], None] | None = None,  # takes whether the round is the last
    ):
        self.server, self.federation, self.engine, self.config = server, federation, engine, config
        self.until, self.validation, self.callbacks = until, validation, callbacks
        self.checkpoint = checkpoint
        self._reported = np.full(len(federation), np.inf)  # of the client records, for the view
        if server.clients:
            for k in range(len(federation)):
                self._reported[k] = server.record(federation.digest(k)).reported
        self._first_failure: tuple[int, Exception] | None = None  # of a client, in any round
        self._overflows: dict[int, Exception] = {}  # by round whose new model was not finite

    @property
    def finished(self) -> bool:
        """Whether no round is left, or a callback has stopped the fit."""
        # A callback that stops the fit sets ``stopped`` to the ``until`` of that fit.
        return self.server.round >= self.until or self.server.stopped >= self.until

    def run(self) -> None:
        """Run the rounds that are left."""
        while not self.finished:
            self.run_round()
        self.end()

    def run_round(self) -> None:
        """Run one round."""
        for callback in self.callbacks:
            callback.begin_round()
        with one_torch_thread():
            pending = self._poll_and_select()
            request, updates = pending.request, pending.updates
            for batch in self.engine.train(request):  # the clients train here
                updates.add(batch)  # which drops updates that failed
            admitted = admit(request.cohort, updates.finite, self.config.min_clients)
            cohort, aggregate = request.cohort.keep(admitted), updates.aggregate(admitted)
            pending.exchanges.append(
                updates.exchange(pending.chosen, pending.replies, pending.holders)
            )
            pending.trained = perf_counter()
            with _restored_on_error(self.server, request.state):
                if not self._apply_server_optimizer(pending, cohort, aggregate):
                    cohort = cohort.keep(np.zeros(len(cohort.clients), dtype=bool))
                self._update_client_records(pending)
                row = self._append_row(pending, cohort)
        self.server.first_exchanges = []  # large, and in the row of round 0
        stops = any([callback.end_round(row) for callback in self.callbacks])  # all are called
        self._after_callbacks(pending, row, stops)
        if self.checkpoint is not None and self.server.succeeded:
            self.checkpoint(stops or self.server.round == self.until)

    def end(self) -> None:
        """Raise an error if no round succeeded; else warn of what went wrong.

        The error is that of the first new model that was not finite or, without one, the first
        failure of a client.
        """
        if self._overflows and not self.server.succeeded:
            raise next(iter(self._overflows.values()))
        if self._first_failure is not None and not self.server.succeeded:
            k, cause = self._first_failure
            name = self.federation.names([k])[0]
            cause.add_note(f"client {name!r}; every client failed in every round")
            raise cause
        warn_at_end(self.server, self.federation, self.config, self.until, self._overflows)

    def _poll_and_select(self) -> PendingRound:
        """Let the selector poll clients and choose the cohort, and make the train request."""
        server, federation, config = self.server, self.federation, self.config
        started = perf_counter()
        state = get_state(server.net)
        failures = FailureLog(federation, server.round, server.logged, not config.drop_failing)
        noise = None if self.engine.clients_add_noise else config.loss_privacy
        privatizer = LossPrivatizer(noise, partial(noise_stream, server, federation))
        is_classifier = isinstance(server.net, NeuralNetClassifier)
        holders = ModelHolders(len(federation))
        poll = Poll(self.engine, state, server.round, holders, failures, privatizer, is_classifier)
        view = self._view(poll)
        chosen = config.selector.select(view)
        failed = list(failed_clients(poll.exchanges))
        chosen = chosen.keep(~np.isin(chosen.clients, failed))
        scheduled, selected = config.selector.scheduled(view), perf_counter()
        replies = self._replies(chosen.clients)
        request = make_train_request(server, federation, config, state, chosen.keep(replies))
        updates = RoundUpdates(request, failures, privatizer)
        exchanges = poll.exchanges if server.round else [*server.first_exchanges, *poll.exchanges]
        return PendingRound(
            view,
            chosen,
            replies,
            request,
            updates,
            exchanges,
            holders,
            scheduled,
            started,
            selected,
        )

    def _view(self, poll: Poll) -> Round:
        """Return what the selector may know of the round."""
        server, federation = self.server, self.federation
        available = self.config.availability.reachable(
            federation,
            server.round,
            server.stream(Purpose.AVAILABILITY),
            stream(server.seed, Purpose.FIXED_AVAILABILITY),
        )
        return Round(
            index=server.round,
            n_rounds=self.config.n_rounds,
            rng=server.stream(Purpose.SELECTION),
            sizes=federation.sizes,
            fractions=federation.fractions,
            priority=federation.priority,
            priority_weights=federation.priority_weights,
            available=available,
            reported=self._reported,
            ends=federation.ends,
            ask=poll,
        )

    def _replies(self, chosen: np.ndarray) -> np.ndarray:
        """Return a mask of the chosen clients that reply, the same for copies of a client."""
        distinct, position = np.unique(chosen, return_inverse=True)
        rng = self.server.stream(Purpose.ANSWERS)
        return self.config.availability.answers(self.federation, distinct, rng)[position]

    def _apply_server_optimizer(
        self, pending: PendingRound, cohort: Cohort, aggregate: State
    ) -> bool:
        """Set the new global model; return False, and keep the old one, if it is not finite.

        Without a server optimizer it is the aggregate. An empty cohort keeps the model.
        """
        server, request, optimizer = self.server, pending.request, self.config.server_optimizer
        state, optimizer_state = request.state, server.optimizer_state
        if pending.updates.finite.any():  # which this state has led to
            server.last_finite = state
        if not len(cohort.clients):
            return True
        if optimizer is not None:
            aggregate, optimizer_state = optimizer.step(
                state, aggregate, request.parameters, optimizer_state
            )
        if (name := _first_not_finite(aggregate, state)) is not None:
            self._overflows[server.round] = ValueError(
                f"{name} of the global model is not finite after round {server.round}, though the "
                "updates were: lower the server's learning rate (server_optimizer__lr), or the "
                "clients'."
            )
            logger.warning("%s", self._overflows[server.round])
            return False
        set_state(server.net, aggregate)
        server.optimizer_state = optimizer_state
        if self.config.aggregator.uses_variates:
            self._update_variates(pending.updates)
        return True

    def _update_variates(self, updates: RoundUpdates) -> None:
        """Update SCAFFOLD's control variates, the server's and those of the cohort's clients."""
        server = self.server
        new: dict[bytes, list[State]] = {}
        for (k, _), variate in zip(updates.copies, updates.variates, strict=True):
            if variate is not None:
                new.setdefault(self.federation.digest(k), []).append(variate)
        old = {key: server.record(key).variate for key in new}
        server.variate, changed = updated_variates(server.variate, old, new, len(self.federation))
        server.clients = server.clients | {
            key: replace(server.record(key), variate=variate) for key, variate in changed.items()
        }

    def _update_client_records(self, pending: PendingRound) -> None:
        """Record the training losses that clients reported and, with privacy, their messages."""
        server, digest, updates = self.server, self.federation.digest, pending.updates
        records = {}
        for (k, _), loss in zip(updates.copies, updates.losses.tolist(), strict=True):
            self._reported[k] = loss
            records[digest(k)] = replace(server.record(digest(k)), reported=loss)
        server.clients = server.clients | records
        if self.config.update_privacy is not None or self.config.loss_privacy is not None:
            self._count_messages(pending.exchanges)

    def _count_messages(self, exchanges: Sequence[Exchange]) -> None:
        """Count the updates and losses sent, by noise multiplier; each update comes with a loss."""
        server, digest, config = self.server, self.federation.digest, self.config
        of_update, of_loss = (
            0.0 if mechanism is None else float(mechanism.noise_multiplier)
            for mechanism in (config.update_privacy, config.loss_privacy)
        )
        # Clients that trained to the end, and so sent an update.
        trained = [k for e in exchanges if e.kind == "training" for k in e.clients[e.rows > 0]]
        polled = [k for e in exchanges if e.kind == "poll" for k in e.clients]
        sent: dict[bytes, Counter[tuple[str, float]]] = {}
        for k in trained:
            sent.setdefault(digest(k), Counter())["update", of_update] += 1
        for k in (*trained, *polled):
            sent.setdefault(digest(k), Counter())["loss", of_loss] += 1
        server.clients = server.clients | {
            key: replace(server.record(key), messages=Counter(server.record(key).messages) + n)
            for key, n in sent.items()
        }
        server.private_rounds = (*server.private_rounds, server.round)

    def _append_row(self, pending: PendingRound, cohort: Cohort) -> Row:
        """Validate the new model; append the round's row to the history, and return it."""
        server, updates, requested = self.server, pending.updates, pending.request.cohort
        scores = {}
        if self.validation is not None:
            n_rows = self.engine.validation_rows
            scores = self.validation.after_round(server.net, server.round, n_rows)
        known = pending.chosen.objective  # NaN unless the selector has computed it
        row = make_row(
            round=server.round,
            exchanges=pending.exchanges,
            model_bytes=model_bytes(server.net),
            names=self.federation.names,
            cohort=cohort.clients,
            objective=known if np.isfinite(known) else objective(pending.view, pending.exchanges),
            train_loss=_train_loss(updates.losses, requested, updates.finite),
            validation=scores,
            lr=_rate(server, pending.request.training),
            scheduled=pending.scheduled,
            seconds={
                "select_seconds": pending.selected - pending.started,
                "train_seconds": pending.trained - pending.selected,
                "round_seconds": perf_counter() - pending.started,
            },
        )
        server.rows.append(row)
        return row

    def _after_callbacks(self, pending: PendingRound, row: Row, stops: bool) -> None:
        """Validate where a callback stops the fit; record whether the fit stopped or succeeded."""
        server, causes = self.server, failed_clients(pending.exchanges)
        if stops and self.validation is not None:
            started = perf_counter()
            n_rows = self.engine.validation_rows
            row.update(self.validation.after_stop(server.net, row["round"], n_rows))
            row["round_seconds"] += perf_counter() - started
        server.stopped = self.until if stops else 0
        self._first_failure = self._first_failure or next(iter(causes.items()), None)
        if row["round"] not in self._overflows:
            succeeded = bool(pending.updates.finite.any()) or not causes
            server.succeeded = server.succeeded or succeeded


def admit(cohort: Cohort, finite: np.ndarray, min_clients: int) -> np.ndarray:
    """Return a mask of the members of a cohort that are aggregated.

    The one step between the last report of a round and the aggregate: it leaves out members whose
    update is not finite, and all if fewer than ``min_clients`` clients remain. A rule that leaves
    out others belongs here. The train loss and the client records are of all that reported.
    """
    enough = len(np.unique(cohort.keep(finite).clients)) >= min_clients
    return finite if enough else np.zeros_like(finite)


@contextmanager
def _restored_on_error(server: ServerState, state: State) -> Iterator[None]:
    """Restore the model and the fields below on any exception before the row is appended."""
    t = server.round
    names = "optimizer_state", "variate", "clients", "private_rounds", "last_finite"
    before: dict[str, Any] = {name: getattr(server, name) for name in names}
    try:
        yield
    except BaseException:
        if server.round == t:
            set_state(server.net, state)
            vars(server).update(before)
        raise


def _first_not_finite(new: State, old: State) -> str | None:
    """Return the name of the first tensor that has changed and is not finite."""
    return next((n for n, w in old.items() if not finite_where_changed(new[n], w)), None)


def _rate(server: ServerState, training: LocalTraining) -> float:
    """Return the first iteration's rate: of a group with the net's own rate, else of the first."""
    rates = server.rates if training.rates is None else training.rates[0]
    own = server.own_rate
    return rates[server.rates.index(own) if own in server.rates else 0]


def _train_loss(losses: np.ndarray, cohort: Cohort, finite: np.ndarray) -> float:
    """Return the mean training loss of finite updates, weighted by the cohort's weights."""
    weights = cohort.weights[finite]
    return float(np.average(losses[finite], weights=weights)) if weights.any() else float("nan")
