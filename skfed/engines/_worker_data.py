"""The rows of a fit's clients, and what of them has travelled to other processes.

A process keeps the rows that reach it, so that they travel once and not once a round. Work is sent
with the names of its clients' rows; where some are lacking it is sent again, with these.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from skfed._federation import Federation
from skfed.engines._data import Rows

Name = bytes  # of one client's rows, by what they hold
Arrays = tuple[np.ndarray, ...]  # X and y of one client, and its weights if rows have any
Make = Callable[[Rows, Sequence[np.ndarray]], Any]


class Payload(NamedTuple):
    """What of a share travels.

    Parameters
    ----------
    names : list of bytes
        The name of the rows of each client.
    arrays : dict of bytes to tuple of ndarray
        Those of the rows that travel along; the others are trusted to be held.
    make, device, budget
        See ``DataRef`` and ``ClientRows``.
    """

    names: list[Name]
    arrays: dict[Name, Arrays]
    make: Make
    device: str
    budget: int


class CacheMiss(NamedTuple):
    """The answer of a process that does not hold all rows it needs."""

    names: set[Name]


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
    n_workers : int, default=1
        Processes that work may come to.

    Attributes
    ----------
    due : Counter of bytes
        How often rows are still to go along unasked. What is sent again may come to a process that
        held it, and where work is dealt out in turn it always would: so what one process lacked
        goes along as often as there are processes.
    """

    def __init__(self, rows: Rows, federation: Federation, budget: int, n_workers: int = 1):
        self.rows, self.federation, self.budget = rows, federation, budget
        self.n_workers = n_workers
        self.due: Counter[Name] = Counter()
        self._names: dict[int, Name] = {}

    def of(self, k: int) -> Arrays:
        """Return a client's X and y, and its weights if rows have any."""
        numbers, rows = self.federation.rows(k), self.rows
        arrays = (rows.X, rows.y) if rows.weights is None else (rows.X, rows.y, rows.weights)
        return tuple(array[numbers] for array in arrays)

    def name(self, k: int) -> Name:
        """Name a client's rows by what they hold, so that other fits find them too."""
        if k not in self._names:
            digest = blake2b(digest_size=16)
            for array in self.of(k):
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(array.tobytes())
            self._names[k] = digest.digest()
        return self._names[k]


@dataclass(frozen=True)
class DataRef:
    """What a piece of work needs of some clients' rows.

    Parameters
    ----------
    held : ClientRows
        The data.
    clients : sequence of int
        Whose rows.
    make : callable
        Makes what is needed of data and the row numbers of each of these clients.
    carried : set of bytes, default=frozenset()
        Names of the rows that travel along, since they were lacking; none on a first journey.
    """

    held: ClientRows
    clients: Sequence[int]
    make: Make
    carried: Set[Name] = frozenset()

    def here(self) -> Any:
        """Return what is needed, of the data in this process."""
        return self.make(self.held.rows, [self.held.federation.rows(k) for k in self.clients])

    def part(self, which: Any) -> "DataRef":
        """Return the share of ``which`` of what is made."""
        return replace(self, make=partial(_part, self.make, which))

    def complete(self) -> "DataRef":
        """Return the share whose rows all travel along."""
        return replace(self, carried={self.held.name(k) for k in self.clients})

    def carrying(self, lacking: Set[Name]) -> "DataRef":
        """Return the share for the next journey; all goes along with what lacked twice."""
        self.held.due |= Counter(dict.fromkeys(lacking, self.held.n_workers))
        return self.complete() if self.carried else replace(self, carried=lacking)

    def parcel(self) -> Payload:
        """Return what travels to another process."""
        held = self.held
        by_name = {held.name(k): k for k in self.clients}
        along = self.carried
        if not along:
            along = {name for name in by_name if held.due[name] > 0}
            held.due.subtract(along)
        arrays = {name: held.of(by_name[name]) for name in along}
        names = [held.name(k) for k in self.clients]
        return Payload(names, arrays, self.make, str(held.rows.device), held.budget)


def _part(make: Make, which: Any, rows: Rows, numbers: Sequence[np.ndarray]) -> Any:
    return make(rows, numbers).subset(which)


def serve(function: Callable[..., list], arguments: tuple, parcel: Payload) -> list | CacheMiss:
    """Do a piece of work in another process, unless that lacks rows."""
    found = _worker_cache.take(parcel)
    if isinstance(found, CacheMiss):
        return found
    ends = np.cumsum([len(arrays[0]) for arrays in found.values()])
    numbers = dict(zip(found, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    X, y, *weights = (np.concatenate(arrays) for arrays in zip(*found.values(), strict=True))
    rows = Rows(X, y, parcel.device, *weights)
    return function(*arguments, parcel.make(rows, [numbers[name] for name in parcel.names]))


class WorkerCache:
    """The rows that have reached a process; beyond a budget, those unused for longest go."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[Name, Arrays] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()  # a worker of Dask may have several threads

    def take(self, parcel: Payload) -> dict[Name, Arrays] | CacheMiss:
        """Keep the rows in a parcel, and return all that it names unless some are lacking."""
        with self._lock:
            for name, arrays in parcel.arrays.items():
                if name not in self._arrays:
                    self._put(name, arrays)
            for name in self._arrays.keys() & parcel.names:
                self._arrays.move_to_end(name)
            lacking = set(parcel.names) - self._arrays.keys()
            found = {name: self._arrays[name] for name in parcel.names if not lacking}
            while self._bytes > parcel.budget:
                _, arrays = self._arrays.popitem(last=False)
                self._bytes -= sum(array.nbytes for array in arrays)
            return CacheMiss(lacking) if lacking else found

    def _put(self, name: bytes, arrays: Arrays) -> None:
        # Copied, since the memory they came in may be a file that joblib removes.
        self._arrays[name] = tuple(np.array(array) for array in arrays)
        self._bytes += sum(array.nbytes for array in arrays)


_worker_cache = WorkerCache()
