"""The labels or the scores of each client."""

from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length

from skfed._federation import make_federation
from skfed.inspection._axes import COLOURS, FREE, PRIORITY, get_axes, legend, name_clients, tidy
from skfed.metrics import client_scores
from skfed.utils._checks import labels_of, naming
from skfed.utils._ids import client_index

_HATCHES = ["", "//", "..", "xx", "--"]


class ClientsDisplay:
    """One bar a client: its labels, or the model's accuracy or R^2 on its rows.

    Use :meth:`from_data` or :meth:`from_estimator`.

    Parameters
    ----------
    bars : DataFrame of shape (n_clients, n_parts)
        Heights, stacked; one row a client.
    priority : ndarray of shape (n_clients,), dtype=bool
        Whether a client has priority; names of priority clients are marked with a star.
    ylabel : str
        Label of the vertical axis.

    Attributes
    ----------
    ax_, figure_
        The matplotlib axes and figure.
    """

    def __init__(self, bars: pd.DataFrame, priority: np.ndarray, ylabel: str):
        self.bars = bars
        self.priority = priority
        self.ylabel = ylabel

    @classmethod
    def from_data(
        cls, y: ArrayLike, clients: ArrayLike, *, priority: Any = None, ax: Any = None
    ) -> Self:
        """Draw the number of rows of each label at each client, the largest client first.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            Labels.
        clients : array-like of shape (n_samples,)
            The client of each row.
        priority : collection of client ids, default=None
            Priority clients, which come first.
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        ClientsDisplay
            The display.

        Raises
        ------
        ValueError
            If ``clients`` does not fit y, or ``priority`` names an unknown client.
        """
        labels = labels_of(y, "y")
        with naming("y", "clients"):
            check_consistent_length(labels, clients)
        federation = make_federation(clients, len(labels), priority)
        classes, codes = np.unique(labels, return_inverse=True)
        counts = [
            np.bincount(codes[federation.rows(k)], minlength=len(classes))
            for k in range(len(federation))
        ]
        bars = pd.DataFrame(counts, index=client_index(federation.ids), columns=classes)
        order = np.lexsort([-federation.sizes, ~federation.priority])
        return cls(bars.iloc[order], federation.priority[order], "rows by label").plot(ax)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: ArrayLike, clients: ArrayLike, *, ax: Any = None
    ) -> Self:
        """Draw a model's accuracy, or R^2, on the rows of each client, the best first.

        Clients without an R^2 come last in their group and have no bar.

        Parameters
        ----------
        estimator : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends \
in one
            A fitted model.
        X : array-like of shape (n_samples, ...)
            Samples, preferably held out.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Their labels or targets.
        clients : array-like of shape (n_samples,)
            The client of each row.
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        ClientsDisplay
            The display.

        Raises
        ------
        TypeError, ValueError
            As :func:`skfed.metrics.client_scores`.
        """
        scores = client_scores(estimator, X, y, clients)
        measure = scores.columns[-1]
        order = np.lexsort([-scores[measure], ~scores["priority"]])
        scores = scores.iloc[order]
        label = {"accuracy": "accuracy", "r2": "R²"}[measure]
        return cls(scores[[measure]], scores["priority"].to_numpy(), label).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        ClientsDisplay
            This display.
        """
        self.ax_, self.figure_ = get_axes(ax, (7.5, 4.0))
        places = np.arange(len(self.bars))
        has_free, marked = not self.priority.all(), self.priority
        if self.bars.shape[1] == 1:
            heights = self.bars.iloc[:, 0]
            for mask, colour, group in ((marked, PRIORITY, "priority"), (~marked, FREE, "free")):
                if mask.any():
                    self.ax_.bar(
                        places[mask], heights[mask], color=colour, label=group if has_free else None
                    )
        else:
            bottom = np.zeros(len(places))
            for i, label in enumerate(self.bars):
                self.ax_.bar(
                    places,
                    self.bars[label],
                    bottom=bottom,
                    color=COLOURS[i % len(COLOURS)],
                    hatch=_HATCHES[i // len(COLOURS) % len(_HATCHES)],
                    edgecolor="white",  # of the hatches, which show on black too
                    linewidth=0,
                    label=str(label),
                )
                bottom += self.bars[label].to_numpy()
        if has_free:
            self.ax_.axvline(
                marked.sum() - 0.5, color="black", linestyle=":", label="priority, left"
            )
        stars = marked.tolist() if has_free else None
        label = "clients (* priority)" if has_free else "clients"
        name_clients(self.ax_.xaxis, self.bars.index.tolist(), label, stars)
        self.ax_.set_ylabel(self.ylabel)
        tidy(self.ax_)
        legend(self.ax_)
        return self
