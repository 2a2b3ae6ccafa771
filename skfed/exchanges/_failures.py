"""What is said of clients that fail."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from skfed._federation import Federation
from skfed.engines import Late
from skfed.exchanges._exchange import in_one_line

NOT_FINITE = "is not finite"

logger = logging.getLogger(__name__)


@dataclass
class FailureLog:
    """Logs failures of clients in a round, each cause once a client and fit."""

    federation: Federation
    fatal: bool  # whether a failure ends the fit
    round: int = 0
    # Client digests and texts that were logged; it grows.
    logged: set[tuple[bytes, str]] = field(default_factory=set)

    def name(self, k: int) -> str:
        """Name a client and the round in error messages."""
        return f"client {self.federation.names([k])[0]!r} in round {self.round}"

    def note(
        self, clients: np.ndarray, raised: Mapping[int, Exception], asked_for: str | None
    ) -> None:
        """Log who has failed, given what clients at some positions have raised; not who is late."""
        for i, cause in sorted(raised.items()):
            if not isinstance(cause, Late):
                self._add(int(clients[i]), cause, asked_for)

    def _add(self, k: int, cause: Exception, asked_for: str | None) -> None:
        """Log that a client failed, asked for something; raise the cause if that is fatal."""
        if self.fatal:
            cause.add_note(f"{self.name(k)}{(asked_for and f', asked for the {asked_for}') or ''}")
            raise cause
        entry = self.federation.digest(k), in_one_line(cause)
        if entry not in self.logged:
            self.logged.add(entry)
            name = self.federation.names([k])[0]
            if asked_for is None:
                logger.warning("client %r fails in round %d: %s", name, self.round, entry[1])
            else:
                logger.warning("client %r sends no %s: %s", name, asked_for, entry[1])
