"""What users pass to fit, predict and score: rows, targets and clients, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, validate_data

from skfed._dict_input import check_dict, difference, is_dict, like_fitted, sliceable
from skfed._federation import Federation, make_federation, one_client, owners_of
from skfed.engines import clients_with_weight
from skfed.nets import DictRows, sample_shape
from skfed.utils._checks import naming
from skfed.utils._sklearn import safe_indexing


@dataclass(frozen=True)
class TrainingData:
    """Validated training data."""

    X: np.ndarray | DictRows
    y: np.ndarray  # encoded
    weights: np.ndarray | None  # of rows; None: all equal
    federation: Federation

    def arrays(self) -> dict[str, np.ndarray | DictRows | None]:
        """Return the arrays by the names of fit's parameters."""
        return {"X": self.X, "y": self.y, "sample_weight": self.weights}


def check_training_data(
    estimator: Any, X, y, clients, sample_weight, *, reset: bool, classes=None
) -> TrainingData:
    """Validate what fit is given; ``reset`` sets what later data must conform to."""
    with naming("X", "y"):
        X, y = estimator._check_training_data(X, y, reset=reset, classes=classes)
    if clients is None:
        clients = one_client(len(X), estimator.priority)
    federation = make_federation(clients, len(X), estimator.priority)
    if sample_weight is not None:
        federation = clients_with_weight(sample_weight, X, federation)
    weights = estimator._problem.row_weights(sample_weight, X, y, federation)
    return TrainingData(X, y, weights, federation)


def check_held_out(estimator: Any, X_val, y_val, clients_val) -> dict[str, Any]:
    """Return the validated validation data by name; empty without."""
    if X_val is None and y_val is None and clients_val is None:
        return {}
    if X_val is None or y_val is None:
        raise ValueError("X_val and y_val go together: pass both or neither.")
    problem = estimator._problem
    with naming("X_val", "y_val"):
        y_val = problem.check_targets(y_val, "y_val")
        X_val, y_val = validate_samples(
            estimator, X_val, y_val, reset=False, name="X_val", multi_output=True
        )
        check_sample_shape(estimator, X_val, "X_val")
        y_val = problem.encode(y_val, "y_val")
    return {"X_val": X_val, "y_val": y_val, "clients_val": clients_val}


def check_rows(estimator: Any, X) -> np.ndarray | DictRows:
    """Validate the samples that a fitted estimator is given."""
    check_is_fitted(estimator)
    with naming("X"):
        X = validate_samples(estimator, X, reset=False)
    check_sample_shape(estimator, X)
    return X


def validate_samples(
    estimator: Any, X, y="no_validation", *, reset: bool, name: str = "X", **of_y: Any
) -> Any:
    """Validate X, or X and y, as scikit-learn's ``validate_data`` does; a dict key by key.

    A dict has neither ``n_features_in_`` nor ``feature_names_in_``. ``of_y`` is how y is validated.
    """
    if not is_dict(X):
        return validate_data(estimator, X, y, reset=reset, dtype="numeric", allow_nd=True, **of_y)
    rows = check_dict(X, name)
    if reset:
        for attribute in ("n_features_in_", "feature_names_in_"):  # of an earlier fit
            vars(estimator).pop(attribute, None)
    else:
        rows = like_fitted(rows, estimator._sample_shape)
    if isinstance(y, str) and y == "no_validation":
        return rows
    y = validate_data(estimator, "no_validation", y, reset=reset, **of_y)
    check_consistent_length(rows, y)
    return rows, y


def check_sample_shape(estimator: Any, X: np.ndarray | DictRows, name: str = "X") -> None:
    """Check the dimensions beyond the second, which scikit-learn does not; of a dict, the keys."""
    found = difference(sample_shape(X), estimator._sample_shape)
    if found is not None:
        hint = ": pass the same keys, with values like those" if isinstance(X, Mapping) else ""
        raise ValueError(
            f"{name} has {found[0]}, but {type(estimator).__name__} was fitted on {found[1]}{hint}."
        )


def rows_to_score(estimator: Any, X, y, sample_weight, clients) -> tuple:
    """Return X, y and sample_weight: all rows, or with ``clients`` those of priority clients."""
    check_is_fitted(estimator)
    X = sliceable(X)
    with naming("X", "y", "sample_weight"):
        check_consistent_length(X, y, sample_weight)
    if clients is None:
        return X, y, sample_weight
    rows, _ = priority_rows(clients, len(y), estimator.clients_, estimator.priority_)
    if len(rows) == len(y):
        return X, y, sample_weight  # X may be a memory map
    with naming("X", "y", "sample_weight"):
        weights = None if sample_weight is None else safe_indexing(sample_weight, rows)
        return safe_indexing(X, rows), safe_indexing(y, rows), weights


def priority_rows(clients, n_samples, ids, priority, name="clients") -> tuple[np.ndarray, ...]:
    """Return the rows of priority clients, at least one, and the index in ids of each one's."""
    owners = owners_of(clients, n_samples, ids, name)
    rows = np.flatnonzero((owners >= 0) & priority[owners])
    if not len(rows):
        raise ValueError(
            f"{name} has no row of a priority client: pass rows of at least one of them, or "
            f"leave {name} out to count every row."
        )
    return rows, owners[rows]
