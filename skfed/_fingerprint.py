"""What tells one run from another: its parameters and data, in words short enough to compare."""

import functools
import types
from collections.abc import Callable, Mapping
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
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from skfed._federation import Federation

# What changes how a fit runs, but not its result.
_IDLE = {"checkpoint", "checkpoint_every", "n_jobs", "verbose", "warm_start"}
PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, np.generic),
    *(Enum, PurePath, torch.device, torch.dtype),
)
# Whose code is told by what it is called: they are not edited from run to run.
_LIBRARIES = {
    *("builtins", "abc", "collections", "functools", "typing", "numpy", "pandas", "scipy"),
    *("skfed", "sklearn", "skorch", "torch", "joblib"),
}
_OF_CLASSES = {
    *("__module__", "__doc__", "__qualname__", "__annotations__", "__annotate_func__"),
    *("__abstractmethods__", "__firstlineno__", "__static_attributes__", "__parameters__"),
}
OF_MODULES = vars(nn.Module()).keys()
_SHOWN = 60
_CHUNK = 2**24

Description = dict[str, str]


def describe_parameters(estimator: BaseEstimator) -> Description:
    """Describe each parameter; with ``warm_start``, ``n_rounds`` may grow from fit to fit."""
    idle = _IDLE | ({"n_rounds"} if estimator.warm_start else set())
    params = estimator.get_params(deep=True)
    return {
        # The parameters of a parameter are in the list themselves.
        name: describe(type(value) if _has_params(value) else value)
        for name, value in sorted(params.items())
        if name not in idle
    }


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array; of a dtype that NumPy lacks (bfloat16), its bytes."""
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.reshape(-1).view(torch.uint8).numpy()


def _has_params(value: Any) -> bool:
    return hasattr(value, "get_params") and not isinstance(value, type)


def describe_data(
    arrays: Mapping[str, np.ndarray | None], federation: Federation, classes: Any
) -> Description:
    """Describe what a fit is given: arrays by name, the clients, and the classes, if any."""
    told = {name: describe(array) for name, array in arrays.items()}
    digests = b"".join(federation.digest(k) for k in range(len(federation)))
    rows = _digest(federation.order, federation.offsets, federation.priority_weights)
    told["clients"] = f"{len(federation)} clients, {_hex(digests)} {rows}"
    return told | {"classes": describe(classes)}


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


def describe(value: Any) -> str:
    """Return a text that is the same in every process, and another for another value."""
    return _Describer().describe(value)


class _Describer:
    """Describes values, those that hold themselves too."""

    def __init__(self) -> None:
        self.inside: list[Any] = []  # whose description is under way

    def describe(self, value: Any) -> str:
        """Describe any value; a tensor that has no values yet, as such."""
        if isinstance(value, PLAIN):
            return repr(value)
        if any(value is one for one in self.inside):
            return "itself"
        self.inside.append(value)
        try:
            return next(of(self, value) for kinds, of in _KINDS if isinstance(value, kinds))
        finally:
            self.inside.pop()

    def array(self, value: Any) -> str:
        if isinstance(value, torch.Tensor) and is_lazy(value):
            return "uninitialized"
        array = _numbers(value) if isinstance(value, torch.Tensor) else np.asarray(value)
        return f"{array.dtype} of shape {array.shape}, {_digest(array)}"

    def by_hash(self, value: Any) -> str:
        return f"{type(value).__name__} {joblib.hash(value)}"

    def module(self, value: nn.Module) -> str:
        """Describe a module's weights, which of them are trained, and its other attributes."""
        weights = {n: (p.requires_grad, p) for n, p in value.named_parameters()}
        parts = {
            name: (type(m), _own(m), [*m._forward_hooks.values(), *m._forward_pre_hooks.values()])
            for name, m in value.named_modules()
        }
        told = self.describe([weights, dict(value.named_buffers()), parts])
        return f"{self.type(type(value))} {value} {_hex(told.encode())}"

    def type(self, value: type) -> str:
        """Describe a class: by its code, if it is of no library that has versions of its own."""
        own = [c for c in value.__mro__ if c.__module__.partition(".")[0] not in _LIBRARIES]
        if not own:
            return _type_name(value)
        bodies = [
            {name: v for name, v in vars(c).items() if name not in _OF_CLASSES and _is_code(v)}
            for c in own
        ]
        return f"{_type_name(value)} {_hex(self.describe(bodies).encode())}"

    def function(self, value: Any) -> str:
        """Describe a function by its name and code, closures and defaults included."""
        function = getattr(value, "__func__", value)
        cells = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
        defaults = function.__defaults__, function.__kwdefaults__
        state = [function.__code__, getattr(value, "__self__", None), defaults, cells]
        return f"{function.__qualname__} {_hex(self.describe(state).encode())}"

    def code(self, value: types.CodeType) -> str:
        parts = [value.co_code, value.co_names, value.co_consts]
        return _hex(self.describe(parts).encode())

    def wrapper(self, value: Any) -> str:
        parts = {name: getattr(value, name, None) for name in ("__func__", "fget", "fset", "func")}
        return f"{type(value).__name__} {self.describe(parts)}"

    def partial(self, value: functools.partial) -> str:
        return f"partial {self.describe([value.func, value.args, value.keywords])}"

    def named(self, value: Any) -> str:
        return value.__name__

    def mapping(self, value: Mapping) -> str:
        pairs = (f"{self.describe(k)}: {self.describe(v)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"

    def set(self, value: Any) -> str:
        return f"{{{', '.join(sorted(map(self.describe, value)))}}}"

    def sequence(self, value: Any) -> str:
        return f"[{', '.join(map(self.describe, value))}]"

    def object(self, value: Any) -> str:
        """Describe any other object by what it holds; one that has no pickle by its type alone."""
        if hasattr(value, "get_params"):
            return f"{self.type(type(value))}({self.describe(value.get_params())})"
        try:
            told = joblib.hash(value)
        except (PicklingError, TypeError, AttributeError, RuntimeError):
            return self.type(type(value))
        if hasattr(value, "__dict__"):  # tensors within have other pickles each time
            told = self.describe(vars(value))
        return f"{self.type(type(value))} {told}"


_KINDS: list[tuple[Any, Callable[[_Describer, Any], str]]] = [
    ((np.ndarray, torch.Tensor, pd.DataFrame, pd.Series), _Describer.array),
    ((np.random.RandomState, np.random.Generator), _Describer.by_hash),
    (nn.Module, _Describer.module),
    (type, _Describer.type),
    (types.CodeType, _Describer.code),
    ((types.FunctionType, types.MethodType), _Describer.function),
    ((types.BuiltinFunctionType, np.ufunc), _Describer.named),
    ((staticmethod, classmethod, property, functools.cached_property), _Describer.wrapper),
    (functools.partial, _Describer.partial),
    (Mapping, _Describer.mapping),
    (set | frozenset, _Describer.set),
    (list | tuple, _Describer.sequence),
    (object, _Describer.object),
]


def _own(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes beyond those of every module; handles of hooks are numbers."""
    return {
        name: value
        for name, value in vars(module).items()
        if name not in OF_MODULES and not isinstance(value, RemovableHandle)
    }


def _is_code(value: Any) -> bool:
    """Tell whether what a class holds is its author's, not made by Python or a library."""
    wrappers = staticmethod, classmethod, property, functools.cached_property
    return isinstance(value, (types.FunctionType, *wrappers, *PLAIN, list, tuple, dict, set, type))


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


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
