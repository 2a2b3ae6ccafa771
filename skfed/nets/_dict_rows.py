"""X as a dict of arrays of equal length: its keys are the arguments of a module's ``forward``."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from skorch.helper import SliceDict
from torch import nn

SampleShape = tuple[int, ...] | dict[str, tuple[str, tuple[int, ...]]]

_KINDS = {"b": "bool", "i": "int64", "u": "int64", "f": "float64"}


class DictRows(SliceDict):
    """Rows of arrays or tensors by key, as a module takes them; an index takes rows of each.

    ``shape`` is (n_samples,), and ``len`` the number of rows.
    """

    @property
    def ndim(self) -> int:
        """The most dimensions of an array."""
        return max(array.ndim for array in self.values())

    @property
    def dtype(self) -> np.dtype:
        """The dtype that holds the values of all arrays."""
        return np.result_type(*(array.dtype for array in self.values()))

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.nbytes for array in self.values())


def by_array(function: Callable[..., Any], X: Any, *others: Any) -> Any:
    """Return what a function makes of an array, or of each array of a dict, by its key."""
    if not isinstance(X, dict):
        return function(X, *others)
    return type(X)(**{key: function(X[key], *(one[key] for one in others)) for key in X})


def call_module(module: nn.Module, X: Any) -> Any:
    """Return a module's output for a batch; the arrays of a dict are keyword arguments."""
    return module(**X) if isinstance(X, dict) else module(X)


def select_rows(X: Any, rows: torch.Tensor) -> Any:
    """Return rows of a tensor, or of each tensor of a dict."""
    return by_array(lambda one: one.index_select(0, rows), X)


def arrays_of(X: Any) -> tuple[tuple[str, ...] | None, tuple[Any, ...]]:
    """Return the keys of a dict and its arrays; of an array no keys, and itself."""
    return (tuple(X), tuple(X.values())) if isinstance(X, dict) else (None, (X,))


def from_arrays(keys: tuple[str, ...] | None, arrays: Sequence[Any]) -> Any:
    """Return the X of which ``arrays_of`` has returned the keys and arrays."""
    return arrays[0] if keys is None else DictRows(**dict(zip(keys, arrays, strict=True)))


def sample_shape(X: Any) -> SampleShape:
    """Return the shape of a sample; of a dict, for each key the kind of its values, and the shape.

    The kinds are "bool", "int64" and "float64".
    """
    if isinstance(X, dict):
        return {key: (_KINDS[one.dtype.kind], one.shape[1:]) for key, one in X.items()}
    return X.shape[1:]


def row_of_shape(shape: SampleShape) -> Any:
    """Return a made-up sample, in the shape (1, ...), of zeros; those of an array are integers."""
    if isinstance(shape, dict):
        return DictRows(**{key: np.zeros((1, *own), kind) for key, (kind, own) in shape.items()})
    return np.zeros((1, *shape), dtype=np.int64)


def describe_samples(X: Any) -> str:
    """Describe samples in words."""
    if not isinstance(X, dict):
        return f"of shape {X.shape[1:]} and dtype {X.dtype}"
    own = (f"{key!r} of shape {one.shape[1:]} and dtype {one.dtype}" for key, one in X.items())
    return f"with the keys {', '.join(own)}"
