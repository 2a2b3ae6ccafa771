"""Inputs of nets: rows in the net's dtype, and in batches."""

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from skfed.modules import Standardize

_CHUNK = 2**24  # bytes of rows that are shifted at once


def to_tensors(net: NeuralNet, *arrays: np.ndarray) -> list[torch.Tensor]:
    """Copy arrays to tensors on the net's device."""
    return [torch.from_numpy(plain(array)).to(net.device) for array in arrays]


def batch_size(net: NeuralNet, iterator="iterator_train") -> int:
    """Return the batch size of skorch's own iterator; -1 means all rows."""
    return net.get_params_for(iterator).get("batch_size", net.batch_size)


def whole(size: int, n_samples: int) -> int:
    """Return a batch size in rows, where -1 means all."""
    return n_samples if size == -1 else size


def plain(array: np.ndarray) -> np.ndarray:
    """Copy an array that is read-only or not contiguous, which torch does not take."""
    if min(array.strides, default=0) < 0:  # one row of a reversed array counts as contiguous
        return array.copy()
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    return np.require(array, requirements=("C", "W"))


def cast(net: NeuralNet, X: np.ndarray) -> np.ndarray:
    """Return X in the dtype of the module; integers stay integers if it begins with an embedding.

    Columns that the dtype cannot hold are shifted before; see ``Standardize``. X itself is returned
    if it has that dtype, and none is.
    """
    if X.dtype.kind in "iu" and _begins_with_embedding(net.module_):
        return X.astype(np.int64, copy=False)
    name, shift = float_dtype(net), shift_of(net)
    if X.dtype == name and shift is None:
        return X
    with np.errstate(over="ignore"):
        result = X.astype(name) if shift is None else _shifted(X, shift, name)
    if not np.isfinite(result).all():
        raise ValueError(f"X has values too large for the module's dtype, {name}: scale X.")
    return result


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


def _shifted(X: np.ndarray, shift: np.ndarray, dtype: str) -> np.ndarray:
    """Return X - shift in a dtype, computed in float64; in chunks, as X may be a memory map."""
    result = np.empty(X.shape, dtype)
    size = max(1, _CHUNK // (8 * shift.size))
    for start in range(0, len(X), size):
        rows = slice(start, start + size)
        result[rows] = X[rows].astype(np.float64) - shift.reshape(X.shape[1:])
    return result


def _begins_with_embedding(module: nn.Module) -> bool:
    leaves = (m for m in module.modules() if not list(m.children()))
    return isinstance(next(leaves, None), nn.Embedding | nn.EmbeddingBag)
