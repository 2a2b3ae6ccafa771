"""Objects that take long to make, used again by the threads and the worker processes of a fit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Generic, TypeVar
from uuid import uuid4

T = TypeVar("T")


class Pool(Generic[T]):
    """Objects, each used by one thread at a time.

    A pickle holds none of them. A worker process unpickles a pool with each task, so all that it
    unpickles of one pool share the objects that were made there.
    """

    def __init__(self) -> None:
        self._key = uuid4().hex
        self._idle: list[T] = []

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_idle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._idle = _idle_here(self._key)

    @contextmanager
    def _borrowed(self, make: Callable[[], T]) -> Iterator[T]:
        """Yield an object that no other thread has, a new one if all are in use."""
        try:
            one = self._idle.pop()
        except IndexError:
            one = make()
        try:
            yield one
        finally:
            self._idle.append(one)


@lru_cache(maxsize=4)  # pools: a fit has two, and a worker may work for two fits in turn
def _idle_here(key: str) -> list[Any]:
    """Return the idle objects of a pool in this process."""
    return []
