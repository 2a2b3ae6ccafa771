"""The labels or the scores of each client."""

from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length

from skfed._federation import make_federation
from skfed.inspection._axes import are_named, get_axes, label_mean, legend, name_clients
from skfed.inspection._style import FREE, PRIORITY, SHADES, tidy
from skfed.metrics import client_scores
from skfed.metrics._several import is_several
from skfed.utils._checks import labels_of, naming
from skfed.utils._ids import client_index


class ClientsDisplay:
    """The labels of each client as a heat map, or the model's accuracy or R^2 on its rows as bars.

    Bars of a list of models are means, with error bars of one standard deviation over the models.
    Clients are in the order of ``clients_``, those with priority first, so that pictures of the
    same clients can be compared. Use :meth:`from_data` or :meth:`from_estimator`.

    Parameters
    ----------
    table : DataFrame of shape (n_clients, n_columns)
        One row a client. One column is drawn as bars, more as a heat map.
    priority : ndarray of shape (n_clients,), dtype=bool
        Whether a client has priority; names of priority clients are marked with a star.
    label : str
        The meaning of the values.
    spread : ndarray of shape (n_clients,), default=None
        How far error bars reach below and above the bars; None draws none.

    Attributes
    ----------
    ax_, figure_
        The matplotlib axes and figure.

    See Also
    --------
    skfed.inspection.SelectionDisplay : How often each client was in the cohort.
    skfed.metrics.client_scores : The scores of each client as a table.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skfed.datasets import partition_dirichlet
    >>> from skfed.inspection import ClientsDisplay
    >>> X, y = load_digits(return_X_y=True)
    >>> clients = partition_dirichlet(
    ...     y, 100, alpha=0.3, min_size=1, random_state=0
    ... )
    >>> ClientsDisplay.from_data(y, clients).table.shape
    (100, 10)
    """

    def __init__(
        self,
        table: pd.DataFrame,
        priority: np.ndarray,
        label: str,
        *,
        spread: np.ndarray | None = None,
    ):
        self.table = table
        self.priority = priority
        self.label = label
        self.spread = spread

    @classmethod
    def from_data(
        cls, y: ArrayLike, clients: ArrayLike, *, priority: Any = None, ax: Any = None
    ) -> Self:
        """Draw the number of rows of each label at each client: the darker, the more.

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
        table = pd.DataFrame(counts, index=client_index(federation.ids), columns=classes)
        order = np.argsort(~federation.priority, kind="stable")
        return cls(table.iloc[order], federation.priority[order], "rows").plot(ax)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: ArrayLike, clients: ArrayLike, *, ax: Any = None
    ) -> Self:
        """Draw a model's accuracy, or R^2, on the rows of each client.

        Clients without an R^2 have no bar. Of a list of models, such as fits with different seeds,
        a bar is the mean over models, and its error bar is one sample standard deviation (n - 1)
        below and above it.

        Parameters
        ----------
        estimator : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends \
in one, or a list of them
            A fitted model, or several of the same classes, clients and priority clients.
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
        measure, label = ("accuracy", "accuracy") if "accuracy" in scores else ("r2", "R²")
        scores = scores.iloc[np.argsort(~scores["priority"], kind="stable")]
        spread = None
        if is_several(estimator) and len(estimator) > 1:
            label = label_mean(label, len(estimator))
            spread = scores[f"{measure}_std"].to_numpy()
        priority = scores["priority"].to_numpy()
        return cls(scores[[measure]], priority, label, spread=spread).plot(ax)

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
        if self.table.shape[1] == 1:
            self._bars()
        else:
            self._heat_map()
        self._name_clients()
        tidy(self.ax_)
        return self

    def _bars(self) -> None:
        places, heights = np.arange(len(self.table)), self.table.iloc[:, 0]
        groups: list[tuple[np.ndarray, str, str | None]]
        groups = [(self.priority, PRIORITY, "priority"), (~self.priority, FREE, "free")]
        if self.priority.all():
            groups = [(self.priority, FREE, None)]
        for mask, colour, label in groups:
            if mask.any():
                self.ax_.bar(places[mask], heights[mask], color=colour, label=label)
        if self.spread is not None:
            # Caps of many clients would lie on each other.
            size = 3 if are_named(self.table.index.tolist()) else 0
            self.ax_.errorbar(
                places, heights, self.spread, fmt="none", ecolor="black", elinewidth=1, capsize=size
            )
        self.ax_.set_ylabel(self.label)
        legend(self.ax_)

    def _heat_map(self) -> None:
        """Draw a column a client and a row a label; a root keeps small counts visible."""
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm

        values = self.table.to_numpy(dtype=float).T
        image = self.ax_.imshow(
            values,
            aspect="auto",
            cmap=LinearSegmentedColormap.from_list("skfed", SHADES),
            norm=PowerNorm(0.5, vmin=0, vmax=max(values.max(), 1)),
            interpolation="nearest",
        )
        self.figure_.colorbar(image, ax=self.ax_, label=self.label)
        name_clients(self.ax_.yaxis, self.table.columns.tolist(), "labels")
        if not self.priority.all():
            self.ax_.axvline(self.priority.sum() - 0.5, color=PRIORITY)

    def _name_clients(self) -> None:
        names, label, stars = self.table.index.tolist(), "clients", None
        if not self.priority.all():
            label = "clients (* priority)"
            stars = self.priority.tolist()
            if not are_named(names):
                label = f"clients, the {self.priority.sum()} with priority at the left"
        name_clients(self.ax_.xaxis, names, label, stars)
