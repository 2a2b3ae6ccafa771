"""The exchanges of one round in time, client by client."""

from typing import Any, Self

import numpy as np
import pandas as pd

from skfed.exchanges import KINDS
from skfed.inspection._axes import get_axes, legend, name_clients
from skfed.inspection._style import COLOURS, SHADES, YELLOW, tidy
from skfed.metrics import client_exchanges
from skfed.metrics._scorers import federated_step
from skfed.utils._ids import canonical

# By what a client did: ``Kind.done`` of each kind, and the other outcomes. The legend's order.
_COLOURS = {
    "sent statistics": COLOURS[7],
    "polled": COLOURS[5],
    "polled, silent": SHADES[1],
    "sent a sketch": COLOURS[4],
    "trained on trial": COLOURS[2],
    "trained": COLOURS[0],
    "uploaded": SHADES[4],
    "evaluated subsets": COLOURS[6],
    "evaluated": YELLOW,
    "late": COLOURS[1],
    "failed": COLOURS[3],
}
_GAPS_UP_TO = 40  # clients; bars of more touch


class TimelineDisplay:
    """A bar for each exchange of a client in one round: what it did, or late or failed.

    A bar ends with the client's reply, that of a late client with the exchange.

    Use :meth:`from_estimator`.

    Parameters
    ----------
    exchanges : DataFrame
        One round of :func:`skfed.metrics.client_exchanges`.
    deadline : float, default=None
        Seconds after which each exchange ended.

    Attributes
    ----------
    ax_, figure_
        The matplotlib axes and figure.

    See Also
    --------
    skfed.inspection.SelectionDisplay : How often each client was in the cohort.
    skfed.inspection.ConvergenceDisplay : Curves by round, bytes or seconds.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.devices import LognormalDevices
    >>> from skfed.inspection import TimelineDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(
    ...     devices=LognormalDevices(100, 1e4, 1e4), random_state=0
    ... )
    >>> display = TimelineDisplay.from_estimator(
    ...     model.fit(X, y, clients=y), round=5
    ... )
    >>> display.ax_.get_xlabel()
    'seconds since round 5 began'
    """

    def __init__(self, exchanges: pd.DataFrame, deadline: float | None = None):
        self.exchanges = exchanges
        self.deadline = deadline

    @classmethod
    def from_estimator(cls, estimator: Any, *, round: int | None = None, ax: Any = None) -> Self:
        """Draw a round of a model, with those that took longest in its last exchange on top.

        Parameters
        ----------
        estimator : FederatedClassifier or FederatedRegressor
            A model that was fitted with devices, or a Pipeline or a search that ends in one.
        round : int, default=None
            A round, from 0. None: the last.
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        TimelineDisplay
            The display.

        Raises
        ------
        TypeError
            If the model has no federated step.
        ValueError
            If there is no such round, the seconds of its exchanges are not known, or it has no
            client.
        """
        step = federated_step(estimator)
        round = step.n_rounds_ - 1 if round is None else round
        exchanges = client_exchanges(step, round)
        if exchanges.empty:
            raise ValueError(f"round={round} asked no client: name another round.")
        return cls(exchanges, step.deadline).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        TimelineDisplay
            This display.
        """
        self.ax_, self.figure_ = get_axes(ax, (7.5, 4.0))
        bars = self._bars()
        names = bars.drop_duplicates("place").sort_values("place")["client"].tolist()
        self._draw_bars(bars, 0.4 if len(names) <= _GAPS_UP_TO else 0.5)
        self._draw_ends(bars)
        self.ax_.set_ylim(len(names) - 0.5, -0.5)
        self.ax_.set_xlim(left=0)
        self.ax_.set_xlabel(f"seconds since round {bars['round'].iloc[0]} began")
        name_clients(self.ax_.yaxis, names, "clients")
        tidy(self.ax_)
        legend(self.ax_)
        return self

    def _bars(self) -> pd.DataFrame:
        """Return a row for each exchange of each client: the client's place, and its bar."""
        bars = self.exchanges.assign(place=pd.factorize(self.exchanges["client"].map(canonical))[0])
        bars = bars.drop_duplicates(["exchange", "place"])  # of copies of a client
        late = bars["outcome"] == "late"
        bars["start"] -= bars["start"].min()
        bars["length"] = bars["seconds"].where(~late, bars["duration"])
        done = bars["kind"].map({name: kind.done for name, kind in KINDS.items()})
        shown = done.where(bars["outcome"] == "answered", bars["outcome"])
        bars["shown"] = shown.replace("silent", "polled, silent")
        longest = [
            bars["length"].where(bars["kind"] == kind).groupby(bars["place"]).max().fillna(-1)
            for kind in KINDS
        ]
        order = np.lexsort([-seconds for seconds in longest])  # the training's last, so first
        bars["place"] = np.argsort(order)[bars["place"]]
        return bars

    def _draw_bars(self, bars: pd.DataFrame, half: float) -> None:
        """Draw a collection of bars for each entry of the legend; mark who did not reply."""
        from matplotlib.collections import PolyCollection

        is_away = bars["outcome"] == "no answer"
        entries = {label: i for i, label in enumerate(_COLOURS)}
        labels = set(map(str, bars["shown"][~is_away]))
        for label in sorted(labels, key=entries.__getitem__):  # raises if one has no colour
            own, colour = bars[bars["shown"] == label], _COLOURS[label]
            left, place = own["start"].to_numpy(), own["place"].to_numpy()
            right, above, below = left + own["length"].to_numpy(), place - half, place + half
            corners = [(left, above), (right, above), (right, below), (left, below)]
            polygons = np.array(corners).transpose(2, 0, 1)
            bar = PolyCollection(list(polygons), facecolor=colour, linewidth=0, label=label)
            self.ax_.add_collection(bar)
        away = bars[is_away]
        if len(away):
            self.ax_.plot(away["start"], away["place"], "kx", ms=4, label="no answer")
        self.ax_.autoscale_view()

    def _draw_ends(self, bars: pd.DataFrame) -> None:
        """Draw the ends of the exchanges, and the deadline where it was reached or nearly."""
        exchanges = bars.groupby("exchange")[["kind", "start", "duration"]].first()
        for i, exchange in exchanges.iterrows():
            start, duration = exchange["start"], exchange["duration"]
            self._line(start + duration, "end of an exchange", color="grey", linestyle="-")
            if self.deadline is None or not KINDS[exchange["kind"]].has_deadline:
                continue
            # A deadline after the end of an exchange would be in the next one.
            if self.deadline <= duration * (1 if i < exchanges.index[-1] else 2):
                self._line(start + self.deadline, "deadline", color="black", linestyle="--")

    def _line(self, x: float, label: str, **style: Any) -> None:
        """Draw a vertical line; the legend has the first of equal labels."""
        known = self.ax_.get_legend_handles_labels()[1]
        self.ax_.axvline(x, linewidth=1, label=None if label in known else label, **style)
