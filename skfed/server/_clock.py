"""The simulated time of rounds: who is late, and how long each exchange takes.

Bonawitz et al.: Towards Federated Learning at Scale: System Design, MLSys 2019 (the goal of
reports, section 2.2).
"""

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Self

import numpy as np

from skfed._federation import Federation
from skfed.devices import BaseDevices, Speeds
from skfed.engines import Draws
from skfed.history import SCALAR_BYTES
from skfed.nets import batch_size, model_bytes
from skfed.selection._counts import count_clients
from skfed.server._config import RoundConfig
from skfed.server._exchange import Exchange, Outcome
from skfed.server._state import ServerState
from skfed.utils._seeding import Purpose

# By what the rows of an exchange are divided: those of a poll have no backward pass.
_ROWS_AS_ONE = {"statistics": 1, "poll": 3, "training": 1}
_UNANSWERED = Outcome.LATE, Outcome.AWAY


@dataclass(frozen=True)
class Clock:
    """Seconds of exchanges; without devices there are none, and nobody is late."""

    devices: BaseDevices | None
    deadline: float | None
    report_goal: float | None
    draws: Draws
    model_bytes: int

    @classmethod
    def of(cls, config: RoundConfig, server: ServerState, federation: Federation) -> Self:
        """Return the clock of a fit; raise if its devices do not fit the clients."""
        devices = config.devices and config.devices.bound(federation, config.deadline)
        draws = Draws(federation, server.seed, batch_size(server.net))
        return cls(devices, config.deadline, config.report_goal, draws, model_bytes(server.net))

    def close(self, exchange: Exchange, round: int) -> None:
        """Decide who is late in an exchange as it is planned; nothing comes back from these."""
        if self.devices is None:
            return
        exchange.seconds = self._seconds(exchange, self._speeds(exchange, round))
        exchange.seconds[exchange.outcomes == Outcome.AWAY] = np.nan
        end = min(inf if self.deadline is None else self.deadline, self._goal_reached(exchange))
        late = exchange.seconds > end
        exchange.outcomes[late] = Outcome.LATE
        for sent in (exchange.rows, exchange.models_up, exchange.scalars_up):
            sent[late] = 0

    def measure(self, exchange: Exchange, round: int) -> None:
        """Set the seconds of the clients that have answered, and of the exchange."""
        if self.devices is None:
            return
        answered = ~np.isin(exchange.outcomes, _UNANSWERED)
        seconds = self._seconds(exchange, self._speeds(exchange, round))
        planned = np.nan if exchange.seconds is None else exchange.seconds
        exchange.seconds = np.where(answered, seconds, planned)
        exchange.duration = float(seconds[answered].max(initial=0.0))
        n_answered = len(np.unique(exchange.clients[answered]))
        missed = self.deadline is not None and not answered.all()
        if missed and not (exchange.kind == "training" and n_answered >= self._goal(exchange)):
            assert self.deadline is not None
            exchange.duration = float(self.deadline)

    def expected(self, exchange: Exchange, round: int) -> np.ndarray:
        """Return the seconds that an exchange is expected to take each client."""
        assert self.devices is not None
        federation, clients = self.draws.federation, np.unique(exchange.clients)
        fixed = partial(self.draws.streams, Purpose.DEVICES, 0)
        return self._seconds(exchange, self.devices.expected(federation, clients, round, fixed))

    def _speeds(self, exchange: Exchange, round: int) -> Speeds:
        """Return the speeds of the distinct clients of an exchange, which keeps them."""
        if exchange.speeds is None:
            assert self.devices is not None
            exchange.speeds = self.devices.speeds(
                self.draws.federation,
                np.unique(exchange.clients),
                round,
                partial(self.draws.streams, Purpose.DEVICE_JITTER, round),
                partial(self.draws.streams, Purpose.DEVICES, 0),
            )
        return exchange.speeds

    def _seconds(self, exchange: Exchange, speeds: Speeds) -> np.ndarray:
        """Return the seconds until the reply of each client, equal for copies of a client."""
        distinct, position = np.unique(exchange.clients, return_inverse=True)

        def total(counts: np.ndarray) -> np.ndarray:
            return np.bincount(position, counts, minlength=len(distinct))

        down, up = (
            total(models) * self.model_bytes + total(scalars) * SCALAR_BYTES
            for models, scalars in (
                (exchange.models_down, exchange.scalars_down),
                (exchange.models_up, exchange.scalars_up),
            )
        )
        rows = total(exchange.rows) / _ROWS_AS_ONE[exchange.kind]
        seconds = (
            speeds.latency
            + down / speeds.bytes_down_per_second
            + rows / speeds.rows_per_second
            + up / speeds.bytes_up_per_second
        )
        return seconds[position]

    def _goal(self, exchange: Exchange) -> float:
        """Return the number of clients with whose answers a training ends."""
        n_clients = len(np.unique(exchange.clients))
        if self.report_goal is None:
            return inf
        return min(count_clients(self.report_goal, n_clients), n_clients)

    def _goal_reached(self, exchange: Exchange) -> float:
        """Return when as many clients have answered as are wanted; infinity if that is never."""
        if exchange.kind != "training":
            return inf
        goal = self._goal(exchange)
        _, first = np.unique(exchange.clients, return_index=True)
        assert exchange.seconds is not None
        seconds = np.sort(exchange.seconds[first])  # NaN at the end
        seconds = seconds[~np.isnan(seconds)]
        return float(seconds[int(goal) - 1]) if 0 < goal <= len(seconds) else inf
