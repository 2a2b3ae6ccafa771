"""Scores of a model by client, and its usefulness to each client."""

from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length
from skorch import NeuralNet
from skorch.callbacks import LRScheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from skfed._estimator import BaseFederated
from skfed._federation import find_ids, make_federation
from skfed._labels import Labels
from skfed._problem import Classification
from skfed.callbacks._skorch import acts_on_batches
from skfed.metrics._scorers import (
    check_targets,
    federated_step,
    measure_of,
    measured,
    predict_rows,
    priority_rows_of,
    transform_for_step,
)
from skfed.metrics._several import is_several, mean_scores, models_of
from skfed.nets import NotProbabilities, check_probabilities
from skfed.schedules import BaseSchedule
from skfed.selection import RandomSelector
from skfed.utils._checks import check_columns, naming, validated
from skfed.utils._ids import client_index
from skfed.utils._sklearn import safe_indexing
from skfed.utils._warnings import warn

# The parameters of local training; the others are the federation's.
_LOCAL_PARAMS = (
    *("local_epochs", "local_steps", "on_client_error"),
    *("engine", "memory_budget", "random_state"),
)
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def client_scores(model: Any, X: Any, y: Any, clients: ArrayLike) -> pd.DataFrame:
    """Return each client's loss and accuracy, or R^2, under the global model.

    Of a list of models, such as fits with different seeds, they are the mean over models, with the
    standard deviation.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a meta-estimator of one, or a list of them
        A fitted model: also a Pipeline, a search, a threshold, calibration, bagging or voting. Its
        own predictions are scored. The models of a list have the same classes, clients and priority
        clients.
    X : array-like of shape (n_samples, n_features, ...), or dict of array-like
        Samples, held out ones for an honest score.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Their labels or targets.
    clients : array-like of shape (n_samples,)
        The client of each row.

    Returns
    -------
    DataFrame of shape (n_clients, 4), or (n_clients, 6) of a list
        ``n_samples``, ``priority`` (False for clients that the model has not seen) and, of a
        classifier, ``loss`` (the mean cross-entropy of the predicted probabilities, NaN without
        any; also the mean over several labels) and ``accuracy`` (of several labels, of whole rows);
        of a regressor, ``loss`` (the mean squared error) and ``r2``: NaN for
        a client of fewer than two rows, or whose targets are all equal. Of a list these are means,
        NaN where a model has NaN, and ``loss_std`` and ``accuracy_std`` (``r2_std``) are the sample
        standard deviations (n - 1) over models: NaN of one model.

    Raises
    ------
    TypeError
        If a model has no federated step.
    ValueError
        If ``clients`` or y does not fit X, or y has labels that the model does not know; if a list
        is empty, or its models differ in classes, clients or priority clients.

    See Also
    --------
    skfed.inspection.ClientsDisplay : Draws the accuracy or R^2 of each client.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier, RandomSelector
    >>> from skfed.metrics import client_scores
    >>> X, y = load_iris(return_X_y=True)
    >>> def fit(seed):
    ...     rule = RandomSelector(1)
    ...     model = FederatedClassifier(
    ...         selector=rule, n_rounds=5, random_state=seed
    ...     )
    ...     return model.fit(X, y, clients=y)
    >>> client_scores(fit(0), X, y, y)["accuracy"].tolist()
    [1.0, 0.08, 1.0]

    The mean and the standard deviation over three seeds:

    >>> scores = client_scores([fit(seed) for seed in range(3)], X, y, y)
    >>> scores["accuracy"].round(3).tolist()
    [0.987, 0.693, 0.4]
    >>> scores["accuracy_std"].round(3).tolist()
    [0.012, 0.531, 0.529]
    """
    if is_several(model):
        models = models_of(model, "model")
        return mean_scores(models, lambda one: _model_scores(one, X, y, clients))
    return _model_scores(model, X, y, clients)


def _model_scores(model: Any, X: Any, y: Any, clients: ArrayLike) -> pd.DataFrame:
    """Return the scores of one model by client."""
    step = federated_step(model)
    true, predicted = check_targets(model, y), predict_rows(model, X, clients)
    if len(true) != len(predicted):
        raise ValueError(
            f"y has {len(true)} entries, but X has {len(predicted)} rows: pass one label or target "
            "a row."
        )
    losses = _row_losses(model, X, clients, true, predicted)
    federation = make_federation(clients, len(predicted))
    measure = measure_of(step)
    rows = [federation.rows(k) for k in range(len(federation))]
    firsts = federation.order[federation.offsets[:-1]]
    return pd.DataFrame(
        {
            "n_samples": federation.sizes,
            "priority": priority_rows_of(model, clients, len(predicted))[firsts],
            "loss": [losses[own].mean() for own in rows],
            measure: [measured(true[own], predicted[own], measure) for own in rows],
        },
        index=client_index(federation.ids),
    )


def _row_losses(
    model: Any, X: Any, clients: Any, true: np.ndarray, predicted: np.ndarray
) -> np.ndarray:
    """Return each row's loss; NaN where a classifier has no probabilities."""
    if not is_classifier(model):
        return ((predicted - true) ** 2).reshape(len(true), -1).mean(axis=1)
    own = federated_step(model)._problem
    problem = own if isinstance(own, Labels) else Classification(model.classes_)
    with naming("y"):
        encoded = problem.encode(true)
    if not hasattr(model, "predict_proba"):
        return np.full(len(true), np.nan)
    try:
        found = predict_rows(model, X, clients, "predict_proba")
        found = found if problem.has_labels else check_probabilities(found)
    except NotProbabilities as error:
        warn(f"loss is NaN: {error}")
        return np.full(len(true), np.nan)
    return problem.row_losses(found, encoded)


@validated(scores=[pd.DataFrame])
def summarise_clients(scores: pd.DataFrame) -> pd.DataFrame:
    """Return statistics over clients of :func:`client_scores` or :func:`usefulness`.

    Parameters
    ----------
    scores : DataFrame
        One row a client, with a column ``priority``.

    Returns
    -------
    DataFrame
        Rows "priority", "free" and "all" (those that have clients); columns (measure, statistic)
        with the mean over clients, all of equal weight, and quantiles: 0.0 is the lowest value
        and 1.0 the highest.

    Raises
    ------
    ValueError
        If ``priority`` is missing or not boolean, or another column is not numeric.
    """
    check_columns(scores, ["priority"], "scores")
    priority = scores["priority"].to_numpy()
    if priority.dtype != bool:
        raise ValueError(f"scores has a column 'priority' of {priority.dtype}, not of booleans.")
    groups = {"priority": priority, "free": ~priority, "all": np.ones(len(scores), bool)}
    with naming("scores"):
        numbers = scores.drop(columns=["priority"]).astype(float)
        rows = {name: _spread(numbers[mask]) for name, mask in groups.items() if mask.any()}
        return pd.DataFrame(rows).T


def _spread(numbers: pd.DataFrame) -> pd.Series:
    table = pd.concat([numbers.mean().to_frame("mean").T, numbers.quantile(list(_QUANTILES))])
    return pd.Series(table.T.stack())


def usefulness(
    model: Any,
    X: Any,
    y: Any,
    clients: ArrayLike,
    X_test: Any,
    y_test: Any,
    clients_test: ArrayLike,
) -> pd.DataFrame:
    """Return for which clients the global model is better than one that they train alone.

    Each client trains the same net alone, for as many rounds as ``model`` had. Its local score is
    the best accuracy (R^2 of a regressor) over these rounds on its own test rows, an optimistic
    estimate, so that usefulness is not overstated. The share of clients to whom the global model is
    useful is the fairness of FedALIGN's Figure 3.

    The local training uses the model's net, local epochs or steps, learning rates and their
    schedule, class weights ("balanced": by the client's own rows) and seed. It does not use
    selection, availability, devices, ``min_clients``, proximal term, aggregator, server optimizer,
    clipping, noise and checkpoint, nor the net's callbacks that act on the global net, except
    LRSchedulers other than ReduceLROnPlateau. All rows of a client have equal weight.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends in one
        A fitted model. The earlier steps of a Pipeline are not fitted again for each client.
    X, y, clients
        The training data of all clients.
    X_test, y_test, clients_test
        Their test data. Clients without training or test rows are left out, and of a regressor
        those without an R^2 (see :func:`client_scores`).

    Returns
    -------
    DataFrame of shape (n_clients, 4)
        ``priority``, ``global_accuracy``, ``local_accuracy`` (``global_r2``, ``local_r2``) and
        ``useful``: whether the global score is larger. Its mean over a group of clients is a share
        of them.

    Raises
    ------
    TypeError, ValueError
        As :func:`client_scores`.

    See Also
    --------
    skfed.metrics.personalised_scores : Compares the global model with fine-tuned copies of it.
    """
    step = federated_step(model)
    with naming("X_test", "y_test", "clients_test"):
        scores = client_scores(model, X_test, y_test, clients_test)
    y = check_targets(step, y)
    with naming("y_test"):
        y_test = check_targets(step, y_test)
    with naming("X", "y"):
        X = transform_for_step(model, X, clients)
        X_test = transform_for_step(model, X_test, clients_test)
        check_consistent_length(X, y)
    train, test = make_federation(clients, len(y)), make_federation(clients_test, len(y_test))
    positions, measure = find_ids(train.ids, test.ids), measure_of(step)
    seen = (positions >= 0) & (find_ids(step.clients_, test.ids) >= 0)
    compared = np.flatnonzero(seen & scores[measure].notna().to_numpy()).tolist()
    estimator = _local_estimator(step)
    local = [
        _best_local_score(
            estimator,
            step,
            _rows(X, y, train.rows(positions[k])),
            _rows(X_test, y_test, test.rows(k)),
            test.names([k])[0],
        )
        for k in compared
    ]
    scores = scores.iloc[compared]
    return pd.DataFrame(
        {
            "priority": scores["priority"],
            f"global_{measure}": scores[measure],
            f"local_{measure}": local,
            "useful": scores[measure] > local,
        }
    )


def _rows(X: Any, y: Any, rows: np.ndarray) -> tuple[Any, Any]:
    with naming("X", "y"):
        return safe_indexing(X, rows), safe_indexing(y, rows)


class _Planned(BaseSchedule):
    """A schedule over the rounds that were planned, if fewer are run."""

    def __init__(self, schedule, n_rounds):
        self.schedule = schedule
        self.n_rounds = n_rounds

    def _at(self, round, n_rounds, step, n_steps):
        return self.schedule.at(round, self.n_rounds, step, n_steps)


def _local_estimator(step: BaseFederated) -> BaseFederated:
    """Return the estimator of a federation of one client, with the parameters of local training."""
    schedule = step.lr_schedule
    if isinstance(schedule, BaseSchedule):
        schedule = _Planned(schedule, step.n_rounds)
    return type(step)(
        estimator=_local_net(step),
        selector=RandomSelector(clients_per_round=1),
        n_rounds=step.n_rounds_,
        lr_schedule=schedule,
        validate_every=1,  # the best of all rounds counts
        warm_start=True,
        **{name: getattr(step, name) for name in _LOCAL_PARAMS},
    )


def _local_class_weight(step: Any, y: np.ndarray) -> Any:
    """Return the class weights of a client of labels y; partial_fit takes no "balanced"."""
    if step.class_weight != "balanced":
        return step.class_weight
    labels, counts = np.unique(y, return_counts=True)
    weights = len(y) / (len(step.classes_) * counts)
    return dict(zip(labels.tolist(), weights.tolist(), strict=True))


def _local_net(step: BaseFederated) -> Any:
    """Return the net without callbacks that stop the training, print, or write files."""
    net = step.estimator
    if not isinstance(net, NeuralNet):
        return net
    params = net.get_params(deep=False)
    own = {name: value for name, value in params.items() if not name.startswith("callbacks")}
    defaults = {name for name, _ in net.get_default_callbacks()}
    callbacks = [
        (name, callback)
        for name, callback in step.net_.callbacks_  # initialized with callbacks__ parameters
        if name not in defaults and (acts_on_batches(callback) or _schedules_rates(callback))
    ]
    return type(net)(**own, callbacks=callbacks)


def _schedules_rates(callback: Any) -> bool:
    """Return whether a callback schedules the learning rate independently of the losses."""
    plateau = "ReduceLROnPlateau", ReduceLROnPlateau
    return isinstance(callback, LRScheduler) and callback.policy not in plateau


def _best_local_score(
    estimator: BaseFederated, step: BaseFederated, train: tuple, test: tuple, client: Any
) -> float:
    """Train one client alone; return its best score over the rounds on its test rows."""
    estimator = clone(estimator)
    clients = np.zeros(len(train[1]), int)
    classes = {}
    if is_classifier(step):
        classes = {"classes": step.classes_}
        estimator.set_params(class_weight=_local_class_weight(step, train[1]))
    try:
        with catch_warnings():
            # Later rounds may diverge, since the best one counts.
            simplefilter("ignore", ConvergenceWarning)
            # partial_fit for the first round, since it takes classes that the client lacks.
            best = estimator.partial_fit(*train, clients=clients, **classes).score(*test)
            if estimator.n_rounds > 1:
                estimator.fit(*train, clients=clients, X_val=test[0], y_val=test[1])
                best = max(best, estimator.history_["val_score"].max())
    except Exception as error:
        error.add_note(f"usefulness: client {client!r} cannot train alone")
        raise
    return best
