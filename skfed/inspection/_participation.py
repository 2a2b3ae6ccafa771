"""What each client gave, gained and was worth, as a picture."""

from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from skfed.inspection._axes import are_named, get_axes, legend, place_names
from skfed.inspection._report import bytes_text, participation_report
from skfed.inspection._style import COLOURS, FREE, PRIORITY, tidy
from skfed.utils._checks import check_columns

_SILENT = COLOURS[7]
_HEIGHTS = {
    "worth": "worth: how much its updates improved the model",
    "weight_share": "share of the weight; dashed: equal shares",
}
_MEASURES = {"accuracy": "accuracy", "r2": "R²"}
_LARGEST, _SMALLEST = 200.0, 12.0  # areas of markers in points², of many clients less
# What the corners of the picture mean, at the left and the right.
_ABOVE = "gives, does not gain", "gives and gains"
_BELOW = "neither gives nor gains", "gains, does not give"


class ParticipationDisplay:
    """What each client was worth to the federation, against what it gained by it.

    A marker is a client: the higher, the more it was worth; the further to the right, the more it
    gained; the larger its area, the more bytes were sent to it and by it. Bars are standard errors.
    Free clients that heard a bound and were never chosen are grey. Use :meth:`from_estimator` or
    :meth:`from_report`.

    Parameters
    ----------
    report : DataFrame
        As :func:`~skfed.inspection.participation_report` returns it, with scores. The gain is the
        score of the model less that of the client's own model, or, without the last, the score.
        Without ``worth``, ``weight_share`` is drawn in its place. Clients without a score are left
        out, and the label of the axis says how many.

    Attributes
    ----------
    ax_, figure_
        The matplotlib axes and figure.

    See Also
    --------
    skfed.inspection.participation_report : The table.
    skfed.inspection.SelectionDisplay : How often each client was in the cohort.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.inspection import ParticipationDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> clients = ["a", "b", "c"] * 50
    >>> model = FederatedClassifier(n_rounds=10, random_state=0)
    >>> model = model.fit(X[::2], y[::2], clients=clients[::2])
    >>> display = ParticipationDisplay.from_estimator(
    ...     model, X[::2], y[::2], clients[::2],
    ...     X_test=X[1::2], y_test=y[1::2], clients_test=clients[1::2],
    ... )
    >>> display.ax_.get_xlabel()
    'gain: accuracy, less that of its own model'
    """

    def __init__(self, report: pd.DataFrame):
        self.report = report

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        clients: ArrayLike,
        *,
        X_test: Any = None,
        y_test: ArrayLike | None = None,
        clients_test: ArrayLike | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw the participation of a model's clients.

        Parameters
        ----------
        estimator : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends \
in one
            A fitted model, best with ``contribution=``.
        X, y, clients
            Rows to score on or, with test rows, on which clients train their own models.
        X_test, y_test, clients_test
            Rows held out; see :func:`~skfed.inspection.participation_report`.
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        ParticipationDisplay
            The display.

        Raises
        ------
        TypeError, ValueError
            As :func:`~skfed.inspection.participation_report`.
        """
        test = {"X_test": X_test, "y_test": y_test, "clients_test": clients_test}
        report = participation_report(estimator, X, y, clients, **test)
        return cls.from_report(report, ax=ax)

    @classmethod
    def from_report(cls, report: pd.DataFrame, *, ax: Any = None) -> Self:
        """Draw a report.

        Parameters
        ----------
        report : DataFrame
            As :func:`~skfed.inspection.participation_report` returns it, with scores.
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        ParticipationDisplay
            The display.

        Raises
        ------
        ValueError
            If the report lacks columns that are drawn.
        """
        return cls(report).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        ParticipationDisplay
            This display.

        Raises
        ------
        ValueError
            If the report lacks columns that are drawn.
        """
        gain, x_label = self._gain()
        height = "worth" if "worth" in self.report else "weight_share"
        check_columns(self.report, [height, "bytes_down", "bytes_up", "priority"], "report")
        self.ax_, self.figure_ = get_axes(ax, (6.4, 4.2))
        shown = self.report.assign(gain=gain, height=self.report[height])[gain.notna()]
        if n_left_out := len(self.report) - len(shown):
            x_label += f"\n{n_left_out} of {len(self.report)} clients have none, and are left out"
        sizes = self._markers(shown)
        self._lines(shown)
        self.ax_.set_xlabel(x_label)
        self.ax_.set_ylabel(_HEIGHTS[height])
        self.ax_.margins(0.12, 0.16)
        if not shown["height"].any():  # of none, limits would be those of rounding errors
            self.ax_.set_ylim(-1, 1)
        tidy(self.ax_)
        legend(self.ax_)
        words = self._words(height == "worth")
        if are_named(shown.index.tolist()):
            points = shown[["gain", "height"]].to_numpy(dtype=float)
            radii = (sizes / np.pi) ** 0.5
            place_names(self.ax_, points, radii, shown.index.tolist(), words)
        return self

    def _gain(self) -> tuple[pd.Series, str]:
        """Return what each client gained, and the label of its axis."""
        for measure, name in _MEASURES.items():
            if f"global_{measure}" not in self.report:
                continue
            score = self.report[f"global_{measure}"].astype(float)
            if f"local_{measure}" not in self.report:
                return score, f"{name} of the model on the client's rows"
            gain = score - self.report[f"local_{measure}"].astype(float)
            return gain, f"gain: {name}, less that of its own model"
        raise ValueError(
            "report has no scores: give X, y and clients to participation_report, and X_test, "
            "y_test and clients_test for what each client has gained."
        )

    @property
    def _has_gains(self) -> bool:
        return any(f"local_{measure}" in self.report for measure in _MEASURES)

    def _markers(self, shown: pd.DataFrame) -> np.ndarray:
        """Draw the clients by status, and what their sizes mean; return these."""
        n_bytes = (shown["bytes_down"] + shown["bytes_up"]).to_numpy(dtype=float)
        most = max(n_bytes.max(initial=0.0), 1.0)
        largest = _LARGEST / max(1.0, len(shown) / 80) ** 0.5
        sizes = np.maximum(largest * n_bytes / most, _SMALLEST)
        for mask, colour, label in self._groups(shown):
            own = shown[mask]
            if "worth_error" in own:
                self.ax_.errorbar(
                    *(own["gain"], own["height"], own["worth_error"]),
                    fmt="none", ecolor=(colour, 0.4), elinewidth=1, zorder=1,
                )  # fmt: skip
            self.ax_.scatter(
                *(own["gain"], own["height"], sizes[mask]),
                color=(colour, 0.65), edgecolors="white", linewidths=0.6,
                zorder=3 if colour == PRIORITY else 2,  # there are few
            )  # fmt: skip
            # In the legend markers are of one size.
            self.ax_.scatter([], [], 40, color=(colour, 0.65), label=label)
        for amount, text in _round_bytes(most) if n_bytes.any() else ():
            size = max(largest * amount / most, _SMALLEST)
            self.ax_.scatter([], [], size, color="none", edgecolors="0.3", label=text)
        return sizes

    def _groups(self, shown: pd.DataFrame) -> list[tuple[np.ndarray, str, str]]:
        """Return the clients of each status, as masks, with colours and names."""
        priority = shown["priority"].to_numpy(dtype=bool)
        matched = np.full(len(shown), np.nan)
        if "matched" in shown:
            matched = shown["matched"].to_numpy(dtype=float)
        silent = ~priority & (matched == 0)
        free = ~priority & ~silent
        if self.report["priority"].all():
            return [(priority, FREE, "client")]
        groups = [
            (priority, PRIORITY, "priority"),
            # Without a bound, or before they have heard one, they are not known to match.
            (free, FREE, "free" if np.isnan(matched[free]).any() else "free, matched"),
            (silent, _SILENT, "never matched"),
        ]
        return [group for group in groups if group[0].any()]

    def _lines(self, shown: pd.DataFrame) -> None:
        """Draw where worth and gain are none, or shares are equal."""
        style: dict[str, Any] = {"color": "0.6", "lw": 0.8, "zorder": 0}
        equal = 0.0 if "worth" in shown else 1 / len(self.report)
        self.ax_.axhline(equal, **style, ls="-" if "worth" in shown else "--")
        if self._has_gains:
            self.ax_.axvline(0.0, **style)

    def _words(self, of_worth: bool) -> list[Any]:
        """Write what the corners mean, where zero is within the picture; return the texts."""
        if not (self._has_gains and of_worth):
            return []
        low, high = self.ax_.get_xlim()
        bottom, top = self.ax_.get_ylim()
        places = [
            (0, 1, low < 0 < top, _ABOVE[0]),
            (1, 1, high > 0 and top > 0, _ABOVE[1]),
            (0, 0, low < 0 and bottom < 0, _BELOW[0]),
            (1, 0, high > 0 > bottom, _BELOW[1]),
        ]
        style: dict[str, Any] = {"color": "0.35", "fontsize": 9, "style": "italic"}
        style |= {"bbox": {"color": "white", "alpha": 0.8, "pad": 1}}
        style["transform"] = self.ax_.transAxes
        return [
            self.ax_.text(
                *(0.01 + 0.98 * x, 0.01 + 0.98 * y, words),
                ha="right" if x else "left",
                va="top" if y else "bottom",
                **style,
            )
            for x, y, is_there, words in places
            if is_there
        ]


def _round_bytes(most: float) -> list[tuple[float, str]]:
    """Return two round numbers of bytes, a large one and a fifth of it, as texts."""
    step = 10.0 ** np.floor(np.log10(most))
    large = max(n * step for n in (1, 2, 5) if n * step <= most)
    amounts = sorted({large, max(large / 5, 1.0)})
    return [(amount, f"{bytes_text(amount)} sent") for amount in amounts]
