"""Descriptions of values: texts that are the same in every process, and differ with the value.

Numbers and strings are described by their repr, arrays by digests, code as in ``_describe_code``,
components by their parameters, and any other object by what pickle would make it of.
"""

import copy
import copyreg
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from hashlib import blake2b
from inspect import Parameter, signature
from pathlib import PurePath
from pickle import PicklingError
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from skorch import NeuralNet
from skorch.callbacks import Callback
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from skfed.checkpoint._describe_code import (
    WRAPPERS,
    CodeDescriber,
    Indescribable,
    by_name,
    full_name,
    hex_of,
    is_library,
    library_name,
)
from skfed.nets import HOOKS

_CHUNK = 2**24
_EXACT = {type(None), bool, int, float, complex, str, bytes}
_REPRS = np.generic, PurePath, torch.device, torch.dtype
_OF_MODULES = vars(nn.Module()).keys()
_NO_PICKLE = TypeError, PicklingError, AttributeError, RuntimeError, ValueError


def describe(value: Any, of_callback: bool = False) -> str:
    """Return a text that is the same in every process, and another for another value.

    With ``of_callback``, an object that can be neither copied nor called, such as a file or
    TensorBoard's writer, is described by its type; else it raises Indescribable.
    """
    return _Describer(of_callback).text(value)


class _Describer(CodeDescriber):
    """Describes values, also those that contain themselves."""

    def __init__(self, of_callback: bool):
        super().__init__()
        self.of_callback = of_callback

    def text(self, value: Any) -> str:
        """Describe a value, and the code that it uses."""
        text, code = self.describe(value), self.describe_pending()
        return f"{text} {hex_of(code.encode())}" if code else text

    def describe(self, value: Any) -> str:
        """Describe any value, its code by numbers."""
        if type(value) in _EXACT or isinstance(value, _REPRS):
            return repr(value)
        for depth, one in enumerate(self.inside):
            if value is one:
                return f"itself at {depth}"
        self.inside.append(value)
        try:
            return next(of(self, value) for kinds, of in _KINDS if isinstance(value, kinds))
        finally:
            self.inside.pop()

    def separately(self, value: Any) -> str:
        """Describe a value with all of its code, whatever is described after it."""
        if type(value) in _EXACT:
            return repr(value)
        other = _Describer(self.of_callback)
        other.numbers, other.inside = dict(self.numbers), list(self.inside)
        return other.text(value)

    def tensor(self, value: torch.Tensor) -> str:
        if is_lazy(value):
            return "uninitialized"
        try:
            array = _to_numpy(value)
        except _NO_PICKLE as error:
            raise Indescribable(value) from error
        return f"{value.dtype} of shape {tuple(value.shape)}, {digest_of(array)}"

    def array(self, value: np.ndarray) -> str:
        if type(value) not in (np.ndarray, np.memmap):  # a masked array, for one
            return self.object(value)
        if value.dtype.hasobject:
            return f"{value.dtype} of shape {value.shape}, {self.members(value.ravel().tolist())}"
        return f"{value.dtype} of shape {value.shape}, {digest_of(value)}"

    def frame(self, value: pd.DataFrame) -> str:
        columns = [_column(value.iloc[:, i]) for i in range(value.shape[1])]
        return f"{full_name(type(value))} {self.members([value.index, value.columns, columns])}"

    def series(self, value: pd.Series) -> str:
        parts = [value.name, value.index, _column(value)]
        return f"{full_name(type(value))} {self.members(parts)}"

    def index(self, value: pd.Index) -> str:
        return f"{full_name(type(value))} {self.members([list(value.names), _column(value)])}"

    def module(self, value: nn.Module) -> str:
        """Describe a module's weights, which of them are trained, and its other attributes."""
        weights = {n: (p.requires_grad, p) for n, p in value.named_parameters()}
        first: dict[int, str] = {}  # the same tensor or module under two names
        ties = [
            first.setdefault(id(one), name)
            for of in (value.named_modules, value.named_parameters, value.named_buffers)
            for name, one in of(remove_duplicate=False)
        ]
        parts = {
            name: (type(m), _own_attributes(m), [list(getattr(m, h).values()) for h in HOOKS])
            for name, m in value.named_modules()
        }
        text = self.members([weights, dict(value.named_buffers()), parts, ties])
        return f"{self.kind(type(value))} {text}"

    def enum(self, value: Enum) -> str:
        return f"{self.kind(type(value))}.{value.name} {self.describe(value.value)}"

    def weak(self, value: Any) -> str:
        """Describe the referents of weak references; other code's caches have weak keys."""
        if isinstance(value, weakref.ref):
            return f"reference {self.describe(value())}"
        if isinstance(value, weakref.WeakKeyDictionary):
            return self.by_type(value)
        members = {*value} if isinstance(value, weakref.WeakSet) else dict(value)
        return f"weak {self.describe(members)}"

    def by_type(self, value: Any) -> str:
        return full_name(type(value))

    def by_name_alone(self, value: Any) -> str:
        return f"{full_name(type(value))} {value.__name__}"

    def mapping(self, value: Any) -> str:
        if type(value) not in (dict, types.MappingProxyType):
            return self.object(value)
        pairs = (f"{self.describe(k)}: {self.describe(v)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"

    def set(self, value: Any) -> str:
        """Describe the members of a set separately, since they have no order."""
        text = f"{{{', '.join(sorted(map(self.separately, value)))}}}"
        if type(value) in (set, frozenset):
            return text
        return f"{self.kind(type(value))} {text} {self.describe(getattr(value, '__dict__', {}))}"

    def sequence(self, value: Any) -> str:
        if type(value) not in (list, tuple):
            return self.object(value)
        text = ", ".join(map(self.describe, value))
        return f"[{text}]" if type(value) is list else f"({text})"

    def component(self, value: Any) -> str:
        """Describe parameters that are not at their defaults, and fitted attributes."""
        defaults = defaults_of(type(value))
        held = {
            name: one
            for name, one in _params_and_fitted(value).items()
            if not self.is_same(one, defaults.get(name, Parameter.empty))
        }
        return f"{self.kind(type(value))}({self.describe(held)})"

    def is_same(self, value: Any, default: Any) -> bool:
        if value is default:
            return True
        return type(value) is type(default) and self.separately(value) == self.separately(default)

    def object(self, value: Any) -> str:
        """Describe any other object by what pickle would make it of."""
        if isinstance(value, NeuralNet | Callback | BaseEstimator):
            return self.component(value)
        if hasattr(value, "__qualname__") and (name := library_name(value)):
            return name
        if _is_polars(value):  # whose pickles depend on how it was computed
            frame = value.to_frame() if hasattr(value, "to_frame") else value
            text = self.members([str(frame.schema), frame.to_dict(as_series=False)])
            return f"{full_name(type(value))} {text}"
        if self.of_callback and _is_resource(value):
            return self.kind(type(value))
        parts = _pickle_parts(value)
        if isinstance(parts, str) and hasattr(value, "__wrapped__"):  # functools.cache
            return f"{self.kind(type(value))} {self.describe(value.__wrapped__)}"
        if isinstance(parts, str):
            if not is_library(type(value).__module__) or callable(value):
                raise Indescribable(value)
            return f"{full_name(type(value))} {parts}"
        make, args, *rest = parts
        items = [list(part) if isinstance(part, Iterator) else by_name(part) for part in rest]
        return f"{self.kind(type(value))} {self.members([make, args, *items])}"


_LOCKS = type(threading.Lock()), type(threading.RLock())
_WEAK = weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet
_BUILTINS = (
    *(types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType),
)
_KINDS: list[tuple[Any, Callable[[_Describer, Any], str]]] = [
    (Enum, _Describer.enum),
    (torch.Tensor, _Describer.tensor),
    (np.ndarray, _Describer.array),
    (pd.DataFrame, _Describer.frame),
    (pd.Series, _Describer.series),
    (pd.Index, _Describer.index),
    (nn.Module, _Describer.module),
    (type, _Describer.kind),
    (types.ModuleType, _Describer.python_module),
    (types.CodeType, _Describer.code),
    (types.FunctionType, _Describer.function),
    (types.MethodType, _Describer.method),
    (_BUILTINS, _Describer.builtin),
    (np.ufunc, _Describer.ufunc),
    (WRAPPERS, _Describer.wrapper),
    (partial, _Describer.partial),
    (_LOCKS, _Describer.by_type),  # which hold nothing
    (_WEAK, _Describer.weak),
    ((typing.TypeVar, typing.ParamSpec, typing.NewType), _Describer.by_name_alone),
    ((dict, types.MappingProxyType), _Describer.mapping),
    (set | frozenset, _Describer.set),
    (list | tuple, _Describer.sequence),
    (object, _Describer.object),
]


def digest_of(*arrays: np.ndarray) -> str:
    """Return a digest of numeric arrays of any size and layout, without a copy of the whole."""
    digest = blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        array = np.atleast_1d(array)
        n_rows = max(1, _CHUNK // max(1, array[:1].nbytes))
        for start in range(0, len(array), n_rows):
            digest.update(array[start : start + n_rows].tobytes())
    return digest.hexdigest()


def defaults_of(kind: type) -> dict[str, Any]:
    """Return the defaults of a constructor, and of base classes to which it passes keywords."""
    found: dict[str, Any] = {}
    for one in kind.__mro__:
        if isinstance(init := vars(one).get("__init__"), types.FunctionType):
            parameters = signature(init).parameters.values()
            found = {p.name: p.default for p in parameters} | found
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return found


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array; its bytes, if its dtype is one that NumPy lacks (bfloat16)."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.reshape(-1).view(torch.uint8).numpy()


def _column(values: pd.Series | pd.Index) -> list[Any]:
    """Return dtype, categories and values."""
    return [str(values.dtype), getattr(values.dtype, "categories", None), np.asarray(values)]


def _own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes beyond those of every module, without handles of hooks."""
    return {
        name: value
        for name, value in by_name(vars(module)).items()
        if name not in _OF_MODULES and not isinstance(value, RemovableHandle)
    }


def _params_and_fitted(value: Any) -> dict[str, Any]:
    """Return a component's parameters and fitted attributes; a fit changes those of callbacks."""
    if isinstance(value, Callback):
        return value.get_params()
    if isinstance(value, NeuralNet):
        names = (f"{name}_" for name in (*value._modules, *value._criteria))
        return value.get_params() | {name: vars(value).get(name) for name in names}
    return by_name(vars(value))


def _is_polars(value: Any) -> bool:
    """Tell whether a value is a frame or a series of polars, without importing polars."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(value, polars.DataFrame | polars.Series)


def _is_resource(value: Any) -> bool:
    """Tell whether an object can be neither called nor copied: a writer, a file, a connection."""
    if callable(value) or isinstance(value, Iterator):
        return False
    try:
        copy.deepcopy(value)  # unlike pickle, it knows classes of a notebook or a script
    except _NO_PICKLE:
        return True
    return False


def _pickle_parts(value: Any) -> str | tuple:
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        return value.__reduce_ex__(4) if reduce is None else reduce(value)
    except _NO_PICKLE as error:
        raise Indescribable(value) from error
