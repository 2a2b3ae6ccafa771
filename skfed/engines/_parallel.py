"""Chunks of clients side by side: in threads, or wherever joblib's active backend runs them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import torch
from joblib import effective_n_jobs
from joblib.parallel import SequentialBackend, ThreadingBackend, get_active_backend
from sklearn.utils.parallel import Parallel, delayed

Call = tuple[Callable[..., Any], tuple]


class Work(NamedTuple):
    """A call whose process may die; what it returns is a list.

    Parameters
    ----------
    function : callable
        What is called.
    arguments : tuple
        With what.
    apart : callable
        Returns the works of each client alone; none, if there is only one.
    lost : callable
        Makes the result of a client whose process died, of the exception that says so.
    """

    function: Callable[..., list]
    arguments: tuple
    apart: Callable[[], Iterable["Work"]]
    lost: Callable[[Exception], list]


def side_by_side(works: Iterable[Work], n_jobs: int | None, prefer: str = "threads") -> Iterator:
    """Yield the members of the works' results in their order, as they come.

    Where a process dies, the works that were under way are done again, one by one, and one that is
    lost again client by client: so only a client that kills its process is left out.

    Parameters
    ----------
    works : iterable of Work
        Taken from as room appears.
    n_jobs : int or None
        As joblib understands it.
    prefer : {"threads", "processes"}, default="threads"
        Where, unless ``joblib.parallel_config`` says otherwise. Products release the interpreter's
        lock, so threads do for them.
    """
    coming, pending = iter(works), deque[Work]()

    def calls() -> Iterator[Call]:
        for work in coming:
            pending.append(work)
            yield work.function, work.arguments

    broken = True
    while broken:
        try:
            for result in _results(calls(), n_jobs, prefer):
                pending.popleft()
                yield from result
            broken = False
        except BrokenProcessPool:
            suspects = [*pending]
            pending.clear()
            for work in suspects:
                yield from _alone(work, n_jobs, prefer)


def _alone(work: Work, n_jobs: int | None, prefer: str) -> Iterator:
    """Do one work, by parts if its process dies."""
    try:
        (result,) = _results([(work.function, work.arguments)], n_jobs, prefer)
    except BrokenProcessPool as error:
        parts = list(work.apart())
        if not parts:
            result = work.lost(error)
        else:
            result = [one for part in parts for one in _alone(part, n_jobs, prefer)]
    yield from result


def _results(calls: Iterable[Call], n_jobs: int | None, prefer: str) -> Iterator[list]:
    """Yield what calls return.

    Threads are ours, since joblib looks for results of its own every 10 ms, which is longer than a
    chunk takes.
    """
    backend, _ = get_active_backend(prefer=prefer)
    n_workers = effective_n_jobs(n_jobs)
    if n_workers == 1:
        return (function(*arguments) for function, arguments in calls)
    if isinstance(backend, SequentialBackend | ThreadingBackend):
        return _in_threads(calls, n_workers)
    return_as = "generator" if backend.supports_return_generator else "list"
    return Parallel(n_jobs=n_jobs, prefer=prefer, return_as=return_as)(
        delayed(function)(*arguments) for function, arguments in calls
    )


def _in_threads(calls: Iterable[Call], n_workers: int) -> Iterator[Any]:
    n_torch_threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(n_workers) as pool:
            pending: deque[Future] = deque()
            for function, arguments in calls:
                pending.append(pool.submit(function, *arguments))
                if len(pending) > 2 * n_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    finally:
        # Each thread has a number of its own, but new ones start with what was last set anywhere.
        torch.set_num_threads(n_torch_threads)
