"""Frequencies or rounds of selection of each client."""

from itertools import chain
from typing import Any, Self

import numpy as np
import pandas as pd

from skfed.inspection._axes import get_axes, label_rounds, legend, name_clients
from skfed.inspection._style import FREE, PRIORITY, tidy
from skfed.metrics._scorers import federated_step
from skfed.utils._ids import canonical, client_index
from skfed.utils._sklearn import StrOptions

_KINDS = StrOptions({"frequency", "rounds"})


class SelectionDisplay:
    """How often each client was in the cohort, beside its share of the data, or in which rounds.

    Use :meth:`from_estimator`.

    Parameters
    ----------
    counts : DataFrame of shape (n_rounds, n_clients)
        How often each client, by column, was in the cohort of a round.
    shares : ndarray of shape (n_clients,)
        Their shares of all data; NaN for clients of earlier calls of ``partial_fit``.
    priority : ndarray of shape (n_clients,), dtype=bool
        Whether a client has priority.

    Attributes
    ----------
    ax_, figure_
        The matplotlib axes and figure.

    See Also
    --------
    skfed.inspection.ClientsDisplay : The labels, or the scores, of each client.
    skfed.inspection.TimelineDisplay : The exchanges of one round.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier, RandomSelector
    >>> from skfed.inspection import SelectionDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(
    ...     selector=RandomSelector(2), n_rounds=5, random_state=0
    ... )
    >>> display = SelectionDisplay.from_estimator(
    ...     model.fit(X, y, clients=y), kind="rounds"
    ... )
    >>> display.counts.shape
    (5, 3)
    """

    def __init__(self, counts: pd.DataFrame, shares: np.ndarray, priority: np.ndarray):
        self.counts = counts
        self.shares = shares
        self.priority = priority

    @classmethod
    def from_estimator(cls, estimator: Any, *, kind: str = "frequency", ax: Any = None) -> Self:
        """Draw the selections of a model, with those of clients of earlier ``partial_fit``.

        Parameters
        ----------
        estimator : FederatedClassifier or FederatedRegressor
            A fitted model, or a Pipeline or a search that ends in one.
        kind : {"frequency", "rounds"}, default="frequency"
            Shares of all selections beside shares of the data; or a raster of rounds and clients,
            black where the client was in the cohort.
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        SelectionDisplay
            The display.

        Raises
        ------
        TypeError
            If the model has no federated step.
        ValueError
            If ``kind`` is unknown.
        """
        step = federated_step(estimator)
        cohorts = step.history_["cohort"]
        clients = [*step.clients_.tolist(), *chain.from_iterable(cohorts)]
        ids = {canonical(client): client for client in clients}
        position = {key: k for k, key in enumerate(ids)}
        counts = np.zeros((len(cohorts), len(ids)), dtype=int)
        for t, cohort in enumerate(cohorts):
            np.add.at(counts[t], [position[canonical(client)] for client in cohort], 1)
        names = np.fromiter(ids.values(), dtype=object, count=len(ids))
        table = pd.DataFrame(counts, columns=client_index(names))
        n_gone = len(ids) - len(step.clients_)
        shares = np.append(step.sizes_ / step.sizes_.sum(), np.full(n_gone, np.nan))
        # Priority clients that are named are among the clients of every call.
        priority = np.append(step.priority_, np.full(n_gone, step.priority is None))
        return cls(table, shares, priority).plot(ax, kind=kind)

    def plot(self, ax: Any = None, *, kind: str = "frequency") -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.
        kind : {"frequency", "rounds"}, default="frequency"
            What to draw.

        Returns
        -------
        SelectionDisplay
            This display.
        """
        if not _KINDS.is_satisfied_by(kind):
            raise ValueError(f"kind must be {_KINDS}, got {kind!r}.")
        self.ax_, self.figure_ = get_axes(ax, (7.5, 4.0))
        if kind == "frequency":
            self._frequencies()
        else:
            self._raster()
        return self

    def _frequencies(self) -> None:
        """Draw bars in descending order, and a dot for the data share."""
        shares = self.counts.sum().to_numpy() / max(self.counts.to_numpy().sum(), 1)
        order = np.argsort(-shares, kind="stable")
        places = np.arange(len(order))
        priority, heights = self.priority[order], shares[order]
        groups = [(priority, PRIORITY, "selected, priority"), (~priority, FREE, "selected, free")]
        if priority.all():
            groups = [(priority, FREE, "selected")]
        for mask, colour, label in groups:
            if mask.any():
                self.ax_.bar(places[mask], heights[mask], color=colour, label=label)
        self.ax_.plot(
            places, self.shares[order], "o", color="black", ms=3, label="share of the data"
        )
        self.ax_.set_ylabel("share")
        name_clients(
            self.ax_.xaxis, self.counts.columns[order].tolist(), "clients, most selected first"
        )
        tidy(self.ax_)
        legend(self.ax_)

    def _raster(self) -> None:
        """Draw a row a client, priority clients on top, and a column a round."""
        order = np.argsort(~self.priority, kind="stable")
        self.ax_.imshow(
            self.counts.to_numpy().T[order] > 0,
            aspect="auto",
            cmap="Greys",
            interpolation="nearest",
            extent=(0.5, len(self.counts) + 0.5, len(order) - 0.5, -0.5),
            vmin=0,
            vmax=1,
        )
        self.ax_.fill([], [], color="black", label="in the cohort")  # for the legend
        if not self.priority.all():
            self.ax_.axhline(self.priority.sum() - 0.5, color=PRIORITY, label="priority above")
        legend(self.ax_)
        name_clients(self.ax_.yaxis, self.counts.columns[order].tolist(), "clients")
        label_rounds(self.ax_)
        tidy(self.ax_)
