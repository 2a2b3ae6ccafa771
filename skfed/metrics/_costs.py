"""What a fit has cost: until it reached a target, and by client and exchange."""

from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd

from skfed.exchanges import evaluation_table, exchange_table
from skfed.metrics._scorers import federated_step
from skfed.utils._checks import check_columns, validated
from skfed.utils._sklearn import Interval


@validated(
    history=[pd.DataFrame],
    column=[str],
    target=[Interval(Real, None, None, closed="neither")],
)
def cost_to(history: pd.DataFrame, column: str, target: float) -> pd.Series:
    """Return the rounds, bytes and seconds until a column of a history reached a target.

    Parameters
    ----------
    history : DataFrame
        ``history_`` of a fitted model.
    column : str
        A column of numbers. It has reached the target in the first round in which it is at least
        as high, or, of ``objective`` and losses (``train_loss``, ``val_loss``, ``eval_loss`` and
        its ``_priority`` and ``_worst``), at least as low.
    target : float
        The value to reach.

    Returns
    -------
    Series
        ``rounds``, that round included; ``bytes``, sent down and up in these rounds; and
        ``seconds``, what ``elapsed`` is then, NaN without it. All are NaN where the target was
        not reached.

    Raises
    ------
    ValueError
        If the history has no such column, or it holds no numbers.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.metrics import cost_to
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(n_rounds=10, random_state=0)
    >>> history = model.fit(X, y, clients=y, X_val=X, y_val=y).history_
    >>> bool(cost_to(history, "val_score", 0.8)["rounds"] <= 10)
    True
    """
    check_columns(history, [column, "bytes_down", "bytes_up"], "history")
    if not pd.api.types.is_numeric_dtype(history[column]):
        raise ValueError(f"column={column!r} of history has no numbers: name another.")
    values = history[column].to_numpy(dtype=float)
    falls = _is_loss(column)
    reached = np.flatnonzero(values <= target if falls else values >= target)
    if not len(reached):
        return pd.Series({"rounds": np.nan, "bytes": np.nan, "seconds": np.nan})
    rounds = history.iloc[: reached[0] + 1]
    n_bytes = float(rounds["bytes_down"].sum() + rounds["bytes_up"].sum())
    seconds = float(rounds["elapsed"].iloc[-1]) if "elapsed" in rounds else np.nan
    return pd.Series({"rounds": float(len(rounds)), "bytes": n_bytes, "seconds": seconds})


def _is_loss(column: str) -> bool:
    """Tell whether lower values of a column are better."""
    name = column.removesuffix("_priority").removesuffix("_worst")
    return name == "objective" or (name.endswith("loss") and not name.startswith("eval_neg_"))


@validated(round=[Integral, None])
def client_exchanges(model: Any, round: int | None = None) -> pd.DataFrame:
    """Return what each exchange of a fit has cost each client, with its seconds.

    Exchanges are kept where they have seconds: those of a fit with :mod:`skfed.devices`, whose
    seconds are simulated, and those over Flower, ``client_exchanges(strategy.model_)``, whose
    seconds are measured. :class:`~skfed.devices.TraceDevices` takes a table of measured ones.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends in one
        A fitted model.
    round : int, default=None
        A round, from 0. None: all.

    Returns
    -------
    DataFrame
        One row a client and exchange; of a client drawn twice, two. ``round``; ``exchange``, its
        number in the round; ``kind``: "statistics" (before round 0, counted to it), "poll",
        "sketch", "trial", "training", "valuation" (of contributions), "evaluation" (on rows kept
        aside), or "report" and "upload", which are the training of a rule with two phases;
        ``client``; ``outcome``: "answered", "silent" (above the bound of the poll), "failed",
        "late" or "no answer"; ``start``: when the
        exchange began, as ``elapsed``; ``seconds``: from then to the client's reply, which one that
        is late would have sent thereafter, NaN of one without; ``duration``: from then to the end
        of the exchange; ``computing``: over Flower, the seconds that the client says to have
        computed, else NaN; ``rows``: evaluated, trained on or used for gradients; ``bytes_down``,
        ``bytes_up``. In each round, the sums of bytes, and of one ``duration`` for each exchange,
        are those of ``history_``.

    Raises
    ------
    TypeError
        If the model has no federated step.
    ValueError
        If there is no such round, or its exchanges have no seconds.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.devices import ConstantDevices
    >>> from skfed.metrics import client_exchanges
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(
    ...     devices=ConstantDevices(100, 1e4, 1e4), random_state=0
    ... )
    >>> exchanges = client_exchanges(
    ...     model.fit(X, y, clients=["a", "b"] * 75), round=5
    ... )
    >>> exchanges[["kind", "client", "outcome"]].values.tolist()
    [['training', 'a', 'answered'], ['training', 'b', 'answered']]
    """
    rows = federated_step(model)._server.rows
    if round is not None:
        if round not in range(len(rows)):
            raise ValueError(f"round={round!r} is none of the {len(rows)} rounds, numbered from 0.")
        rows = rows[round : round + 1]
    if not any("exchanges" in row for row in rows):
        which = "The rounds" if round is None else f"Round {round}"
        raise ValueError(
            f"{which} had no clock, so the seconds of exchanges are not known: fit with devices of "
            "skfed.devices, or over Flower."
        )
    return exchange_table(rows)


def client_evaluations(model: Any) -> pd.DataFrame:
    """Return what each client has told of the global model in each round of a fit.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends in one
        A model that was fitted with ``evaluation``.

    Returns
    -------
    DataFrame
        One row a client and round: ``round``, after which the model was evaluated; ``client``;
        ``n_samples``, the rows that it keeps aside; ``priority``; and a column for each metric. A
        client that failed, or could not be reached, has no row, nor has anybody in rounds with
        fewer answers than ``min_answers``.

    Raises
    ------
    TypeError
        If the model has no federated step.
    ValueError
        If no round has an evaluation.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.evaluation import FederatedEvaluation
    >>> from skfed.metrics import client_evaluations
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(
    ...     evaluation=FederatedEvaluation(), n_rounds=2, random_state=0
    ... ).fit(X, y, clients=y, X_val=X, y_val=y, clients_val=y)
    >>> table = client_evaluations(model).pivot(
    ...     index="client", columns="round", values="accuracy"
    ... )
    >>> table.shape
    (3, 2)
    """
    rows = federated_step(model)._server.rows
    if not any("evaluations" in row for row in rows):
        raise ValueError(
            "no round of this model has an evaluation by clients: fit it with "
            "evaluation=skfed.evaluation.FederatedEvaluation() and X_val, y_val and clients_val; "
            "if it was, fewer clients than min_answers have answered."
        )
    return evaluation_table(rows)
