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

    See Also
    --------
    skfed.inspection.ConvergenceDisplay : Curves of each candidate by round.
    sklearn.model_selection.GridSearchCV : A search whose candidates it shows.

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
            for each combination of the other parameters, named by those that differ.
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
        candidates = results["params"]
        scores, spreads = results[f"mean_test_{metric}"], results[f"std_test_{metric}"]
        shown = [
            i
            for i, given in enumerate(candidates)
            if isinstance(given.get(name), int | float | np.number) and np.isfinite(scores[i])
        ]
        if not shown:
            raise ValueError(f"param={param!r} is no number in any candidate that has a score.")
        points = pd.DataFrame(
            {
                "value": [float(candidates[i][name]) for i in shown],
                "score": scores[shown],
                "spread": spreads[shown],
                "series": _series([_without(candidates[i], name) for i in shown]),
            }
        )
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
        several = self.points["series"].nunique() > 1
        self.ax_, self.figure_ = get_axes(ax, (8.5, 4.0) if several else (6.4, 4.0))
        scale = ParameterScale(self.points["value"])
        places = self.points.assign(value=scale.place(self.points["value"]))
        for i, (series, points) in enumerate(places.groupby("series", sort=False)):
            points = points.sort_values("value")
            colour = COLOURS[i % len(COLOURS)]
            self.ax_.errorbar(
                points["value"],
                points["score"],
                yerr=points["spread"],
                marker="o",
                capsize=3,
                color=colour,
                ecolor=(colour, 0.5),  # so that curves are seen where many bars meet
                ls=STYLES[i // len(COLOURS) % len(STYLES)],
                label=series if several else None,
            )
        scale.label(self.ax_)
        self.ax_.set_xlabel(self.param.rpartition("__")[2])
        self.ax_.set_ylabel(f"test {self.score}\nmean ± standard deviation over folds")
        tidy(self.ax_)
        if several:
            legend(self.ax_)
        return self


def _without(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key != name}


def _series(others: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the combination of other parameters that each candidate has by those that differ."""
    names = dict.fromkeys(name for params in others for name in params)
    varying = [name for name in names if len({_key(params, name) for params in others}) > 1]
    differing = [{k: params[k] for k in varying if k in params} for params in others]
    keys = [tuple(_key(params, name) for name in params) for params in differing]
    texts = dict(zip(keys, map(format_params, differing), strict=True))
    numbered = dict(zip(texts, number_duplicates([*texts.values()]), strict=True))
    return [numbered[key] for key in keys]


def _key(params: Mapping[str, Any], name: str) -> tuple[str, str, int] | None:
    """Return a parameter's name and text, and the identity of a module: texts may be equal."""
    if name not in params:
        return None
    value = params[name]
    module = value.module if isinstance(value, NeuralNet) else value
    return name, format_params({name: value}), id(module) if isinstance(module, nn.Module) else 0


def _full_name(param: str, known: set[str]) -> str:
    found = {name for name in known if name == param or name.endswith(f"__{param}")}
    if len(found) != 1:
        what = "is ambiguous" if found else "is of no candidate"
        raise ValueError(f"param={param!r} {what}; the candidates have {sorted(known)}.")
    return found.pop()
