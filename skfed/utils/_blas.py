"""Linear algebra of numpy and scipy in one thread."""

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager:
    """Context manager in which products and decompositions of arrays take one thread.

    Their rounding depends on the number of threads, and a choice of clients should not. Threads
    that wait for each other also take many times as long while other processes run.
    """
    return _libraries().limit(limits=1, user_api="blas")
