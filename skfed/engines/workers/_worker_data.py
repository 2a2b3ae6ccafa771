"""The rows of each client, and how they reach worker processes.

Processes of this machine read rows from files. joblib's memory maps do not replace them: each call
of ``Parallel`` writes all of X to a file again (measured: four files of 188 MB in four rounds).

A worker of a cluster keeps the rows that are sent to it, and later calls send digests only. Dask's
``scatter`` does not replace this: Dask cancels all work on scattered data when a worker that holds
them dies, also with ``broadcast=True``.
"""

import os
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch

from skfed._federation import Federation
from skfed.engines._data import Dataset
from skfed.nets import Samples

Digest = bytes  # of the rows of one client
Keys = tuple[str, ...] | None  # of X, if it is a dict of arrays
Arrays = tuple[np.ndarray, ...]  # of X one or more, y, and weights if rows have any


class LocalData(NamedTuple):
    """A dataset and the row numbers of each of its clients."""

    dataset: Dataset
    rows: dict[int, np.ndarray]

    def __call__(self, clients: Sequence[int]) -> tuple[Dataset, list[np.ndarray]]:
        """Return the dataset and the row numbers of each of the clients."""
        return self.dataset, [self.rows[k] for k in clients]


class Payload(NamedTuple):
    """The rows of some clients, as sent to a worker of a cluster.

    Parameters
    ----------
    digests : dict of int to bytes
        Of the rows of each client.
    arrays : dict of bytes to tuple of ndarray
        The rows themselves; of those that are missing here the worker may have a copy.
    keys : tuple of str or None
        Those of X, if it is a dict of arrays.
    device : str
        Where the net computes.
    budget : int
        Bytes of rows that a worker may keep.
    """

    digests: dict[int, Digest]
    arrays: dict[Digest, Arrays]
    keys: Keys
    device: str
    budget: int


class CacheMiss(NamedTuple):
    """The reply of a worker that lacks rows."""

    digests: set[Digest]
    worker: str | None = None  # its address, where a task can be sent to it


class FileArray(NamedTuple):
    """An array in a file."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self) -> np.ndarray:
        """Map the array into memory."""
        if 0 in self.shape:  # an empty file cannot be mapped
            return np.empty(self.shape, self.dtype)
        return np.asarray(np.memmap(self.path, self.dtype, "r", shape=self.shape))


class FilePayload(NamedTuple):
    """Where the rows of some clients are: slices of X, y and their weights if they have any."""

    arrays: tuple[FileArray, ...]
    keys: Keys
    slices: dict[int, slice]
    device: str

    def load(self) -> "LocalData":
        """Return the clients' rows: on a CPU without a copy of them."""
        arrays = [array.read() for array in self.arrays]
        if torch.device(self.device).type != "cpu":  # a GPU would get the rows of all clients
            own = {k: tuple(array[part] for array in arrays) for k, part in self.slices.items()}
            return LocalData(*joined(own, self.keys, self.device))
        rows = {k: np.arange(part.start, part.stop) for k, part in self.slices.items()}
        return LocalData(Dataset.of(self.keys, arrays, self.device), rows)


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
        In how many of the next payloads rows are included. After a miss of a worker whose address
        is not known there is one for each worker, the first of them complete: rows sent again to
        one that happens to have them would never reach the others.
    """

    def __init__(self, dataset: Dataset, federation: Federation, budget: int, n_workers: int = 1):
        self.dataset, self.federation, self.budget = dataset, federation, budget
        self.n_workers = n_workers
        self.copies_due: Counter[Digest] = Counter()
        self._digests: dict[int, Digest] = {}

    def local(self, clients: Sequence[int]) -> tuple[Dataset, list[np.ndarray]]:
        """Return the dataset and the row numbers of each of the clients."""
        return self.dataset, [self.federation.rows(k) for k in clients]

    def payload(self, clients: Sequence[int], complete: bool = False) -> Payload | FilePayload:
        """Return what is sent to a worker, with all rows if ``complete``."""
        digests = {k: self.digest(k) for k in clients}
        included = digests
        if not complete:
            included = {k: digest for k, digest in digests.items() if self.copies_due[digest] > 0}
        self.copies_due.subtract(d for d in included.values() if self.copies_due[d] > 0)
        arrays = {digest: self._arrays(k) for k, digest in included.items()}
        return Payload(digests, arrays, self.dataset.keys, str(self.dataset.device), self.budget)

    def note_miss(self, miss: CacheMiss) -> None:
        """Include rows that an unknown worker lacked in as many payloads as there are workers."""
        if miss.worker is None:
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

    def close(self) -> None:
        """Remove what was made for workers."""

    def _arrays(self, k: int) -> Arrays:
        rows = self.federation.rows(k)
        return tuple(array[rows] for array in self.dataset.arrays)


class FileData(ClientData):
    """The rows of each client, for processes of this machine.

    Rows are written to temporary files when they are first needed.
    """

    def __init__(self, dataset: Dataset, federation: Federation):
        super().__init__(dataset, federation, budget=0)
        self.folder = Path(mkdtemp(prefix="skfed-", dir=os.environ.get("JOBLIB_TEMP_FOLDER")))
        self._remove = weakref.finalize(self, rmtree, self.folder, ignore_errors=True)
        self._written: dict[int, slice] = {}
        self._n_rows = 0  # written
        self._lock = Lock()  # joblib asks for payloads in threads of its own

    def payload(self, clients: Sequence[int], complete: bool = False) -> FilePayload:
        """Return where the rows are; they are always complete."""
        with self._lock:
            for k in clients:
                if k not in self._written:
                    self._write(k)
            files = tuple(
                FileArray(self.folder / name, array.dtype, (self._n_rows, *array.shape[1:]))
                for name, array in self._named()
            )
            slices = {k: self._written[k] for k in clients}
            return FilePayload(files, self.dataset.keys, slices, str(self.dataset.device))

    def close(self) -> None:
        """Remove the files."""
        self._remove()

    def _named(self) -> Iterable[tuple[str, Samples]]:
        """Return the arrays of all rows, by the names of their files."""
        keys = self.dataset.keys
        of_X = ["X"] if keys is None else [f"X{i}" for i in range(len(keys))]
        return zip([*of_X, "y", "weights"], self.dataset.arrays, strict=False)

    def _write(self, k: int) -> None:
        """Append the rows of a client to the files."""
        rows = self.federation.rows(k)
        try:
            for name, array in self._named():
                begin = self._n_rows * array[:1].nbytes
                with (self.folder / name).open("ab") as file:
                    if file.tell() > begin:  # an error has left a part of these rows
                        file.truncate(begin)
                    # Not array.tofile, which raises no error if the disk is full.
                    file.write(np.ascontiguousarray(array[rows]).data)
        except OSError as error:
            error.add_note(
                "Clients' rows reach worker processes through temporary files: set the "
                "environment variable JOBLIB_TEMP_FOLDER or TMPDIR to a folder with more space, or "
                "n_jobs=1."
            )
            raise
        self._written[k] = slice(self._n_rows, self._n_rows + len(rows))
        self._n_rows += len(rows)


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
        dataset, rows = joined(found, payload.keys, payload.device)
        return LocalData(dataset, {k: rows[digest] for k, digest in payload.digests.items()})


def joined(
    arrays: dict[Any, Arrays], keys: Keys, device: str
) -> tuple[Dataset, dict[Any, np.ndarray]]:
    """Return a dataset of the rows of some clients, and the row numbers of each, by its key."""
    ends = np.cumsum([len(own[0]) for own in arrays.values()])
    rows = dict(zip(arrays, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    whole = [np.concatenate(parts) for parts in zip(*arrays.values(), strict=True)]
    return Dataset.of(keys, whole, device), rows


def _n_bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays)
