"""Scorers that know the client of each row; public in :mod:`skfed.metrics`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.metrics import log_loss, r2_score
from sklearn.utils import check_consistent_length
from sklearn.utils.metadata_routing import MetadataRequest
from sklearn.utils.validation import check_is_fitted

from skfed._estimator import BaseFederated
from skfed._federation import make_federation, rows_of
from skfed.utils._checks import labels_of, naming, numbers
from skfed.utils._sklearn import safe_indexing

Score = Callable[["ClientScorer", Any, BaseFederated, Any, Any, Any], float]


class ClientScorer:
    """A scorer for ``scoring=`` that asks for ``clients`` by itself.

    The model may be a federated estimator, or a Pipeline or a search that ends in one.

    Parameters
    ----------
    who : {"priority", "free", "mean_client", "worst_client"}
        Whose rows count, and how.
    measure : {"accuracy", "r2", "neg_log_loss"}
        What is measured; R^2 of regressors, the others of classifiers.
    meaning : str
        What it says; the docstring of this one scorer.
    score : callable
        (scorer, model, its federated step, X, y, clients) to a number, larger is better.
    """

    def __init__(self, who: str, measure: str, meaning: str, score: Score):
        self.name = f"{who}_{measure}"
        self.__doc__ = meaning
        self.who, self.measure, self._score_of = who, measure, score

    def __call__(self, estimator: Any, X: Any, y: Any, clients: Any = None) -> float:
        """Return the score of a fitted model.

        Parameters
        ----------
        estimator : object
            A fitted model.
        X : array-like of shape (n_samples, ...)
            Samples.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Their labels or targets.
        clients : array-like of shape (n_samples,)
            The client of each row.

        Returns
        -------
        float
            The score.

        Raises
        ------
        ValueError
            If ``clients`` is missing, it or y does not fit X, or no row belongs to a client that
            counts; the message says which scorer to use instead.
        TypeError
            If the model has no federated step, or a classifier where R^2 is measured, or a
            regressor where it is not.
        """
        if clients is None:
            raise ValueError(
                f"{self.name} needs the client of each row: call "
                "sklearn.set_config(enable_metadata_routing=True) and pass clients= to fit (or "
                "params={'clients': ...} to cross_validate). With routing off scikit-learn hands "
                "scorers no metadata; then score by hand: "
                f"{self.name}(model, X, y, clients=...)."
            )
        step = federated_step(estimator)
        if is_classifier(step) == (self.measure == "r2"):
            scored = "regressors" if self.measure == "r2" else "classifiers"
            raise TypeError(
                f"{self.name} scores {scored}, and this is a {type(step).__name__}: use "
                f"{self.who}_{measure_of(step)}."
            )
        return self._score_of(self, estimator, step, X, y, clients)

    def get_metadata_routing(self) -> MetadataRequest:
        """Return the request for ``clients``.

        Returns
        -------
        MetadataRequest
            As scikit-learn's metadata routing asks for it.
        """
        request = MetadataRequest(owner=self)
        request.score.add_request(param="clients", alias=True)
        return request

    def __repr__(self) -> str:
        return f"skfed.metrics.{self.name}"

    def __reduce__(self) -> str:
        return self.name  # the one object of this name


def federated_step(model: Any) -> BaseFederated:
    """Return the fitted federated estimator in a Pipeline, a search, or nested ones."""
    *_, step = _nested(model)
    check_is_fitted(step)
    return step


def as_step_sees(model: Any, X: Any) -> Any:
    """Return X as the earlier steps of a model's Pipelines hand it to the federated one."""
    for one in _nested(model):
        if len(getattr(one, "steps", ())) > 1:
            X = one[:-1].transform(X)
    return X


def _nested(model: Any) -> Iterator[Any]:
    """Yield a model, what it wraps, and so on down to the federated step."""
    step = model
    yield step
    while not isinstance(step, BaseFederated):
        if hasattr(step, "steps"):
            step = step.steps[-1][1]
        elif hasattr(step, "best_estimator_"):
            step = step.best_estimator_
        elif hasattr(step, "estimator_"):
            step = step.estimator_
        else:
            raise TypeError(
                f"{model!r} has no federated step: pass a fitted FederatedClassifier or "
                "FederatedRegressor, or a fitted Pipeline or search that ends in one."
            )
        yield step


def measure_of(step: BaseFederated) -> str:
    """Return what a federated step is measured by."""
    return "accuracy" if is_classifier(step) else "r2"


def measured(true: np.ndarray, predicted: np.ndarray, by: str) -> float:
    """Return the accuracy, or scikit-learn's R^2: NaN of less than two different rows."""
    if by == "accuracy":
        return float((predicted == true).mean())
    return float(r2_score(true, predicted)) if (true != true[0]).any() else float("nan")


def targets_of(step: BaseFederated, y: Any) -> np.ndarray:
    """Return labels of a classifier, finite targets in the shape of fit of a regressor."""
    if is_classifier(step):
        return labels_of(y, "y")
    targets = numbers(y, "y")
    with naming("y"):
        step._problem.encode(targets)  # checks their shape
    return targets


def _counted(
    scorer: ClientScorer, step: BaseFederated, X: Any, y: Any, clients: Any
) -> tuple[Any, np.ndarray]:
    """Return the rows of the clients that a scorer counts, those with or without priority."""
    y = targets_of(step, y)
    with naming("X", "y"):
        check_consistent_length(X, y)
    mask = rows_of(clients, len(y), step.clients_, step.priority_)
    rows = np.flatnonzero(mask if scorer.who == "priority" else ~mask)
    if not len(rows):
        left_out = ", as where LeaveClientsOut holds out the others" * (scorer.who == "priority")
        other, by = "free" if scorer.who == "priority" else "priority", measure_of(step)
        raise ValueError(
            f"{scorer.name}: clients has no row of a {scorer.who} client{left_out}: use "
            f"{other}_{by} or mean_client_{by}."
        )
    with naming("X"):
        return safe_indexing(X, rows), y[rows]


def _of_rows(scorer, model, step, X, y, clients):
    """Measure all rows that count together."""
    X, y = _counted(scorer, step, X, y, clients)
    score = measured(y, model.predict(X), scorer.measure)
    return float(_defined(scorer, [score])[0])


def _of_clients(scorer, model, step, X, y, clients):
    """Measure client by client."""
    y, predicted = targets_of(step, y), model.predict(X)
    with naming("X", "y"):
        check_consistent_length(predicted, y)
    federation = make_federation(clients, len(y))
    rows = [federation.rows(k) for k in range(len(federation))]
    scores = _defined(scorer, [measured(y[own], predicted[own], scorer.measure) for own in rows])
    return float(scores.mean() if scorer.who == "mean_client" else scores.min())


def _defined(scorer: ClientScorer, scores: list[float]) -> np.ndarray:
    """Return the scores that are defined; at least one."""
    defined = np.array(scores)[~np.isnan(scores)]
    if not len(defined):
        raise ValueError(
            f"{scorer.name} compares with the mean of y, which takes two rows of different y, and "
            "no client that counts has them: pass more rows."
        )
    return defined


def _neg_log_loss(scorer, model, step, X, y, clients):
    X, y = _counted(scorer, step, X, y, clients)
    probabilities = model.predict_proba(X)
    with naming("y"):
        return -float(log_loss(y, probabilities, labels=step.classes_))


_LEFT_OUT = (
    " Each client counts alike; those with fewer than two rows, or all of whose targets are equal, "
    "have no R^2 and are left out."
)

priority_accuracy = ClientScorer(
    "priority",
    "accuracy",
    "Accuracy over the rows of the priority clients, a scorer for ``scoring=``.",
    _of_rows,
)
free_accuracy = ClientScorer(
    "free",
    "accuracy",
    "Accuracy over the rows of the clients without priority, those that the model has not seen "
    "among them, a scorer for ``scoring=``.",
    _of_rows,
)
mean_client_accuracy = ClientScorer(
    "mean_client",
    "accuracy",
    "The mean over clients of the accuracy that each has on its own rows, a scorer for "
    "``scoring=``. Each client counts alike.",
    _of_clients,
)
worst_client_accuracy = ClientScorer(
    "worst_client",
    "accuracy",
    "The lowest accuracy that any client has on its own rows, a scorer for ``scoring=``.",
    _of_clients,
)
priority_neg_log_loss = ClientScorer(
    "priority",
    "neg_log_loss",
    "Minus the mean cross-entropy over the rows of the priority clients, F up to its sign, a "
    "scorer for ``scoring=``.",
    _neg_log_loss,
)
priority_r2 = ClientScorer(
    "priority",
    "r2",
    "R^2 over the rows of the priority clients, a scorer for ``scoring=``.",
    _of_rows,
)
free_r2 = ClientScorer(
    "free",
    "r2",
    "R^2 over the rows of the clients without priority, those that the model has not seen among "
    "them, a scorer for ``scoring=``.",
    _of_rows,
)
mean_client_r2 = ClientScorer(
    "mean_client",
    "r2",
    "The mean over clients of the R^2 that each has on its own rows, a scorer for ``scoring=``."
    + _LEFT_OUT,
    _of_clients,
)
worst_client_r2 = ClientScorer(
    "worst_client",
    "r2",
    "The lowest R^2 that any client has on its own rows, a scorer for ``scoring=``." + _LEFT_OUT,
    _of_clients,
)
