"""Adapter to scikit-learn's callbacks, which are called once a round.

They are experimental since scikit-learn 1.9, and only this file depends on their interface:
``model.set_callbacks(ScoringMonitor(scoring="accuracy"))``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pandas as pd
from sklearn.callback import CallbackContext, CallbackSupportMixin, FitCallback, with_callbacks
from skorch.callbacks import Callback

__all__ = [
    "CallbackMixin",
    "IdleFitCallback",
    "SklearnCallbacks",
    "as_one_task",
    "callback_attributes",
    "callbacks_of",
    "check_callbacks_of_net",
    "monitored_rounds",
    "with_callbacks",
]

_N_TASK_COLUMNS = 6  # columns of a monitor's log before the scores
_ATTRIBUTES = "_callback_fit_ctx", "_skl_callbacks_to_teardown"


class CallbackMixin(CallbackSupportMixin):
    """Mixin of estimators that take callbacks, whose errors say where a callback belongs."""

    def set_callbacks(self, *callbacks):
        """Set the callbacks of the following fits, in place of those that were set before.

        Parameters
        ----------
        *callbacks : RoundCallback or callback of scikit-learn
            Instances, in the order in which they are called; none: no callbacks. Those of skorch
            belong to the net.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        TypeError
            If one is not an instance of such a callback.
        """
        for callback in callbacks:
            if isinstance(callback, type) or not isinstance(callback, FitCallback):
                raise TypeError(_refusal(callback))
        return super().set_callbacks(*callbacks)


def _refusal(callback: Any) -> str:
    """Return why ``set_callbacks`` refuses an object, and the way out."""
    name = _class_of(callback).__name__
    if issubclass(_class_of(callback), Callback):
        return (
            f"set_callbacks got {name}, which is a callback of skorch: give it to the net, "
            "estimator=NeuralNetClassifier(..., callbacks=[...]), or NeuralNetRegressor."
        )
    if isinstance(callback, type):
        return f"set_callbacks got the class {name}: pass an instance of it."
    return (
        f"set_callbacks got a {name}: pass instances of subclasses of "
        "skfed.callbacks.RoundCallback or of scikit-learn's callbacks, each as an argument."
    )


def check_callbacks_of_net(callbacks: Any) -> None:
    """Refuse callbacks of federated estimators in a net's parameter ``callbacks``."""
    for item in callbacks if isinstance(callbacks, list) else [callbacks]:
        callback = item[1] if isinstance(item, tuple) and len(item) == 2 else item
        kind = _class_of(callback)
        if isinstance(callback, FitCallback) and not issubclass(kind, Callback):  # classes too
            name = kind.__name__
            raise TypeError(
                f"estimator's callbacks have {name}, which is not a callback of skorch: take it "
                f"out of the net, and call set_callbacks({name}(...)) of the federated estimator."
            )


def _class_of(callback: Any) -> type:
    return callback if isinstance(callback, type) else type(callback)


class IdleFitCallback:
    """A callback that ``set_callbacks`` takes, and that does nothing.

    Its hooks do not ask for ``fitted_estimator``, which would cost a copy of the model a round.
    """

    def setup(self, estimator: Any, context: CallbackContext) -> None:
        """Do nothing."""

    def teardown(self, estimator: Any, context: CallbackContext) -> None:
        """Do nothing."""

    def on_fit_task_begin(self, estimator: Any, context: CallbackContext) -> None:
        """Do nothing."""

    def on_fit_task_end(self, estimator: Any, context: CallbackContext) -> None:
        """Do nothing."""


def callbacks_of(estimator: Any) -> list[Any]:
    """Return what was given to an estimator's ``set_callbacks``."""
    return getattr(estimator, "_skl_callbacks", [])


def callback_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of an estimator's attributes that scikit-learn needs to tear callbacks down."""
    return {name: attributes[name] for name in _ATTRIBUTES if name in attributes}


@contextmanager
def as_one_task(estimator: Any, X: Any, y: Any) -> Iterator[None]:
    """Context manager that calls an estimator's callbacks before and after a fit without rounds."""
    context = estimator._init_callback_context()
    task = {"estimator": estimator, "X": X, "y": y}
    context.call_on_fit_task_begin(**task)
    yield
    context.call_on_fit_task_end(**task, reconstruction_attributes={})


def monitored_rounds(search: Any, monitor: Any) -> tuple[pd.DataFrame, list[str]]:
    """Return each round of each fit of a search's candidates, and the names of the scores.

    The columns are ``candidate`` (its index in ``cv_results_``), ``round`` and the scores. A task's
    path is: the search, its part (0: candidates, 1: refit), the number of the candidate and fold,
    the step of a Pipeline if any, and the round.
    """
    logs = {log.estimator_name: log for log in monitor.get_logs("all")}  # the last of each class
    name = type(search).__name__
    if name not in logs or "iter" in search.cv_results_:  # successive halving has other paths
        raise ValueError(
            f"search is a {name}, but monitor was called by {sorted(logs)}: pass a GridSearchCV or "
            "RandomizedSearchCV, and the ScoringMonitor of its estimator."
        )
    table = logs[name].data_as_pandas
    table = table[(table["task_name"] == "round") & (table["task_id_path"].str[1] == 0)]
    # The paths of the refit, dropped above, may be too short for the conversion.
    fits = table["task_id_path"].str[2].astype(int)
    scores = [*table.columns[_N_TASK_COLUMNS:]]
    return table.assign(candidate=fits // search.n_splits_, round=table["task_id"]), scores


class SklearnCallbacks:
    """Calls an estimator's callbacks in a fit, whose subtasks are the rounds.

    The task id of a round is its index since the model's first round, also in a warm start.
    scikit-learn's sequential subtasks would begin at 0.
    """

    def __init__(
        self,
        context: CallbackContext,  # of the fit, without sequential subtasks
        task: dict[str, Any],  # arguments of each call: estimator, X and y
        rounds: range,
        fitted_attributes: Callable[[], dict[str, Any]],  # to predict with the current model
    ):
        self.context, self.task, self.rounds = context, task, iter(rounds)
        self.fitted_attributes = fitted_attributes

    def begin(self) -> None:
        """Begin the fit."""
        self.context.call_on_fit_task_begin(**self.task)

    def begin_round(self) -> None:
        """Begin a round."""
        self.round = self.context.subcontext(task_name="round", task_id=next(self.rounds))
        self.round.call_on_fit_task_begin(**self.task)

    def end_round(self, row: dict[str, Any]) -> bool:
        """End a round; return whether a callback stops the fit."""
        return self._end(self.round)

    def end(self) -> None:
        """End the fit."""
        self._end(self.context)

    def _end(self, context: CallbackContext) -> bool:
        return context.call_on_fit_task_end(
            **self.task, reconstruction_attributes=self.fitted_attributes
        )
