"""X as a dict of arrays, as users pass it: checked, with errors that name the key."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from skfed.nets import DictRows, SampleShape

_KINDS = "biuf"  # kinds of dtypes: each holds the values of those before it


def is_dict(X: Any) -> bool:
    """Tell whether X is a dict of arrays; sparse matrices by keys may be mappings, and are not."""
    return isinstance(X, Mapping) and not sparse.issparse(X)


def sliceable(X: Any, name: str = "X") -> Any:
    """Return a dict of arrays of equal length as one whose rows can be taken; else X itself.

    No array is copied.

    Raises
    ------
    ValueError
        If it has no arrays, or they have different lengths.
    TypeError
        If a key is not a string.
    """
    if not is_dict(X) or isinstance(X, DictRows):
        return X
    if not X.keys():
        raise ValueError(f"{name} is an empty dict: pass an array for each argument of forward.")
    arrays = {}
    for key in X:
        if not isinstance(key, str):
            raise TypeError(
                f"{name} has the key {key!r}, but keys are the names of arguments of the module's "
                "forward: pass strings."
            )
        array = X[key]
        # An index of a table is of its labels or columns, not of rows.
        has_rows = hasattr(array, "shape") and not hasattr(array, "iloc")
        arrays[key] = array if has_rows else np.asarray(array)
        if not arrays[key].shape:
            raise ValueError(
                f"{name}[{key!r}] is one value, not an array: pass an array with an entry a row."
            )
    _check_lengths({key: array.shape[0] for key, array in arrays.items()}, name)
    # In the order of keys, so that it does not matter in which they were given.
    return DictRows(**{key: arrays[key] for key in sorted(arrays)})


def _check_lengths(lengths: dict[str, int], name: str) -> None:
    first = next(iter(lengths))
    for key, length in lengths.items():
        if length != lengths[first]:
            raise ValueError(
                f"{name}[{first!r}] has {lengths[first]} rows, but {name}[{key!r}] has {length}: "
                "pass arrays with the same rows."
            )


def check_dict(X: Mapping, name: str) -> DictRows:
    """Return a dict of arrays that are booleans, integers or finite floats.

    Raises
    ------
    ValueError
        If an array has other values, or as ``sliceable``.
    """
    rows = sliceable(X, name)
    return DictRows(**{key: _checked(rows[key], f"{name}[{key!r}]") for key in rows})


def _checked(array: Any, name: str) -> np.ndarray:
    try:
        checked = check_array(array, dtype=None, ensure_2d=False, allow_nd=True, input_name=name)
    except (TypeError, ValueError) as error:
        if name in str(error):
            raise
        raise ValueError(f"{name}: {error}") from error
    if checked.dtype.kind not in _KINDS:
        raise ValueError(
            f"{name} has dtype {checked.dtype}, but the arrays of a dict are booleans, integers or "
            "floats: convert it by astype, and encode text."
        )
    return checked


def like_fitted(X: DictRows, fitted: SampleShape) -> DictRows:
    """Return rows with integers and booleans as floats where fit had these, booleans as integers.

    Columns of whole numbers may be read as integers in one file and as floats in another.
    """
    if not isinstance(fitted, dict):
        return X

    def like(key: str, array: np.ndarray) -> np.ndarray:
        kind = np.dtype(fitted[key][0] if key in fitted else array.dtype)
        grows = _KINDS.index(array.dtype.kind) < _KINDS.index(kind.kind)
        return array.astype(kind) if grows else array

    return DictRows(**{key: like(key, array) for key, array in X.items()})


def difference(one: SampleShape, other: SampleShape) -> tuple[str, str] | None:
    """Describe how samples differ: what one has and what the other; None if they do not."""
    if one == other:
        return None
    if not isinstance(one, dict) or not isinstance(other, dict):
        return _whole(one), _whole(other)
    if missing := sorted(other.keys() - one.keys()):
        return f"no key {missing[0]!r}", _whole(other)
    if added := sorted(one.keys() - other.keys()):
        return f"the key {added[0]!r}", _whole(other)
    key = min(key for key in one if one[key] != other[key])
    mine, its = (f"{key!r} of {kind} and shape {shape}" for kind, shape in (one[key], other[key]))
    return mine, its


def _whole(shape: SampleShape) -> str:
    is_dict = isinstance(shape, dict)
    return f"a dict with the keys {sorted(shape)}" if is_dict else f"samples of shape {shape}"
