"""The rows of each client, and the rows that worker processes keep from one round to the next.

A worker process keeps the rows that are sent to it, and later calls send digests only. Neither
joblib's memory maps nor Dask's ``scatter`` replaces this: each call of ``Parallel`` writes all of X
to a file again (measured: four files of 188 MB in four rounds), and Dask cancels all work on
scattered data when a worker that holds them dies, also with ``broadcast=True``.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from threading import Lock
from typing import NamedTuple

import numpy as np

from skfed._federation import Federation
from skfed.engines._data import Dataset

Digest = bytes  # of the rows of one client
Arrays = tuple[np.ndarray, ...]  # X and y of one client, and its weights if rows have any


class LocalData(NamedTuple):
    """A dataset and the row numbers of each of its clients."""

    dataset: Dataset
    rows: dict[int, np.ndarray]

    def __call__(self, clients: Sequence[int]) -> tuple[Dataset, list[np.ndarray]]:
        """Return the dataset and the row numbers of each of the clients."""
        return self.dataset, [self.rows[k] for k in clients]


class Payload(NamedTuple):
    """The rows of some clients, as sent to a worker process.

    Parameters
    ----------
    digests : dict of int to bytes
        Of the rows of each client.
    arrays : dict of bytes to tuple of ndarray
        The rows themselves; of those that are missing here the worker may have a copy.
    device : str
        Where the net computes.
    budget : int
        Bytes of rows that a worker may keep.
    """

    digests: dict[int, Digest]
    arrays: dict[Digest, Arrays]
    device: str
    budget: int


class CacheMiss(NamedTuple):
    """The reply of a worker that lacks rows."""

    digests: set[Digest]


class ClientData:
    """The rows of each client of a federation.

    Parameters
    ----------
    dataset : Dataset
        The rows of all clients.
    federation : Federation
        Which client holds which rows.
    budget : int
        Bytes of rows that a worker process may keep.
    n_workers : int, default=1
        Number of worker processes.

    Attributes
    ----------
    copies_due : Counter of bytes
        In how many of the next payloads rows are included unasked. After a cache miss there is one
        for each worker: rows sent again to one that happens to have them would never reach the
        others.
    """

    def __init__(self, dataset: Dataset, federation: Federation, budget: int, n_workers: int = 1):
        self.dataset, self.federation, self.budget = dataset, federation, budget
        self.n_workers = n_workers
        self.copies_due: Counter[Digest] = Counter()
        self._digests: dict[int, Digest] = {}

    def local(self, clients: Sequence[int]) -> tuple[Dataset, list[np.ndarray]]:
        """Return the dataset and the row numbers of each of the clients."""
        return self.dataset, [self.federation.rows(k) for k in clients]

    def payload(self, clients: Sequence[int], complete: bool = False) -> Payload:
        """Return what is sent to a worker, with all rows if ``complete``."""
        digests = {k: self.digest(k) for k in clients}
        included = digests
        if not complete:
            included = {k: digest for k, digest in digests.items() if self.copies_due[digest] > 0}
            self.copies_due.subtract(included.values())
        arrays = {digest: self._arrays(k) for k, digest in included.items()}
        return Payload(digests, arrays, str(self.dataset.device), self.budget)

    def note_miss(self, miss: CacheMiss) -> None:
        """Include rows that a worker lacked in as many payloads as there are workers."""
        self.copies_due |= Counter(dict.fromkeys(miss.digests, self.n_workers))

    def digest(self, k: int) -> Digest:
        """Return the digest of a client's rows, which is the same in other fits."""
        if k not in self._digests:
            digest = blake2b(digest_size=16)
            for array in self._arrays(k):
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(array.tobytes())
            self._digests[k] = digest.digest()
        return self._digests[k]

    def _arrays(self, k: int) -> Arrays:
        rows, data = self.federation.rows(k), self.dataset
        arrays = (data.X, data.y) if data.weights is None else (data.X, data.y, data.weights)
        return tuple(array[rows] for array in arrays)


class WorkerCache:
    """The rows that a worker process keeps; beyond the budget the least recently used go."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[Digest, Arrays] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()  # a worker of Dask may have several threads

    def load(self, payload: Payload) -> LocalData | CacheMiss:
        """Keep the rows of a payload; return the data of its clients, or what is missing."""
        digests = dict.fromkeys(payload.digests.values())
        with self._lock:
            for digest, arrays in payload.arrays.items():
                if digest not in self._arrays:
                    # Copied, since they may be views of a file that joblib removes.
                    self._arrays[digest] = tuple(np.array(array) for array in arrays)
                    self._bytes += _n_bytes(arrays)
            found = {digest: self._arrays[digest] for digest in digests if digest in self._arrays}
            for digest in found:
                self._arrays.move_to_end(digest)
            while self._bytes > payload.budget:
                self._bytes -= _n_bytes(self._arrays.popitem(last=False)[1])
        if missing := digests.keys() - found.keys():
            return CacheMiss(missing)
        ends = np.cumsum([len(arrays[0]) for arrays in found.values()])
        rows = dict(zip(found, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
        X, y, *weights = (np.concatenate(arrays) for arrays in zip(*found.values(), strict=True))
        dataset = Dataset(X, y, payload.device, *weights)
        return LocalData(dataset, {k: rows[digest] for k, digest in payload.digests.items()})


def _n_bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays)
