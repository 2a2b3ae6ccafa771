"""What the server remembers of each client, from settled exchanges alone.

A new fact is a field of ``_NEW``, a line in ``_add_training``, and a property of
:class:`skfed.selection.Past`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed.exchanges._exchange import Exchange, Outcome
from skfed.exchanges._kinds import POLL, TRAINING
from skfed.selection._past import NEEDS, Past

#: The facts, and what they are of a client that is new.
_NEW: dict[str, Any] = {
    "reported": np.inf,  # the last training loss; NaN after its training failed
    "waited": np.nan,  # seconds of the last training, or for which a late client was waited
    "n_polled": np.int32(0),
    "n_chosen": np.int32(0),
    "last_chosen": np.int32(-1),
    "loss_mean": np.nan,
    "loss_std": np.nan,
    "loss_rms": np.nan,
    "seconds": np.nan,
    "updates": np.nan,
    "last_layer": np.nan,
}
_ROWS = "updates", "last_layer"  # of which a client has several numbers

Columns = Mapping[str, Any]  # facts by name, and the digests of their clients under "clients"


class PastRecords:
    """Facts of clients: arrays over those of the present fit, made when they are first needed.

    A round changes them in place, since a copy of each would take time in proportion to the number
    of clients; it can be undone.
    """

    def __init__(self, columns: Columns | None = None, federation: Federation | None = None):
        self._columns = {"clients": ()} if columns is None else columns
        self._federation = federation
        self._arrays: dict[str, np.ndarray] = {}
        # Of the last round: names, clients and old values.
        self._round, self._before = -1, list[tuple[str, np.ndarray, np.ndarray]]()

    def __reduce__(self) -> tuple:
        return PastRecords, (self.to_columns(),)

    def of(self, federation: Federation) -> "PastRecords":
        """Return the facts for a fit with the clients of a federation, maybe others than before."""
        return PastRecords(self.to_columns(), federation)

    def past(self, needs: Iterable[str]) -> Past:
        """Return what a selector sees of earlier rounds, with what it needs."""
        hidden = {name: word for word in NEEDS.keys() - set(needs) for name in NEEDS[word]}

        def column(name: str) -> np.ndarray:
            if name in hidden:
                raise ValueError(
                    f"past.{name} is kept only for a rule that needs it: add {hidden[name]!r} to "
                    "the selector's class attribute needs."
                )
            return self.column(name)

        return Past(column)

    def column(self, name: str) -> np.ndarray:
        """Return one fact of all clients, a view that is not to be changed."""
        view = self._array(name).view()
        view.flags.writeable = False
        return view

    def _array(self, name: str) -> np.ndarray:
        """Return the array of a fact, with what was known before the fit."""
        if name not in self._arrays:
            assert self._federation is not None
            given = np.asarray(self._columns.get(name, np.zeros(0)))
            array = np.full((len(self._federation), *given.shape[1:]), _NEW[name])
            if len(given):
                place = {key: i for i, key in enumerate(self._columns["clients"])}
                digests = map(self._federation.digest, range(len(array)))
                known = {k: place[key] for k, key in enumerate(digests) if key in place}
                array[list(known)] = given[list(known.values())]
            self._arrays[name] = array
        return self._arrays[name]

    def add(self, t: int, chosen: np.ndarray, exchanges: Iterable[Exchange]) -> None:
        """Add what round t has told; ``chosen`` are the clients of the selector's cohort."""
        self._round, self._before = t, []
        self._count("n_chosen", chosen)
        self._set("last_chosen", chosen, np.full(len(chosen), t))
        for exchange in exchanges:
            if exchange.kind is POLL:
                self._count("n_polled", exchange.clients)
            elif exchange.kind is TRAINING:
                self._add_training(exchange)

    def undo(self, n_rounds: int) -> None:
        """Undo the last round if it is not one of the first ``n_rounds``."""
        if self._round >= n_rounds:
            for name, clients, values in reversed(self._before):
                self._arrays[name][clients] = values
            self._before = []

    def _add_training(self, training: Exchange) -> None:
        clients, losses = training.clients, training.answers
        failed, finite = training.outcomes == Outcome.FAILED, np.isfinite(losses)
        # What late clients have reported before stays.
        self._set("reported", clients[failed | finite], losses[failed | finite])
        self._set("loss_mean", clients[finite], losses[finite])
        for name, values in training.extras.items():
            self._set(name, clients[finite], values[finite])
        if training.seconds is None or training.duration is None:
            return
        late = training.outcomes == Outcome.LATE
        waited = np.where(late, training.duration, training.seconds)
        known = ~np.isnan(waited) & ~failed  # a client that fails may do so at once
        self._set("waited", clients[known], waited[known])
        self._set("seconds", clients[known & finite], waited[known & finite])

    def _count(self, name: str, clients: np.ndarray) -> None:
        distinct, n = np.unique(clients, return_counts=True)
        self._set(name, distinct, self._array(name)[distinct] + n)

    def _set(self, name: str, clients: np.ndarray, values: np.ndarray) -> None:
        """Set a fact; of a client that is listed twice, to the last value."""
        array = self._array(name)
        if array.shape[1:] != values.shape[1:]:  # the first of several numbers
            self._arrays[name] = array = np.full((len(array), *values.shape[1:]), _NEW[name])
        self._before.append((name, clients, array[clients]))
        array[clients] = values

    def to_columns(self) -> dict[str, Any]:
        """Return the facts of all clients that have any, as they are in a file."""
        if self._federation is None:
            return dict(self._columns)
        arrays = {name: self._array(name) for name in _NEW if self._is_known(name)}
        known = np.zeros(len(self._federation), dtype=bool)
        for name, array in arrays.items():
            is_new = np.isnan(array) if np.isnan(_NEW[name]) else array == _NEW[name]
            known |= ~is_new.reshape(len(array), -1).all(axis=1)
        columns = {name: array[known] for name, array in arrays.items()}
        clients = tuple(map(self._federation.digest, np.flatnonzero(known).tolist()))
        return {"clients": clients} | columns

    def _is_known(self, name: str) -> bool:
        return name in self._arrays or name in self._columns


def checked_columns(columns: Any) -> Columns:
    """Return the facts that a file has; raise if they are not valid."""
    clients = columns["clients"]
    for name, values in columns.items():
        if name == "clients":
            is_valid = all(isinstance(key, bytes) for key in clients)
        else:
            kind = "iu" if isinstance(_NEW[name], np.int32) else "f"
            is_valid = values.dtype.kind in kind and values.ndim == 1 + (name in _ROWS)
            is_valid = is_valid and len(values) == len(clients)
        if not is_valid:
            raise TypeError(f"past has a {name} that is not valid")
    return columns
