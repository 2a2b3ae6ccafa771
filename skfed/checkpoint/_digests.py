"""Short texts that stand for arrays, bytes and types."""

from hashlib import blake2b
from typing import Any

import numpy as np
import torch

_CHUNK = 2**24
_SHOWN = 60


def numbers_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array; of a dtype that NumPy lacks (bfloat16), its bytes."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.reshape(-1).view(torch.uint8).numpy()


def shown(value: Any) -> str:
    """Return the beginning of a value's text, for a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def digest_of(*arrays: np.ndarray) -> str:
    """Return a digest of arrays of numbers, of any size and layout, without a copy of the whole."""
    digest = blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        n_rows = max(1, _CHUNK // max(1, array[:1].nbytes)) if array.ndim else 1
        for start in range(0, len(array) if array.ndim else 0, n_rows):
            digest.update(np.ascontiguousarray(array[start : start + n_rows]).tobytes())
        if not array.ndim:
            digest.update(array.tobytes())
    return digest.hexdigest()


def hex_of(data: bytes) -> str:
    """Return 32 hexadecimal digits that stand for bytes."""
    return blake2b(data, digest_size=16).hexdigest()
