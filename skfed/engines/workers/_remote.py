"""Calls in worker processes: what is sent, what a worker does with it, and how Dask sends it."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import methodcaller
from typing import Any, NamedTuple

from skfed.engines.workers._worker_data import CacheMiss, FilePayload, Payload, WorkerCache

_worker_cache = WorkerCache()  # of this process, where it is a worker


class Call(NamedTuple):
    """What is sent to another process.

    Parameters
    ----------
    run : callable
        Called with what runs a work in that process.
    payload : Payload or FilePayload
        The rows of the clients, or where they are.
    worker : str or None, default=None
        The address of the worker that gets it; None where any may.
    """

    run: Callable[[Callable[[Any], Any]], Any]
    payload: Payload | FilePayload
    worker: str | None = None


def serve(run: Callable[[Any], Any], payload: Payload | FilePayload) -> Any:
    """Call a task, or a work, with what runs a work in this worker process, and return its result.

    It is a CacheMiss where rows are missing.
    """
    load = payload.load() if isinstance(payload, FilePayload) else _worker_cache.load(payload)
    return load if isinstance(load, CacheMiss) else run(methodcaller("run", load))


class DaskCluster:
    """The cluster of joblib's Dask backend.

    Calls are not sent by joblib, which waits without end for a task whose worker died.
    """

    def __init__(self, backend: Any):
        self.backend, self.client = backend, backend.client

    def n_cores(self) -> int:
        """Return the number of cores that are up now."""
        return sum(self.client.ncores().values())

    def results(self, calls: Iterable[Call]) -> Iterator[Any]:
        """Send calls; yield their results in order."""
        given = self.backend.submit_kwargs
        # Options of the user's may say which workers are allowed; an address would replace them.
        function = serve if given else serve_on_dask

        def submit(call: Call) -> Any:
            options = {"pure": False, **given}
            if call.worker is not None:  # another one may have it, since this one may die
                options |= {"workers": [call.worker], "allow_other_workers": True}
            return self.client.submit(function, call.run, call.payload, **options)

        # A worker that waits for others, as in a search, lets them use its slot.
        waiting = self.backend.retrieval_context()
        waiting.__enter__()
        try:
            yield from _in_order(map(submit, calls), 2 * max(1, self.n_cores()))
        finally:  # which the context itself passes over after an exception
            waiting.__exit__(None, None, None)


def serve_on_dask(run: Callable[[Any], Any], payload: Payload | FilePayload) -> Any:
    """Return the result of ``serve``; a CacheMiss has the address of this worker of Dask."""
    from dask.distributed import get_worker

    result = serve(run, payload)
    if isinstance(result, CacheMiss):
        return result._replace(worker=get_worker().contact_address)
    return result


def _in_order(futures: Iterable[Any], limit: int) -> Iterator[Any]:
    """Yield the results of futures in order; at most ``limit`` are under way."""
    pending: deque[Any] = deque()
    for future in futures:
        pending.append(future)
        if len(pending) == limit:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
