"""What the server knows of each client from earlier rounds."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from skfed._federation import Federation
from skfed.exchanges import POLL, TRAINING, Exchange, Outcome
from skfed.server._config import RoundConfig
from skfed.server._state import ServerState


class ClientRecords:
    """Keeps what a server knows of each client, and arrays of what selectors see of it."""

    def __init__(self, server: ServerState, federation: Federation, timed: bool):
        self.server, self.digest = server, federation.digest
        self.reported = np.full(len(federation), np.inf)
        # Without devices one number for all, to save memory.
        self.seconds = np.broadcast_to(np.nan, len(federation))
        if timed:
            self.seconds = self.seconds.copy()
        if server.reported or server.seconds:
            keys = list(map(self.digest, range(len(federation))))
            self.reported[:] = [server.reported.get(key, np.inf) for key in keys]
            if timed:
                self.seconds[:] = [server.seconds.get(key, np.nan) for key in keys]

    def add(self, exchanges: Sequence[Exchange], config: RoundConfig) -> None:
        """Record what the settled exchanges of a round tell of clients."""
        for exchange in exchanges:
            if exchange.kind is TRAINING:
                self._add_losses(exchange)
                self._add_seconds(exchange)
        self._count_messages(exchanges, config)

    def _add_losses(self, training: Exchange) -> None:
        """Record the training losses that clients reported; what late ones did before stays."""
        failed = training.outcomes == Outcome.FAILED
        trained = failed | np.isfinite(training.answers)
        losses = _last(training.clients[trained], training.answers[trained])
        self.reported[list(losses)] = list(losses.values())
        self.server.reported = self.server.reported | self._by_digest(losses)

    def _add_seconds(self, training: Exchange) -> None:
        """Record how long clients took to train; of a late one, how long it was waited for."""
        if training.seconds is None or training.duration is None:
            return
        late = training.outcomes == Outcome.LATE
        seconds = np.where(late, training.duration, training.seconds)
        seconds[training.outcomes == Outcome.FAILED] = np.nan  # it may have failed at once
        known = ~np.isnan(seconds)
        last = _last(training.clients[known], seconds[known])
        self.seconds[list(last)] = list(last.values())
        self.server.seconds = self.server.seconds | self._by_digest(last)

    def _count_messages(self, exchanges: Sequence[Exchange], config: RoundConfig) -> None:
        """Count the updates and losses sent with privacy; each update comes with a loss."""
        if config.update_privacy is None and config.loss_privacy is None:
            return
        of_update, of_loss = (
            0.0 if mechanism is None else float(mechanism.noise_multiplier)
            for mechanism in (config.update_privacy, config.loss_privacy)
        )
        # Clients that trained to the end, and so sent an update.
        trained = [k for e in exchanges if e.kind.trains for k in e.clients[e.was_sent]]
        polled = [k for e in exchanges if e.kind is POLL for k in e.clients[e.was_sent]]
        sent: dict[bytes, Counter[tuple[str, float]]] = {}
        for k in trained:
            sent.setdefault(self.digest(k), Counter())["update", of_update] += 1
        for k in (*trained, *polled):
            sent.setdefault(self.digest(k), Counter())["loss", of_loss] += 1
        server = self.server
        server.messages = server.messages | {
            key: Counter(server.messages.get(key, {})) + n for key, n in sent.items()
        }
        server.private_rounds = (*server.private_rounds, server.round)

    def _by_digest(self, values: dict[int, float]) -> dict[bytes, float]:
        return {self.digest(k): value for k, value in values.items()}


def _last(clients: np.ndarray, values: np.ndarray) -> dict[int, float]:
    """Return the value of each client; of one that is listed twice, the last."""
    return dict(zip(clients.tolist(), values.tolist(), strict=True))
