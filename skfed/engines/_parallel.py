"""Work on clients side by side: in threads, or wherever joblib's active backend runs it."""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import NamedTuple

import torch
from joblib import effective_n_jobs
from joblib.parallel import (
    MultiprocessingBackend,
    SequentialBackend,
    ThreadingBackend,
    get_active_backend,
)
from sklearn.utils.parallel import Parallel, delayed

from skfed.engines._held import Share, serve


class Work(NamedTuple):
    """A call whose process may die; what it returns is a list.

    Parameters
    ----------
    function : callable
        What is called.
    arguments : tuple
        With what, before what the share makes.
    share : Share
        The rows it needs.
    apart : callable
        Returns the works of each client alone; none, if there is only one.
    lost : callable
        Makes the result of a client whose process died, of the exception that says so.
    """

    function: Callable[..., list]
    arguments: tuple
    share: Share
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
        backend, _ = get_active_backend(prefer=prefer)
        self.n_workers = effective_n_jobs(n_jobs)
        self.elsewhere = self.n_workers > 1 and not isinstance(
            backend, SequentialBackend | ThreadingBackend
        )
        return_as = "generator" if backend.supports_return_generator else "list"
        self._new = partial(_Parallel, n_jobs=n_jobs, prefer=prefer, return_as=return_as)
        self._kept: Parallel | None = None
        if self.elsewhere and isinstance(backend, MultiprocessingBackend):  # as Ray's is
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
        """Yield results, of those that lack rows on a second journey, with them."""
        behind: list[tuple[Work, list | None]] = []  # from the first that lacks rows on
        for work, result in self._tried(works, with_rows=False):
            if result is None or behind:
                behind.append((work, result))
            else:
                yield result
        lacking = (work for work, result in behind if result is None)
        again = (result for _, result in self._tried(lacking, with_rows=True))
        for _, result in behind:
            result = next(again) if result is None else result
            assert result is not None  # rows have come along
            yield result

    def _tried(self, works: Iterable[Work], with_rows: bool) -> Iterator[tuple[Work, list | None]]:
        """Yield works and their results; None where rows were lacking."""
        coming, pending = iter(works), deque[Work]()

        def sent() -> Iterator[Work]:
            for work in coming:
                pending.append(work)
                yield work

        broken = True
        while broken:
            try:
                for result in self._results(sent(), with_rows):
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
            (result,) = self._results([work], with_rows=True)
            return result
        except _deaths() as error:
            parts = list(work.apart())
            if not parts:
                return work.lost(error)
            return [one for part in parts for one in self._alone(part)]

    def _results(self, works: Iterable[Work], with_rows: bool) -> Iterable[list]:
        """Have works done by joblib."""
        parallel = self._kept or self._new()
        return parallel(
            delayed(serve)(work.function, work.arguments, work.share.parcel(with_rows))
            for work in works
        )


class _Parallel(Parallel):
    def _initialize_backend(self) -> int:
        # With one worker left, as others start again, joblib would do the work here: also that
        # which killed them.
        return max(2, super()._initialize_backend())


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
            pending: deque[Future] = deque()
            for work in works:
                pending.append(pool.submit(work.here))
                if len(pending) > 2 * n_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    finally:
        # Each thread has a number of its own, but new ones start with what was last set anywhere.
        torch.set_num_threads(n_torch_threads)
