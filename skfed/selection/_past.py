"""What the server has seen of clients in earlier rounds."""

from collections.abc import Callable, Iterable

import numpy as np

from skfed.utils._arrays import read_only

#: What clients or the server do only for a rule that names it, and the columns of the past it has.
NEEDS = {"spread": ("loss_std", "loss_rms"), "updates": ("updates",), "last_layer": ("last_layer",)}
#: The numbers of a sketch, and of an update in ``Past.updates``.
SKETCH_SIZE = 64


class Past:
    """What the server has seen of clients in earlier rounds: arrays with one entry a client.

    They are made when they are first asked for, and are not to be changed. Numbers are NaN before
    the first training that came back; a client that fails or is late keeps its last ones. Trials
    count in none but ``n_polled``.

    Parameters
    ----------
    column : callable
        Returns the array of a name.
    needs : iterable of str
        What the rule has named; other words of ``NEEDS`` have no columns.
    """

    def __init__(self, column: Callable[[str], np.ndarray], needs: Iterable[str]):
        self._given = column
        self._hidden = {name: word for word in NEEDS.keys() - set(needs) for name in NEEDS[word]}

    def _column(self, name: str) -> np.ndarray:
        if name in self._hidden:
            raise ValueError(
                f"past.{name} is kept only for a rule that needs it: add {self._hidden[name]!r} to "
                "the selector's class attribute needs."
            )
        return read_only(self._given(name))

    @property
    def n_polled(self) -> np.ndarray:
        """How often each client was polled, by any rule or trial."""
        return self._column("n_polled")

    @property
    def n_chosen(self) -> np.ndarray:
        """How often each client was in a cohort that ``select`` returned, each draw counted."""
        return self._column("n_chosen")

    @property
    def last_chosen(self) -> np.ndarray:
        """The last round in which that was so; -1 for never."""
        return self._column("last_chosen")

    @property
    def loss_mean(self) -> np.ndarray:
        """The mean loss over the minibatches of each client's last training."""
        return self._column("loss_mean")

    @property
    def loss_std(self) -> np.ndarray:
        """The standard deviation of these losses; needs "spread"."""
        return self._column("loss_std")

    @property
    def loss_rms(self) -> np.ndarray:
        """The root of the mean squared loss over the rows of that training; needs "spread".

        Where the criterion tells no row's loss it is over minibatches.
        """
        return self._column("loss_rms")

    @property
    def seconds(self) -> np.ndarray:
        """The seconds of each client's last training; of two phases those of the report."""
        return self._column("seconds")

    @property
    def updates(self) -> np.ndarray:
        """Each client's last update in a random projection, (n_clients, 64); needs "updates"."""
        return self._column("updates")

    @property
    def last_layer(self) -> np.ndarray:
        """The update of the bias of each client's last layer, (n_clients, n_outputs).

        Without a bias, the row means of its weights. Needs "last_layer".
        """
        return self._column("last_layer")


def last_cohort(past: Past) -> np.ndarray:
    """Return the clients of the last cohort; rounds in which nobody was available have none."""
    last = past.last_chosen.max()
    return np.flatnonzero(past.last_chosen == last) if last >= 0 else np.empty(0, dtype=np.intp)
