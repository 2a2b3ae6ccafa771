"""Federated evaluation: clients evaluate the global model on rows that they keep aside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.metrics import (
    brier_score_loss,
    f1_score,
    jaccard_score,
    log_loss,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_gamma_deviance,
    mean_poisson_deviance,
    mean_squared_error,
    mean_squared_log_error,
    precision_score,
    recall_score,
    top_k_accuracy_score,
)
from skorch import NeuralNet

from skfed._problem import Classification, Problem, Regression
from skfed.nets import predictions, probabilities
from skfed.selection._poll_metrics import PollMetric
from skfed.utils._checks import Count, check_params

__all__ = ["FederatedEvaluation"]

#: scikit-learn's losses and scores that are a mean over rows, by the names of their scorers: of
#: probabilities of classes, of an indicator of labels, and of numbers.
_OF_PROBABILITIES: Mapping[str, Callable] = {
    "neg_log_loss": log_loss,
    "neg_brier_score": brier_score_loss,
    "top_k_accuracy": top_k_accuracy_score,
}
_OF_LABELS: Mapping[str, Callable] = {
    f"{name}_samples": partial(score, average="samples", zero_division=0.0)
    for name, score in {
        "precision": precision_score,
        "recall": recall_score,
        "f1": f1_score,
        "jaccard": jaccard_score,
    }.items()
}
_OF_NUMBERS: Mapping[str, Callable] = {
    "neg_mean_absolute_error": mean_absolute_error,
    "neg_mean_squared_error": mean_squared_error,
    "neg_mean_squared_log_error": mean_squared_log_error,
    "neg_mean_absolute_percentage_error": mean_absolute_percentage_error,
    "neg_mean_poisson_deviance": mean_poisson_deviance,
    "neg_mean_gamma_deviance": mean_gamma_deviance,
}


class FederatedEvaluation(BaseEstimator):
    """Which metrics clients evaluate the global model by, on rows that they keep aside.

    After every ``validate_every`` rounds, and after the last that is planned, the server sends the
    new model to each client in reach that has such rows, and each answers with a number for each
    metric. The rows are ``X_val`` by ``clients_val`` of ``fit`` and, over Flower, what
    ``load_data`` returns after X and y. The numbers are in ``history_``, and those of each client
    in :func:`skfed.metrics.client_evaluations`. All of it is charged.

    Parameters
    ----------
    metrics : list or tuple of str, default=None
        "loss", the net's own, and names of scikit-learn's scorers that are a mean over rows: of
        classes "accuracy", "neg_log_loss", "neg_brier_score" and, of more than two,
        "top_k_accuracy" with k = 2; of several labels "accuracy", that of whole rows,
        "precision_samples", "recall_samples", "f1_samples" and "jaccard_samples", 0 of a row where
        they are not defined; of numbers "neg_mean_absolute_error", "neg_mean_squared_error",
        "neg_mean_squared_log_error", "neg_mean_absolute_percentage_error",
        "neg_mean_poisson_deviance" and "neg_mean_gamma_deviance", in units of y. None: the loss
        and, of classes, the accuracy.
    min_answers : int, default=1
        With fewer answers in a round, nothing of them is kept but their number.

    Notes
    -----
    With n_k rows kept aside by client k, ``eval_<metric>`` is the sum of n_k times its value over
    the sum of n_k, and so the metric of all their rows; ``eval_<metric>_priority`` is that of the
    priority clients, by the weights s_k n_k; ``eval_<metric>_worst`` is the worst of a client's,
    the highest loss or the lowest score. Rows have no weights here, not even by ``class_weight``.
    A metric that is no mean over rows, such as R^2 or the area under the ROC curve, is not known
    from those of clients, and is an error.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.evaluation import FederatedEvaluation
    >>> X, y = load_iris(return_X_y=True)
    >>> sites = ["a", "b"] * 75
    >>> evaluation = FederatedEvaluation(["accuracy"])
    >>> model = FederatedClassifier(
    ...     evaluation=evaluation, n_rounds=5, random_state=0
    ... ).fit(X, y, clients=sites, X_val=X, y_val=y, clients_val=sites)
    >>> bool(model.history_["eval_accuracy"].iloc[-1] > 0.7)
    True
    """

    _parameter_constraints: dict = {
        "metrics": [list, tuple, None],
        "min_answers": [Count()],
    }

    def __init__(self, metrics=None, *, min_answers=1):
        self.metrics = metrics
        self.min_answers = min_answers

    def names(self, problem: Problem) -> tuple[str, ...]:
        """Return the names of the metrics, checked for a problem.

        Parameters
        ----------
        problem : Problem
            Of the estimator.

        Raises
        ------
        ValueError
            If a parameter is out of range, or a metric is unknown, or another problem's.
        """
        check_params(self)
        usual = _usual(problem)
        known = *usual, *_of_scikit_learn(problem)
        names = usual if self.metrics is None else tuple(self.metrics)
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"evaluation__metrics={self.metrics!r} must be a list of names, each once."
            )
        for name in names:
            if name not in known:
                raise ValueError(
                    f"evaluation__metrics has {name!r}, which is not known from those of clients, "
                    f"or not for this y: use some of {', '.join(known)}."
                )
        return names


def _usual(problem: Problem) -> tuple[str, ...]:
    return ("loss", "accuracy") if isinstance(problem, Classification) else ("loss",)


def _of_scikit_learn(problem: Problem) -> Mapping[str, Callable]:
    """Return scikit-learn's losses and scores of what a problem's nets predict."""
    if problem.has_labels:
        return _OF_LABELS
    if not isinstance(problem, Classification):
        return _OF_NUMBERS
    trivial = {"top_k_accuracy"} if len(problem.classes) < 3 else set()
    return {name: one for name, one in _OF_PROBABILITIES.items() if name not in trivial}


@dataclass(frozen=True)
class Metric:
    """A metric that clients evaluate."""

    name: str
    evaluated: str | PollMetric  # what engines evaluate: the metric, or the loss of a score
    best: float | None = None  # of a score, which is this less the loss; None: the metric is a loss

    @classmethod
    def of(cls, name: str, problem: Problem) -> "Metric":
        """Return the metric of one of ``FederatedEvaluation.names``."""
        if name == "loss":
            return cls(name, "loss")
        if name == "accuracy":
            return cls(name, "error", best=1.0)
        best = 0.0 if name.startswith("neg_") else 1.0
        function = _of_scikit_learn(problem)[name]
        return cls(name, PollMetric(partial(_loss_of, function, best, problem)), best)

    def of_evaluated(self, values: np.ndarray) -> np.ndarray:
        """Return the metric, given what engines have evaluated."""
        return values if self.best is None else self.best - values

    def worst(self, values: np.ndarray) -> float:
        """Return the worst of some values."""
        return float(values.max() if self.best is None else values.min())


def _loss_of(
    function: Callable,
    best: float,
    problem: Problem,
    net: NeuralNet,
    X: Any,
    y: np.ndarray,
    weights: torch.Tensor | None,
) -> float:
    """Return a loss, or ``best`` less a score, of rows without weights (a ``PollMetric``)."""
    value = float(_value_of(function, problem, net, X, y))
    return best - value if best else value


def _value_of(function: Callable, problem: Problem, net: NeuralNet, X: Any, y: np.ndarray) -> float:
    """Return a loss or score of scikit-learn's."""
    if isinstance(problem, Regression):
        predicted = predictions(net, X).astype(float).reshape(len(X), -1)
        return function(problem.in_units(y.reshape(len(y), -1)), problem.in_units(predicted))
    if problem.has_labels:
        return function(y.astype(int), predictions(net, X, labels=True))
    found = probabilities(net, X)
    # Named, as clients may lack labels.
    return function(y.reshape(len(y)).astype(int), found, labels=np.arange(found.shape[1]))
