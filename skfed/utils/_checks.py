"""Checks of arguments, whose errors name the parameter."""

import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils import column_or_1d

from skfed.utils._sklearn import Interval, validate_params

Function = TypeVar("Function", bound=Callable[..., Any])


class Count(Interval):
    """Integers of at least ``least``, bools excluded."""

    def __init__(self, least: int = 1):
        super().__init__(Integral, least, None, closed="left")

    def is_satisfied_by(self, val: Any) -> bool:
        """Tell whether a value satisfies the constraint."""
        return not isinstance(val, bool) and super().is_satisfied_by(val)


def validated(**constraints: Any) -> Callable[[Function], Function]:
    """Decorator that checks arguments by scikit-learn's constraints; others are not checked."""
    return validate_params(constraints, prefer_skip_nested_validation=False)


def check_params(component: BaseEstimator) -> None:
    """Validate the parameters of a component, unless they are the objects that were valid before.

    A selector is asked in each round and a schedule in each local step, and scikit-learn's
    validation would take longer than they do. A class that validates in its own way always does.
    """
    if type(component)._validate_params is not BaseEstimator._validate_params:
        component._validate_params()
        return
    key = id(component)
    params = {name: getattr(component, name, None) for name in component._parameter_constraints}
    owner, valid = _valid.get(key, (None, {}))
    if owner is not None and owner() is component and _are_same(params, valid):
        return
    component._validate_params()
    # Not in the component, which is the user's, nor by its hash, which it may not have.
    _valid[key] = weakref.ref(component, lambda _: _valid.pop(key, None)), params


#: Components by their ids, with their valid parameters; these are kept as long as the component.
_valid: dict[int, tuple[weakref.ref, dict[str, Any]]] = {}


def _are_same(params: dict[str, Any], others: dict[str, Any]) -> bool:
    """Tell whether parameters are the same objects as others."""
    return params.keys() == others.keys() and all(
        value is others[name] for name, value in params.items()
    )


def numbers(values: Any, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return an array of finite floats, and check its shape if one is given."""
    with naming(name):
        array = np.asarray(values)
        if np.iscomplexobj(array):  # numpy would keep the real parts only
            raise TypeError(f"they are complex: {array}.")
        array = array.astype(float)
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: pass numbers of shape {shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has values that are not finite: {array}.")
    return array


_HINTS = {
    "contains NaN": " In a Pipeline, skfed.preprocessing.FederatedSimpleImputer fills them in, by "
    "what clients compute.",
    "could not convert string to float": ". X is to be numbers: encode its columns of text by "
    "skfed.preprocessing.FederatedOneHotEncoder, or leave them out.",
    "Sparse data was passed": " Of an encoder before it, set sparse_output=False; of a "
    "ColumnTransformer, sparse_threshold=0.",
}


@contextmanager
def naming(*names: str) -> Iterator[None]:
    """Context manager that adds the names of parameters to errors that lack them."""
    try:
        yield
    except (TypeError, ValueError, LookupError) as error:
        of_X = names[0].startswith("X")
        hint = "".join(h for found, h in _HINTS.items() if of_X and found in str(error))
        named = any(re.search(rf"(?<!\w){name}(?!\w)", str(error)) for name in names)
        if named and not hint and not isinstance(error, LookupError):
            raise
        error_type = TypeError if isinstance(error, TypeError) else ValueError
        prefix = "" if named and hint else f"{', '.join(names)}: "
        raise error_type(f"{prefix}{error}{hint}") from error


@contextmanager
def computed_from(*names: str) -> Iterator[None]:
    """Context manager that turns overflow and division by zero into errors that name parameters."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            yield
    except ArithmeticError as error:
        raise ValueError(
            f"{', '.join(names)}: one of them is too large or too small: {error}."
        ) from error


def check_columns(frame: pd.DataFrame, columns: list[str], name: str) -> None:
    """Check that a table has each of ``columns`` once."""
    for column in columns:
        if n_others := (frame.columns == column).sum() - 1:
            many = "no" if n_others < 0 else "more than one"
            raise ValueError(f"{name} has {many} column {column!r}; it has {list(frame.columns)}.")


def column_names(table: Any) -> list | None:
    """Return the column names of a frame of any library, and None for an array."""
    names = getattr(table, "column_names", getattr(table, "columns", None))  # of pyarrow, others
    return None if names is None else list(names)


def labels_of(y: Any, name: str) -> np.ndarray:
    """Return labels in one dimension, checked to be sortable and without missing ones."""
    with naming(name):
        labels = np.asarray(column_or_1d(y))
    if n_missing := int(pd.isna(labels).sum()):
        raise ValueError(f"{name} lacks {n_missing} label(s): give these rows one or drop them.")
    with naming(name):
        np.unique(labels)
    return labels
