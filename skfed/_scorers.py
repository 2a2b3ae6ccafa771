"""Scorers that know the client of each row; public in :mod:`skfed.metrics`."""

from collections.abc import Callable, Iterator
from typing import Any

from sklearn.base import is_classifier
from sklearn.metrics import log_loss
from sklearn.utils import check_consistent_length
from sklearn.utils.metadata_routing import MetadataRequest
from sklearn.utils.validation import check_is_fitted

from skfed._estimator import BaseFederated
from skfed._federation import make_federation
from skfed.utils._checks import labels_of, naming

Score = Callable[[Any, BaseFederated, Any, Any, Any], float]


class ClientScorer:
    """A scorer for ``scoring=`` that asks for ``clients`` by itself.

    The model may be a federated estimator, or a Pipeline or a search that ends in one.

    Parameters
    ----------
    name : str
        Its name in :mod:`skfed.metrics`.
    meaning : str
        What it says; the docstring of this one scorer.
    score : callable
        (model, its federated step, X, y, clients) to a number, larger is better.
    """

    def __init__(self, name: str, meaning: str, score: Score):
        self.name = name
        self.__doc__ = meaning
        self._score_of = score

    def __call__(self, estimator: Any, X: Any, y: Any, clients: Any = None) -> float:
        """Return the score of a fitted model.

        Parameters
        ----------
        estimator : object
            A fitted model.
        X : array-like of shape (n_samples, ...)
            Samples.
        y : array-like of shape (n_samples,)
            Their labels.
        clients : array-like of shape (n_samples,)
            The client of each row.

        Returns
        -------
        float
            The score.

        Raises
        ------
        ValueError
            If ``clients`` is missing, it or y does not fit X, or no row belongs to a priority
            client.
        TypeError
            If the model has no federated step, or that is a regressor.
        """
        if clients is None:
            raise ValueError(
                f"{self.name} needs the client of each row: call "
                "sklearn.set_config(enable_metadata_routing=True) and pass clients= to fit (or "
                "params={'clients': ...} to cross_validate). With routing off scikit-learn hands "
                "scorers no metadata; then score by hand: "
                f"{self.name}(model, X, y, clients=...)."
            )
        step = federated_classifier(estimator, self.name)
        return self._score_of(estimator, step, X, y, clients)

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


def federated_classifier(model: Any, name: str) -> BaseFederated:
    """Return the federated step of a model that ``name`` scores; it has to be a classifier."""
    step = federated_step(model)
    if not is_classifier(step):
        raise TypeError(
            f"{name} scores classifiers, and this is a {type(step).__name__}: score it by "
            "its own score(X, y, clients=...), R^2 over the priority clients' rows; in a "
            "search, set_score_request(clients=True) and no scoring."
        )
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


def _of_priority(step: BaseFederated, X: Any, y: Any, clients: Any) -> tuple[Any, Any]:
    X, y, _ = step._scored(X, labels_of(y, "y"), None, clients)
    return X, y


def _priority_accuracy(model, step, X, y, clients):
    X, y = _of_priority(step, X, y, clients)
    return float((model.predict(X) == y).mean())


def _worst_client_accuracy(model, step, X, y, clients):
    predicted, y = model.predict(X), labels_of(y, "y")
    with naming("X", "y"):
        check_consistent_length(predicted, y)
    federation = make_federation(clients, len(y))
    right = predicted == y
    return float(min(right[federation.rows(k)].mean() for k in range(len(federation))))


def _priority_neg_log_loss(model, step, X, y, clients):
    X, y = _of_priority(step, X, y, clients)
    probabilities = model.predict_proba(X)
    with naming("y"):
        return -float(log_loss(y, probabilities, labels=step.classes_))


priority_accuracy = ClientScorer(
    "priority_accuracy",
    "Accuracy over the rows of the priority clients, a scorer for ``scoring=``.",
    _priority_accuracy,
)
worst_client_accuracy = ClientScorer(
    "worst_client_accuracy",
    "The lowest accuracy that any client has on its own rows, a scorer for ``scoring=``.",
    _worst_client_accuracy,
)
priority_neg_log_loss = ClientScorer(
    "priority_neg_log_loss",
    "Minus the mean cross-entropy over the rows of the priority clients, F up to its sign, a "
    "scorer for ``scoring=``.",
    _priority_neg_log_loss,
)
