"""scikit-learn's callbacks, told of every round; all that knows their interface, which may change.

Experimental since scikit-learn 1.9: ``model.set_callbacks(ScoringMonitor(scoring="accuracy"))``.
"""

from collections.abc import Callable
from typing import Any

from sklearn.callback import CallbackSupportMixin, with_callbacks

__all__ = ["CallbackSupportMixin", "SklearnCallbacks", "of_the_fit", "with_callbacks"]

_OF_THE_FIT = "_callback_fit_ctx", "_skl_callbacks_to_teardown"


def of_the_fit(estimator: Any) -> dict[str, Any]:
    """Return what scikit-learn keeps on an estimator during fit, to tear its callbacks down."""
    return {name: vars(estimator)[name] for name in _OF_THE_FIT if name in vars(estimator)}


class SklearnCallbacks:
    """Tells an estimator's callbacks of a fit, whose subtasks are the rounds.

    Parameters
    ----------
    estimator : CallbackSupportMixin
        The estimator that is fitted.
    data : tuple
        X and y, as given to fit.
    n_rounds : int
        Rounds to come.
    fitted : callable
        Returns the attributes that a copy of the estimator needs to predict as of now.
    """

    def __init__(
        self,
        estimator: Any,
        data: tuple[Any, Any],
        n_rounds: int,
        fitted: Callable[[], dict[str, Any]],
    ):
        self.fit = estimator._init_callback_context(max_subtasks=n_rounds)
        self.told = {"estimator": estimator, "X": data[0], "y": data[1]}
        self.fitted = fitted

    def begin(self) -> None:
        """Start the fit."""
        self.fit.call_on_fit_task_begin(**self.told)

    def begin_round(self) -> None:
        """Start a round."""
        self.round = self.fit.subcontext(task_name="round")
        self.round.call_on_fit_task_begin(**self.told)

    def end_round(self, row: dict[str, Any]) -> bool:
        """Show the callbacks a round; tell whether one of them wants to stop."""
        return self.round.call_on_fit_task_end(**self.told, reconstruction_attributes=self.fitted)

    def end(self) -> None:
        """End the fit."""
        self.fit.call_on_fit_task_end(**self.told, reconstruction_attributes=self.fitted)
