"""Each client's own model, scored on the rows of every client."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length

from skfed._federation import make_federation
from skfed._fit import local_engine
from skfed._input import check_rows
from skfed.evaluation import FederatedEvaluation, Metric
from skfed.metrics._personalised import next_training
from skfed.metrics._scorers import check_targets, federated_step, transform_for_step
from skfed.nets import cast_samples
from skfed.server import HeldOutRows, cross_evaluate
from skfed.utils._checks import naming, validated
from skfed.utils._ids import client_index, native


@validated(metric=[str])
def cross_client_scores(
    model: Any,
    X: Any,
    y: Any,
    clients: ArrayLike,
    X_test: Any,
    y_test: Any,
    clients_test: ArrayLike,
    *,
    metric: str = "loss",
) -> pd.DataFrame:
    """Return how the global model, and each client's own, do on the rows of every client.

    A client's own model is what it would send in the next round: the global one after its local
    training. One that does well at home alone has learned what others do not have; a client at
    which all others' models do badly has rows unlike theirs. Over Flower
    :meth:`skfed.flower.FederatedStrategy.cross_client_scores` asks the sites.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends in one
        A fitted model, which is not changed.
    X, y, clients
        The rows to train on. The clients may be new to the model.
    X_test, y_test, clients_test
        The rows to score, which clients keep aside.
    metric : str, default="loss"
        One of :class:`~skfed.evaluation.FederatedEvaluation`.

    Returns
    -------
    DataFrame of shape (1 + n_clients, n_clients)
        A row for the model "global", then one for that of each client in ``clients``; a column for
        each of them that scores. NaN in the column of a client without test rows, and in the row of
        one whose training fails.

    Raises
    ------
    TypeError
        If the model has no federated step.
    ValueError
        If arguments do not fit each other, the metric is unknown, or updates are private.

    See Also
    --------
    personalised_scores : Scores of each client on its own rows alone.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed import FederatedClassifier
    >>> from skfed.metrics import cross_client_scores
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> clients = np.repeat(["left", "right"], 150)
    >>> y = np.where(clients == "left", X[:, 0] < 0, X[:, 0] > 0)
    >>> model = FederatedClassifier(n_rounds=5, local_epochs=5, random_state=0)
    >>> train = X[::2], y[::2], clients[::2]
    >>> test = X[1::2], y[1::2], clients[1::2]
    >>> scores = cross_client_scores(
    ...     model.fit(*train), *train, *test, metric="accuracy"
    ... )
    >>> scores.round(1)
    client  left  right
    model
    global   0.4    0.6
    left     0.9    0.1
    right    0.0    1.0
    """
    step = federated_step(model)
    check_private(step)
    with naming("X_test", "y_test", "clients_test"):
        y_test, X_test = (
            check_targets(step, y_test),
            transform_for_step(model, X_test, clients_test),
        )
        check_consistent_length(X_test, y_test)
    with naming("X", "y"):
        y, X = check_targets(step, y), transform_for_step(model, X, clients)
        check_consistent_length(X, y)
    problem, net = step._problem, step._server.net
    (name,) = FederatedEvaluation([metric]).names(problem)
    federation, test = make_federation(clients, len(y)), make_federation(clients_test, len(y_test))
    engine, request = next_training(step, X, y, federation, np.arange(len(federation)))
    with naming("X_test", "y_test"):
        samples, encoded = cast_samples(net, check_rows(step, X_test)), problem.encode(y_test)
    evaluator = local_engine(
        *(problem, net, samples, encoded, None, test),
        seed=step._server.seed,
        memory_budget=step.memory_budget,
    )
    rows = HeldOutRows.of(evaluator, test, federation)
    if not rows.held_out_sizes.any():
        raise ValueError(
            f"clients_test has no client of clients: {native(test.ids[0])!r} is not among them. "
            "Check the types of ids."
        )
    values = cross_evaluate(engine, request, rows, Metric.of(name, problem))
    return cross_table(values, federation.ids)


def check_private(step: Any) -> None:
    """Raise a ValueError if clients' own models are not to be seen."""
    for name in ("update_privacy", "loss_privacy"):
        if getattr(step, name) is not None:
            raise ValueError(
                f"{name} does not cover the scores of clients' own models: use a model without it."
            )


def cross_table(values: np.ndarray, ids: np.ndarray) -> pd.DataFrame:
    """Return the table of the models "global" and those of clients, in the order of their ids."""
    columns = client_index(ids)
    models = pd.Index(["global", *columns.tolist()], dtype=object, name="model")
    return pd.DataFrame(values, index=models, columns=columns)
