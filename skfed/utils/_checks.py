"""Checks of arguments, whose errors name the parameter."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from sklearn.utils import column_or_1d

from skfed.utils._sklearn import validate_params

Function = TypeVar("Function", bound=Callable[..., Any])


def validated(**constraints: Any) -> Callable[[Function], Function]:
    """Check a function's arguments by scikit-learn's constraints; the others may be anything."""
    return validate_params(constraints, prefer_skip_nested_validation=False)


def numbers(values: Any, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return finite floats, of a shape if one is asked for."""
    with naming(name):
        array = np.asarray(values, dtype=float)
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: pass numbers of shape {shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has values that are not finite: {array}.")
    return array


@contextmanager
def naming(*names: str) -> Iterator[None]:
    """Let an error in data name the parameters that it may be in; scikit-learn's do not always."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if any(re.search(rf"(?<!\w){name}(?!\w)", str(error)) for name in names):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{', '.join(names)}: {error}") from error


def labels_of(y: Any, name: str) -> np.ndarray:
    """Return labels in one dimension, which can be told apart and sorted."""
    with naming(name):
        labels = np.asarray(column_or_1d(y))
        np.unique(labels)
    if n_missing := int(pd.isna(labels).sum()):
        raise ValueError(f"{name} lacks {n_missing} label(s): give these rows one or drop them.")
    return labels
