"""How the server asks clients: one function, and one for each of its concerns, in their order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from skfed.engines import Late, ReplyTimes
from skfed.exchanges._clock import Clock, Speeds
from skfed.exchanges._exchange import Exchange, ModelHolders, Outcome
from skfed.exchanges._failures import FailureLog
from skfed.exchanges._fixed import FixedTensors
from skfed.exchanges._kinds import Kind
from skfed.exchanges._messages import Messages
from skfed.exchanges._noise import LossPrivatizer


@dataclass(frozen=True)
class Answers:
    """What the clients that were sent a message have answered, one entry each.

    Parameters
    ----------
    values : ndarray of shape (n_clients,)
        Losses or errors; NaN from a client that has not answered or failed.
    rows : ndarray of shape (n_clients,)
        The rows that each has computed on.
    raised : dict of int to Exception
        Why a client has not answered, by position; :class:`~skfed.engines.Late` if it was late.
    extras : dict of str to ndarray of shape (n_clients, ...)
        What else is known of each, by name.
    sent : ndarray of shape (n_clients,), dtype=bool, default=None
        Whether its reply has left it, whatever is in it. None: where it has a value.
    times : sequence of (ndarray of int, ReplyTimes or None)
        The seconds of the clients at some positions, where the engine measures them.
    tensors : dict of str to ndarray of int of shape (n_clients,)
        The bytes of tensors that each has sent, by name, where the messages do not say them.
    """

    values: np.ndarray
    rows: np.ndarray
    raised: Mapping[int, Exception] = field(default_factory=dict)
    sent: np.ndarray | None = None
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)
    times: Sequence[tuple[np.ndarray, ReplyTimes | None]] = ()
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of_statistics(
        cls,
        n_clients: int,
        raised: Mapping[int, Exception] = MappingProxyType({}),
        times: ReplyTimes | None = None,
        **known: Any,
    ) -> "Answers":
        """Return the answers of clients to a request for statistics, all but those that raised."""
        sent = np.ones(n_clients, dtype=bool)
        sent[list(raised)] = False
        # Views, as there may be very many clients.
        nothing = np.broadcast_to(np.nan, n_clients), np.broadcast_to(0, n_clients)
        return cls(*nothing, raised, sent, times=[(np.arange(n_clients), times)], **known)

    @classmethod
    def of_nobody(cls, n_clients: int) -> "Answers":
        """Return the answers of clients that were not asked after all."""
        none = np.zeros(n_clients, dtype=int)
        return cls(np.full(n_clients, np.nan), none, sent=none.astype(bool))


#: Sends the messages to the clients at some positions of an exchange, and waits for the answers.
Send = Callable[[np.ndarray], Answers]


@dataclass
class Exchanges:
    """The exchanges of one round, before the first, or of the fit of a transformer.

    The last have no clock and no model: ``send`` says who is late, and there are no losses.
    """

    failures: FailureLog
    round: int = 0
    clock: Clock | None = None  # None: no seconds
    holders: ModelHolders = field(default_factory=ModelHolders)  # of w_t
    fixed: FixedTensors | None = None  # None: the model has none
    privatizer: LossPrivatizer = field(default_factory=LossPrivatizer)
    settled: list[Exchange] = field(default_factory=list)

    def ask(
        self,
        kind: Kind,
        messages: Messages,
        clients: np.ndarray,
        send: Send,
        *,
        rows: np.ndarray | None = None,
        away: np.ndarray | None = None,
        holders: ModelHolders | None = None,
        at_most: float | None = None,
        metric: str | None = None,
        on_all_rows: bool = False,
        asked_for: str | None = None,
    ) -> Exchange:
        """Ask clients, and return what came of it.

        Parameters
        ----------
        kind : Kind
            What it is.
        messages : Messages
            What travels.
        clients : ndarray of int
            Their indices.
        send : callable
            Sends the messages to those that will be in time, given by their positions; maybe none.
        rows : ndarray of int of shape (n_clients,), default=None
            The rows that each is to compute on. None: they are not counted.
        away : ndarray of bool of shape (n_clients,), default=None
            Who will not reply. None: all will.
        holders : ModelHolders, default=None
            Who has the model of the messages already. None: those of w_t.
        at_most : float, default=None
            The bound above which a client stays silent.
        metric : str, default=None
            What of w_t the answers are.
        on_all_rows : bool, default=False
            Whether they are on all rows of each client.
        asked_for : str, default=None
            What clients that fail have not sent, for the log.
        """
        holders = self.holders if holders is None else holders
        polled = {"metric": metric, "on_all_rows": on_all_rows}
        plan = plan_exchange(kind, messages, clients, rows, holders, away, self.fixed, **polled)
        speeds = self.clock.speeds(clients, self.round) if self.clock else None
        closed, in_time = self._in_time(plan, speeds)
        holders.note(clients if messages.down.model else clients[:0])
        answers = send(in_time)
        if self.fixed is not None and closed.fixed is not None:
            self.fixed.note(clients)
            closed = replace(closed, fixed=closed.fixed + self.fixed.resent(clients))
        self.failures.note(clients[in_time], answers.raised, asked_for)
        answers = self._with_noise(kind, clients, in_time, answers)
        exchange = _recorded(closed, in_time, answers, at_most)
        self.settled.append(self.clock.settle(exchange, speeds) if self.clock else exchange)
        return self.settled[-1]

    def _in_time(self, plan: Exchange, speeds: Speeds | None) -> tuple[Exchange, np.ndarray]:
        """Return the plan with those who will be late, and the positions of the others."""
        closed = self.clock.close(plan, speeds) if self.clock else plan
        return closed, np.flatnonzero(closed.outcomes == Outcome.OK)

    def _with_noise(
        self, kind: Kind, clients: np.ndarray, in_time: np.ndarray, answers: Answers
    ) -> Answers:
        """Return the answers with the noise that clients add to losses."""
        if kind.noise is None:
            return answers
        values = self.privatizer.add(kind.noise, clients[in_time], answers.values)
        return replace(answers, values=values)


def plan_exchange(
    kind: Kind,
    messages: Messages,
    clients: np.ndarray,
    rows: np.ndarray | None,
    holders: ModelHolders,
    away: np.ndarray | None = None,
    fixed: FixedTensors | None = None,
    **polled: Any,
) -> Exchange:
    """Return an exchange before anybody is asked; all answer but those in the mask ``away``.

    ``polled`` are fields of the exchange that say what a poll is of.
    """
    n_clients = len(clients)
    none = np.broadcast_to(0, n_clients)  # views, as there may be very many clients
    sends_tensors = messages.down.model or messages.down.models
    rows = none if rows is None else rows
    outcomes = np.broadcast_to(np.int8(Outcome.OK), n_clients)
    replied = np.broadcast_to(True, n_clients)
    if away is not None and away.any():
        outcomes, replied = np.where(away, np.int8(Outcome.AWAY), outcomes), ~away
        rows = np.where(away, 0, rows)
    return Exchange(
        kind=kind,
        messages=messages,
        clients=clients,
        outcomes=outcomes,
        rows=rows,
        lacked=holders.lacking(clients) if messages.down.model else none,
        replied=replied,
        answers=np.broadcast_to(np.nan, n_clients),
        fixed=fixed.lacking(clients) if fixed is not None and sends_tensors else None,
        **polled,
    )


def _recorded(
    closed: Exchange, asked: np.ndarray, answers: Answers, at_most: float | None
) -> Exchange:
    """Return a closed exchange with the answers of the clients at some positions."""
    outcomes, answered = closed.outcomes, np.isfinite(answers.values)
    if at_most is not None or answers.raised:  # no copy, as there may be very many clients
        outcomes = outcomes.copy()
    if at_most is not None:
        answered &= answers.values <= at_most
        outcomes[asked[~answered]] = Outcome.SILENT
    for i, cause in answers.raised.items():
        outcomes[asked[i]] = Outcome.LATE if isinstance(cause, Late) else Outcome.FAILED
    values: Any = np.nan  # one for all, as there may be very many clients
    if answered.any():
        values = np.where(answered, answers.values, np.nan)
    spread_out = partial(_spread_out, asked, len(outcomes))
    exchange = replace(
        closed,
        outcomes=outcomes,
        rows=spread_out(answers.rows, 0),
        replied=spread_out(answered if answers.sent is None else answers.sent, False),
        answers=spread_out(values, np.nan),
        tensors={name: spread_out(one, 0) for name, one in answers.tensors.items()},
        extras={name: spread_out(one, np.nan) for name, one in answers.extras.items()},
        causes={
            int(asked[i]): cause
            for i, cause in sorted(answers.raised.items())
            if not isinstance(cause, Late)
        },
    )
    return _with_times(exchange, asked, answers.times)


def _spread_out(asked: np.ndarray, n_clients: int, values: Any, other: Any) -> np.ndarray:
    """Return the values of clients at some positions for all, with another for those not asked."""
    if len(asked) == n_clients:  # no copy, as there may be very many clients
        return values if np.ndim(values) else np.broadcast_to(values, n_clients)
    result = np.full((n_clients, *np.shape(values)[1:]), other)
    result[asked] = values
    return result


def _with_times(
    exchange: Exchange,
    asked: np.ndarray,
    times: Sequence[tuple[np.ndarray, ReplyTimes | None]],
) -> Exchange:
    """Return an exchange with its measured seconds, if it has any."""
    known = [(asked[positions], one) for positions, one in times if one is not None]
    if not known:
        return exchange
    seconds, computing = np.full((2, len(exchange.clients)), np.nan)
    for positions, one in known:
        seconds[positions], computing[positions] = one.seconds, one.computing
    duration = known[-1][1].duration
    return replace(exchange, seconds=seconds, computing=computing, duration=duration)
