"""The loop over rounds: poll and select, train, aggregate, record."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from skfed._federation import Federation
from skfed.aggregation._scaffold import updated_variates
from skfed.aggregation._tensors import finite_where_changed
from skfed.contribution import Values
from skfed.engines import Engine, Evaluator, LocalTraining
from skfed.exchanges import (
    TOO_LATE,
    Exchange,
    failed_clients,
    late_clients,
    pack_contributions,
    pack_exchanges,
    pack_losses,
)
from skfed.history import Row, make_row, to_record
from skfed.nets import State, get_state, last_layer_of, named_tensors, set_state
from skfed.selection import Cohort, Round
from skfed.server._config import RoundConfig
from skfed.server._current_round import CurrentRound
from skfed.server._divergence import warn_at_end
from skfed.server._doubt import in_doubt, n_tested
from skfed.server._exchanges import make_clock
from skfed.server._held_out import HeldOutEvaluation
from skfed.server._last_round import LastRound
from skfed.server._poll import objective, poll_in_doubt, spread
from skfed.server._private_messages import count_messages
from skfed.server._state import TRAINING_LOSS, Best, Memory, ServerState
from skfed.server._statistics import RateLimits
from skfed.server._training import CohortTraining
from skfed.server._validation import Validation
from skfed.server._valuation import Valuation
from skfed.utils._describe import describe
from skfed.utils._torch_context import one_torch_thread
from skfed.utils._warnings import warn

logger = logging.getLogger(__name__)


class LoopCallback(Protocol):
    """Called in every round."""

    def begin_round(self) -> None:
        """Called at the start."""

    def end_round(self, row: Row) -> bool:
        """Called with the round's row of the history, before the checkpoint; True stops the fit."""


@dataclass
class PendingRound:
    """A round in progress, from its selection on."""

    current: CurrentRound
    view: Round
    chosen: Cohort  # by the selector
    asked: Cohort  # those of them whose poll has not failed
    scheduled: dict[str, float]  # values of the selector's schedules
    started: float  # times of perf_counter
    began_training: float
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
        validator: Evaluator | None = None,  # for contributions
        held_out: HeldOutEvaluation | None = None,
        limits: RateLimits | None = None,
        last_round: LastRound,
        callbacks: Sequence[LoopCallback],
        checkpoint: Callable[[bool], None] | None = None,  # takes whether the round is the last
        report: Callable[[Row], None],  # called with the columns of a round that is finished
    ):
        self.server, self.federation, self.engine, self.config = server, federation, engine, config
        self.until, self.validation, self.callbacks = until, validation, callbacks
        self.held_out = held_out
        self.limits, self.last_round = limits, last_round
        self.checkpoint, self.report = checkpoint, report
        contribution = config.contribution
        self.valuation = None if contribution is None else Valuation(contribution, validator)
        self.clock = make_clock(server, federation, config, engine.measures_time)
        n_outputs = 0
        if "last_layer" in config.selector.needs:
            n_outputs = len(named_tensors(server.net)[last_layer_of(server.net)])
        server.past = server.past.of(federation, n_outputs)
        if server.memory.values and server.memory.owner != self._owner:
            warn(
                f"the memory of {config.selector} is empty at the start of this fit: the rule, its "
                "parameters or the clients are others than in the fit before."
            )
            server.memory = Memory()
        self._first = server.begun
        self._tested = float("nan")  # the loss that was polled in doubt in the last round
        self._first_failure: tuple[int, Exception] | None = None  # of a client, in any round
        self._overflows: dict[int, Exception] = {}  # by round whose new model was not finite
        timed = (row["elapsed"] for row in reversed(server.rows) if "elapsed" in row)
        self._elapsed = next(timed, 0.0)  # seconds; kept, since a round must not read all rows

    @property
    def finished(self) -> bool:
        """Whether no round is left, or a callback has stopped the fit."""
        # A callback that stops the fit sets ``stopped`` to the ``until`` of that fit.
        return self.server.round >= self.until or self.server.stopped >= self.until

    def set_federation(self, federation: Federation) -> None:
        """Go on with the same clients, of which some have other sizes."""
        self.federation = federation
        self.clock = make_clock(self.server, federation, self.config, self.engine.measures_time)
        self.__dict__.pop("_n_passes", None)

    @property
    def _is_last(self) -> bool:
        """Whether the round is the last that is planned."""
        return self.server.round + 1 == self.until == self.config.n_rounds

    def _is_in_doubt(self) -> bool:
        """Tell whether clients are asked for losses before the fit ends."""
        is_told = self.config.loss_privacy is None
        return is_told and in_doubt(
            self.server, self.federation, self.server.past.column("reported"), self._n_passes
        )

    @cached_property
    def _owner(self) -> str:
        """Whose memory the server keeps: a text that is another for other rules and clients."""
        digest = sha256(describe(self.config.selector, "selector").encode())
        for k in range(len(self.federation)):
            digest.update(self.federation.digest(k))
        return digest.hexdigest()

    @cached_property
    def _n_passes(self) -> float:
        """How often a priority client passes over its rows in a round, on average."""
        training = self.config.training
        if training.steps is None:
            return float(training.epochs)
        clients = np.flatnonzero(self.federation.priority)
        n_trained = self.clock.batching.n_trained(training, clients).sum()
        return float(n_trained / max(1, self.federation.sizes[clients].sum()))

    @property
    def _is_public(self) -> bool:
        return self.clock.devices is not None and self.clock.devices.public

    def run(self) -> None:
        """Run the rounds that are left."""
        while not self.finished:
            self.run_round()
        self.end()

    def run_round(self) -> None:
        """Run one round; where it raises, ``last_round`` is still the one before."""
        for callback in self.callbacks:
            callback.begin_round()
        with one_torch_thread():
            pending = self._select()
            current, clients = pending.current, pending.asked.clients
            training = current.training(pending.asked, pending.view)
            rows, away = current.n_trained(clients), current.away(clients)
            # The clients train here.
            exchange = current.exchanges.ask(
                training.kind, training.messages, clients, training.send, rows=rows, away=away
            )
            training.take_answers(exchange)
            cohort, aggregate = training.finish(self.config.min_clients)
            pending.trained, before = perf_counter(), self.server.optimizer_state
            if not self._apply_server_optimizer(training, cohort, aggregate):
                cohort = cohort.keep(np.zeros(len(cohort.clients), dtype=bool))
            settled = [*self.server.first_exchanges, *current.exchanges.settled]
            self._remember(pending, training.memory, settled)
            valued = None
            if self.valuation is not None:
                valued = self.valuation.of_round(current, pending.view, training, cohort, before)
            evaluated = {}
            if self.held_out is not None:
                state = get_state(self.server.net)
                evaluated = self.held_out.after_round(current, pending.view, state)
            # After ``_remember``: no rule sees what these ask.
            settled = [*self.server.first_exchanges, *current.exchanges.settled]
            self._remember_contacts(current, settled)
            row = self._append_row(pending, training, cohort, settled, valued, evaluated)
        self.server.first_exchanges = []  # large, and in the row of this round
        stops = any([callback.end_round(row) for callback in self.callbacks])  # all are called
        self._after_callbacks(training, failed_clients(settled), row, stops)
        self.last_round.keep()
        if self.checkpoint is not None and self.server.succeeded:
            self.checkpoint(stops or self.server.round == self.until)
        self.report(to_record(row))

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
            late = any(TOO_LATE in row["causes"] for row in self.server.rows)
            others = "failed or was late" if late else "failed"
            cause.add_note(f"client {name!r}; every client {others} in every round")
            raise cause
        rounds = range(self._first, self.until)
        has_changed = warn_at_end(
            *(self.server, self.federation, self.config, rounds, self._overflows),
            tested=self._tested,
            n_passes=self._n_passes,
        )
        if has_changed and self.checkpoint is not None:
            self.checkpoint(True)  # the model that is kept, from which a later fit goes on

    def _select(self) -> PendingRound:
        """Let the selector poll clients and choose the cohort."""
        server, config, started = self.server, self.config, perf_counter()
        state = self.last_round.current_model()
        self.clock = self.clock.of_models(server.note_fixed(state))
        current = CurrentRound(
            *(server, self.federation, config, self.engine, self.clock, self.limits), state
        )
        view, settled = current.view(), current.exchanges.settled
        chosen = config.selector.select(view)
        lost = [*failed_clients(settled), *late_clients(settled)]
        if self._is_last and np.isnan(chosen.objective) and self._is_in_doubt():
            clients = np.flatnonzero(view.priority & view.available)
            n_clients = n_tested(server.rows[self._first :], chosen.clients)
            self._tested, server.best = poll_in_doubt(
                current.poll, view, spread(clients, n_clients), server.best
            )
        asked = chosen.keep(~np.isin(chosen.clients, lost)) if lost else chosen
        scheduled = config.selector.scheduled(view)
        return PendingRound(current, view, chosen, asked, scheduled, started, perf_counter())

    def _remember(
        self,
        pending: PendingRound,
        memory: Mapping[str, Any] | None,
        settled: Sequence[Exchange],
    ) -> None:
        """Keep what the round has told of clients, and what the rule wants to remember."""
        server = self.server
        server.past.add(server.round, pending.chosen.clients, settled)
        if memory is not None:
            server.memory = Memory(self._owner, memory)
        count_messages(server, self.federation, settled, self.config)

    def _remember_contacts(self, current: CurrentRound, settled: Sequence[Exchange]) -> None:
        """Keep what clients have received that is sent once, and who has not answered."""
        past, fixed = self.server.past, current.exchanges.fixed
        if fixed is not None:
            past.note_versions(*fixed.news())
        if self.config.availability.backs_off:
            past.add_missed(self.server.round, settled, self.config.deadline)

    def _apply_server_optimizer(
        self, training: CohortTraining, cohort: Cohort, aggregate: State
    ) -> bool:
        """Set the new global model; return False, and keep the old one, if it is not finite.

        Without a server optimizer it is the aggregate. An empty cohort keeps the model.
        """
        server, request = self.server, training.request
        optimizer = self.config.server_optimizer
        state, optimizer_state = request.state, server.optimizer_state
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
            self._update_variates(training)
        return True

    def _update_variates(self, training: CohortTraining) -> None:
        """Update SCAFFOLD's control variates, the server's and those of the cohort's clients."""
        server = self.server
        new: dict[bytes, list[State]] = {}
        clients = training.request.cohort.clients.tolist()
        for k, variate in zip(clients, training.variates, strict=True):
            if variate is not None:
                new.setdefault(self.federation.digest(k), []).append(variate)
        old = {key: server.variates.get(key, {}) for key in new}
        server.variate, changed = updated_variates(server.variate, old, new, len(self.federation))
        server.variates = server.variates | changed

    def _append_row(
        self,
        pending: PendingRound,
        training: CohortTraining,
        cohort: Cohort,
        settled: Sequence[Exchange],
        valued: tuple[np.ndarray, Values] | None,
        evaluated: Row,
    ) -> Row:
        """Validate the new model; append the round's row to the history, and return it."""
        server, request, finite = self.server, training.request, training.finite
        scores = {}
        if self.validation is not None:
            n_rows = self.engine.validation_rows
            scores = self.validation.after_round(server.net, server.round, n_rows)
        n_bytes = self.clock.model_bytes
        known = pending.chosen.objective  # NaN unless the selector has computed it
        row = make_row(
            round=server.round,
            exchanges=settled,
            model_bytes=n_bytes,
            names=self.federation.names,
            elapsed=self._elapsed,
            cohort=cohort.clients,
            objective=known if np.isfinite(known) else objective(pending.view, settled),
            train_loss=_train_loss(training.losses, request.cohort, finite),
            validation=scores | evaluated,
            absent=pending.current.absent,
            lr=_rate(server, request.training),
            scheduled=pending.scheduled,
            seconds={
                "select_seconds": pending.began_training - pending.started,
                "train_seconds": pending.trained - pending.began_training,
                "round_seconds": perf_counter() - pending.started,
            },
        )
        if exchanges := pack_exchanges(settled, n_bytes, self.federation, self._elapsed):
            row["exchanges"] = exchanges  # no column of the history: see skfed.metrics
        if valued is not None:  # no column either: see contributions_
            row["contributions"] = pack_contributions(self.federation, valued[0], *valued[1])
        row["begins"] = bool(server.first_exchanges)  # likewise: its scalars are not of polls alone
        # No column either: for the warning about losses that grow.
        row["losses"] = pack_losses(
            self.federation, request.cohort.clients[finite], training.losses[finite]
        )
        self._note_best(row, request.state)
        first, own = server.first_exchanges, pending.current.exchanges.settled
        server.past.add_costs(first, own, n_bytes, pending.chosen, cohort)
        server.rows.append(row)
        self._elapsed = row.get("elapsed", self._elapsed)
        return row

    def _note_best(self, row: Row, state: State) -> None:
        """Keep the model that clients had in a round, if a lower loss of it was reported.

        Where polls or moments have told the loss of a model, training losses are not looked at: a
        client that improves its own model reports less than that of the model that it was sent.
        """
        polled, best = bool(np.isfinite(row["objective"])), self.server.best
        loss = row["objective"] if polled else row["train_loss"]
        if not np.isfinite(loss) or (best is not None and best.is_exact and not polled):
            return
        if best is None or polled != best.is_exact or loss < best.loss:
            name = "objective" if polled else TRAINING_LOSS
            self.server.best = Best(loss, row["round"], state, name)

    def _after_callbacks(
        self, training: CohortTraining, causes: dict[int, Exception], row: Row, stops: bool
    ) -> None:
        """Validate where a callback stops the fit; record whether the fit stopped or succeeded."""
        server = self.server
        if stops and self.validation is not None:
            started = perf_counter()
            n_rows = self.engine.validation_rows
            row.update(self.validation.after_stop(server.net, row["round"], n_rows))
            row["round_seconds"] += perf_counter() - started
        server.stopped = self.until if stops else 0
        self._first_failure = self._first_failure or next(iter(causes.items()), None)
        if row["round"] not in self._overflows:
            succeeded = bool(training.finite.any()) or not causes
            server.succeeded = server.succeeded or succeeded


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
