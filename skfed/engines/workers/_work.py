"""Works: calls on the rows of some clients, of which only what fails is left out."""

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from skfed.engines._data import Dataset

#: Returns the dataset, and the row numbers of each of some clients.
Load = Callable[[Sequence[int]], tuple[Dataset, list[np.ndarray]]]


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
