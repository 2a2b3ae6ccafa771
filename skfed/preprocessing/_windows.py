"""Windows of a time series, whose steps a transformer takes as rows."""

from typing import Any

import numpy as np

from skfed._federation import make_federation
from skfed.utils._sklearn import safe_indexing


def steps_as_rows(X: Any, clients: Any) -> tuple[Any, Any]:
    """Return the steps of windows as rows, and the client of each.

    Windows have the shape (n_samples, n_steps, n_features). Rows of any other are returned as they
    are.
    """
    if not is_windows(X):
        return X, clients
    n_samples, n_steps, n_features = X.shape
    if clients is not None:
        make_federation(clients, n_samples)  # checks them
        clients = safe_indexing(clients, np.repeat(np.arange(n_samples), n_steps))
    return X.reshape(-1, n_features), clients


def is_windows(X: Any) -> bool:
    """Tell whether X has windows of several steps."""
    return len(getattr(X, "shape", ())) == 3


def as_windows(rows: Any, X: Any) -> Any:
    """Return rows that were made of the steps of X in the shape of X."""
    return rows.reshape(X.shape) if is_windows(X) else rows
