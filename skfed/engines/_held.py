"""The rows of a fit's clients, and what of them has travelled to other processes.

A process keeps the rows that reach it, so that they travel once and not once a round. Work is sent
with the names of its clients' rows; where some are lacking it is sent again, with the rows.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from skfed._federation import Federation
from skfed.engines._rows import Rows

Arrays = tuple[np.ndarray, np.ndarray]  # X and y of one client
Make = Callable[[Rows, Sequence[np.ndarray]], Any]


class Parcel(NamedTuple):
    """What of a share travels.

    A tuple, as nothing else that joblib sends may be large: on Dask it would keep it with one
    worker, and lose it with that.

    Parameters
    ----------
    names : list of bytes
        The name of the rows of each client.
    arrays : dict of bytes to (X, y) or None
        The rows by name; None trusts that they are held.
    make, device, budget
        See ``Share`` and ``ClientRows``.
    """

    names: list[bytes]
    arrays: dict[bytes, Arrays] | None
    make: Make
    device: str
    budget: int


class ClientRows:
    """The rows of each client of a federation.

    Parameters
    ----------
    rows : Rows
        The data of all.
    federation : Federation
        Who holds which rows.
    budget : int
        Bytes of rows that another process may keep.
    """

    def __init__(self, rows: Rows, federation: Federation, budget: int):
        self.rows, self.federation, self.budget = rows, federation, budget
        self._names: dict[int, bytes] = {}

    def of(self, k: int) -> Arrays:
        """Return a client's X and y."""
        numbers = self.federation.rows(k)
        return self.rows.X[numbers], self.rows.y[numbers]

    def name(self, k: int) -> bytes:
        """Name a client's rows by what they hold, so that other fits find them too."""
        if k not in self._names:
            digest = blake2b(digest_size=16)
            for array in self.of(k):
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(array.tobytes())
            self._names[k] = digest.digest()
        return self._names[k]


@dataclass(frozen=True)
class Share:
    """What a piece of work needs of some clients' rows.

    Parameters
    ----------
    held : ClientRows
        The data.
    clients : sequence of int
        Whose rows.
    make : callable
        Makes what is needed of data and the row numbers of each of these clients.
    """

    held: ClientRows
    clients: Sequence[int]
    make: Make

    def here(self) -> Any:
        """Return what is needed, of the data in this process."""
        return self.make(self.held.rows, [self.held.federation.rows(k) for k in self.clients])

    def part(self, which: Any) -> "Share":
        """Return the share of ``which`` of what is made."""
        return replace(self, make=partial(_part, self.make, which))

    def parcel(self, with_rows: bool) -> Parcel:
        """Return what travels to another process."""
        held = self.held
        names = [held.name(k) for k in self.clients]
        by_name = dict(zip(names, self.clients, strict=True))
        arrays = {name: held.of(k) for name, k in by_name.items()} if with_rows else None
        return Parcel(names, arrays, self.make, str(held.rows.device), held.budget)


def _part(make: Make, which: Any, rows: Rows, numbers: Sequence[np.ndarray]) -> Any:
    return make(rows, numbers).of(which)


def serve(function: Callable[..., list], arguments: tuple, parcel: Parcel) -> list | None:
    """Do a piece of work in another process; return None if it lacks rows."""
    found = _shelf.take(parcel)
    if found is None:
        return None
    ends = np.cumsum([len(y) for _, y in found.values()])
    numbers = dict(zip(found, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    X, y = (np.concatenate(arrays) for arrays in zip(*found.values(), strict=True))
    rows = Rows(X, y, parcel.device)
    return function(*arguments, parcel.make(rows, [numbers[name] for name in parcel.names]))


class Shelf:
    """The rows that have reached a process; beyond a budget, those unused for longest go."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[bytes, Arrays] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()  # a worker of Dask may have several threads

    def take(self, parcel: Parcel) -> dict[bytes, Arrays] | None:
        """Keep the rows of a parcel, if it has any, and return all it names; None if some lack."""
        with self._lock:
            for name, arrays in (parcel.arrays or {}).items():
                if name not in self._arrays:
                    self._put(name, arrays)
            if any(name not in self._arrays for name in parcel.names):
                return None
            for name in parcel.names:
                self._arrays.move_to_end(name)
            found = {name: self._arrays[name] for name in parcel.names}
            while self._bytes > parcel.budget:
                _, (X, y) = self._arrays.popitem(last=False)
                self._bytes -= X.nbytes + y.nbytes
            return found

    def _put(self, name: bytes, arrays: Arrays) -> None:
        # Copied, since the memory they came in may be a file that joblib removes.
        X, y = self._arrays[name] = np.array(arrays[0]), np.array(arrays[1])
        self._bytes += X.nbytes + y.nbytes


_shelf = Shelf()
