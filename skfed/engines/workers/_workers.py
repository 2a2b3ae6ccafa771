"""Works on clients side by side: in this thread, in threads, or by joblib's active backend."""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from operator import methodcaller
from threading import Event
from typing import Any, TypeVar

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
from skfed.engines.workers._remote import Call, DaskCluster, serve
from skfed.engines.workers._tasks import Task, Tree, divide, joined
from skfed.engines.workers._work import Load, Work, run_or_split
from skfed.engines.workers._worker_data import CacheMiss, ClientData, FileData
from skfed.utils._extras import needs
from skfed.utils._torch_context import stay_at_one_torch_thread

T = TypeVar("T")


class Workers:
    """Workers of a fit: this thread, threads of our own, or those of joblib's active backend.

    Parameters
    ----------
    n_jobs : int or None
        As joblib understands it.
    prefer : {"threads", "processes"}, default="threads"
        Kind of workers, unless ``joblib.parallel_config`` names a backend. Products release the
        interpreter's lock, so threads are enough for them.

    Attributes
    ----------
    are_optional : bool
        Whether they are processes of this machine, and ``joblib.parallel_config`` names no
        backend: small works may then be done in this thread.
    """

    def __init__(self, n_jobs: int | None, prefer: str = "threads"):
        self.backend, _ = get_active_backend(prefer=prefer)
        self.n_workers = effective_n_jobs(n_jobs)
        with_client = getattr(self.backend, "client", None) is not None
        self.dask = DaskCluster(self.backend) if with_client else None
        if self.dask is not None and n_jobs != 1:
            self.has_processes = True  # however few of its workers are up just now
        else:
            here = SequentialBackend | ThreadingBackend
            self.has_processes = self.n_workers > 1 and not isinstance(self.backend, here)
        # A backend that parallel_config names is the active one, whatever is preferred.
        with_threads, _ = get_active_backend(prefer="threads")
        is_named = type(with_threads) is type(self.backend)
        self.are_optional = (
            self.has_processes and isinstance(self.backend, LokyBackend) and not is_named
        )
        return_as = "generator" if self.backend.supports_return_generator else "list"
        # Each call by itself and none ahead, so that a death concerns few of them.
        options = {"batch_size": 1, "pre_dispatch": "n_jobs", "return_as": return_as}
        self._new = partial(Parallel, n_jobs=n_jobs, prefer=prefer, **options)
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
        """Return the number of tasks into which works are divided.

        For Dask it is twice that of the cores that are up now: a cluster that adapts starts workers
        only while tasks wait.
        """
        if self.has_processes and self.dask is not None:
            return max(1, 2 * self.dask.n_cores())
        return self.n_workers

    def run(
        self,
        works: Sequence[Work],
        make_tree: Callable[[Sequence[int]], Tree],
        join: Callable[[T, T], T],
        data: ClientData,
    ) -> T:
        """Return the results of works, joined along a tree; no job gets more than one task.

        Parameters
        ----------
        works : sequence of Work
            At least one.
        make_tree : callable
            Makes a tree of their positions, given their costs.
        join : callable
            Makes one result of two; it can be sent to another process.
        data : ClientData
            The rows of all clients.
        """
        costs = [work.cost for work in works]
        tree = make_tree(costs)
        parts = divide(tree, costs, self.count())
        tasks = [Task.of(nodes, works, join) for nodes in parts]
        found: dict[Tree, T] = {}
        for nodes, results in zip(parts, self.map(tasks, data), strict=True):
            found |= zip(nodes, results, strict=True)
        return joined(tree, found, join)

    def map(self, tasks: Sequence[Task], data: ClientData) -> Iterable[Any]:
        """Return the results of tasks, in order.

        Where a worker process dies, the works of the tasks whose results are missing are sent one
        by one, and one whose process dies again in parts: only a client that kills its process
        fails.

        Parameters
        ----------
        tasks : sequence of Task
            Not more than ``count()``.
        data : ClientData
            The rows of all clients.
        """
        if self.has_processes:
            return self._in_processes(tasks, data)
        # One task is run as by one job, inside as many calls, since Python's time depends on them.
        if self._executor is not None and len(tasks) > 1:
            return _in_threads(tasks, data.local, self._executor)
        return map(methodcaller("run", methodcaller("run", data.local)), tasks)

    def _in_processes(self, tasks: Sequence[Task], data: ClientData) -> list:
        """Return results; tasks whose rows were missing are sent again with all of them."""
        results = self._sent(tasks, [None] * len(tasks), data)
        misses = {i: result for i, result in enumerate(results) if isinstance(result, CacheMiss)}
        for miss in misses.values():
            data.note_miss(miss)
        if misses:
            again = self._sent([tasks[i] for i in misses], [*misses.values()], data)
            for i, result in zip(misses, again, strict=True):
                results[i] = result
        return results

    def _sent(
        self, tasks: Sequence[Task], misses: Sequence[CacheMiss | None], data: ClientData
    ) -> list:
        """Send tasks to other processes; return the result of each, or a CacheMiss.

        A task that has missed rows is sent with all of them, to the worker that lacked them if its
        address is known: else another one may get them each time.
        """

        def call(task: Task, miss: CacheMiss | None) -> Call:
            if miss is None:
                return Call(task.run, data.payload(task.clients))
            return Call(task.run, data.payload(task.clients, complete=True), miss.worker)

        results: list[Any] = []
        try:
            for result in self._results(map(call, tasks, misses)):
                results.append(result)  # kept where a later one raises
        except _deaths():
            missing = tasks[len(results) :]
            works = [work for task in missing for work in task.works]
            with closing(self._after_a_death(works, data)) as found:
                results += [task.run(partial(_next_of, found), failures=()) for task in missing]
                next(found, None)  # to its end, since joblib kills workers of what is left early
        return results

    def _after_a_death(self, works: Iterable[Work], data: ClientData) -> Generator[Any]:
        """Yield the results of works, sent one by one with all their rows, in order.

        Those that were taken to be sent when a worker died are sent alone.
        """
        coming, pending = iter(works), deque[Work]()

        def calls() -> Iterator[Call]:
            for work in coming:
                pending.append(work)
                yield Call(partial(run_or_split, work), data.payload(work.clients, complete=True))

        died = True
        while died:
            try:
                for result in self._results(calls()):
                    pending.popleft()
                    yield result
                died = False
            except _deaths():
                suspects = [*pending]
                pending.clear()
                for work in suspects:
                    yield run_or_split(work, partial(self._alone, data), _deaths())

    def _alone(self, data: ClientData, work: Work) -> Any:
        """Send one work, with all its rows."""
        payload = data.payload(work.clients, complete=True)
        (result,) = self._results([Call(partial(run_or_split, work), payload)])
        return result

    def _results(self, calls: Iterable[Call]) -> Iterable[Any]:
        """Send calls to other processes; return the results in order."""
        if self.dask is not None:
            return self.dask.results(calls)
        parallel = self._kept or self._new()
        return parallel(delayed(serve)(call.run, call.payload) for call in calls)


def _next_of(results: Iterator[Any], work: Work) -> Any:
    return next(results)


def _deaths() -> tuple[type[Exception], ...]:
    """Return the exceptions that mean that a worker died; Dask's only where it is imported."""
    distributed = sys.modules.get("distributed")
    return (BrokenProcessPool, *([distributed.KilledWorker] if distributed else []))


def _in_threads(tasks: Sequence[Task], load: Load, executor: ThreadPoolExecutor) -> list:
    """Return results of tasks: the first is done in this thread, the others in an executor's.

    Not by joblib, which looks for results every 10 ms, longer than a chunk takes.
    """
    ended = Event()

    def load_until_the_end(clients: Sequence[int]) -> Any:
        if ended.is_set():  # this thread was interrupted, or has raised
            raise KeyboardInterrupt
        return load(clients)

    run = methodcaller("run", load_until_the_end)
    first, *others = tasks
    futures = [executor.submit(task.run, run) for task in others]
    try:
        return [first.run(run), *(future.result() for future in futures)]
    finally:
        ended.set()
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
