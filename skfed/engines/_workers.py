"""Work on clients side by side: in this thread, in threads, or by joblib's active backend."""

import pickle
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from operator import methodcaller
from typing import Any, Protocol

import numpy as np
from joblib import effective_n_jobs
from joblib.parallel import (
    EXTERNAL_BACKENDS,
    LokyBackend,
    MultiprocessingBackend,
    SequentialBackend,
    ThreadingBackend,
    get_active_backend,
)
from sklearn.utils.parallel import Parallel, delayed

from skfed._federation import Federation
from skfed.engines._data import Dataset
from skfed.engines._worker_data import (
    CacheMiss,
    ClientData,
    FileData,
    FilePayload,
    Payload,
    WorkerCache,
)
from skfed.utils._extras import needs
from skfed.utils._torch_context import stay_at_one_torch_thread

#: Returns the dataset, and the row numbers of each of some clients.
Load = Callable[[Sequence[int]], tuple[Dataset, list[np.ndarray]]]

_worker_cache = WorkerCache()  # of this process, where it is a worker


class Work(Protocol):
    """A call on the rows of some clients; it can be sent to another process."""

    @property
    def clients(self) -> Sequence[int]:
        """The clients whose rows are needed."""

    def run(self, load: Load) -> list:
        """Do the work."""

    def split(self) -> Sequence["Work"]:
        """Return the work of each client alone; nothing where there is only one."""

    def failed(self, error: Exception) -> list:
        """Return the result of the work of one client that failed."""


def run_or_split(
    work: Work, run: Callable[[Work], list], failures: tuple[type[Exception], ...] = (Exception,)
) -> list:
    """Return ``run(work)``; where it fails, run the work of each client alone.

    Only the clients whose own work fails are then left out.
    """
    try:
        return run(work)
    except MemoryError:
        raise
    except failures as error:
        parts = work.split()
        if not parts:
            return work.failed(sendable(error))
        return [result for part in parts for result in run_or_split(part, run, failures)]


def sendable(error: Exception) -> Exception:
    """Return an exception that another process can send: itself, or a copy of its text.

    An exception without a pickle would end the fit, and one that cannot be unpickled the process.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # raised by a class of the user's
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class Workers:
    """Workers of a fit: this thread, threads of our own, or those of joblib's active backend.

    Parameters
    ----------
    n_jobs : int or None
        As joblib understands it.
    prefer : {"threads", "processes"}, default="threads"
        Kind of workers, unless ``joblib.parallel_config`` names a backend. Products release the
        interpreter's lock, so threads are enough for them.
    """

    def __init__(self, n_jobs: int | None, prefer: str = "threads"):
        self.backend, _ = get_active_backend(prefer=prefer)
        self.n_workers = effective_n_jobs(n_jobs)
        self.dask: Any = getattr(self.backend, "client", None)
        if self.dask is not None and n_jobs != 1:
            self.has_processes = True  # however few of its workers are up just now
        else:
            here = SequentialBackend | ThreadingBackend
            self.has_processes = self.n_workers > 1 and not isinstance(self.backend, here)
        return_as = "generator" if self.backend.supports_return_generator else "list"
        self._new = partial(Parallel, n_jobs=n_jobs, prefer=prefer, return_as=return_as)
        self._kept: Parallel | None = None
        self._executor: ThreadPoolExecutor | None = None
        if self.n_workers > 1 and not self.has_processes:
            # For the fit, since products of new threads are slow at first. The calling thread is
            # one of the workers.
            self._executor = ThreadPoolExecutor(
                self.n_workers - 1, initializer=stay_at_one_torch_thread
            )
        if self.has_processes and isinstance(self.backend, MultiprocessingBackend):  # as Ray's is
            # Its processes, and the rows that they keep, end with it.
            self._kept = self._new().__enter__()
            weakref.finalize(self, self._kept.__exit__, None, None, None)

    def client_data(self, dataset: Dataset, federation: Federation, budget: int) -> ClientData:
        """Return the rows of each client; a worker of a cluster may keep so many bytes of them."""
        # Ray's is a subclass of joblib's for processes of this machine.
        if self.has_processes and type(self.backend) in (LokyBackend, MultiprocessingBackend):
            return FileData(dataset, federation)
        return ClientData(dataset, federation, budget, self.n_workers)

    def close(self) -> None:
        """End the threads."""
        if self._executor is not None:
            self._executor.shutdown()

    def map(self, works: Iterable[Work], data: ClientData) -> Iterator:
        """Yield the members of the works' results, in order and as they come.

        Where a worker process dies, the works that were under way are run again, one by one, and
        one whose process dies again is split into clients: only a client that kills its process
        fails.

        Parameters
        ----------
        works : iterable of Work
            Taken from as workers become free.
        data : ClientData
            The rows of all clients.
        """
        run = partial(run_or_split, run=methodcaller("run", data.local))
        if self.has_processes:
            results = self._in_processes(works, data)
        elif self._executor is not None:
            results = _in_threads(works, run, self._executor, 2 * self.n_workers)
        else:
            results = map(run, works)
        for result in results:
            yield from result

    def _in_processes(self, works: Iterable[Work], data: ClientData) -> Iterator[list]:
        """Yield results; works whose rows were missing are sent again with all of them."""
        behind: list[tuple[Work, Any]] = []  # from the first work on whose rows were missing
        for work, result in self._sent(works, data):
            if isinstance(result, CacheMiss):
                data.note_miss(result)
            if behind or isinstance(result, CacheMiss):
                behind.append((work, result))
            else:
                yield result
        missed = (work for work, result in behind if isinstance(result, CacheMiss))
        again = self._sent(missed, data, complete=True)
        for _, result in behind:
            yield next(again)[1] if isinstance(result, CacheMiss) else result

    def _sent(
        self, works: Iterable[Work], data: ClientData, complete: bool = False
    ) -> Iterator[tuple[Work, Any]]:
        """Send works to other processes; yield each with its result or a CacheMiss."""
        coming, pending = iter(works), deque[Work]()

        def calls() -> Iterator[tuple[Work, Payload | FilePayload]]:
            for work in coming:
                pending.append(work)
                yield work, data.payload(work.clients, complete)

        broken = True
        while broken:
            try:
                for result in self._results(calls()):
                    yield pending.popleft(), result
                broken = False
            except _deaths():
                suspects = [*pending]
                pending.clear()
                for work in suspects:
                    yield work, run_or_split(work, partial(self._alone, data), _deaths())

    def _alone(self, data: ClientData, work: Work) -> list:
        """Send one work, with all its rows."""
        (result,) = self._results([(work, data.payload(work.clients, complete=True))])
        return result

    def _results(self, calls: Iterable[tuple[Work, Payload | FilePayload]]) -> Iterable[Any]:
        """Send calls to other processes, and return their results in order."""
        if self.dask is not None:
            return self._through_dask(calls)
        parallel = self._kept or self._new()
        return parallel(delayed(serve)(*call) for call in calls)

    def _through_dask(self, calls: Iterable[tuple]) -> Iterator[Any]:
        """Yield results from Dask.

        Not by joblib, which waits without end for a task whose worker died.
        """
        submit = partial(self.dask.submit, serve, pure=False, **self.backend.submit_kwargs)
        n_workers = sum(self.dask.ncores().values())
        # A worker that waits for others, as in a search, lets them use its slot.
        waiting = self.backend.retrieval_context()
        waiting.__enter__()
        try:
            yield from _in_order((submit(*call) for call in calls), max(1, n_workers))
        finally:  # which the context itself passes over after an exception
            waiting.__exit__(None, None, None)


def serve(work: Work, payload: Payload | FilePayload) -> list | CacheMiss:
    """Run a work in a worker process, unless it lacks rows."""
    load = payload.load() if isinstance(payload, FilePayload) else _worker_cache.load(payload)
    if isinstance(load, CacheMiss):
        return load
    return run_or_split(work, methodcaller("run", load))


def _deaths() -> tuple[type[Exception], ...]:
    """Return the exceptions that mean that a worker died; Dask's only where it is imported."""
    distributed = sys.modules.get("distributed")
    return (BrokenProcessPool, *([distributed.KilledWorker] if distributed else []))


def _in_threads(
    works: Iterable[Work], run: Callable[[Work], list], executor: ThreadPoolExecutor, limit: int
) -> Iterator[list]:
    """Yield results of works that are done in an executor's threads and in the calling thread.

    At most ``limit`` are submitted at a time. Not by joblib, which looks for results every 10 ms,
    longer than a chunk takes.
    """
    coming, pending = iter(works), deque[tuple[Work, Future]]()
    first = list(islice(coming, 2))
    if len(first) < 2:
        yield from map(run, first)
        return
    coming = chain(first, coming)
    try:
        while True:
            for work in islice(coming, limit - len(pending)):
                pending.append((work, executor.submit(run, work)))
            if not pending:
                return
            if pending[0][1].done() or not _run_one(pending, run):
                yield pending.popleft()[1].result()
    finally:  # also where a work has raised
        wait([future for _, future in pending if not future.cancel()])


def _run_one(pending: deque[tuple[Work, Future]], run: Callable[[Work], list]) -> bool:
    """Run the first work that no thread has begun in this one; return False if there is none."""
    for i, (work, future) in enumerate(pending):
        if future.cancel():
            done: Future = Future()
            done.set_result(run(work))
            pending[i] = work, done
            return True
    return False


def _in_order(futures: Iterable, n_workers: int) -> Iterator[Any]:
    """Yield results in order; no more than two a worker are under way."""
    pending: deque = deque()
    for future in futures:
        pending.append(future)
        if len(pending) > 2 * n_workers:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _with_extra(extra: str, package: str, register: Callable[[], None]) -> Callable[[], None]:
    """Return ``register``, with an error that names the extra where the package is missing."""

    def checked() -> None:
        if find_spec(package) is None:
            raise ImportError(needs(f"backend={extra!r}", extra))
        register()

    return checked


def _register_ray() -> None:
    from ray.util.joblib import register_ray

    register_ray()


# joblib asks for a backend here when it first gets its name, so nothing is imported before.
EXTERNAL_BACKENDS.update(
    dask=_with_extra("dask", "distributed", EXTERNAL_BACKENDS["dask"]),
    ray=_with_extra("ray", "ray", _register_ray),
)
