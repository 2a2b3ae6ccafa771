"""Rows for training, for choices, and for what is reported.

Which of the three a row is for is drawn once for a data set, with a seed of its own. Clients and
their rows may be drawn anew for each seed of a run: a test row is a test row in all of them.
"""

from dataclasses import dataclass
from warnings import catch_warnings, filterwarnings

import numpy as np
from sklearn.model_selection import StratifiedKFold

TRAINING, VALIDATION, TEST = 0, 1, 2
_ROLES = (TRAINING, TRAINING, TRAINING, VALIDATION, TEST)  # of fifths of the rows
_SEED = 62  # of all roles


@dataclass(frozen=True)
class Split:
    """Rows of clients for training, validation and test, and the priority clients; None: all."""

    X: np.ndarray
    y: np.ndarray
    clients: np.ndarray
    X_val: np.ndarray
    y_val: np.ndarray
    clients_val: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    clients_test: np.ndarray
    priority: np.ndarray | None = None


def roles(y: np.ndarray, clients: np.ndarray | None = None) -> np.ndarray:
    """Return the role of each row: three fifths are for training, one each for the others.

    Parameters
    ----------
    y : ndarray of shape (n_rows,)
        Labels; each is split in these shares.
    clients : ndarray of shape (n_rows,), default=None
        Clients of the data set's own, each of which is split so first. None: they are drawn later.
    """
    labels = np.unique(y, return_inverse=True)[1]
    strata = labels
    if clients is not None:
        owners = np.unique(clients, return_inverse=True)[1]
        strata = np.unique(owners * (labels.max() + 1) + labels, return_inverse=True)[1]
    found = np.empty(len(y), dtype=int)
    for role, (_, fifth) in zip(_ROLES, _fifths(strata), strict=True):
        found[fifth] = role
    return found


def _fifths(strata: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return scikit-learn's folds, in which the rows of a small stratum are in some."""
    folds = StratifiedKFold(len(_ROLES), shuffle=True, random_state=_SEED)
    with catch_warnings():
        filterwarnings("ignore", "The least populated class")
        return list(folds.split(strata, strata))


def split(X: np.ndarray, y: np.ndarray, clients: np.ndarray, role: np.ndarray) -> Split:
    """Return the rows by their role."""
    parts = [role == which for which in (TRAINING, VALIDATION, TEST)]
    return Split(*(values[rows] for rows in parts for values in (X, y, clients)))
