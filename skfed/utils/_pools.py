"""Objects that take long to make, used again by the threads and the worker processes of a fit."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Generic, TypeVar
from uuid import uuid4

T = TypeVar("T")

#: Most bytes of an object that a worker process keeps until its next task. loky restarts a worker
#: that grows by 300 MB, and gradients and an optimizer may take three times the bytes of a net.
LARGEST_KEPT = 8 * 2**20


class Pool(ABC, Generic[T]):
    """Objects, each used by one thread at a time; one whose use raised is not used again.

    A pickle holds none of them. A worker process unpickles a pool with each task, so all copies of
    a pool in one process share the objects that were made there, if these are small.
    """

    def __init__(self) -> None:
        self._key = uuid4().hex
        self._idle: list[T] = []
        self._largest: int | None = None  # bytes of an object that is kept; None: any

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_idle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._idle, self._largest = _idle_here(self._key), LARGEST_KEPT

    @contextmanager
    def _borrowed(self, make: Callable[[], T]) -> Iterator[T]:
        """Yield an object that no other thread has, a new one if all are in use."""
        try:
            one = self._idle.pop()
        except IndexError:
            one = None
        if one is None:  # not in the clause above, since an error of make would name it
            one = make()
        yield one
        if self._largest is None or self._n_bytes(one) <= self._largest:
            self._idle.append(one)

    @abstractmethod
    def _n_bytes(self, one: T) -> int:
        """Return the bytes of an object, without gradients and the state of an optimizer."""


@lru_cache(maxsize=2)  # those of one fit, since a worker may live much longer than a fit
def _idle_here(key: str) -> list[Any]:
    """Return the idle objects of a pool in this process."""
    return []
