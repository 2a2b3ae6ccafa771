"""Scores of each client before and after it has fine-tuned the global model on its own rows."""

from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length

from skfed._estimator import BaseFederated
from skfed._federation import Federation, find_ids, make_federation
from skfed._fit import local_engine, round_config
from skfed._input import check_rows
from skfed.aggregation._tensors import finite_where_changed
from skfed.engines import LoopEngine, TrainRequest
from skfed.metrics._clients import client_scores
from skfed.metrics._scorers import (
    check_targets,
    federated_step,
    measure_of,
    transform_for_step,
)
from skfed.nets import State, cast_samples, get_state, set_state
from skfed.selection import Cohort
from skfed.server import LocalStatistics, RateLimits, make_train_request
from skfed.utils._checks import Count, naming, validated
from skfed.utils._sklearn import safe_indexing

#: Parameters on which the next training of a client does not depend.
PLAIN = dict.fromkeys(("aggregator", "contribution", "evaluation", "selector"))


@validated(local_steps=[Count(0)])
def personalised_scores(
    model: Any,
    X: Any,
    y: Any,
    clients: ArrayLike,
    X_test: Any,
    y_test: Any,
    clients_test: ArrayLike,
    *,
    local_steps: int = 10,
) -> pd.DataFrame:
    """Return each client's score under the global model, and after fine-tuning it.

    Each client takes some local steps from the global model on its own rows, as it would in the
    next round of ``fit``: with the net's optimizer and batch size, the learning rate of that round
    (of the default regressor at most one at which its own rows do not make it diverge), class
    weights ("balanced": by all rows of X), and minibatches drawn by seed, round and client. All
    rows of a client have equal weight; the proximal term, control variates, clipping and noise are
    left out. Where a schedule ends at a rate near 0, set another before:
    ``model.set_params(lr_schedule=0.01)``.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends in one
        A fitted model, which is not changed. The earlier steps of a Pipeline are not fitted again
        for each client.
    X, y, clients
        The rows to fine-tune on. The clients may be new to the model.
    X_test, y_test, clients_test
        The rows to score. Clients without training or test rows are left out.
    local_steps : int, default=10
        Minibatch steps of each client; with 0 both scores are equal.

    Returns
    -------
    DataFrame of shape (n_clients, 4)
        ``n_samples`` (test rows) and ``priority``, as :func:`client_scores` has them,
        ``global_accuracy`` and ``personalised_accuracy`` (``global_r2`` and ``personalised_r2`` of
        a regressor; NaN where :func:`client_scores` has NaN).

    Raises
    ------
    TypeError
        If the model has no federated step.
    ValueError
        If arguments do not fit each other, no client has training and test rows, or a client's
        weights are not finite after its steps.
    Exception
        As raised by the training of a client, with a note that names it.

    See Also
    --------
    skfed.metrics.usefulness : Compares the global model with those that clients train alone.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed import FederatedClassifier
    >>> from skfed.metrics import personalised_scores
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> clients = np.repeat(["left", "other", "right"], 100)
    >>> y = np.where(clients == "left", X[:, 0] < 0, X[:, 0] > 0)
    >>> model = FederatedClassifier(n_rounds=20, random_state=0)
    >>> train = X[::2], y[::2], clients[::2]
    >>> test = X[1::2], y[1::2], clients[1::2]
    >>> scores = personalised_scores(
    ...     model.fit(*train), *train, *test, local_steps=20
    ... )
    >>> scores["global_accuracy"].tolist()
    [0.06, 0.92, 0.96]
    >>> scores["personalised_accuracy"].tolist()
    [0.94, 0.92, 0.96]
    """
    step = federated_step(model)
    with naming("X_test", "y_test", "clients_test"):
        scores = client_scores(model, X_test, y_test, clients_test)
        y_test, X_test = (
            check_targets(step, y_test),
            transform_for_step(model, X_test, clients_test),
        )
    with naming("X", "y"):
        y, X = check_targets(step, y), transform_for_step(model, X, clients)
        check_consistent_length(X, y)
    train, test = make_federation(clients, len(y)), make_federation(clients_test, len(y_test))
    positions = find_ids(train.ids, test.ids)
    both = np.flatnonzero(positions >= 0)
    if not len(both):
        raise ValueError(
            f"clients_test has no client of clients: {list(test.names(range(min(3, len(test)))))} "
            f"are not among {list(train.names(range(min(3, len(train)))))}. Check the types of ids."
        )
    measure, scores = measure_of(step), scores.iloc[both]
    after = scores[measure].tolist()
    if local_steps:
        local = _fine_tuned(step, X, y, train, positions[both], local_steps)
        for i, (k, estimator) in enumerate(zip(both.tolist(), local, strict=True)):
            rows = test.rows(k)
            own = safe_indexing(X_test, rows), safe_indexing(y_test, rows)
            (after[i],) = client_scores(estimator, *own, np.zeros(len(rows), int))[measure]
    return pd.DataFrame(
        {
            "n_samples": scores["n_samples"],
            "priority": scores["priority"],
            f"global_{measure}": scores[measure],
            f"personalised_{measure}": after,
        }
    )


def _fine_tuned(
    step: BaseFederated,
    X: Any,
    y: np.ndarray,
    federation: Federation,
    clients: np.ndarray,
    local_steps: int,
) -> Iterator[BaseFederated]:
    """Yield for each client a copy of a fitted estimator that has its net; the next one reuses it.

    The net is trained by the loop engine, as in the round after the last.
    """
    changed = {"local_steps": local_steps, "proximal_mu": 0.0, "update_privacy": None}
    engine, request = next_training(step, X, y, federation, clients, **changed)
    own, state = copy(step), request.state
    own.net_ = engine.net_pool.set_up()
    for training in engine.trainings(request):
        (client,) = federation.names(training.clients)
        try:
            stack = training.train(engine.data.local).stack
        except Exception as error:
            error.add_note(f"personalised_scores: while client {client!r} trains")
            raise
        _check_finite(stack, state, client, local_steps)
        set_state(own.net_, state | {name: tensor[0] for name, tensor in stack.items()})
        yield own


def next_training(
    step: BaseFederated,
    X: Any,
    y: np.ndarray,
    federation: Federation,
    clients: np.ndarray,
    **changed: Any,
) -> tuple[LoopEngine, TrainRequest]:
    """Return an engine of some rows, and the training of clients in the round after the last.

    It has no aggregator, and the parameters of the estimator with those ``changed``.
    """
    server, problem = step._server, step._problem
    plain = copy(step).set_params(**PLAIN | changed)
    config = round_config(plain, server.net, server.left_alone, simulated=False)
    with naming("X", "y"):
        given, encoded = check_rows(step, X), problem.encode(y)
        X = cast_samples(server.net, given)
    weights = problem.row_weights(None, X, encoded, federation)
    engine = local_engine(
        *(problem, server.net, X, encoded, weights, federation),
        seed=server.seed,
        memory_budget=step.memory_budget,
    )
    limits = None
    if server.rate is not None and step.lr_schedule is None:
        statistics = LocalStatistics(given, encoded, weights, federation)
        limits = RateLimits(statistics, server.net, for_all=True)
    state, cohort = get_state(server.net), Cohort.mean(clients)
    return engine, make_train_request(server, federation, config, state, limits, cohort)


def _check_finite(stack: State, state: State, client: Any, local_steps: int) -> None:
    for name, tensor in stack.items():
        if not finite_where_changed(tensor[0], state[name]):
            raise ValueError(
                f"{name} of client {client!r} is not finite after local_steps={local_steps}: take "
                "fewer, or a lower rate by model.set_params(lr_schedule=...)."
            )
