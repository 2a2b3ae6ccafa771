"""Work on clients side by side: in threads, or wherever joblib's active backend runs it."""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, NamedTuple

import torch
from joblib import effective_n_jobs
from joblib.parallel import (
    MultiprocessingBackend,
    SequentialBackend,
    ThreadingBackend,
    get_active_backend,
)
from sklearn.utils.parallel import Parallel, delayed

import skfed.engines._backends  # noqa: F401 - makes them known to joblib
from skfed.engines._worker_data import CacheMiss, DataRef, serve


class Work(NamedTuple):
    """A call whose process may die; what it returns is a list.

    Parameters
    ----------
    function : callable
        What is called.
    arguments : tuple
        With what, before what the share makes.
    share : DataRef
        The rows it needs.
    apart : callable
        Returns the works of each client alone; none, if there is only one.
    lost : callable
        Makes the result of a client whose process died, of the exception that says so.
    """

    function: Callable[..., list]
    arguments: tuple
    share: DataRef
    apart: Callable[[], Iterable["Work"]]
    lost: Callable[[Exception], list]

    def here(self) -> list:
        """Do it in this process."""
        return self.function(*self.arguments, self.share.here())


class Workers:
    """Who does the work of a fit: this thread, threads, or joblib's active backend.

    Parameters
    ----------
    n_jobs : int or None
        As joblib understands it.
    prefer : {"threads", "processes"}, default="threads"
        Where, unless ``joblib.parallel_config`` says otherwise. Products release the interpreter's
        lock, so threads do for them.
    """

    def __init__(self, n_jobs: int | None, prefer: str = "threads"):
        self.backend, _ = get_active_backend(prefer=prefer)
        self.n_workers = effective_n_jobs(n_jobs)
        self.dask: Any = getattr(self.backend, "client", None)
        if self.dask is not None and n_jobs != 1:
            self.elsewhere = True  # however few of its workers are up just now
        else:
            here = SequentialBackend | ThreadingBackend
            self.elsewhere = self.n_workers > 1 and not isinstance(self.backend, here)
        return_as = "generator" if self.backend.supports_return_generator else "list"
        self._new = partial(Parallel, n_jobs=n_jobs, prefer=prefer, return_as=return_as)
        self._kept: Parallel | None = None
        if self.elsewhere and isinstance(self.backend, MultiprocessingBackend):  # as Ray's is
            # Its processes, and the rows they hold, end with it.
            self._kept = self._new().__enter__()
            weakref.finalize(self, self._kept.__exit__, None, None, None)

    def side_by_side(self, works: Iterable[Work]) -> Iterator:
        """Yield the members of the works' results in their order, as they come.

        Where a process dies, the works that were under way are done again, one by one, and one that
        is lost again client by client: so only a client that kills its process is left out.

        Parameters
        ----------
        works : iterable of Work
            Taken from as room appears.
        """
        if self.elsewhere:
            results = self._in_processes(works)
        elif self.n_workers > 1:
            results = _in_threads(works, self.n_workers)
        else:
            results = (work.here() for work in works)
        for result in results:
            yield from result

    def _in_processes(self, works: Iterable[Work]) -> Iterator[list]:
        """Yield results; works that lack rows travel again, with these."""
        behind: list[tuple[Work, list | CacheMiss]] = []  # from the first that lacks rows on
        for work, result in self._tried(works):
            if behind or isinstance(result, CacheMiss):
                behind.append((work, result))
            else:
                yield result
        if behind:
            again = self._in_processes(
                work._replace(share=work.share.carrying(result.names))
                for work, result in behind
                if isinstance(result, CacheMiss)
            )
            for _, result in behind:
                yield next(again) if isinstance(result, CacheMiss) else result

    def _tried(self, works: Iterable[Work]) -> Iterator[tuple[Work, list | CacheMiss]]:
        """Yield works and what came of them."""
        coming, pending = iter(works), deque[Work]()

        def sent() -> Iterator[Work]:
            for work in coming:
                pending.append(work)
                yield work

        broken = True
        while broken:
            try:
                for result in self._results(sent()):
                    yield pending.popleft(), result
                broken = False
            except _deaths():
                suspects = [*pending]
                pending.clear()
                for work in suspects:
                    yield work, self._alone(work)

    def _alone(self, work: Work) -> list:
        """Do one work, by parts if its process dies."""
        try:
            (result,) = self._results([work._replace(share=work.share.complete())])
            return result
        except _deaths() as error:
            parts = list(work.apart())
            if not parts:
                return work.lost(error)
            return [one for part in parts for one in self._alone(part)]

    def _results(self, works: Iterable[Work]) -> Iterable[Any]:
        """Send works to other processes, and return what comes back."""
        calls = ((work.function, work.arguments, work.share.parcel()) for work in works)
        if self.dask is not None:
            return self._through_dask(calls)
        parallel = self._kept or self._new()
        return parallel(delayed(serve)(*call) for call in calls)

    def _through_dask(self, calls: Iterable[tuple]) -> Iterator[Any]:
        """Yield what comes back from Dask.

        Not through joblib, which would wait for ever for work whose worker died.
        """
        submit = partial(self.dask.submit, serve, pure=False, **self.backend.submit_kwargs)
        n_workers = sum(self.dask.ncores().values())
        # A worker that waits for others, as in a search, makes room for their work.
        waiting = self.backend.retrieval_context()
        waiting.__enter__()
        try:
            yield from _in_order((submit(*call) for call in calls), max(1, n_workers))
        finally:  # which the context itself would pass over after an exception
            waiting.__exit__(None, None, None)


def _deaths() -> tuple[type[Exception], ...]:
    """Return what says that a process died; only who has imported Dask can get its word for it."""
    distributed = sys.modules.get("distributed")
    return (BrokenProcessPool, *([distributed.KilledWorker] if distributed else []))


def _in_threads(works: Iterable[Work], n_workers: int) -> Iterator[list]:
    """Yield results from threads of our own.

    Since joblib looks for results of its own every 10 ms, which is longer than a chunk takes.
    """
    n_torch_threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(n_workers) as pool:
            yield from _in_order((pool.submit(work.here) for work in works), n_workers)
    finally:
        # Each thread has a number of its own, but new ones start with what was last set anywhere.
        torch.set_num_threads(n_torch_threads)


def _in_order(futures: Iterable, n_workers: int) -> Iterator[Any]:
    """Yield results in order; no more than two a worker are under way."""
    pending: deque = deque()
    for future in futures:
        pending.append(future)
        if len(pending) > 2 * n_workers:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
