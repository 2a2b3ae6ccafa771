"""What values hold: the parts by which a description tells them apart."""

import copy
import copyreg
import sys
import types
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from inspect import signature
from pathlib import PurePath
from pickle import PicklingError
from typing import Any

import numpy as np
import pandas as pd
import torch
from skorch import NeuralNet
from skorch.callbacks import Callback
from torch import nn
from torch.utils.hooks import RemovableHandle

from skfed.checkpoint._code import full_name
from skfed.checkpoint._digests import shown

PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, np.generic),
    *(Enum, PurePath, torch.device, torch.dtype),
)
OF_MODULES = vars(nn.Module()).keys()
_OF_CLASSES = {
    *("__module__", "__doc__", "__qualname__", "__annotations__", "__annotate_func__"),
    *("__abstractmethods__", "__firstlineno__", "__static_attributes__", "__parameters__"),
    *("__dict__", "__weakref__", "__orig_bases__", "__type_params__", "_abc_impl"),
}
WRAPPERS = staticmethod, classmethod, property, cached_property
NO_PICKLE = TypeError, PicklingError, AttributeError, RuntimeError, ValueError
_HOLDERS = list, tuple, dict, set, type
_SLOTS = types.GetSetDescriptorType, types.MemberDescriptorType


class Indescribable(TypeError):
    """Says of which value neither the code nor the parts can be read."""

    def __init__(self, value: Any):
        kind = full_name(type(value))
        super().__init__(f"of {shown(value)}, a {kind}, neither the code nor the parts can be read")


def column_of(values: pd.Series | pd.Index) -> list[Any]:
    """Return what a column is: dtype, categories and values."""
    return [str(values.dtype), getattr(values.dtype, "categories", None), np.asarray(values)]


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return a module's attributes beyond those of every module; handles of hooks are numbers."""
    return {
        name: value
        for name, value in by_attribute(vars(module)).items()
        if name not in OF_MODULES and not isinstance(value, RemovableHandle)
    }


def by_attribute(state: Any) -> Any:
    """Sort attributes by name, since copies may have them in another order."""
    is_named = type(state) is dict and all(isinstance(name, str) for name in state)
    return dict(sorted(state.items())) if is_named else state


def is_told(name: str, value: Any) -> bool:
    """Tell whether what a class holds is its author's, not made by Python or a library."""
    if name in _OF_CLASSES or isinstance(value, _SLOTS):
        return False
    is_special = name.startswith("__") and name.endswith("__")
    return not is_special or isinstance(value, (types.FunctionType, *WRAPPERS, *PLAIN, *_HOLDERS))


def cells_of(function: types.FunctionType) -> list[Any]:
    """Return what a function has closed over."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            found.append("empty")
    return found


def parts_of(value: Any) -> str | tuple:
    """Return of what pickle would make an object anew."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        return value.__reduce_ex__(4) if reduce is None else reduce(value)
    except NO_PICKLE as error:
        raise Indescribable(value) from error


def learned_by(value: Any) -> dict[str, Any]:
    """Return an estimator's parameters and what it has learned; a callback learns in a fit."""
    if isinstance(value, Callback):
        return value.get_params()
    if isinstance(value, NeuralNet):
        names = (f"{name}_" for name in (*value._modules, *value._criteria))
        return value.get_params() | {name: vars(value).get(name) for name in names}
    return by_attribute(vars(value))


def defaults_of(kind: type) -> dict[str, Any]:
    """Return the defaults of a constructor, of base classes too that it passes keywords on to."""
    found: dict[str, Any] = {}
    for one in kind.__mro__:
        if isinstance(init := vars(one).get("__init__"), types.FunctionType):
            parameters = signature(init).parameters.values()
            found = {p.name: p.default for p in parameters} | found
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return found


def is_idle(value: Any) -> bool:
    """Tell whether an object has no part in what is computed: a writer, a file, a connection."""
    if callable(value) or isinstance(value, Iterator):
        return False
    try:
        copy.deepcopy(value)  # which knows classes of a notebook or a script, unlike pickle
    except NO_PICKLE:
        return True
    return False


def is_polars(value: Any) -> bool:
    """Tell whether a value is a frame or a column of polars, without an import of it."""
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(value, polars.DataFrame | polars.Series)
