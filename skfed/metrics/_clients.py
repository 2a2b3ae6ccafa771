"""How a model does client by client, and for whom it is useful."""

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
from skfed._federation import find_ids, make_federation, rows_of
from skfed.callbacks._skorch import acts_on_batches
from skfed.metrics._scorers import (
    as_step_sees,
    federated_step,
    measure_of,
    measured,
    targets_of,
)
from skfed.schedules import BaseSchedule
from skfed.selection import RandomSelector
from skfed.utils._checks import check_columns, naming, validated
from skfed.utils._ids import client_index
from skfed.utils._sklearn import safe_indexing

# The parameters that say what a client does by itself; the others are the federation's.
_ITS_OWN = (
    "local_epochs",
    "local_steps",
    "on_client_error",
    "engine",
    "memory_budget",
    "random_state",
)
_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def client_scores(model: Any, X: Any, y: Any, clients: ArrayLike) -> pd.DataFrame:
    """Return each client's loss and accuracy, or R^2, under the global model.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends in one
        A fitted model.
    X : array-like of shape (n_samples, n_features, ...)
        Samples, held out ones for an honest score.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Their labels or targets.
    clients : array-like of shape (n_samples,)
        The client of each row.

    Returns
    -------
    DataFrame of shape (n_clients, 4)
        ``n_samples``, ``priority`` (False for clients that the model has not seen) and, of a
        classifier, ``loss`` (the mean cross-entropy of the predicted probabilities) and
        ``accuracy``; of a regressor, ``loss`` (the mean squared error) and ``r2``: NaN for a client
        of fewer than two rows, or whose targets are all equal.

    Raises
    ------
    TypeError
        If the model has no federated step.
    ValueError
        If ``clients`` or y does not fit X, or y has labels that the model does not know.
    """
    step = federated_step(model)
    losses, true, predicted = _of_each_row(model, step, X, y)
    federation = make_federation(clients, len(predicted))
    measure = measure_of(step)
    rows = [federation.rows(k) for k in range(len(federation))]
    return pd.DataFrame(
        {
            "n_samples": federation.sizes,
            "priority": rows_of(federation.ids, len(federation), step.clients_, step.priority_),
            "loss": [losses[own].mean() for own in rows],
            measure: [measured(true[own], predicted[own], measure) for own in rows],
        },
        index=client_index(federation.ids),
    )


def _of_each_row(model: Any, step: BaseFederated, X: Any, y: Any) -> tuple[np.ndarray, ...]:
    """Return each row's loss, target and prediction; of a classifier, positions of classes."""
    targets = targets_of(step, y)
    output = model.predict_proba(X) if is_classifier(step) else model.predict(X)
    if len(targets) != len(output):
        raise ValueError(
            f"y has {len(targets)} entries, but X has {len(output)} rows: pass one label or target "
            "a row."
        )
    if not is_classifier(step):
        return ((output - targets) ** 2).reshape(len(output), -1).mean(axis=1), targets, output
    with naming("y"):
        encoded = step._problem.encode(targets)
    likelihoods = output[np.arange(len(encoded)), encoded]
    losses = -np.log(likelihoods.clip(min=np.finfo(output.dtype).tiny))
    return losses, encoded, output.argmax(axis=1)


@validated(scores=[pd.DataFrame])
def summarise_clients(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the spread over clients of what :func:`client_scores` or :func:`usefulness` found.

    Parameters
    ----------
    scores : DataFrame
        One row a client, with a column ``priority``.

    Returns
    -------
    DataFrame
        Rows "priority", "free" and "all" (those that have clients); columns (measure, statistic)
        with the mean over clients, each counting alike, and quantiles: 0.0 is the least, for an
        accuracy the worst client's, and 1.0 the largest.

    Raises
    ------
    ValueError
        If ``priority`` is lacking or not of booleans, or another column not of numbers.
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
    """Return the mean and the quantiles of each column."""
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
    """Return for which clients the global model beats the best model they can train alone.

    Each client trains the same net alone, for as many rounds as ``model`` had, and its best
    accuracy (R^2 of a regressor) on its own test rows over all these rounds counts: an upper
    estimate of what it can do alone, so that the answer is on the safe side. FedALIGN's Figure 3
    and its notion of fairness: the share of clients to whom the common model is of use.

    A client alone has the model's net, its local epochs or steps, its learning rates and their
    schedule, its class weights ("balanced": by its own rows) and its seed. What belongs to the
    federation plays no part: selection, availability, ``min_clients``, proximal term, aggregator
    and server optimizer, clipping and noise, and the checkpoint; nor do the net's callbacks that
    act on the global net, but for LRSchedulers other than ReduceLROnPlateau. All its rows weigh
    alike.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends in one
        A fitted model. The earlier steps of a Pipeline are not fitted again for each client.
    X, y, clients
        The training data of all clients.
    X_test, y_test, clients_test
        Their test data. Clients without training or test rows are left out, and of a regressor
        those without an R^2, as :func:`client_scores` says.

    Returns
    -------
    DataFrame of shape (n_clients, 4)
        ``priority``, ``global_accuracy``, ``local_accuracy`` (``global_r2``, ``local_r2``) and
        ``useful``: whether the first is larger. Its mean over a group of clients is the share of
        them that is served.

    Raises
    ------
    TypeError, ValueError
        As :func:`client_scores`.
    """
    step = federated_step(model)
    with naming("X_test", "y_test", "clients_test"):
        scores = client_scores(model, X_test, y_test, clients_test)
    y = targets_of(step, y)
    with naming("y_test"):
        y_test = targets_of(step, y_test)
    with naming("X", "y"):
        X, X_test = as_step_sees(model, X), as_step_sees(model, X_test)
        check_consistent_length(X, y)
    train, test = make_federation(clients, len(y)), make_federation(clients_test, len(y_test))
    places, measure = find_ids(train.ids, test.ids), measure_of(step)
    seen = (places >= 0) & (find_ids(step.clients_, test.ids) >= 0)
    compared = np.flatnonzero(seen & scores[measure].notna().to_numpy()).tolist()
    alone = _alone(step)
    local = [
        _best_alone(
            alone,
            step,
            _taken(X, y, train.rows(places[k])),
            _taken(X_test, y_test, test.rows(k)),
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


def _taken(X: Any, y: Any, rows: np.ndarray) -> tuple[Any, Any]:
    with naming("X", "y"):
        return safe_indexing(X, rows), safe_indexing(y, rows)


class _AsPlanned(BaseSchedule):
    """A schedule over the rounds that were planned, also where fewer are run."""

    def __init__(self, schedule, n_rounds):
        self.schedule = schedule
        self.n_rounds = n_rounds

    def _at(self, round, n_rounds, step, n_steps):
        return self.schedule.at(round, self.n_rounds, step, n_steps)


def _alone(step: BaseFederated) -> BaseFederated:
    """Return what one client trains by itself: built from what is its own, not the federation's."""
    schedule = step.lr_schedule
    if isinstance(schedule, BaseSchedule):
        schedule = _AsPlanned(schedule, step.n_rounds)
    return type(step)(
        estimator=_net_alone(step),
        selector=RandomSelector(clients_per_round=1),
        n_rounds=step.n_rounds_,
        lr_schedule=schedule,
        validate_every=1,  # the best of all rounds counts
        warm_start=True,
        **{name: getattr(step, name) for name in _ITS_OWN},
    )


def _own_weights(step: Any, y: np.ndarray) -> Any:
    """Return the class weights of a client of labels y; partial_fit does not balance them."""
    if step.class_weight != "balanced":
        return step.class_weight
    labels, counts = np.unique(y, return_counts=True)
    weights = len(y) / (len(step.classes_) * counts)
    return dict(zip(labels.tolist(), weights.tolist(), strict=True))


def _net_alone(step: BaseFederated) -> Any:
    """Return the estimator without callbacks that act on the global net.

    They stop the training, print, or write to files that are the federation's.
    """
    net = step.estimator
    if not isinstance(net, NeuralNet):
        return net
    params = net.get_params(deep=False)
    own = {name: value for name, value in params.items() if not name.startswith("callbacks")}
    defaults = {name for name, _ in net.get_default_callbacks()}
    callbacks = [
        (name, callback)
        for name, callback in step.net_.callbacks_  # with the net's parameters for them
        if name not in defaults and (acts_on_batches(callback) or _sets_rates(callback))
    ]
    return type(net)(**own, callbacks=callbacks)


def _sets_rates(callback: Any) -> bool:
    """Tell whether a callback schedules the learning rate, whatever the losses."""
    plateau = "ReduceLROnPlateau", ReduceLROnPlateau
    return isinstance(callback, LRScheduler) and callback.policy not in plateau


def _best_alone(
    alone: BaseFederated, step: BaseFederated, own: tuple, test: tuple, name: Any
) -> float:
    """Train one client by itself; return its best score on its test rows over the rounds."""
    alone = clone(alone)
    clients = np.zeros(len(own[1]), int)
    classes = {}
    if is_classifier(step):
        classes = {"classes": step.classes_}
        alone.set_params(class_weight=_own_weights(step, own[1]))
    try:
        with catch_warnings():
            # The best round counts; that later ones diverge is of no consequence.
            simplefilter("ignore", ConvergenceWarning)
            # The first round by itself, since only partial_fit is told of classes that it lacks.
            best = alone.partial_fit(*own, clients=clients, **classes).score(*test)
            if alone.n_rounds > 1:
                alone.fit(*own, clients=clients, X_val=test[0], y_val=test[1])
                best = max(best, alone.history_["val_score"].max())
    except Exception as error:
        error.add_note(f"usefulness: client {name!r} cannot train alone")
        raise
    return best
