"""Chunks of clients side by side: in threads, or wherever joblib's active backend runs them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from joblib import effective_n_jobs
from joblib.parallel import SequentialBackend, ThreadingBackend, get_active_backend
from sklearn.utils.parallel import Parallel, delayed

Call = tuple[Callable[..., Any], tuple]


def side_by_side(calls: Iterable[Call], n_jobs: int | None) -> Iterator[Any]:
    """Yield the results of calls in their order, as they come.

    Threads unless ``joblib.parallel_config`` says otherwise: products release the interpreter's
    lock. They are ours, since joblib looks for results of its own threads every 10 ms, which is
    longer than a chunk takes.

    Parameters
    ----------
    calls : iterable of (callable, tuple)
        Functions and their arguments; taken from as room appears.
    n_jobs : int or None
        As joblib understands it.
    """
    backend, _ = get_active_backend(prefer="threads")
    n_workers = effective_n_jobs(n_jobs)
    if n_workers == 1:
        return (function(*arguments) for function, arguments in calls)
    if isinstance(backend, SequentialBackend | ThreadingBackend):
        return _in_threads(calls, n_workers)
    return Parallel(n_jobs=n_jobs, return_as="generator")(
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
