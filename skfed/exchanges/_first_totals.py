"""What the exchanges before the first round of a fit have cost each client.

They are apart from the totals of rounds, as all clients may have a part in them, and mostly the
same one: then one number stands for all.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed.exchanges._exchange import Exchange, Outcome
from skfed.exchanges._totals import BYTES, TOTALS, seconds_of

_NAMES = *BYTES, "times_failed", "times_late", "seconds_spent"
_N_DIGEST = 16  # bytes of a client's digest


class FirstTotals:
    """Sums over the exchanges before the first rounds of all fits.

    Parameters
    ----------
    federation : Federation or None
        The clients of this fit.
    saved : mapping of str to ndarray or None
        What ``to_columns`` returned before, maybe of other clients.

    Attributes
    ----------
    sums : dict of str to (number or ndarray of shape (n_clients,))
        By name of the total; a number is that of each client.
    """

    def __init__(self, federation: Federation | None, saved: Mapping[str, np.ndarray] | None):
        self.federation, self.sums = federation, dict[str, Any]()
        self._before: dict[str, Any] = {}
        # Of clients that are not in this fit, and may come back.
        self._gone: dict[str, np.ndarray] = {}
        self._columns = saved  # None: to be made
        if federation is not None and saved is not None:
            self._load(federation, saved)

    def _load(self, federation: Federation, saved: Mapping[str, np.ndarray]) -> None:
        """Take the sums of clients that were in the fit before."""
        keys, old = _digests(federation), saved["clients"]
        values = {name: saved[name] for name in saved.keys() - {"clients"}}
        if np.array_equal(keys, old):
            self.sums = values
            return
        self._columns = None
        place = {key.tobytes(): i for i, key in enumerate(old)}
        at = np.array([place.pop(key.tobytes(), -1) for key in keys], dtype=int)
        for name, own in values.items():
            self.sums[name] = np.where(at < 0, own.dtype.type(0), own[at])
        self._gone = {name: column[sorted(place.values())] for name, column in saved.items()}

    def keep(self) -> None:
        """Keep the sums as they are at the start of a round, to which ``undo`` returns."""
        self._before = dict(self.sums)

    def add(self, exchanges: Sequence[Exchange], model_bytes: int) -> None:
        """Add what exchanges have cost."""
        for exchange in exchanges:
            self._columns = None
            for name, values in _costs(exchange, model_bytes):
                self._add(name, exchange.clients, values)

    def _add(self, name: str, clients: np.ndarray, values: np.ndarray) -> None:
        assert self.federation is not None
        n_clients = len(self.federation)
        if len(clients) == n_clients and values.strides == (0,):  # a view of one number
            added = values[0]
        else:
            added = np.zeros(n_clients, dtype=values.dtype)
            added[clients] = values
        self.sums[name] = self.sums.get(name, 0) + added

    def undo(self) -> None:
        """Return to the sums that were kept."""
        self.sums, self._columns = self._before, None

    def to_columns(self) -> dict[str, np.ndarray]:
        """Return the sums as they are in a file, with the digests of the clients, if there are any.

        They are made once, since a checkpoint is written in every round.
        """
        if self._columns is None and (self.sums or self._gone):
            assert self.federation is not None
            columns = {
                name: np.broadcast_to(values, len(self.federation)).astype(TOTALS[name].dtype)
                for name, values in self.sums.items()
            }
            self._columns = {"clients": _digests(self.federation), **columns}
            if self._gone:
                self._columns = {
                    name: np.concatenate([own, self._gone.get(name, self._zeros(own))])
                    for name, own in self._columns.items()
                }
        return dict(self._columns or {})

    def _zeros(self, column: np.ndarray) -> np.ndarray:
        return np.zeros(len(self._gone["clients"]), dtype=column.dtype)

    @staticmethod
    def are_valid(columns: Any) -> bool:
        """Tell whether a file has valid columns."""
        clients = columns["clients"]
        return (
            clients.dtype == np.uint8
            and clients.shape[1:] == (_N_DIGEST,)
            and columns.keys() <= {"clients", *_NAMES}
            and all(len(column) == len(clients) for column in columns.values())
        )


def _digests(federation: Federation) -> np.ndarray:
    """Return the digests of all clients, a row each."""
    joined = b"".join(federation.digests(np.arange(len(federation))))
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, _N_DIGEST)


def _costs(exchange: Exchange, model_bytes: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what an exchange has cost each client, by name; views of one number where it can be."""
    yield from zip(BYTES, exchange.n_bytes(model_bytes), strict=True)
    if exchange.outcomes.any():  # not all have answered
        yield "times_failed", (exchange.outcomes == Outcome.FAILED).astype(np.int32)
        yield "times_late", (exchange.outcomes >= Outcome.LATE).astype(np.int32)
    if (seconds := seconds_of(exchange)) is not None:
        yield "seconds_spent", seconds
