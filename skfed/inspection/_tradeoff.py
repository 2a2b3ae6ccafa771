"""Scores of a search against a parameter of the selection, such as eps or d."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet
from torch import nn

from skfed.inspection._axes import format_params, get_axes, legend, number_duplicates
from skfed.inspection._scale import ParameterScale
from skfed.inspection._style import COLOURS, STYLES, tidy


class TradeoffDisplay:
    """Mean test scores of a search's candidates against one of their parameters.

    Use :meth:`from_search`.

    Parameters
    ----------
    points : DataFrame
        Columns ``value``, ``score``, ``spread`` and ``series``, one row a candidate. An infinite
        value is drawn at the right. The axis is logarithmic if values span a decade or more and
        their median is closer to the middle that way; zero is then at the left.
    param : str
        The parameter.
    score : str, default="score"
        The name of the score.

    Attributes
    ----------
    ax_, figure_
        The matplotlib axes and figure.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skfed import FederatedClassifier
    >>> from skfed.inspection import TradeoffDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(n_rounds=2, random_state=0)
    >>> grid = {"lr_schedule": [0.001, 0.01, 0.1]}
    >>> search = GridSearchCV(model, grid, cv=2).fit(X, y, clients=y % 2)
    >>> TradeoffDisplay.from_search(search, "lr_schedule").ax_.get_xscale()
    'log'
    """

    def __init__(self, points: pd.DataFrame, param: str, score: str = "score"):
        self.points = points
        self.param = param
        self.score = score

    @classmethod
    def from_search(cls, search: Any, param: str, *, metric: str = "score", ax: Any = None) -> Self:
        """Draw the scores of a fitted search.

        Parameters
        ----------
        search : GridSearchCV, RandomizedSearchCV or another with ``cv_results_``
            A fitted search.
        param : str
            A parameter of the candidates, or its last part: "eps" for "selector__eps". Candidates
            without it, without a number for it, or without a score are left out. There is a curve
            for each combination of the other parameters.
        metric : str, default="score"
            The name of one of several scorers.
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        TradeoffDisplay
            The display.

        Raises
        ------
        ValueError
            If no candidate has the parameter, it is ambiguous, or there is no such metric.
        """
        check_is_fitted(search)
        results = search.cv_results_
        if f"mean_test_{metric}" not in results:
            known = [name[10:] for name in results if name.startswith("mean_test_")]
            raise ValueError(f"metric={metric!r} was not scored; there is {known}.")
        name = _full_name(param, {key for given in results["params"] for key in given})
        series = _series([{k: v for k, v in p.items() if k != name} for p in results["params"]])
        scores, spreads = results[f"mean_test_{metric}"], results[f"std_test_{metric}"]
        rows = [
            (float(given[name]), scores[i], spreads[i], series[i])
            for i, given in enumerate(results["params"])
            if isinstance(given.get(name), int | float | np.number) and np.isfinite(scores[i])
        ]
        if not rows:
            raise ValueError(f"param={param!r} is no number in any candidate that has a score.")
        points = pd.DataFrame(rows, columns=["value", "score", "spread", "series"])
        return cls(points, name, metric).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to draw; None makes a new figure.

        Returns
        -------
        TradeoffDisplay
            This display.
        """
        self.ax_, self.figure_ = get_axes(ax)
        several = self.points["series"].nunique() > 1
        scale = ParameterScale(self.points["value"])
        places = self.points.assign(value=scale.place(self.points["value"]))
        for i, (series, points) in enumerate(places.groupby("series", sort=False)):
            points = points.sort_values("value")
            self.ax_.errorbar(
                points["value"],
                points["score"],
                yerr=points["spread"],
                marker="o",
                capsize=3,
                color=COLOURS[i % len(COLOURS)],
                ls=STYLES[i // len(COLOURS) % len(STYLES)],
                label=series if several else None,
            )
        scale.label(self.ax_)
        self.ax_.set_xlabel(self.param.rpartition("__")[2])
        self.ax_.set_ylabel(f"test {self.score}, mean and deviation over folds")
        tidy(self.ax_)
        if several:
            legend(self.ax_)
        return self


def _series(others: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the combination of other parameters that each candidate has."""
    keys = [(format_params(params), _modules(params)) for params in others]
    distinct = list(dict.fromkeys(keys))
    names = dict(zip(distinct, number_duplicates([words for words, _ in distinct]), strict=True))
    return [names[key] for key in keys]


def _modules(params: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the identities of the modules among parameters, whose texts may be equal."""
    nets = [value for value in params.values() if isinstance(value, NeuralNet)]
    values = [*params.values(), *(net.module for net in nets)]
    return tuple(id(value) for value in values if isinstance(value, nn.Module))


def _full_name(param: str, known: set[str]) -> str:
    found = {name for name in known if name == param or name.endswith(f"__{param}")}
    if len(found) != 1:
        what = "is ambiguous" if found else "is of no candidate"
        raise ValueError(f"param={param!r} {what}; the candidates have {sorted(known)}.")
    return found.pop()
