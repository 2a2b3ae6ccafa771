"""What a round has cost each client, from settled exchanges alone; no rule sees it.

A new total is a field of ``TOTALS`` and a line here;
:func:`skfed.inspection.participation_report` shows it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from skfed.exchanges._exchange import Exchange, Outcome
from skfed.exchanges._kinds import POLL, SKETCH
from skfed.selection._cohort import Cohort

#: Sums over rounds, and what they are of a client that is new.
TOTALS: dict[str, Any] = {
    "rounds_chosen": np.int32(0),
    "rounds_aggregated": np.int32(0),
    "weights": np.float64(0),  # in the aggregates
    "rows_trained": np.int64(0),
    "polls_answered": np.int32(0),
    "polls_silent": np.int32(0),
    "rounds_bounded": np.int32(0),  # in which it heard a bound, and stayed silent or answered
    "rounds_matched": np.int32(0),  # those of them in which it was then chosen
    "times_failed": np.int32(0),
    "times_late": np.int32(0),
    "bytes_down": np.int64(0),
    "bytes_up": np.int64(0),
    "seconds_spent": np.float64(0),
}
BYTES = "bytes_down", "bytes_up"
# Totals of how exchanges have ended; answers are counted of polls alone.
_COUNTED: dict[int, str] = {
    Outcome.OK: "polls_answered",
    Outcome.SILENT: "polls_silent",
    Outcome.FAILED: "times_failed",
    Outcome.LATE: "times_late",
    Outcome.AWAY: "times_late",
}


class RoundTotals:
    """The totals of one round, of those clients alone that it concerns.

    Parameters
    ----------
    exchanges : sequence of Exchange
        Of the round; not those before the first, in which there may be very many clients.
    model_bytes : int
        Those of a model.
    chosen, aggregated : Cohort
        That of the selector, and the one whose updates are in the new model.

    Attributes
    ----------
    clients : ndarray of int
        Distinct, in order.
    sums : dict of str to ndarray
        The totals of these clients by name, without those that are 0 of all.
    """

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        model_bytes: int,
        chosen: Cohort,
        aggregated: Cohort,
    ):
        asked = [chosen.clients, aggregated.clients, *(e.clients for e in exchanges)]
        self.clients, places = np.unique(np.concatenate(asked), return_inverse=True)
        self.sums: dict[str, np.ndarray] = {}
        of_chosen, at, *each = np.split(places, np.cumsum([len(clients) for clients in asked[:-1]]))
        self._count("rounds_chosen", of_chosen)
        self._count("rounds_aggregated", at)
        self._add("weights", at, aggregated.weights)
        self._add_bounded(exchanges, each)
        for exchange, places in zip(exchanges, each, strict=True):
            if len(places):
                self._add_exchange(exchange, places, model_bytes)

    def _add_bounded(self, exchanges: Iterable[Exchange], places: Iterable[np.ndarray]) -> None:
        """Count the clients that have heard a bound of w_t, and those who were then chosen."""
        bounded = np.zeros(len(self.clients), dtype=bool)
        for exchange, at in zip(exchanges, places, strict=True):
            if exchange.metric is not None and "bound" in exchange.messages.down.scalars:
                bounded[at[exchange.outcomes <= Outcome.SILENT]] = True
        if bounded.any():
            self._count("rounds_bounded", bounded)
            self._count("rounds_matched", bounded & (self._total("rounds_chosen") > 0))

    def _add_exchange(self, exchange: Exchange, at: np.ndarray, model_bytes: int) -> None:
        """Add what an exchange has cost each client, and how it ended."""
        outcomes = exchange.outcomes
        for name, values in zip(BYTES, exchange.n_bytes(model_bytes), strict=True):
            self._add(name, at, values)
        if exchange.kind.trains or exchange.kind is SKETCH:
            self._add("rows_trained", at, exchange.rows)
        for outcome in np.flatnonzero(np.bincount(outcomes)).tolist():
            if exchange.kind is POLL or outcome != Outcome.OK:
                self._count(_COUNTED[outcome], at[outcomes == outcome])
        if (seconds := seconds_of(exchange)) is not None:
            # Those of a client that was drawn twice are equal, and are added once.
            self._total("seconds_spent")[at] += seconds

    def _total(self, name: str) -> np.ndarray:
        if name not in self.sums:
            self.sums[name] = np.full(len(self.clients), TOTALS[name])
        return self.sums[name]

    def _count(self, name: str, at: np.ndarray) -> None:
        """Add 1 at some places, given as indices, of which each counts once, or as a mask."""
        if len(at):
            self._total(name)[at] += 1

    def _add(self, name: str, at: np.ndarray, values: np.ndarray) -> None:
        """Add values at some places; all of those at the same place."""
        if values.any():
            np.add.at(self._total(name), at, values)


def seconds_of(exchange: Exchange) -> np.ndarray | None:
    """Return the seconds of each client; of one that is late, those that it was waited for.

    The last are taken where no more is known.
    """
    if exchange.seconds is None or exchange.duration is None:
        return None
    unknown = (exchange.outcomes == Outcome.LATE) & np.isnan(exchange.seconds)
    return np.nan_to_num(np.where(unknown, exchange.duration, exchange.seconds))
