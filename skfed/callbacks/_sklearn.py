"""scikit-learn's callbacks, told of every round; all that knows their interface, which may change.

Experimental since scikit-learn 1.9: ``model.set_callbacks(ScoringMonitor(scoring="accuracy"))``.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd
from sklearn.callback import CallbackSupportMixin, with_callbacks

__all__ = [
    "CallbackSupportMixin",
    "SklearnCallbacks",
    "monitored_rounds",
    "of_the_fit",
    "with_callbacks",
]

_BEFORE_SCORES = 6  # columns of a monitor's log
_OF_THE_FIT = "_callback_fit_ctx", "_skl_callbacks_to_teardown"


def of_the_fit(estimator: Any) -> dict[str, Any]:
    """Return what scikit-learn keeps on an estimator during fit, to tear its callbacks down."""
    return {name: vars(estimator)[name] for name in _OF_THE_FIT if name in vars(estimator)}


def monitored_rounds(search: Any, monitor: Any) -> tuple[pd.DataFrame, list[str]]:
    """Return each round of each fit of a search's candidates, and the names of its scores.

    The columns are ``candidate`` (its place in ``cv_results_``), ``round`` and the scores. A task's
    path is the search, its first or second part (candidates, refit), the number of the candidate
    and fold, in a Pipeline the step, and the round.
    """
    runs = {log.estimator_name: log for log in monitor.get_logs("all")}  # the last of each kind
    kind = type(search).__name__
    if kind not in runs or "iter" in search.cv_results_:  # successive halving has other paths
        raise ValueError(
            f"search is a {kind}, and monitor has seen runs of {sorted(runs)}: pass a GridSearchCV "
            "or RandomizedSearchCV, and the ScoringMonitor that its model had."
        )
    table = runs[kind].data_as_pandas
    table = table[(table["task_name"] == "round") & (table["task_id_path"].str[1] == 0)]
    # An integer only now: the paths of the refit, left out above, may end before the fit's number.
    fits = table["task_id_path"].str[2].astype(int)
    told = {"candidate": fits // search.n_splits_, "round": table["task_id"]}
    return table.assign(**told), [*table.columns[_BEFORE_SCORES:]]


class SklearnCallbacks:
    """Tells an estimator's callbacks of a fit, whose subtasks are the rounds.

    A round's task id is its number since the model began, also where the fit goes on from earlier
    rounds; scikit-learn's sequential subtasks would begin at 0.

    Parameters
    ----------
    estimator : CallbackSupportMixin
        The estimator that is fitted.
    data : tuple
        X and y, as given to fit.
    rounds : range
        Numbers of the rounds to come.
    fitted : callable
        Returns the attributes that a copy of the estimator needs to predict as of now.
    """

    def __init__(
        self,
        estimator: Any,
        data: tuple[Any, Any],
        rounds: range,
        fitted: Callable[[], dict[str, Any]],
    ):
        self.fit = estimator._init_callback_context(
            max_subtasks=len(rounds), sequential_subtasks=False
        )
        self.rounds = iter(rounds)
        self.told = {"estimator": estimator, "X": data[0], "y": data[1]}
        self.fitted = fitted

    def begin(self) -> None:
        """Start the fit."""
        self.fit.call_on_fit_task_begin(**self.told)

    def begin_round(self) -> None:
        """Start a round."""
        self.round = self.fit.subcontext(task_name="round", task_id=next(self.rounds))
        self.round.call_on_fit_task_begin(**self.told)

    def end_round(self, row: dict[str, Any]) -> bool:
        """Show the callbacks a round; tell whether one of them wants to stop."""
        return self.round.call_on_fit_task_end(**self.told, reconstruction_attributes=self.fitted)

    def end(self) -> None:
        """End the fit."""
        self.fit.call_on_fit_task_end(**self.told, reconstruction_attributes=self.fitted)
