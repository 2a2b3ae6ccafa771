"""Texts of values: the same in every process, others for other values; as joblib.Memory does."""

import ast
import inspect
import pickle
import re
import sys
from hashlib import blake2b
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from skorch.callbacks import Callback
from torch import nn

from skfed.utils._torch_context import HOOKS
from skfed.utils._warnings import warn

_PLAIN = {type(None), bool, int, float, complex, str, bytes}
# Attributes of modules that are no settings; the last has weak references to weights.
_UNSET = vars(nn.Module()).keys() - {"training", "_parameters", "_buffers"} | {"_flat_weight_refs"}


def describe(value: Any, name: str = "value") -> str:
    """Return a text for a parameter: its repr, or its type and a digest."""
    hasher = _Hasher()
    try:
        stand_in = hasher.persistent_id(value)
        if isinstance(stand_in, str):
            return stand_in
        hasher.dump(value if stand_in is None else stand_in)
    except (pickle.PicklingError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if "callbacks" in name.split("__") and not callable(value):  # TensorBoard's writer
            return describe(type(value))
        raise TypeError(
            f"checkpoint cannot tell {name}={value!r:.60} from another: {error}. Pass a class, a "
            "function or an object of a module that you import, or fit without checkpoint."
        ) from error
    kind = value if isinstance(value, type | FunctionType) else type(value)
    return f"{_name(kind)} {hasher.digest.hexdigest()}"


class _Hasher(pickle.Pickler):
    """Makes a digest of a pickle, with other objects in place of those whose pickles vary."""

    def __init__(self) -> None:
        self.digest = blake2b(digest_size=16)
        super().__init__(SimpleNamespace(write=self.digest.update), protocol=4)
        self.seen: dict[int, tuple[str, Any]] = {}  # by id; holds the values so that ids stay

    def persistent_id(self, value: Any) -> Any:
        if id(value) in self.seen:
            return self.seen[id(value)][0]
        stand_in = _stand_in(value)
        if isinstance(stand_in, list):
            self.seen[id(value)] = f"again {len(self.seen)}", value
        return stand_in


def _stand_in(value: Any) -> str | list[Any] | None:
    """Return what to pickle instead of a value; None for the value itself."""
    kind = type(value)
    is_plain = kind in (list, tuple) and all(type(one) in _PLAIN for one in value)
    if is_plain or kind in _PLAIN or isinstance(value, np.generic | np.dtype):
        return repr(value)
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, type | FunctionType):
        own = [_own(one) for one in getattr(value, "__mro__", [value]) if not _is_library(one)]
        return [_name(value), own] if own else _name(value)
    if kind in (np.ndarray, np.memmap) and not value.dtype.hasobject:
        return f"{value.dtype} of shape {value.shape}, {_digest(value)}"
    if kind is dict:
        return [kind, sorted(value.items(), key=lambda pair: describe(pair[0]))]
    if kind in (set, frozenset):
        return [kind, sorted(map(describe, value))]
    parts = _parts(value)
    return None if parts is None else [kind, parts]


def _parts(value: Any) -> Any:
    """Return what an object is made of; None if pickle tells it."""
    if isinstance(value, nn.Module):
        handle = torch.utils.hooks.RemovableHandle
        own = {k: v for k, v in vars(value).items() if not isinstance(v, handle)}
        hooks = [list(own[name].values()) for name in HOOKS]
        return [*value._modules.items()], hooks, {k: v for k, v in own.items() if k not in _UNSET}
    if isinstance(value, torch.Tensor) and not nn.parameter.is_lazy(value):
        data = value.detach().cpu().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
        return str(value.dtype), list(value.shape), value.requires_grad, data.numpy()
    if isinstance(value, Callback):  # a fit changes its other attributes
        return {k: describe(v, f"callbacks__{k}") for k, v in value.get_params(False).items()}
    if isinstance(value, BaseEstimator):
        return vars(value)
    if isinstance(value, pd.DataFrame):
        return value.index, value.columns, list(value.items())
    return [value.__wrapped__] if callable(value) and hasattr(value, "__wrapped__") else None


def _digest(array: np.ndarray) -> str:
    """Return a digest of an array of any size and layout, without a copy of the whole."""
    digest = blake2b(digest_size=16)
    for rows in np.array_split(np.atleast_1d(array), 1 + array.nbytes // 2**24):
        digest.update(rows.tobytes())
    return digest.hexdigest()


def _own(code: Any) -> list[Any]:
    """Return the source text of the user's class or function, and values that it holds."""
    members = map(inspect.unwrap, vars(code).values()) if isinstance(code, type) else [code]
    functions = [f for f in members if isinstance(f, FunctionType) and inspect.getsourcefile(f)]
    held = [c.cell_contents for f in functions for c in f.__closure__ or () if c != CellType()]
    try:
        text = _source(code, functions)
    except Exception as error:  # of any kind, if the file was edited since it was imported
        if code.__name__ == "<lambda>":
            raise TypeError("a lambda has no source text") from error
        reason = "has no source text, so checkpoint and warm_start know it by its name alone"
        warn(f"{_name(code)} {reason}: write it in a module that you import.")
        text = ""
    return [text, held, [(one.__defaults__, one.__kwdefaults__) for one in functions]]


def _source(code: Any, functions: list[FunctionType]) -> str:
    if code.__name__ == "<lambda>":  # getsource returns the whole line
        own = code.__code__
        tree = ast.parse("".join(inspect.findsource(own)[0]))
        lambdas = [one for one in ast.walk(tree) if isinstance(one, ast.Lambda)]
        spots = [(k, col) for k, _, col, end in own.co_positions() if k and col != end]
        found = [n for n in lambdas if (n.body.lineno, n.body.col_offset) == min(spots, default=0)]
        texts = map(ast.unparse, found or [n for n in lambdas if n.lineno == own.co_firstlineno])
        return f"{next(texts)} {[*texts]} {[one for one in own.co_consts if type(one) in _PLAIN]}"
    for one in functions:  # getsource does not find classes of notebooks
        lines, end = inspect.findsource(one.__code__)
        heads = [k for k in range(end) if re.match(rf"\s*class {code.__name__}\b", lines[k])]
        if heads:
            return "".join(inspect.getblock(lines[heads[-1] :]))
    return inspect.getsource(getattr(code, "__code__", code))


def _name(code: Any) -> str:
    return f"{str(code.__module__).partition('._')[0]}.{code.__qualname__}"


def _is_library(code: Any) -> bool:
    """Tell whether code is of Python, skfed or an installed package."""
    top = str(code.__module__).partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None or "<" in code.__qualname__ or top in ("skfed", "__main__", "__mp_main__"):
        return "<" not in code.__qualname__ and top in {"skfed", *sys.stdlib_module_names}
    return any(home in file for home in ("site-packages", "dist-packages", inspect.__file__[:-10]))
