"""What clients have contributed in each round."""

from typing import Any

import numpy as np
import pandas as pd

from skfed.exchanges import contributions_of
from skfed.metrics._scorers import federated_step
from skfed.utils._checks import validated
from skfed.utils._ids import client_index
from skfed.utils._sklearn import StrOptions


@validated(column=[StrOptions({"value", "error"})])
def round_contributions(model: Any, column: str = "value") -> pd.DataFrame:
    """Return what clients have contributed in each round of a fit.

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, or a Pipeline or a search that ends in one
        A model that was fitted with ``contribution``.
    column : {"value", "error"}, default="value"
        The value, or its standard error.

    Returns
    -------
    DataFrame
        One row for each round that was valued, a column for each client of ``clients_``; NaN where
        no update of the client was aggregated. Values are gains in the priority objective.

    Raises
    ------
    TypeError
        If the model has no federated step.
    AttributeError
        If no round was valued.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.contribution import ExactShapley
    >>> from skfed.metrics import round_contributions
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(
    ...     contribution=ExactShapley(), n_rounds=3, random_state=0
    ... ).fit(X, y, clients=["a", "b", "c"] * 50)
    >>> round_contributions(model).shape
    (3, 3)
    """
    step = federated_step(model)
    step.contributions_  # noqa: B018 - raises where no round was valued
    rows = [row for row in step._server.rows if "contributions" in row]
    found, rounds = contributions_of(rows, step.clients_), [row["round"] for row in rows]
    table = np.full((len(rounds), len(step.clients_)), np.nan)
    table[np.searchsorted(rounds, found.rounds), found.clients] = (
        found.values if column == "value" else found.errors
    )
    index = pd.Index(rounds, name="round")
    return pd.DataFrame(table, index=index, columns=client_index(step.clients_))
