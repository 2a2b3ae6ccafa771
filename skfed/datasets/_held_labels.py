"""Test rows whose labels the priority clients hold."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length

from skfed._federation import make_federation
from skfed.utils._checks import labels_of, naming


def has_priority_label(
    y_test: ArrayLike, y: ArrayLike, clients: ArrayLike, priority: Any
) -> np.ndarray:
    """Return a mask of the test rows whose label a priority client holds.

    FedALIGN's benchmarks test on these rows only, since a model for the priority clients is not
    trained for other labels.

    Parameters
    ----------
    y_test : array-like of shape (n_test,)
        Labels of the test rows.
    y : array-like of shape (n_samples,)
        Labels of the training rows.
    clients : array-like of shape (n_samples,)
        The client of each training row.
    priority : collection of client ids
        The priority clients; ids of ``clients``.

    Returns
    -------
    ndarray of shape (n_test,), dtype=bool
        True where the label is held.

    Raises
    ------
    ValueError
        If lengths differ, or ``priority`` is empty or names an unknown client.

    Examples
    --------
    >>> from skfed.datasets import has_priority_label
    >>> has_priority_label(
    ...     [0, 1, 2],
    ...     y=[0, 1, 1, 2],
    ...     clients=list("abbc"),
    ...     priority=["a", "b"],
    ... )
    array([ True,  True, False])
    """
    labels, tested = labels_of(y, "y"), labels_of(y_test, "y_test")
    with naming("y", "clients"):
        check_consistent_length(labels, clients)
    federation = make_federation(clients, len(labels), priority)
    rows = [federation.rows(k) for k in np.flatnonzero(federation.priority).tolist()]
    return np.isin(tested, labels[np.concatenate(rows)])
