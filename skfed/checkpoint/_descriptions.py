"""Texts that are the same in every process for the same value, and others for other values.

Code is told by what it is and by what it reaches by name, except what is of installed libraries;
any other object by the parts of which pickle would make it anew. Code is numbered where it is first
met, and told once, at the end.
"""

import threading
import types
import typing
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from inspect import Parameter
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from skorch import NeuralNet
from skorch.callbacks import Callback
from torch import nn
from torch.nn.parameter import is_lazy

from skfed.checkpoint._code import (
    full_name,
    globals_in,
    imported_by,
    is_library,
    is_of_library,
    library_name,
    names_in,
)
from skfed.checkpoint._contents import (
    NO_PICKLE,
    WRAPPERS,
    Indescribable,
    by_attribute,
    cells_of,
    column_of,
    defaults_of,
    is_idle,
    is_polars,
    is_told,
    learned_by,
    own_attributes,
    parts_of,
)
from skfed.checkpoint._digests import digest_of, hex_of, numbers_of

_EXACT = {type(None), bool, int, float, complex, str, bytes}
_REPRS = np.generic, PurePath, torch.device, torch.dtype
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


def describe(value: Any, of_callback: bool = False) -> str:
    """Return a text that is the same in every process, and another for another value.

    Parameters
    ----------
    value : object
        Any value.
    of_callback : bool, default=False
        Of what a callback holds, an object that can be neither copied nor called, such as a file
        or TensorBoard's writer, is told by its type.

    Raises
    ------
    Indescribable
        If it is, holds or uses what cannot be told from others.
    """
    return _Describer(of_callback).whole(value)


class _Describer:
    """Describes values, those that hold themselves too."""

    def __init__(self, of_callback: bool):
        self.of_callback = of_callback
        self.numbers: dict[int, tuple[int, Any]] = {}  # of code, by id; held so that ids stay
        self.untold: deque[Any] = deque()  # code that has a number and is not described yet
        self.inside: list[Any] = []  # whose description is under way

    def whole(self, value: Any) -> str:
        """Describe a value, and the code that it reaches."""
        text, told = self.describe(value), []
        while self.untold:
            told.append(self.definition(self.untold.popleft()))
        return f"{text} {hex_of(' '.join(told).encode())}" if told else text

    def describe(self, value: Any) -> str:
        """Describe any value, its code by numbers; a tensor that has no values yet, as such."""
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

    def number(self, name: str, code: Any) -> str:
        """Refer to code that is described once, however often it is reached."""
        if id(code) not in self.numbers:
            self.numbers[id(code)] = len(self.numbers), code
            self.untold.append(code)
        return f"{name} #{self.numbers[id(code)][0]}"

    def definition(self, code: Any) -> str:
        return self.body(code) if isinstance(code, type) else self.steps(code)

    def tensor(self, value: torch.Tensor) -> str:
        if is_lazy(value):
            return "uninitialized"
        try:
            array = numbers_of(value)
        except NO_PICKLE as error:
            raise Indescribable(value) from error
        return f"{value.dtype} of shape {tuple(value.shape)}, {digest_of(array)}"

    def array(self, value: np.ndarray) -> str:
        if type(value) not in (np.ndarray, np.memmap):  # a masked array, for one
            return self.object(value)
        if value.dtype.hasobject:
            return f"{value.dtype} of shape {value.shape}, {self.members(value.ravel().tolist())}"
        return f"{value.dtype} of shape {value.shape}, {digest_of(value)}"

    def frame(self, value: pd.DataFrame) -> str:
        columns = [column_of(value.iloc[:, i]) for i in range(value.shape[1])]
        return f"{full_name(type(value))} {self.members([value.index, value.columns, columns])}"

    def series(self, value: pd.Series) -> str:
        return (
            f"{full_name(type(value))} {self.members([value.name, value.index, column_of(value)])}"
        )

    def index(self, value: pd.Index) -> str:
        return f"{full_name(type(value))} {self.members([list(value.names), column_of(value)])}"

    def members(self, values: Iterable[Any]) -> str:
        return hex_of(" ".join(map(self.describe, values)).encode())

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
            name: (
                type(m),
                own_attributes(m),
                [list(getattr(m, hooks).values()) for hooks in _HOOKS],
            )
            for name, m in value.named_modules()
        }
        told = self.members([weights, dict(value.named_buffers()), parts, ties])
        return f"{self.kind(type(value))} {told}"

    def kind(self, value: type) -> str:
        """Describe a class: by its name, and by its code if some of it is of no library."""
        name = full_name(value)
        is_own = not all(is_library(kind.__module__) for kind in value.__mro__)
        return self.number(name, value) if is_own else name

    def body(self, value: type) -> str:
        """Describe the bases of a class, and what the class itself holds."""
        own = {} if is_library(value.__module__) else by_attribute(dict(vars(value)))
        held = {name: one for name, one in own.items() if is_told(name, one)}
        return f"{full_name(value)} {self.members([type(value), value.__mro__[1:], held])}"

    def function(self, value: types.FunctionType) -> str:
        is_theirs = is_library(value.__globals__.get("__name__"))
        name = library_name(value) if is_theirs else None
        return name or self.number(value.__qualname__, value)

    def steps(self, value: types.FunctionType) -> str:
        """Describe a function's code, what it was given when made, and what it reaches by name."""
        names = names_in(value.__code__)
        cells = ", ".join(self.by_name("", cell, names) for cell in cells_of(value))
        state = self.members([value.__defaults__, value.__kwdefaults__, vars(value)])
        told = f"{value.__qualname__} {state} {cells}"
        if is_library(value.__globals__.get("__name__")):  # made by one, of what it was given
            return f"{full_name(value)} {state} {cells}"
        used = sorted(globals_in(value.__code__) & value.__globals__.keys())
        reached = {name: value.__globals__[name] for name in used}
        reached |= imported_by(value)
        uses = [f"{name}: {self.by_name(name, one, names)}" for name, one in reached.items()]
        return f"{told} {self.describe(value.__code__)} {', '.join(uses)}"

    def by_name(self, name: str, value: Any, names: set[str]) -> str:
        """Describe what code reaches by a name: of a module of the user's own, what it uses."""
        if not isinstance(value, types.ModuleType):
            return f"library's {name}" if is_of_library(name, value) else self.describe(value)
        if is_library(value.__name__) or any(value is one for one in self.inside):
            return value.__name__
        self.inside.append(value)
        told = self.parts_of_module(value, names)
        self.inside.pop()
        return told

    def parts_of_module(self, value: types.ModuleType, names: set[str]) -> str:
        parts = {name: vars(value)[name] for name in sorted(names) if name in vars(value)}
        told = [f"{name}: {self.by_name(name, one, names)}" for name, one in parts.items()]
        return f"{{{', '.join(told)}}}"

    def whole_module(self, value: types.ModuleType) -> str:
        """Describe a module that is a value: all of it, since any name may be asked of it."""
        if is_library(value.__name__):
            return value.__name__
        return self.parts_of_module(
            value, {name for name in vars(value) if not name.startswith("__")}
        )

    def code(self, value: types.CodeType) -> str:
        n_named = value.co_argcount + value.co_kwonlyargcount
        arguments = value.co_flags, value.co_posonlyargcount, value.co_varnames[:n_named]
        parts = value.co_code, value.co_exceptiontable, value.co_names, value.co_consts
        return self.members([*arguments, value.co_argcount, *parts])

    def method(self, value: types.MethodType) -> str:
        return f"{self.describe(value.__self__)}.{self.describe(value.__func__)}"

    def builtin(self, value: Any) -> str:
        """Describe a function that is not written in Python: by its name and what it belongs to."""
        owner = getattr(value, "__self__", getattr(value, "__objclass__", None))
        if isinstance(owner, types.ModuleType) or type(owner).__name__ == "PyCapsule":
            owner = None
        if isinstance(owner, type | None) and (name := library_name(value)):
            return name
        if owner is not None:
            return f"{self.describe(owner)}.{value.__name__}"
        module = getattr(value, "__module__", None)
        if module is not None and not is_library(module):
            raise Indescribable(value)
        return f"{module}.{value.__name__}" if module is None else full_name(value)

    def ufunc(self, value: np.ufunc) -> str:
        """Describe a library's ufunc; what np.frompyfunc wraps cannot be reached."""
        name = library_name(value)
        if name is None:
            raise Indescribable(value)
        return name

    def wrapper(self, value: Any) -> str:
        names = "__func__", "fget", "fset", "fdel", "func"
        return f"{type(value).__name__} {self.members([getattr(value, n, None) for n in names])}"

    def partial(self, value: partial) -> str:
        return f"partial {self.members([value.func, value.args, value.keywords, vars(value)])}"

    def enum(self, value: Enum) -> str:
        return f"{self.kind(type(value))}.{value.name} {self.describe(value.value)}"

    def weak(self, value: Any) -> str:
        """Describe what weak references point at; that of keys is what others' caches hold."""
        if isinstance(value, weakref.ref):
            return f"reference {self.describe(value())}"
        if isinstance(value, weakref.WeakKeyDictionary):
            return self.by_type(value)
        return (
            f"weak {self.describe({*value} if isinstance(value, weakref.WeakSet) else dict(value))}"
        )

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
        """Describe a set: each member alone, since they have no order."""
        told = f"{{{', '.join(sorted(map(self.alone, value)))}}}"
        if type(value) in (set, frozenset):
            return told
        return f"{self.kind(type(value))} {told} {self.describe(getattr(value, '__dict__', {}))}"

    def alone(self, value: Any) -> str:
        """Describe a value, and code that has no number yet, as if nothing came after."""
        if type(value) in _EXACT:
            return repr(value)
        other = _Describer(self.of_callback)
        other.numbers, other.inside = dict(self.numbers), list(self.inside)
        return other.whole(value)

    def sequence(self, value: Any) -> str:
        if type(value) not in (list, tuple):
            return self.object(value)
        text = ", ".join(map(self.describe, value))
        return f"[{text}]" if type(value) is list else f"({text})"

    def polars(self, value: Any) -> str:
        """Describe a frame or a column of polars, whose pickles tell how it was computed."""
        frame = value.to_frame() if hasattr(value, "to_frame") else value
        told = [str(frame.schema), frame.to_dict(as_series=False)]
        return f"{full_name(type(value))} {self.members(told)}"

    def component(self, value: Any) -> str:
        """Describe parameters that are not at their defaults, and what was learned."""
        defaults = defaults_of(type(value))
        held = {
            name: one
            for name, one in learned_by(value).items()
            if not self.is_same(one, defaults.get(name, Parameter.empty))
        }
        return f"{self.kind(type(value))}({self.describe(held)})"

    def is_same(self, value: Any, default: Any) -> bool:
        if value is default:
            return True
        return type(value) is type(default) and self.alone(value) == self.alone(default)

    def object(self, value: Any) -> str:
        """Describe any other object by the parts of which pickle would make it anew."""
        if isinstance(value, NeuralNet | Callback | BaseEstimator):
            return self.component(value)
        if hasattr(value, "__qualname__") and (name := library_name(value)):
            return name
        if is_polars(value):
            return self.polars(value)
        if self.of_callback and is_idle(value):
            return self.kind(type(value))
        parts = parts_of(value)
        if isinstance(parts, str) and hasattr(value, "__wrapped__"):  # functools.cache
            return f"{self.kind(type(value))} {self.describe(value.__wrapped__)}"
        if isinstance(parts, str):
            if not is_library(type(value).__module__) or callable(value):
                raise Indescribable(value)
            return f"{full_name(type(value))} {parts}"
        make, args, *rest = parts
        items = [list(part) if isinstance(part, Iterator) else by_attribute(part) for part in rest]
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
    (types.ModuleType, _Describer.whole_module),
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
