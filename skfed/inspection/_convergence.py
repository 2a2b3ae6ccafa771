"""Loss or score of a model by round, by bytes sent, or by time, measured or simulated."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from skfed.callbacks._sklearn import monitored_rounds
from skfed.inspection._axes import (
    format_params,
    get_axes,
    label_mean,
    label_rounds,
    legend,
    number_duplicates,
)
from skfed.inspection._curves import (
    average,
    check_columns,
    common_column,
    make_curve,
    position,
    smoothed,
)
from skfed.inspection._style import BAND, COLOURS, STYLES, tidy
from skfed.metrics._scorers import federated_step
from skfed.metrics._several import models_of
from skfed.selection import FedAlignSelector
from skfed.server import selector_of
from skfed.utils._checks import Count
from skfed.utils._sklearn import StrOptions

_X = {
    "round": "round",
    "bytes": "megabytes sent",
    "seconds": "seconds",
    "elapsed": "simulated seconds",
}
_LABELS = {
    "objective": "objective F(w)",
    "train_loss": "training loss of the cohort",
    "val_loss": "validation loss",
    "val_score": "validation score",
    "val_score_worst": "lowest validation score of a client",
}


class ConvergenceDisplay:
    """Curves of a column of ``history_``, or of a score that a search monitored.

    Use :meth:`from_estimator`, :meth:`from_estimators` or :meth:`from_search`.

    Parameters
    ----------
    curves : dict of str to DataFrame, or to list of DataFrame
        By name: columns ``x`` and ``y``, one row a round. Of a list, one table a fit, the mean is
        drawn with a band of one standard deviation.
    x : {"round", "bytes", "seconds", "elapsed"}
        The quantity on the horizontal axis.
    y : str
        The column, or the label, of the vertical axis.
    warmups : dict of str to float, default=None
        Where FedALIGN's warm-up ends, on the horizontal axis.
    smooth : int, default=1
        Values of a curve in its running mean.
    x_label : str, default=None
        Label of the horizontal axis; None names ``x``, and calls "elapsed" simulated.

    Attributes
    ----------
    lines_ : list of matplotlib.lines.Line2D
        The curve of each name.
    bands_ : dict of str to matplotlib.collections.FillBetweenPolyCollection
        The band of each name with several fits.
    ax_, figure_
        The matplotlib axes and figure.

    See Also
    --------
    skfed.inspection.TradeoffDisplay : The scores of a search by a parameter.
    skfed.inspection.SelectionDisplay : How often each client was in the cohort.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.inspection import ConvergenceDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(n_rounds=5).fit(
    ...     X, y, clients=y, X_val=X, y_val=y
    ... )
    >>> ConvergenceDisplay.from_estimator(model).y
    'val_score'

    The mean and the standard deviation over two seeds:

    >>> def fit(seed):
    ...     model = FederatedClassifier(n_rounds=5, random_state=seed)
    ...     return model.fit(X, y, clients=y, X_val=X, y_val=y)
    >>> display = ConvergenceDisplay.from_estimators(
    ...     {"random": [fit(0), fit(1)]}
    ... )
    >>> print(display.ax_.get_ylabel())
    validation score
    mean ± standard deviation of 2 fits
    """

    def __init__(
        self,
        curves: Mapping[str, pd.DataFrame | list[pd.DataFrame]],
        *,
        x: str = "round",
        y: str = "objective",
        warmups: Mapping[str, float] | None = None,
        smooth: int = 1,
        x_label: str | None = None,
    ):
        self.curves = curves
        self.x = x
        self.y = y
        self.warmups = warmups
        self.smooth = smooth
        self.x_label = x_label

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        x: str = "round",
        y: str | None = None,
        smooth: int = 1,
        ax: Any = None,
    ) -> Self:
        """Draw the curve of one model.

        Parameters
        ----------
        estimator : FederatedClassifier or FederatedRegressor
            A fitted model, or a Pipeline or a search that ends in one.
        x : {"round", "bytes", "seconds", "elapsed"}, default="round"
            Rounds, megabytes sent up and down so far, seconds so far on this machine, or the
            federation's seconds so far: simulated with ``devices``, measured over Flower.
        y : str, default=None
            A column of ``history_``. None: "val_score" where there was validation data, else
            "objective" where it was polled, else "train_loss".
        smooth : int, default=1
            Draw the running mean of so many rounds, this one and those before it, among the rounds
            with a value. 1 draws the values.
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        ConvergenceDisplay
            The display.

        Raises
        ------
        TypeError
            If the model has no federated step.
        ValueError
            If there is no such column, or it has no finite value; if ``x`` is "elapsed", and a
            model has no such time; if ``smooth`` is no positive integer.
        """
        name = type(estimator).__name__
        return cls.from_estimators({name: estimator}, x=x, y=y, smooth=smooth, ax=ax)

    @classmethod
    def from_estimators(
        cls,
        estimators: Mapping[str, Any],
        *,
        x: str = "round",
        y: str | None = None,
        smooth: int = 1,
        ax: Any = None,
    ) -> Self:
        """Draw the curves of several models, to compare them.

        Of a list of models, such as fits with different seeds, the line is the mean and the band is
        one sample standard deviation (n - 1) below and above it. By bytes or seconds, each fit
        counts with its value at the same cost, interpolated between its rounds. Where fits end at
        different x, as by early stopping, the mean ends with the shortest fit, and thin lines show
        the rest of the others.

        Parameters
        ----------
        estimators : dict of str to FederatedClassifier or FederatedRegressor, or to lists of them
            Fitted models by name, or Pipelines or searches that end in them.
        x, y, smooth, ax
            As in :meth:`from_estimator`; every model must have ``y``. Each fit is smoothed before
            the mean is taken.

        Returns
        -------
        ConvergenceDisplay
            The display.

        Raises
        ------
        TypeError, ValueError
            As :meth:`from_estimator`; if a list is empty, or its fits have no x in common.
        """
        if not StrOptions(set(_X)).is_satisfied_by(x):
            raise ValueError(f"x must be one of {list(_X)}, got {x!r}.")
        if not isinstance(estimators, Mapping):
            raise TypeError(
                f"estimators must be a dict of fitted models by name, got {estimators!r}."
            )
        steps = {
            name: [federated_step(one) for one in models_of(given, f"estimators[{name!r}]")]
            for name, given in estimators.items()
        }
        histories = {name: [step.history_ for step in fits] for name, fits in steps.items()}
        y = common_column(histories) if y is None else y
        check_columns(histories, x, y)
        curves, warmups = {}, {}
        for name, group in histories.items():
            tables = [make_curve(history, x, y) for history in group]
            curves[name] = tables if len(tables) > 1 else tables[0]
            ends = [_warmup_end(step, x) for step in steps[name]]
            if np.isfinite(ends).all():
                warmups[name] = float(np.mean(ends))
        label = _elapsed_label(steps) if x == "elapsed" else None
        return cls(curves, x=x, y=y, warmups=warmups, smooth=smooth, x_label=label).plot(ax)

    @classmethod
    def from_search(
        cls, search: Any, monitor: Any, *, score: str | None = None, ax: Any = None
    ) -> Self:
        """Draw a monitored score of each candidate of a search by round.

        A search keeps only its best model, so the scores of each round have to be monitored: call
        ``model.set_callbacks(monitor)`` before the search, with scikit-learn's ``ScoringMonitor``
        (experimental), which scores each round on the training rows.

        Parameters
        ----------
        search : GridSearchCV or RandomizedSearchCV
            A fitted search.
        monitor : sklearn.callback.ScoringMonitor
            The monitor of the search; of several searches of this kind, the last is drawn.
        score : str, default=None
            The name of one of several scores; None is the first.
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        ConvergenceDisplay
            One curve a candidate: the mean over folds, at the rounds that were trained in every
            fold. Rounds that were found in ``checkpoint`` are not trained again.

        Raises
        ------
        ValueError
            If the monitor has not seen such a search, has no such score, or saw no round in every
            fold of a candidate.
        """
        check_is_fitted(search)
        rounds, known = monitored_rounds(search, monitor)
        score = known[0] if score is None else score
        if score not in known:
            raise ValueError(f"score={score!r} was not monitored; there is {known}.")
        means = _means_over_folds(rounds, score, search.n_splits_)
        names = number_duplicates(
            [format_params(params) for params in search.cv_results_["params"]]
        )
        curves = {
            name: pd.DataFrame({"x": curve["round"] + 1, "y": curve["mean"]})
            for candidate, name in enumerate(names)
            if len(curve := means[means["candidate"] == candidate])
        }
        return cls(curves, y=f"training {score}, mean over folds").plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        ConvergenceDisplay
            This display.
        """
        if not Count().is_satisfied_by(self.smooth):
            raise ValueError(
                f"smooth={self.smooth!r}: pass the number of rounds of the running mean, an "
                "integer of at least 1."
            )
        self.ax_, self.figure_ = get_axes(ax)
        self.lines_: list[Any] = []
        self.bands_: dict[str, Any] = {}
        for i, name in enumerate(self.curves):
            colour, style = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)]
            self._draw(name, self._fits(name), color=colour, ls=style)
        self._mark_warmups()
        self.ax_.set_xlabel(_X[self.x] if self.x_label is None else self.x_label)
        if self.x == "round":
            label_rounds(self.ax_)
        self.ax_.set_ylabel(self._ylabel())
        tidy(self.ax_)
        if len(self.curves) > 1 or self.warmups:
            legend(self.ax_)
        return self

    def _fits(self, name: str) -> list[pd.DataFrame]:
        """Return the smoothed curve of each fit."""
        given = self.curves[name]
        fits = given if isinstance(given, list) else [given]
        return [smoothed(fit, self.smooth) for fit in fits]

    def _draw(self, name: str, fits: list[pd.DataFrame], **style: Any) -> None:
        """Draw the curve of a name; of several fits the mean, a band, and what is longer."""
        curve = fits[0] if len(fits) == 1 else average(name, fits)
        marker = "o" if len(curve) == 1 else ""  # a line of one round is not visible
        self.lines_ += self.ax_.plot(
            curve["x"], curve["y"], marker=marker, label=name, linewidth=1.5, **style
        )
        if len(fits) == 1:
            return
        low, high = curve["y"] - curve["spread"], curve["y"] + curve["spread"]
        self.bands_[name] = self.ax_.fill_between(
            curve["x"], low, high, color=style["color"], alpha=BAND, linewidth=0
        )
        for fit in fits:
            rest = fit[fit["x"] >= curve["x"].iloc[-1]]
            if len(rest) > 1:
                self.ax_.plot(rest["x"], rest["y"], linewidth=0.6, **style)

    def _ylabel(self) -> str:
        """Say what is drawn, and what the mean and the band are."""
        label = _LABELS.get(self.y, self.y)
        if self.smooth > 1:
            label += f" (mean of {self.smooth} rounds)"
        counts = {len(fits) for fits in self.curves.values() if isinstance(fits, list)} - {1}
        if counts:
            n_fits = " to ".join(str(n) for n in sorted({min(counts), max(counts)}))
            label = label_mean(label, n_fits)
        return label

    def _mark_warmups(self) -> None:
        """Draw a line at the end of each warm-up, and one line for equal ends."""
        warmups = self.warmups or {}
        for end in dict.fromkeys(warmups.values()):
            names = [name for name, other in warmups.items() if other == end]
            label = "end of the warm-up"
            if len(names) < len(self.curves):
                label = f"warm-up ends: {', '.join(names)}"
            colour = self.lines_[[*self.curves].index(names[0])].get_color()
            self.ax_.axvline(end, color=colour if len(names) == 1 else "grey", ls=":", label=label)


def _elapsed_label(steps: Mapping[str, list[Any]]) -> str:
    """Return whether elapsed time was simulated, or measured, as where there are no devices."""
    measured = {step.devices is None for fits in steps.values() for step in fits}
    if len(measured) == 2:
        return "seconds, simulated or measured"
    return "measured seconds" if measured == {True} else "simulated seconds"


def _means_over_folds(rounds: pd.DataFrame, score: str, n_folds: int) -> pd.DataFrame:
    """Return the mean score of each candidate and round that was trained in every fold."""
    means = rounds.groupby(["candidate", "round"])[score].agg(["mean", "size"]).reset_index()
    means = means[means["size"] == n_folds]
    if means.empty:
        raise ValueError(
            f"monitor saw {len(rounds)} rounds of the search's candidates, and none in every fold: "
            "what checkpoint= finds finished on disk is not trained again, and a fit that fails "
            "has no rounds. Search again without checkpoint=, or with an empty directory."
        )
    return means


def _warmup_end(estimator: Any, x: str) -> float:
    """Return where FedALIGN's warm-up ended, or NaN."""
    selector = selector_of(estimator.selector, estimator.priority)
    if not isinstance(selector, FedAlignSelector):
        return np.nan
    ended = selector._warmup_rounds(estimator.n_rounds)
    if not 0 < ended < len(estimator.history_):
        return np.nan
    return position(estimator.history_, x)[ended - 1]
