"""Work on clients side by side: in this thread, in threads, or by joblib's active backend."""

import pickle
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.util import find_spec
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
    def cost(self) -> int:
        """How many rows it uses, repeats counted; at least 1."""

    @property
    def clients(self) -> Sequence[int]:
        """The clients whose rows are needed."""

    def run(self, load: Load) -> Any:
        """Do the work."""

    def recover(self, run: Callable[["Work"], Any], error: Exception) -> Any:
        """Return the result after the work has raised.

        It is made of the results of ``run`` on parts of the work; that of one client has no parts,
        and its result holds the error.
        """


def run_or_split(
    work: Work, run: Callable[[Work], Any], failures: tuple[type[Exception], ...] = (Exception,)
) -> Any:
    """Return ``run(work)``; where it fails, run parts of the work, down to those of one client.

    Only the clients whose own work fails are then left out.
    """
    try:
        return run(work)
    except MemoryError:
        raise
    except failures as error:
        again = partial(run_or_split, run=run, failures=failures)
        return work.recover(again, sendable(error))


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
        # In batches of one, since there are no more works than jobs.
        options = {"prefer": prefer, "batch_size": 1, "return_as": return_as}
        self._new = partial(Parallel, n_jobs=n_jobs, **options)
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

    def count(self) -> int:
        """Return how many works are done at a time; of Dask, whose workers come and go, by now."""
        if self.has_processes and self.dask is not None:
            return max(1, sum(self.dask.ncores().values()))
        return self.n_workers

    def map(self, works: Sequence[Work], data: ClientData) -> Iterable[Any]:
        """Return the results of works, in order.

        Where a worker process dies, the works whose results are missing are run again, one by one,
        and one whose process dies again in parts: only a client that kills its process fails.

        Parameters
        ----------
        works : sequence of Work
            Not more than ``count()``.
        data : ClientData
            The rows of all clients.
        """
        run = partial(run_or_split, run=methodcaller("run", data.local))
        if self.has_processes:
            return self._in_processes(works, data)
        if self._executor is not None:
            return _in_threads(works, run, self._executor)
        return map(run, works)

    def _in_processes(self, works: Sequence[Work], data: ClientData) -> list:
        """Return results; works whose rows were missing are sent again with all of them."""
        results = self._sent(works, data)
        missed = [i for i, result in enumerate(results) if isinstance(result, CacheMiss)]
        for i in missed:
            data.note_miss(results[i])
        if missed:
            again = self._sent([works[i] for i in missed], data, complete=True)
            for i, result in zip(missed, again, strict=True):
                results[i] = result
        return results

    def _sent(self, works: Sequence[Work], data: ClientData, complete: bool = False) -> list:
        """Send works to other processes; return the result of each, or a CacheMiss."""
        calls = ((work, data.payload(work.clients, complete)) for work in works)
        results: list[Any] = []
        try:
            for result in self._results(calls):
                results.append(result)  # kept where a later one raises
        except _deaths():
            alone = partial(run_or_split, run=partial(self._alone, data), failures=_deaths())
            results += map(alone, works[len(results) :])
        return results

    def _alone(self, data: ClientData, work: Work) -> Any:
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
        # A worker that waits for others, as in a search, lets them use its slot.
        waiting = self.backend.retrieval_context()
        waiting.__enter__()
        try:
            for future in [submit(*call) for call in calls]:
                yield future.result()
        finally:  # which the context itself passes over after an exception
            waiting.__exit__(None, None, None)


def serve(work: Work, payload: Payload | FilePayload) -> Any:
    """Run a work in a worker process; return its result, or a CacheMiss if it lacks rows."""
    load = payload.load() if isinstance(payload, FilePayload) else _worker_cache.load(payload)
    if isinstance(load, CacheMiss):
        return load
    return run_or_split(work, methodcaller("run", load))


def _deaths() -> tuple[type[Exception], ...]:
    """Return the exceptions that mean that a worker died; Dask's only where it is imported."""
    distributed = sys.modules.get("distributed")
    return (BrokenProcessPool, *([distributed.KilledWorker] if distributed else []))


def _in_threads(
    works: Sequence[Work], run: Callable[[Work], Any], executor: ThreadPoolExecutor
) -> list:
    """Return results of works: the first is done in this thread, the others in an executor's.

    Not by joblib, which looks for results every 10 ms, longer than a chunk takes.
    """
    first, *others = works
    futures = [executor.submit(run, work) for work in others]
    try:
        return [run(first), *(future.result() for future in futures)]
    finally:  # also where a work has raised
        wait([future for future in futures if not future.cancel()])


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
