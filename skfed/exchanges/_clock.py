"""The time of rounds: who is late, and how long each exchange takes.

It is simulated by devices, or measured by an engine whose clients are elsewhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from skfed._federation import Federation
from skfed.engines import Batching
from skfed.exchanges._exchange import Exchange, Outcome
from skfed.exchanges._limits import Limits
from skfed.utils._seeding import Purpose

_UNANSWERED = Outcome.LATE, Outcome.AWAY
_Streams = Callable[[np.ndarray], Iterator[np.random.Generator]]


class Speeds(Protocol):
    """How fast some clients are; see :class:`skfed.devices.Speeds`."""

    rows_per_second: np.ndarray
    bytes_down_per_second: np.ndarray
    bytes_up_per_second: np.ndarray
    latency: np.ndarray


class Devices(Protocol):
    """See :class:`skfed.devices.BaseDevices`."""

    public: bool

    def speeds(
        self,
        federation: Federation,
        clients: np.ndarray,
        round: int,
        streams: _Streams,
        fixed_streams: _Streams,
    ) -> Any: ...

    def expected(
        self, federation: Federation, clients: np.ndarray, round: int, fixed_streams: _Streams
    ) -> Any: ...


@dataclass(frozen=True)
class Clock:
    """Seconds of exchanges: of devices, measured by the engine, or none."""

    devices: Devices | None
    measured: bool  # by the engine, which also decides who is late
    limits: Limits
    batching: Batching
    model_bytes: int

    def of_models(self, model_bytes: int) -> "Clock":
        """Return a clock for models of some bytes."""
        return self if model_bytes == self.model_bytes else replace(self, model_bytes=model_bytes)

    @property
    def is_timed(self) -> bool:
        """Whether exchanges have seconds."""
        return self.measured or self.devices is not None

    def speeds(self, clients: np.ndarray, round: int) -> Speeds | None:
        """Return the speeds of the distinct clients in index order; None if none are simulated."""
        if self.devices is None:
            return None
        return self.devices.speeds(
            self.batching.federation,
            np.unique(clients),
            round,
            partial(self.batching.streams, Purpose.DEVICE_JITTER, round),
            partial(self.batching.streams, Purpose.DEVICES, 0),
        )

    def close(self, plan: Exchange, speeds: Speeds | None) -> Exchange:
        """Return a planned exchange with those who will be late; nothing comes back from these."""
        if speeds is None or not plan.kind.has_deadline:
            return plan
        seconds = self._seconds(plan, speeds)
        seconds[plan.outcomes == Outcome.AWAY] = np.nan
        _, first = np.unique(plan.clients, return_index=True)
        late = seconds > self.limits.end(plan.kind, seconds[first])
        return replace(
            plan,
            outcomes=np.where(late, Outcome.LATE, plan.outcomes),
            rows=np.where(late, 0, plan.rows),
            replied=plan.replied & ~late,
            seconds=seconds,
        )

    def settle(self, exchange: Exchange, speeds: Speeds | None) -> Exchange:
        """Return an exchange with the seconds of those who have answered, and its own."""
        if self.measured and exchange.duration is None:  # nobody was asked
            nothing = np.full(len(exchange.clients), np.nan)
            exchange = replace(exchange, seconds=nothing, computing=nothing, duration=0.0)
        if speeds is None:
            return exchange
        answered = ~np.isin(exchange.outcomes, _UNANSWERED)
        seconds = self._seconds(exchange, speeds)
        planned = np.nan if exchange.seconds is None else exchange.seconds
        duration = float(seconds[answered].max(initial=0.0))
        n_answered = len(np.unique(exchange.clients[answered]))
        goal = self.limits.goal(exchange.kind, len(np.unique(exchange.clients)))
        if self.limits.deadline is not None and not answered.all() and n_answered < goal:
            duration = float(self.limits.deadline)
        return replace(exchange, seconds=np.where(answered, seconds, planned), duration=duration)

    def expected(self, plan: Exchange, round: int) -> np.ndarray:
        """Return the seconds that a planned exchange is expected to take each client."""
        assert self.devices is not None
        federation, clients = self.batching.federation, np.unique(plan.clients)
        fixed = partial(self.batching.streams, Purpose.DEVICES, 0)
        return self._seconds(plan, self.devices.expected(federation, clients, round, fixed))

    def _seconds(self, exchange: Exchange, speeds: Speeds) -> np.ndarray:
        """Return the seconds until the reply of each client, equal for copies of a client."""
        distinct, position = np.unique(exchange.clients, return_inverse=True)

        def total(counts: np.ndarray) -> np.ndarray:
            return np.bincount(position, counts, minlength=len(distinct))

        down, up = map(total, exchange.n_bytes(self.model_bytes))
        rows = total(exchange.rows) / exchange.kind.rows_as_one
        seconds = (
            speeds.latency
            + down / speeds.bytes_down_per_second
            + rows / speeds.rows_per_second
            + up / speeds.bytes_up_per_second
        )
        return seconds[position]
