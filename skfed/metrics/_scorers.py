"""Scorers by client; public in :mod:`skfed.metrics`."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss, r2_score
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.utils import check_consistent_length
from sklearn.utils.metadata_routing import MetadataRequest
from sklearn.utils.validation import check_is_fitted

from skfed._dict_input import sliceable
from skfed._estimator import BaseFederated
from skfed._federation import array_of_ids, make_federation, rows_of
from skfed._labels import Labels
from skfed.nets import wrong_rows
from skfed.pipeline import transform_by_clients
from skfed.utils._checks import labels_of, naming, numbers
from skfed.utils._ids import canonical, native
from skfed.utils._routing import takes_clients_in
from skfed.utils._sklearn import safe_indexing

_OVER_CLIENTS = "mean_client", "worst_client"
_BY_TARGET = MultiOutputRegressor, RegressorChain

Score = Callable[["ClientScorer", Any, BaseFederated, Any, Any, Any], float]


class ClientScorer:
    """A scorer for ``scoring=`` that requests ``clients`` as metadata.

    The model may be a federated estimator, or a Pipeline or a search that ends in one. ``score``
    maps (scorer, model, its federated step, X, y, clients) to a number; larger is better.
    """

    def __init__(self, group: str, measure: str, score: Score, meaning: str):
        self.name = f"{group}_{measure}"
        self.__doc__ = f"{meaning}. A scorer for ``scoring=``."
        self.group, self.measure, self._score = group, measure, score

    def __call__(self, estimator: Any, X: Any, y: Any, clients: Any = None) -> float:
        """Return the score of a fitted model.

        Parameters
        ----------
        estimator : object
            A fitted model.
        X : array-like of shape (n_samples, ...), or dict of array-like
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
            If ``clients`` is missing, it or y does not fit X, or no row belongs to a client that is
            scored; the message says which scorer to use instead.
        TypeError
            If the model has no federated step, or a classifier where R^2 is measured, or a
            regressor where it is not.
        """
        if clients is None:
            raise ValueError(
                f"{self.name} needs the client of each row: call "
                "sklearn.set_config(enable_metadata_routing=True) and pass clients= to fit (or "
                "params={'clients': ...} to cross_validate). With routing off scikit-learn passes "
                f"no metadata to scorers; then call {self.name}(model, X, y, clients=...)."
            )
        step = federated_step(estimator)
        if is_classifier(step) == (self.measure == "r2"):
            scored = "regressors" if self.measure == "r2" else "classifiers"
            raise TypeError(
                f"{self.name} scores {scored}, and this is a {type(step).__name__}: use "
                f"{self.group}_{measure_of(step)}."
            )
        return self._score(self, estimator, step, X, y, clients)

    # What TunedThresholdClassifierCV reads of a scorer, to call it for each threshold.
    _sign = 1
    _kwargs: dict[str, Any] = {}

    @property
    def _score_func(self) -> Callable[..., float]:
        if self.measure != "accuracy" or self.group not in _OVER_CLIENTS:
            raise TypeError(
                f"{self.name} needs the fitted model, but TunedThresholdClassifierCV passes labels "
                "alone: use mean_client_accuracy or worst_client_accuracy there."
            )
        return partial(_client_accuracy, self)

    def get_metadata_routing(self) -> MetadataRequest:
        """Return the request for ``clients``, for scikit-learn's metadata routing."""
        request = MetadataRequest(owner=self)
        request.score.add_request(param="clients", alias=True)
        return request

    def __repr__(self) -> str:
        return f"skfed.metrics.{self.name}"

    def __reduce__(self) -> str:
        return self.name  # unpickled as the object of this name in this module


def federated_step(model: Any) -> BaseFederated:
    """Return the fitted federated estimator in a Pipeline, a search, or another meta-estimator.

    Where there are several, as in a CalibratedClassifierCV, it is the first.
    """
    *_, step = _nested(model)
    check_is_fitted(step)
    return step


def priority_rows_of(model: Any, clients: Any, n_samples: int) -> np.ndarray:
    """Return a mask of rows, those of clients with priority in any federated step of a model."""
    steps = [path[-1] for path in _paths(model)]
    masks = [rows_of(clients, n_samples, one.clients_, one.priority_) for one in steps]
    return np.logical_or.reduce(masks)


def clients_of(model: Any, *, priority: bool = False) -> np.ndarray:
    """Return the clients, or the priority clients, of all federated steps of a model."""
    steps = [path[-1] for path in _paths(model)]
    ids = [step.clients_[step.priority_] if priority else step.clients_ for step in steps]
    return array_of_ids({canonical(one): native(one) for one in chain(*ids)}.values())


def transform_for_step(model: Any, X: Any, clients: Any) -> Any:
    """Transform X by the steps of a model's Pipelines before the federated step."""
    for one in _nested(model):
        if len(getattr(one, "steps", ())) > 1:
            X = transform_by_clients(one[:-1], X, clients)
    return sliceable(X)


def predict_rows(model: Any, X: Any, clients: Any, method: str = "predict") -> np.ndarray:
    """Predict, with clients where a Pipeline's transformers take them."""
    X = sliceable(X)
    if hasattr(model, "best_estimator_"):
        return predict_rows(model.best_estimator_, X, clients, method)
    if len(getattr(model, "steps", ())) > 1 and takes_clients_in("transform", model[:-1]):
        X = transform_by_clients(model[:-1], X, clients)
        return predict_rows(model.steps[-1][1], X, clients, method)
    found = getattr(model, method)(X)
    return found.toarray() if sparse.issparse(found) else found  # an indicator of labels


def _nested(model: Any) -> list[Any]:
    """Return a model and the estimators nested in it, down to the first federated step."""
    path = next(_paths(model), None)
    if path is None:
        raise TypeError(
            f"{model!r} has no federated step: pass a fitted FederatedClassifier or "
            "FederatedRegressor, or a fitted Pipeline, search or other meta-estimator of one."
        )
    return path


def _paths(model: Any) -> Iterator[list[Any]]:
    """Yield the estimators from a model down to each federated step in it."""
    if isinstance(model, BaseFederated):
        yield [model]
        return
    for one in _inner(model):
        yield from ([model, *path] for path in _paths(one))


def _inner(model: Any) -> Iterator[Any]:
    """Yield the fitted estimators directly in a meta-estimator."""
    if hasattr(model, "steps"):
        yield model.steps[-1][1]
    elif isinstance(model, FrozenEstimator):
        yield model.estimator
    elif hasattr(model, "best_estimator_"):
        yield model.best_estimator_
    elif hasattr(model, "regressor_"):
        yield model.regressor_
    elif hasattr(model, "estimators_"):  # beside which estimator_ is not fitted
        yield from model.estimators_
    elif hasattr(model, "estimator_"):
        yield model.estimator_
    for calibrated in getattr(model, "calibrated_classifiers_", ()):
        yield calibrated.estimator


def measure_of(step: BaseFederated) -> str:
    """Return the measure of a classifier or regressor."""
    return "accuracy" if is_classifier(step) else "r2"


def measured(true: np.ndarray, predicted: np.ndarray, measure: str) -> float:
    """Return the accuracy, or R^2, which is NaN if all targets are equal."""
    if measure == "accuracy":
        return float((~wrong_rows(predicted, true)).mean())
    return float(r2_score(true, predicted)) if (true != true[0]).any() else float("nan")


def check_targets(model: Any, y: Any) -> np.ndarray:
    """Return a classifier's labels, or a regressor's targets: finite and of the shape in fit."""
    *above, step = _nested(model)
    if is_classifier(step):
        return _indicator_of(step, y) if step._problem.has_labels else labels_of(y, "y")
    targets = numbers(y, "y")
    for one in above:
        if isinstance(one, _BY_TARGET):  # of which each step has one column
            if np.shape(targets)[1:] != (len(one.estimators_),):
                raise ValueError(
                    f"y has the shape {targets.shape}, but the {len(one.estimators_)} targets of "
                    "fit are its columns: pass one column a target."
                )
            return targets
    with naming("y"):
        step._problem.encode(targets)  # checks their shape
    return targets


def _indicator_of(step: BaseFederated, y: Any) -> np.ndarray:
    """Return an indicator of the labels of a classifier."""
    problem = step._problem
    with naming("y"):
        return problem.encode(problem.check_targets(y, "y"))


def _rows_of_group(
    scorer: ClientScorer, model: Any, step: BaseFederated, X: Any, y: Any, clients: Any
) -> tuple[Any, np.ndarray, Any]:
    """Return the rows, targets and ids of the clients with or without priority."""
    y, X = check_targets(model, y), sliceable(X)
    with naming("X", "y"):
        check_consistent_length(X, y)
    mask = priority_rows_of(model, clients, len(y))
    priority = scorer.group == "priority"
    rows = np.flatnonzero(mask if priority else ~mask)
    if not len(rows):
        hint = " (the test folds of LeaveClientsOut have none)" if priority else ""
        other, measure = "free" if priority else "priority", measure_of(step)
        raise ValueError(
            f"{scorer.name}: clients has no row of a {scorer.group} client{hint}: use "
            f"{other}_{measure} or mean_client_{measure}."
        )
    with naming("X"):
        return safe_indexing(X, rows), y[rows], safe_indexing(clients, rows)


def _score_rows(scorer, model, step, X, y, clients):
    X, y, clients = _rows_of_group(scorer, model, step, X, y, clients)
    score = measured(y, predict_rows(model, X, clients), scorer.measure)
    return float(_defined(scorer, [score])[0])


def _score_clients(scorer, model, step, X, y, clients):
    y, predicted = check_targets(model, y), predict_rows(model, X, clients)
    with naming("X", "y"):
        check_consistent_length(predicted, y)
    return _over_clients(scorer, y, predicted, clients)


def _client_accuracy(
    scorer: ClientScorer, y: np.ndarray, predicted: np.ndarray, clients: Any = None
) -> float:
    """Return the score of labels."""
    if clients is None:
        raise ValueError(
            f"{scorer.name} needs the client of each row: call "
            "sklearn.set_config(enable_metadata_routing=True) and pass clients= to fit."
        )
    return _over_clients(scorer, labels_of(y, "y"), predicted, clients)


def _over_clients(
    scorer: ClientScorer, y: np.ndarray, predicted: np.ndarray, clients: Any
) -> float:
    federation = make_federation(clients, len(y))
    rows = [federation.rows(k) for k in range(len(federation))]
    scores = _defined(scorer, [measured(y[own], predicted[own], scorer.measure) for own in rows])
    return float(scores.mean() if scorer.group == "mean_client" else scores.min())


def _defined(scorer: ClientScorer, scores: list[float]) -> np.ndarray:
    """Return the scores that are not NaN; raise if there are none."""
    defined = np.array(scores)[~np.isnan(scores)]
    if not len(defined):
        raise ValueError(
            f"{scorer.name} needs two rows of different y, and no client that is scored has them: "
            "pass more rows."
        )
    return defined


def _neg_log_loss(scorer, model, step, X, y, clients):
    X, y, clients = _rows_of_group(scorer, model, step, X, y, clients)
    probabilities = predict_rows(model, X, clients, "predict_proba").astype(float)
    if isinstance(problem := step._problem, Labels):
        return -float(problem.row_losses(probabilities, y).mean())
    probabilities /= probabilities.sum(axis=1, keepdims=True)  # which float32 has rounded
    with naming("y"):
        return -float(log_loss(y, probabilities, labels=model.classes_))


_PRIORITY = "over the rows of the priority clients"
_FREE = "over the rows of the other clients, with those that the model has not seen"
_R2_CLIENTS = (
    "Each client has equal weight; those with fewer than two rows, or whose targets are all equal, "
    "have no R^2 and are left out"
)

priority_accuracy = ClientScorer("priority", "accuracy", _score_rows, f"Accuracy {_PRIORITY}")
free_accuracy = ClientScorer("free", "accuracy", _score_rows, f"Accuracy {_FREE}")
mean_client_accuracy = ClientScorer(
    *("mean_client", "accuracy", _score_clients),
    "Mean over clients of the accuracy on their rows. Each client has equal weight",
)
worst_client_accuracy = ClientScorer(
    "worst_client", "accuracy", _score_clients, "Lowest accuracy of a client on its rows"
)
priority_neg_log_loss = ClientScorer(
    *("priority", "neg_log_loss", _neg_log_loss),
    f"Minus the mean cross-entropy {_PRIORITY}, which is -F",
)
priority_r2 = ClientScorer("priority", "r2", _score_rows, f"R^2 {_PRIORITY}")
free_r2 = ClientScorer("free", "r2", _score_rows, f"R^2 {_FREE}")
mean_client_r2 = ClientScorer(
    *("mean_client", "r2", _score_clients),
    f"Mean over clients of the R^2 on their rows. {_R2_CLIENTS}",
)
worst_client_r2 = ClientScorer(
    "worst_client", "r2", _score_clients, f"Lowest R^2 of a client on its rows. {_R2_CLIENTS}"
)
