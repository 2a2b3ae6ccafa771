"""Loss or score of a model by round, by bytes sent, or by time, measured or simulated."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from skfed.callbacks._sklearn import monitored_rounds
from skfed.inspection._axes import (
    COLOURS,
    STYLES,
    format_params,
    get_axes,
    label_rounds,
    legend,
    number_duplicates,
    tidy,
)
from skfed.metrics._scorers import federated_step
from skfed.selection import FedAlignSelector
from skfed.server._config import selector_of
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
}


class ConvergenceDisplay:
    """Curves of a column of ``history_``, or of a score that a search monitored.

    Use :meth:`from_estimator`, :meth:`from_estimators` or :meth:`from_search`.

    Parameters
    ----------
    curves : dict of str to DataFrame
        By name: columns ``x`` and ``y``, one row a round.
    x : {"round", "bytes", "seconds", "elapsed"}
        The quantity on the horizontal axis.
    y : str
        The column, or the label, of the vertical axis.
    warmups : dict of str to float, default=None
        Where FedALIGN's warm-up ends, on the horizontal axis.

    Attributes
    ----------
    lines_ : list of matplotlib.lines.Line2D
        The curves.
    ax_, figure_
        The matplotlib axes and figure.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.inspection import ConvergenceDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(n_rounds=5).fit(X, y, clients=y, X_val=X, y_val=y)
    >>> ConvergenceDisplay.from_estimator(model).y
    'val_score'
    """

    def __init__(
        self,
        curves: Mapping[str, pd.DataFrame],
        *,
        x: str = "round",
        y: str = "objective",
        warmups: Mapping[str, float] | None = None,
    ):
        self.curves = curves
        self.x = x
        self.y = y
        self.warmups = warmups

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, x: str = "round", y: str | None = None, ax: Any = None
    ) -> Self:
        """Draw the curve of one model.

        Parameters
        ----------
        estimator : FederatedClassifier or FederatedRegressor
            A fitted model, or a Pipeline or a search that ends in one.
        x : {"round", "bytes", "seconds", "elapsed"}, default="round"
            Rounds, megabytes sent up and down so far, seconds so far on this machine, or simulated
            seconds so far, of a model with ``devices``.
        y : str, default=None
            A column of ``history_``. None: "val_score" where there was validation data, else
            "objective" where it was polled, else "train_loss".
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
            model has no devices.
        """
        return cls.from_estimators({type(estimator).__name__: estimator}, x=x, y=y, ax=ax)

    @classmethod
    def from_estimators(
        cls,
        estimators: Mapping[str, Any],
        *,
        x: str = "round",
        y: str | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw the curves of several models, to compare them.

        Parameters
        ----------
        estimators : dict of str to FederatedClassifier or FederatedRegressor
            Fitted models by name, or Pipelines or searches that end in them.
        x, y, ax
            As in :meth:`from_estimator`; every model must have ``y``.

        Returns
        -------
        ConvergenceDisplay
            The display.

        Raises
        ------
        TypeError, ValueError
            As :meth:`from_estimator`.
        """
        if not StrOptions(set(_X)).is_satisfied_by(x):
            raise ValueError(f"x must be one of {list(_X)}, got {x!r}.")
        if not isinstance(estimators, Mapping):
            raise TypeError(
                f"estimators must be a dict of fitted models by name, got {estimators!r}."
            )
        steps = {name: federated_step(estimator) for name, estimator in estimators.items()}
        histories = {name: step.history_ for name, step in steps.items()}
        y = _common_column(histories) if y is None else y
        curves, warmups = {}, {}
        for name, history in histories.items():
            _check_column(name, history, y)
            if x == "elapsed" and x not in history:
                raise ValueError(
                    f"x='elapsed' is simulated time, which {name!r} has none of: fit it with "
                    "devices of skfed.devices, or draw by another x."
                )
            position = _position(history, x)
            curve = pd.DataFrame({"x": position, "y": history[y]})
            curves[name] = curve[np.isfinite(curve["y"].astype(float))]
            ended = _warmup_rounds(steps[name])
            if 0 < ended < len(history):
                warmups[name] = position[ended - 1]
        return cls(curves, x=x, y=y, warmups=warmups).plot(ax)

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
        self.ax_, self.figure_ = get_axes(ax)
        self.lines_ = []
        for i, (name, curve) in enumerate(self.curves.items()):
            self.lines_ += self.ax_.plot(
                curve["x"],
                curve["y"],
                color=COLOURS[i % len(COLOURS)],
                ls=STYLES[i // len(COLOURS) % len(STYLES)],
                marker="o" if len(curve) == 1 else "",  # a line of one round is not visible
                label=name,
                linewidth=1.5,
            )
        self._mark_warmups()
        self.ax_.set_xlabel(_X[self.x])
        if self.x == "round":
            label_rounds(self.ax_)
        self.ax_.set_ylabel(_LABELS.get(self.y, self.y))
        tidy(self.ax_)
        if len(self.curves) > 1 or self.warmups:
            legend(self.ax_)
        return self

    def _mark_warmups(self) -> None:
        """Draw a line at the end of each warm-up, and one line for equal ends."""
        warmups = self.warmups or {}
        for end in dict.fromkeys(warmups.values()):
            names = [name for name, other in warmups.items() if other == end]
            label = "end of the warm-up"
            if len(self.curves) > 1:
                label = f"warm-up ends: {', '.join(names)}"
            colour = self.lines_[[*self.curves].index(names[0])].get_color()
            self.ax_.axvline(end, color=colour if len(names) == 1 else "grey", ls=":", label=label)


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


def _common_column(histories: Mapping[str, pd.DataFrame]) -> str:
    for name in ("val_score", "objective", "train_loss"):
        if all(name in h and np.isfinite(h[name]).any() for h in histories.values()):
            return name
    raise ValueError("history_ holds no score or loss that is finite: name a column with y=.")


def _check_column(name: str, history: pd.DataFrame, y: Any) -> None:
    numbers = [c for c in history.select_dtypes("number") if np.isfinite(history[c]).any()]
    if not isinstance(y, str) or y not in numbers:
        hint = " It takes X_val and y_val in fit." if str(y).startswith("val_") else ""
        raise ValueError(f"y={y!r} is not in the history_ of {name!r}.{hint} It has {numbers}.")


def _position(history: pd.DataFrame, x: str) -> np.ndarray:
    if x == "round":
        return history["round"].to_numpy() + 1
    if x == "bytes":
        return (history["bytes_down"] + history["bytes_up"]).cumsum().to_numpy() / 1e6
    if x == "elapsed":
        return history["elapsed"].to_numpy()
    return history["round_seconds"].cumsum().to_numpy()


def _warmup_rounds(estimator: Any) -> int:
    selector = selector_of(vars(estimator))
    if not isinstance(selector, FedAlignSelector):
        return 0
    return selector._warmup_rounds(estimator.n_rounds)
