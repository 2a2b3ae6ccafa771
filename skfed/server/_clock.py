"""The time of rounds: who is late, and how long each exchange takes.

It is simulated by devices, or measured by an engine whose clients are elsewhere.
"""

from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np

from skfed._federation import Federation
from skfed.devices import BaseDevices, Speeds
from skfed.devices._base import ROWS_AS_ONE
from skfed.engines import Batching, ReplyTimes
from skfed.nets import batch_size, model_bytes
from skfed.server._config import RoundConfig
from skfed.server._exchange import Exchange, Outcome
from skfed.server._limits import Limits
from skfed.server._state import ServerState
from skfed.utils._seeding import Purpose

_UNANSWERED = Outcome.LATE, Outcome.AWAY


@dataclass(frozen=True)
class Clock:
    """Seconds of exchanges: of devices, measured by the engine, or none."""

    devices: BaseDevices | None
    measured: bool  # by the engine, which also decides who is late
    limits: Limits
    batching: Batching
    model_bytes: int

    @classmethod
    def of(
        cls, config: RoundConfig, server: ServerState, federation: Federation, measured: bool
    ) -> Self:
        """Return the clock of a fit; raise if its devices do not fit the clients."""
        devices = config.devices and config.devices.bound(federation, config.deadline)
        batching = Batching(federation, server.seed, batch_size(server.net))
        return cls(devices, measured, config.limits, batching, model_bytes(server.net))

    @property
    def is_timed(self) -> bool:
        """Whether exchanges have seconds."""
        return self.measured or self.devices is not None

    def close(self, exchange: Exchange, round: int) -> None:
        """Decide who is late in an exchange as it is planned; nothing comes back from these."""
        if self.devices is None:
            return
        exchange.seconds = self._seconds(exchange, self._speeds(exchange, round))
        exchange.seconds[exchange.outcomes == Outcome.AWAY] = np.nan
        _, first = np.unique(exchange.clients, return_index=True)
        late = exchange.seconds > self.limits.end(exchange.kind, exchange.seconds[first])
        exchange.outcomes[late] = Outcome.LATE
        for sent in (exchange.rows, exchange.models_up, exchange.scalars_up):
            sent[late] = 0

    def measure(self, exchange: Exchange, round: int) -> None:
        """Set the seconds of the clients that have answered, and of the exchange."""
        if self.measured and exchange.duration is None:  # nobody was asked
            exchange.add_times(np.zeros(0, dtype=int), ReplyTimes.of_nobody())
        if self.devices is None:
            return
        answered = ~np.isin(exchange.outcomes, _UNANSWERED)
        seconds = self._seconds(exchange, self._speeds(exchange, round))
        planned = np.nan if exchange.seconds is None else exchange.seconds
        exchange.seconds = np.where(answered, seconds, planned)
        exchange.duration = float(seconds[answered].max(initial=0.0))
        n_answered = len(np.unique(exchange.clients[answered]))
        goal = self.limits.goal(exchange.kind, len(np.unique(exchange.clients)))
        if self.limits.deadline is not None and not answered.all() and n_answered < goal:
            exchange.duration = float(self.limits.deadline)

    def expected(self, exchange: Exchange, round: int) -> np.ndarray:
        """Return the seconds that an exchange is expected to take each client."""
        assert self.devices is not None
        federation, clients = self.batching.federation, np.unique(exchange.clients)
        fixed = partial(self.batching.streams, Purpose.DEVICES, 0)
        return self._seconds(exchange, self.devices.expected(federation, clients, round, fixed))

    def _speeds(self, exchange: Exchange, round: int) -> Speeds:
        """Return the speeds of the distinct clients of an exchange, which keeps them."""
        if exchange.speeds is None:
            assert self.devices is not None
            exchange.speeds = self.devices.speeds(
                self.batching.federation,
                np.unique(exchange.clients),
                round,
                partial(self.batching.streams, Purpose.DEVICE_JITTER, round),
                partial(self.batching.streams, Purpose.DEVICES, 0),
            )
        return exchange.speeds

    def _seconds(self, exchange: Exchange, speeds: Speeds) -> np.ndarray:
        """Return the seconds until the reply of each client, equal for copies of a client."""
        distinct, position = np.unique(exchange.clients, return_inverse=True)

        def total(counts: np.ndarray) -> np.ndarray:
            return np.bincount(position, counts, minlength=len(distinct))

        down, up = map(total, exchange.n_bytes(self.model_bytes))
        rows = total(exchange.rows) / ROWS_AS_ONE[exchange.kind]
        seconds = (
            speeds.latency
            + down / speeds.bytes_down_per_second
            + rows / speeds.rows_per_second
            + up / speeds.bytes_up_per_second
        )
        return seconds[position]
