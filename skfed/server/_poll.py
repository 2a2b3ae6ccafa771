"""Polls of one round: the requests of a selector to clients, and their replies."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from skfed._federation import Federation
from skfed.engines import EvaluateRequest, Evaluator, Late
from skfed.nets import State
from skfed.privacy import GaussianMechanism
from skfed.selection import Round
from skfed.selection._poll_metrics import POLL_METRICS
from skfed.server._clock import Clock
from skfed.server._exchange import (
    NOT_FINITE,
    Exchange,
    ModelHolders,
    Outcome,
    in_one_line,
    poll_exchange,
)
from skfed.server._state import Best
from skfed.utils._seeding import Purpose

logger = logging.getLogger(__name__)


@dataclass
class FailureLog:
    """Logs failures of clients in a round, each cause once a client and fit."""

    federation: Federation
    round: int
    logged: set[tuple[bytes, str]]  # client digests and texts that were logged; it grows
    fatal: bool  # whether a failure ends the fit

    def name(self, k: int) -> str:
        """Name a client and the round in error messages."""
        return f"client {self.federation.names([k])[0]!r} in round {self.round}"

    def add(self, k: int, cause: Exception) -> None:
        """Log that a client failed; raise the cause if that is fatal."""
        if self.fatal:
            cause.add_note(self.name(k))
            raise cause
        entry = self.federation.digest(k), in_one_line(cause)
        if entry not in self.logged:
            self.logged.add(entry)
            name = self.federation.names([k])[0]
            logger.warning("client %r fails in round %d: %s", name, self.round, entry[1])


@dataclass
class LossPrivatizer:
    """Adds privacy noise to reported losses."""

    mechanism: GaussianMechanism | None  # None adds no noise
    stream: Callable[[Purpose, int, int], np.random.Generator]  # of a purpose, client and copy
    polled: Counter[int] = field(default_factory=Counter)  # how often, by client

    def of_polls(self, clients: np.ndarray, losses: np.ndarray) -> np.ndarray:
        """Return polled losses with noise, other noise each time that a client is polled."""
        if self.mechanism is None:
            return losses
        noisy = losses.copy()
        for i, k in enumerate(clients.tolist()):
            rng = self.stream(Purpose.POLL_NOISE, k, self.polled[k])
            noisy[i] = self.mechanism.of_loss(losses[i], rng)
            self.polled[k] += 1
        return noisy

    def of_trainings(self, copies: Sequence[tuple[int, int]], losses: np.ndarray) -> np.ndarray:
        """Return the training losses of some (client, copy) with noise."""
        if self.mechanism is None:
            return losses
        rngs = (self.stream(Purpose.LOSS_NOISE, k, copy) for k, copy in copies)
        return np.array(list(map(self.mechanism.of_loss, losses, rngs)))

    def not_finite(self, what: str, loss: float) -> ValueError:
        """Return the error of a loss or update that is not finite; with noise, without the loss."""
        value = f" (loss {loss})" if self.mechanism is None else ""
        return ValueError(f"its {what} {NOT_FINITE}{value}: lower the learning rate.")


@dataclass
class Poll:
    """Sends the polls of a round; each is an exchange."""

    evaluator: Evaluator
    state: State  # w_t
    round: int
    holders: ModelHolders  # of w_t
    failures: FailureLog
    privatizer: LossPrivatizer
    clock: Clock
    is_classifier: bool  # of a classifier, whose predictions are right or wrong
    leaves_out_rows: bool  # whether rows may not count in the criterion
    exchanges: list[Exchange] = field(default_factory=list)  # the polls so far

    def __call__(self, clients, metric, max_samples, at_most):
        """Return the values of clients in their order, NaN without one; see ``Round.poll``."""
        refusal = POLL_METRICS[metric].not_for_regressors
        if refusal and not self.is_classifier:
            raise ValueError(refusal)
        exchange = poll_exchange(
            clients,
            self.clock.batching.n_polled(clients, max_samples),
            self.holders,
            metric=metric,
            bounded=at_most is not None,
            on_all_rows=max_samples is None,
        )
        self.clock.close(exchange, self.round)
        in_time = np.flatnonzero(exchange.outcomes == Outcome.OK)
        if len(in_time):
            asked = clients[in_time]
            request = EvaluateRequest(self.round, self.state, asked, metric, max_samples, at_most)
            self._evaluate(request, exchange, in_time)
        self.clock.measure(exchange, self.round)
        self.exchanges.append(exchange)
        return exchange.answers.copy()

    def _no_loss(self, loss: float) -> ValueError:
        """Return the error of a polled loss that is not finite."""
        if self.leaves_out_rows and np.isnan(loss):
            return ValueError(
                "it has no loss, as none of the rows that it was asked for counts in the criterion "
                "(ignore_index, or a weight of 0)."
            )
        return self.privatizer.not_finite("loss", loss)

    def of_another(self, state: State, clients: np.ndarray) -> np.ndarray:
        """Poll clients for the loss of another model than w_t.

        A client holds one model, so that w_t is sent to these again.
        """
        other = replace(self, state=state, holders=ModelHolders.like(self.holders), exchanges=[])
        losses = other(clients, "loss", None, None)
        for exchange in other.exchanges:
            exchange.metric = None  # it tells nothing of w_t
        self.exchanges += other.exchanges
        self.holders.forget(clients)
        return losses

    def _evaluate(self, request: EvaluateRequest, exchange: Exchange, asked: np.ndarray) -> None:
        """Record the replies of the clients at some positions of an exchange."""
        reply, causes = self.evaluator.evaluate(request), exchange.causes
        values, late = reply.values, np.zeros(len(asked), dtype=bool)
        late[[i for i, cause in reply.raised.items() if isinstance(cause, Late)]] = True
        for i in np.flatnonzero(~np.isfinite(values) & ~reply.silent & ~late).tolist():
            cause = reply.raised.get(i) or self._no_loss(values[i])
            causes[int(asked[i])] = cause
            self.failures.add(request.clients[i], cause)
        values = self.privatizer.of_polls(request.clients, values)
        at_most = np.inf if request.at_most is None else request.at_most
        answered = np.isfinite(values) & (values <= at_most)
        exchange.outcomes[asked] = np.where(answered, Outcome.OK, Outcome.SILENT)
        exchange.outcomes[list(causes)] = Outcome.FAILED
        exchange.outcomes[asked[late]] = Outcome.LATE
        exchange.rows[asked], exchange.scalars_up[asked] = reply.n_samples * ~late, answered
        exchange.answers[asked] = np.where(answered, values, np.nan)
        exchange.add_times(asked, reply.times)


def objective(view: Round, exchanges: Iterable[Exchange]) -> float:
    """Return F(w_t) = sum of s_k p_k F_k(w_t), NaN unless all of P in reach were polled for it."""
    polls = [e for e in exchanges if e.metric == "loss" and e.on_all_rows]
    reached = view.priority & view.available
    n_answers = sum(np.count_nonzero(e.outcomes == Outcome.OK) for e in polls)
    if not 0 < np.count_nonzero(reached) <= n_answers:  # before an array for all clients is made
        return float("nan")
    losses = np.full(len(view.sizes), np.nan)
    for exchange in polls:
        answered = exchange.outcomes == Outcome.OK
        losses[exchange.clients[answered]] = exchange.answers[answered]
    if np.isnan(losses[reached]).any():
        return float("nan")
    weights = (view.priority_weights * view.sizes)[reached]
    return float(np.average(losses[reached], weights=weights))


def poll_in_doubt(
    poll: Poll, view: Round, clients: np.ndarray, best: Best | None
) -> tuple[float, Best | None]:
    """Poll clients, without a selector, for the loss of w_t, and of the best model so far.

    Return that of w_t, NaN if none is told, and the better of the two models. The best one is not
    polled for if its loss is known exactly. Who does not answer may train all the same, and a
    failure does not end the fit.
    """
    asked = replace(poll, failures=replace(poll.failures, fatal=False), exchanges=[])
    of_best = None
    if best is not None and not best.is_exact:
        of_best = asked.of_another(best.state, clients)
    losses = asked(clients, "loss", None, None)
    poll.exchanges += asked.exchanges
    known = np.isfinite(losses) & (True if of_best is None else np.isfinite(of_best))
    if not known.any():
        return float("nan"), best
    weights = (view.priority_weights * view.sizes)[clients[known]]
    loss = float(np.average(losses[known], weights=weights))
    if best is not None and of_best is not None:
        exact = float(np.average(of_best[known], weights=weights))
        pair = (
            Best(exact, best.round, best.state, "objective"),
            Best(loss, poll.round, poll.state, "objective"),
        )
        best = min(pair, key=lambda one: one.loss)
    return loss, best


def spread(clients: np.ndarray, most: int) -> np.ndarray:
    """Return at most so many of some clients, spread evenly over them."""
    if len(clients) <= most:
        return clients
    return clients[np.linspace(0, len(clients) - 1, most).astype(int)]
