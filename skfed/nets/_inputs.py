"""Inputs of nets: rows in the net's dtype, and in batches."""

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet

from skfed.modules import Standardize
from skfed.nets._dict_rows import DictRows, by_array

_CHUNK = 2**24  # bytes of rows that are shifted at once


def to_tensors(net: NeuralNet, *arrays: np.ndarray | DictRows) -> list[Any]:
    """Copy arrays to tensors on the net's device; of a dict, to a plain dict as skorch has it."""
    device = net.device

    def to_tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(_plain(array)).to(device)

    return [by_array(to_tensor, dict(X) if isinstance(X, dict) else X) for X in arrays]


def batch_size(net: NeuralNet, iterator="iterator_train") -> int:
    """Return the batch size of skorch's own iterator; -1 means all rows."""
    return net.get_params_for(iterator).get("batch_size", net.batch_size)


def whole(size: int, n_samples: int) -> int:
    """Return a batch size in rows, where -1 means all."""
    return n_samples if size == -1 else size


def plain(X: "Samples") -> Any:
    """Copy arrays that are read-only or not contiguous, which torch does not take."""
    return by_array(_plain, X)


def _plain(array: np.ndarray) -> np.ndarray:
    if min(array.strides, default=0) < 0:  # one row of a reversed array counts as contiguous
        return array.copy()
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    return np.require(array, requirements=("C", "W"))


class CastRows:
    """Rows of a memory map, cast to the dtype of a module as they are read.

    Parameters
    ----------
    X : ndarray of shape (n_samples, ...)
        Backed by a memory map, which may be larger than memory.
    dtype : dtype
        That of the module.
    shift : ndarray of shape (n_features,), default=None
        What is subtracted, in float64, before the cast.
    rows : ndarray of int, default=None
        Which rows of X these are; None: all.
    """

    def __init__(
        self,
        X: np.ndarray,
        dtype: np.dtype,
        shift: np.ndarray | None = None,
        rows: np.ndarray | None = None,
    ):
        self.dtype, self.ndim = dtype, X.ndim
        self.shape = X.shape if rows is None else (len(rows), *X.shape[1:])
        self.nbytes = prod(self.shape) * dtype.itemsize
        self._X, self._rows = X, rows
        self._shift = None if shift is None else shift.reshape(X.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index) -> np.ndarray:
        """Return what a NumPy array would, of whole rows: an index, a slice or row numbers."""
        index, *others = index if isinstance(index, tuple) else (index,)
        numbers = np.arange(len(self))[index]
        X = np.empty((*numbers.shape, *self.shape[1:]), self.dtype)
        by_row = X.reshape(-1, *self.shape[1:])
        for part in _parts(by_row):
            by_row[part] = self.cast(numbers.reshape(-1)[part])
        return X[(slice(None),) * numbers.ndim + tuple(others)] if others else X

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def cast(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return some rows, with all that is computed for them at once."""
        X = self._X[rows if self._rows is None else self._rows[rows]]
        if self._shift is not None:
            X = X.astype(np.float64) - self._shift
        with np.errstate(over="ignore"):
            return X.astype(self.dtype, copy=False)


#: Samples as a module takes them.
Samples = np.ndarray | CastRows | DictRows


def cast(net: NeuralNet, X: np.ndarray | DictRows) -> Any:
    """Return X in the dtype of the module; integers stay integers if it does not take others.

    Columns that the dtype cannot hold are shifted before; see ``Standardize``. X itself is returned
    if it has that dtype, and none is. In a dict integers and booleans stay what they are.
    """
    if isinstance(X, dict):
        return _by_key(_cast, net, X)
    return _cast(X, *_dtype_and_shift(net, X))


def _cast(X: np.ndarray, dtype: np.dtype, shift: np.ndarray | None, name: str = "X") -> np.ndarray:
    if X.dtype == dtype and shift is None:
        return X
    rows = CastRows(X, dtype, shift)
    result = np.empty(rows.shape, rows.dtype)
    for part in _parts(X):
        result[part] = rows.cast(part)
    _check_finite(result, name)
    return result


def cast_samples(net: NeuralNet, X: np.ndarray | DictRows, rows: np.ndarray | None = None) -> Any:
    """Return X, or some rows of it, as ``cast`` does; of a large memory map, when they are read."""
    if isinstance(X, dict):
        return _by_key(partial(_cast_samples, rows=rows), net, X)
    if X.nbytes <= _CHUNK or not _is_mapped(X):
        return cast(net, X if rows is None else X[rows])
    return _cast_samples(X, *_dtype_and_shift(net, X), rows=rows)


def _cast_samples(
    X: np.ndarray,
    dtype: np.dtype,
    shift: np.ndarray | None,
    name: str = "X",
    *,
    rows: np.ndarray | None,
) -> np.ndarray | CastRows:
    if X.nbytes <= _CHUNK or not _is_mapped(X):
        return _cast(X if rows is None else X[rows], dtype, shift, name)
    if X.dtype == dtype and shift is None:
        return X if rows is None else CastRows(X, X.dtype, rows=rows)
    found = CastRows(X, dtype, shift, rows)
    for part in _parts(found):
        _check_finite(found[part], name)
    return found


def _by_key(cast_one: Callable[..., Samples], net: NeuralNet, X: DictRows) -> DictRows:
    """Cast the arrays of a dict: floats to the module's dtype, integers to int64, no booleans."""
    dtypes = {"f": float_dtype(net), "i": "int64", "u": "int64", "b": "bool"}
    arrays = {}
    for key, one in X.items():
        name, dtype = f"X[{key!r}]", np.dtype(dtypes[one.dtype.kind])
        if one.dtype == np.uint64:
            _check_int64(int(one.max()) if one.size else 0, name)
        arrays[key] = cast_one(one, dtype, None, name)
    return DictRows(**arrays)


def _check_finite(X: np.ndarray, name: str) -> None:
    if not np.isfinite(X).all():
        raise ValueError(
            f"{name} has values too large for the module's dtype, {X.dtype.name}: scale {name}."
        )


def _check_int64(largest: int, name: str) -> None:
    if largest > np.iinfo(np.int64).max:
        raise ValueError(f"{name} has the integer {largest}, and torch's int64 ends at 2**63 - 1.")


def _dtype_and_shift(net: NeuralNet, X: np.ndarray) -> tuple[np.dtype, np.ndarray | None]:
    """Return the dtype in which the module takes an array, and what is subtracted before."""
    if X.dtype.kind in "iu" and _stay_integers(net, X):
        return np.dtype(np.int64), None
    return np.dtype(float_dtype(net)), shift_of(net)


def float_dtype(net: NeuralNet) -> str:
    """Return the name of the dtype in which the module takes numbers that are not integers."""
    parameter = next((p for p in net.module_.parameters() if p.is_floating_point()), None)
    dtype = torch.get_default_dtype() if parameter is None else parameter.dtype
    name = str(dtype).removeprefix("torch.")
    return name if name in ("float16", "float64") else "float32"


def standardize_layers(net: NeuralNet) -> list[Standardize]:
    """Return the layers of a net that standardise X."""
    return [layer for layer in net.module_.modules() if isinstance(layer, Standardize)]


def shift_of(net: NeuralNet) -> np.ndarray | None:
    """Return what is subtracted from the columns of X before they are cast; None: nothing."""
    return next((layer.shift for layer in standardize_layers(net)), None)


def set_shift(net: NeuralNet, shift: np.ndarray | None) -> None:
    """Set what is subtracted from the columns of X before they are cast."""
    for layer in standardize_layers(net):
        layer.shift = shift


def _parts(X: Samples) -> Iterator[slice]:
    """Yield slices of rows that fill a chunk as float64."""
    size = max(1, _CHUNK // max(1, 8 * prod(X.shape[1:])))
    for start in range(0, len(X), size):
        yield slice(start, start + size)


def _is_mapped(X: np.ndarray) -> bool:
    """Tell whether the memory of an array is a file's."""
    base: Any = X
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return isinstance(base, mmap.mmap)


def _stay_integers(net: NeuralNet, X: np.ndarray) -> bool:
    """Tell whether a module gets integers as they are, found by trying a row.

    So it does if it takes nothing else, as embeddings and ``F.one_hot`` do, or if it takes both,
    and its dtype cannot hold the values. Columns that it standardises are shifted instead.
    """
    if not hasattr(net, "takes_"):
        row = X[:1]
        dtypes = np.dtype(float_dtype(net)), np.dtype(np.int64)
        # A row of zeros too: an id may be out of range, which the module then says.
        rows = row, np.zeros_like(row)
        net.takes_ = [d for d in dtypes if any(takes_rows(net, one.astype(d)) for one in rows)]
    if np.dtype(np.int64) not in net.takes_ or standardize_layers(net):
        return False
    largest = int(X.max()) if X.size else 0
    _check_int64(largest, "X")
    if len(net.takes_) == 1:
        return True
    exact = 2 ** (np.finfo(float_dtype(net)).nmant + 1)
    return bool(X.size) and max(largest, -int(X.min())) > exact


def takes_rows(net: NeuralNet, rows: np.ndarray) -> bool:
    """Tell whether a module, in evaluation mode, takes rows."""
    try:
        # A lazy module draws its weights here, from the generator as it is.
        with torch.random.fork_rng(devices=[]):
            net.evaluation_step((*to_tensors(net, rows), None))
    except Exception:  # whatever its layers raise
        return False
    return True
