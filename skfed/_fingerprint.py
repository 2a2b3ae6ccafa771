"""What tells one run from another: its parameters and data, in words short enough to compare."""

import functools
import types
from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from pickle import PicklingError
from typing import Any

import joblib
import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from torch import nn

from skfed._federation import Federation

# What changes how a fit runs, but not its result.
_IDLE = {"checkpoint", "checkpoint_every", "n_jobs", "verbose", "warm_start"}
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, np.generic),
    *(Enum, PurePath, torch.device, torch.dtype),
)
_SHOWN = 60
_CHUNK = 2**24

Description = dict[str, str]


def describe_parameters(estimator: BaseEstimator) -> Description:
    """Describe each parameter; with ``warm_start``, ``n_rounds`` may grow from fit to fit."""
    idle = _IDLE | ({"n_rounds"} if estimator.warm_start else set())
    params = estimator.get_params(deep=True)
    return {
        name: _type_name(type(value)) if hasattr(value, "get_params") else _describe(value)
        for name, value in sorted(params.items())
        if name not in idle
    }


def describe_data(
    arrays: Mapping[str, np.ndarray | None], federation: Federation, classes: Any
) -> Description:
    """Describe what a fit is given: arrays by name, the clients, and the classes, if any."""
    told = {name: _describe(array) for name, array in arrays.items()}
    digests = b"".join(federation.digest(k) for k in range(len(federation)))
    rows = _digest(federation.order, federation.offsets, federation.priority_weights)
    told["clients"] = f"{len(federation)} clients, {_hex(digests)} {rows}"
    return told | {"classes": _describe(classes)}


def fingerprint(description: Description) -> str:
    """Return 32 hexadecimal digits that stand for a description."""
    return _hex("\n".join(f"{k}: {v}" for k, v in sorted(description.items())).encode())


def differences(one: Description, other: Description) -> list[str]:
    """Say where two descriptions differ, as ``other`` has it and as ``one`` has it."""
    return [
        f"{name} ({_short(other.get(name))}, now {_short(one.get(name))})"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def _short(text: str | None) -> str:
    if text is None:
        return "not there"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _describe(value: Any) -> str:
    """Return a text that is the same in every process, and another for another value."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, types.CodeType):
        return _hex(_describe([value.co_code, value.co_names, value.co_consts]).encode())
    if isinstance(value, np.ndarray | torch.Tensor | pd.DataFrame | pd.Series):
        array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
        return f"{array.dtype} of shape {array.shape}, {_digest(array)}"
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return f"{type(value).__name__} {joblib.hash(value)}"
    if isinstance(value, nn.Module):
        state = {name: _describe(tensor) for name, tensor in value.state_dict().items()}
        return f"{_type_name(type(value))} {value} {_hex(repr(state).encode())}"
    if isinstance(value, type):
        return _type_name(value)
    if isinstance(value, functools.partial):
        parts = value.func, value.args, sorted(value.keywords.items())
        return f"partial({', '.join(map(_describe, parts))})"
    if isinstance(value, types.FunctionType | types.MethodType):
        return _describe_function(value)
    if isinstance(value, types.BuiltinFunctionType | np.ufunc):
        return value.__name__
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_describe(k)}: {_describe(v)}' for k, v in value.items())}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_describe, value)))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_describe, value))}]"
    if hasattr(value, "get_params"):
        return f"{_type_name(type(value))}({_describe(sorted(value.get_params().items()))})"
    return _describe_object(value)


def _describe_function(value: Any) -> str:
    """Describe a function by its name and code, closures and defaults included."""
    function = getattr(value, "__func__", value)
    owner = getattr(value, "__self__", None)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    cells = [cell for cell in cells if cell is not function]  # which calls itself
    state = [function.__code__, owner, function.__defaults__, function.__kwdefaults__, cells]
    return f"{function.__qualname__} {_hex(_describe(state).encode())}"


def _describe_object(value: Any) -> str:
    """Describe any other object by its pickle; one that has none by its type alone."""
    try:
        return f"{_type_name(type(value))} {joblib.hash(value)}"
    except (PicklingError, TypeError, AttributeError):
        return _type_name(type(value))


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _digest(*arrays: np.ndarray) -> str:
    """Return a digest of arrays, of any size and layout, without a copy of the whole."""
    digest = blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        if array.dtype.kind == "O":
            digest.update(joblib.hash(array).encode())
            continue
        n_rows = max(1, _CHUNK // max(1, array[:1].nbytes)) if array.ndim else 1
        for start in range(0, len(array) if array.ndim else 0, n_rows):
            digest.update(np.ascontiguousarray(array[start : start + n_rows]).tobytes())
        if not array.ndim:
            digest.update(array.tobytes())
    return digest.hexdigest()


def _hex(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
