"""How a model does client by client: worst clients, and for whom it is useful.

A fair federation, in the sense of FedALIGN (its introduction and Figure 3), is one whose model is
useful to many of all clients: better than what they could train alone.

``priority_accuracy``, ``worst_client_accuracy`` and ``priority_neg_log_loss`` are scorers for
``scoring=`` in a search or a cross-validation.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils import check_consistent_length

from skfed._federation import encode_ids, make_federation, rows_of
from skfed._scorers import (
    as_step_sees,
    federated_classifier,
    priority_accuracy,
    priority_neg_log_loss,
    worst_client_accuracy,
)
from skfed.selection import RandomSelector
from skfed.utils._checks import check_columns, labels_of, naming, validated
from skfed.utils._sklearn import safe_indexing

__all__ = [
    "client_scores",
    "priority_accuracy",
    "priority_neg_log_loss",
    "summarise_clients",
    "usefulness",
    "worst_client_accuracy",
]

_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def client_scores(model: Any, X: Any, y: Any, clients: ArrayLike) -> pd.DataFrame:
    """Return each client's loss and accuracy under the global model.

    Parameters
    ----------
    model : FederatedClassifier, or a Pipeline or a search that ends in one
        A fitted model.
    X : array-like of shape (n_samples, n_features, ...)
        Samples, held out ones for an honest score.
    y : array-like of shape (n_samples,)
        Their labels.
    clients : array-like of shape (n_samples,)
        The client of each row.

    Returns
    -------
    DataFrame of shape (n_clients, 4)
        ``n_samples``, ``priority`` (False for clients that the model has not seen), ``loss`` (the
        mean cross-entropy of the predicted probabilities) and ``accuracy``.

    Raises
    ------
    TypeError
        If the model has no federated step, or that is a regressor.
    ValueError
        If ``clients`` or y does not fit X, or y has labels that the model does not know.
    """
    step = federated_classifier(model, "client_scores")
    probabilities = model.predict_proba(X)
    federation = make_federation(clients, len(probabilities))
    with naming("y"):
        encoded = step._encode(labels_of(y, "y"))
    if len(encoded) != len(probabilities):
        raise ValueError(
            f"y has {len(encoded)} entries, but X has {len(probabilities)} rows: pass one label a "
            "row."
        )
    tiny = np.finfo(probabilities.dtype).tiny
    losses = -np.log(probabilities[np.arange(len(encoded)), encoded].clip(min=tiny))
    correct = probabilities.argmax(axis=1) == encoded
    priority = rows_of(federation.ids, len(federation), step.clients_, step.priority_)
    rows = [federation.rows(k) for k in range(len(federation))]
    return pd.DataFrame(
        {
            "n_samples": federation.sizes,
            "priority": priority,
            "loss": [losses[own].mean() for own in rows],
            "accuracy": [correct[own].mean() for own in rows],
        },
        index=pd.Index(
            federation.names(range(len(federation))), name="client", tupleize_cols=False
        ),
    )


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
    accuracy on its own test rows over all these rounds counts: an upper estimate of what it can
    do alone, so that the answer is on the safe side. FedALIGN's Figure 3 and its notion of
    fairness: the share of clients to whom the common model is of use.

    Parameters
    ----------
    model : FederatedClassifier, or a Pipeline or a search that ends in one
        A fitted model. The earlier steps of a Pipeline are not fitted again for each client.
    X, y, clients
        The training data of all clients.
    X_test, y_test, clients_test
        Their test data; clients without training or test rows are left out.

    Returns
    -------
    DataFrame of shape (n_clients, 4)
        ``priority``, ``global_accuracy``, ``local_accuracy`` and ``useful``: whether the first is
        larger. Its mean over a group of clients is the share of them that is served.

    Raises
    ------
    TypeError, ValueError
        As :func:`client_scores`.
    """
    step = federated_classifier(model, "usefulness")
    with naming("X_test", "y_test", "clients_test"):
        scores = client_scores(model, X_test, y_test, clients_test)
    y, y_test = labels_of(y, "y"), labels_of(y_test, "y_test").astype(step.classes_.dtype)
    with naming("X", "y"):
        X, X_test = as_step_sees(model, X), as_step_sees(model, X_test)
        check_consistent_length(X, y)
    trained, _ = encode_ids(clients, len(y))
    for known in (step.clients_, trained):
        scores = scores[scores.index.isin(known.tolist())]
    alone = clone(step).set_params(
        selector=RandomSelector(clients_per_round=1),
        priority=None,
        n_rounds=step.n_rounds_,
        proximal_mu=0.0,
        aggregator=None,
        server_optimizer=None,
        availability=None,
        validate_every=1,  # the best of all rounds counts
    )
    local = []
    for client in scores.index:
        own = _rows_of_client(X, y, clients, client)
        test = _rows_of_client(X_test, y_test, clients_test, client)
        local.append(_best_alone(alone, step.classes_, own, test))
    return pd.DataFrame(
        {
            "priority": scores["priority"],
            "global_accuracy": scores["accuracy"],
            "local_accuracy": local,
            "useful": scores["accuracy"] > local,
        }
    )


def _rows_of_client(X, y, clients, client) -> tuple:
    """Return the rows of X and y that one client holds."""
    ids = np.fromiter([client], dtype=object, count=1)
    rows = np.flatnonzero(rows_of(clients, len(y), ids, np.ones(1, bool)))
    with naming("X", "y"):
        return safe_indexing(X, rows), safe_indexing(y, rows)


def _best_alone(alone, classes, own: tuple, test: tuple) -> float:
    """Train one client by itself; return its best test accuracy over the rounds."""
    alone = clone(alone).set_params(warm_start=True)
    clients = np.zeros(len(own[1]), int)
    # The first round by itself, since only partial_fit is told of classes that the client lacks.
    best = alone.partial_fit(*own, classes=classes, clients=clients).score(*test)
    if alone.n_rounds > 1:
        alone.fit(*own, clients=clients, X_val=test[0], y_val=test[1])
        best = max(best, alone.history_["val_score"].max())
    return best
