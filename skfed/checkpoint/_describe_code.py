"""Descriptions of classes, functions and modules.

Code of installed libraries is described by its name. The user's own is described by its bytecode,
by what it holds, and by the globals and modules that it uses.
"""

import dis
import os
import site
import sys
import sysconfig
import types
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache, cached_property, partial
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec, resolve_name
from itertools import product
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

# Libraries whose packages export what their private modules define; and others that may export it.
_EXPORTING: dict[str, tuple[str, ...]] = {
    "skfed": (),
    "sklearn": (),
    "skorch": (),
    "torch": ("torch.nn.functional",),
}
_SITE_FOLDERS = {"site-packages", "dist-packages"}
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}  # in functions, in classes
_MADE_BY_PYTHON = {
    *("__module__", "__doc__", "__qualname__", "__annotations__", "__annotate_func__"),
    *("__abstractmethods__", "__firstlineno__", "__static_attributes__", "__parameters__"),
    *("__dict__", "__weakref__", "__orig_bases__", "__type_params__", "_abc_impl"),
}
WRAPPERS = staticmethod, classmethod, property, cached_property
_SETTINGS = (
    *(type(None), bool, int, float, complex, str, bytes, np.generic),
    *(Enum, PurePath, torch.device, torch.dtype, list, tuple, dict, set, type),
    *(types.FunctionType, *WRAPPERS),
)
_SHOWN = 60


class Indescribable(TypeError):
    """Raised for a value of which neither the code nor the parts can be read."""

    def __init__(self, value: Any):
        kind = full_name(type(value))
        super().__init__(f"neither the code nor the parts of {shown(value)}, a {kind}, can be read")


def shown(value: Any) -> str:
    """Return the beginning of a value's text, for a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def hex_of(data: bytes) -> str:
    """Return a digest of 32 hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


class CodeDescriber(ABC):
    """Describes code; a subclass describes all other values.

    A class or a function is described once: its descriptions refer to it by a number.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, tuple[int, Any]] = {}  # by id; holds the code so that ids stay
        self.pending: deque[Any] = deque()  # numbered, but not described yet
        self.inside: list[Any] = []  # values whose description has begun

    @abstractmethod
    def describe(self, value: Any) -> str:
        """Describe any value."""

    def members(self, values: Iterable[Any]) -> str:
        """Return a digest of descriptions."""
        return hex_of(" ".join(map(self.describe, values)).encode())

    def number(self, name: str, code: Any) -> str:
        """Refer to a class or a function, and describe it later."""
        if id(code) not in self.numbers:
            self.numbers[id(code)] = len(self.numbers), code
            self.pending.append(code)
        return f"{name} #{self.numbers[id(code)][0]}"

    def describe_pending(self) -> str:
        """Describe classes and functions that have a number, and those that they use."""
        texts = []
        while self.pending:
            code = self.pending.popleft()
            texts.append(self.body(code) if isinstance(code, type) else self.steps(code))
        return " ".join(texts)

    def kind(self, value: type) -> str:
        """Describe a class: by its name, or by number if a base class is the user's own."""
        name = full_name(value)
        is_own = not all(is_library(kind.__module__) for kind in value.__mro__)
        return self.number(name, value) if is_own else name

    def body(self, value: type) -> str:
        """Describe a class's bases and attributes."""
        own = {} if is_library(value.__module__) else by_name(dict(vars(value)))
        held = {name: one for name, one in own.items() if _is_setting(name, one)}
        return f"{full_name(value)} {self.members([type(value), value.__mro__[1:], held])}"

    def function(self, value: types.FunctionType) -> str:
        is_theirs = is_library(value.__globals__.get("__name__"))
        name = library_name(value) if is_theirs else None
        return name or self.number(value.__qualname__, value)

    def steps(self, value: types.FunctionType) -> str:
        """Describe a function's bytecode, defaults, closure, and the globals that it uses."""
        names = _names(value.__code__)
        cells = ", ".join(self.used("", cell, names) for cell in _cells(value))
        state = self.members([value.__defaults__, value.__kwdefaults__, vars(value)])
        if is_library(value.__globals__.get("__name__")):  # a library made it of its closure
            return f"{full_name(value)} {state} {cells}"
        loaded = sorted(_globals(value.__code__) & value.__globals__.keys())
        used = {name: value.__globals__[name] for name in loaded} | _imported_modules(value)
        texts = [f"{name}: {self.used(name, one, names)}" for name, one in used.items()]
        code = self.describe(value.__code__)
        return f"{value.__qualname__} {state} {cells} {code} {', '.join(texts)}"

    def used(self, name: str, value: Any, names: set[str]) -> str:
        """Describe a value that code uses by a name; of the user's modules, only ``names``."""
        if not isinstance(value, types.ModuleType):
            return f"library's {name}" if _is_of_library(name, value) else self.describe(value)
        if is_library(value.__name__) or any(value is one for one in self.inside):
            return value.__name__
        self.inside.append(value)
        text = self.module_parts(value, names)
        self.inside.pop()
        return text

    def module_parts(self, value: types.ModuleType, names: set[str]) -> str:
        parts = {name: vars(value)[name] for name in sorted(names) if name in vars(value)}
        texts = [f"{name}: {self.used(name, one, names)}" for name, one in parts.items()]
        return f"{{{', '.join(texts)}}}"

    def python_module(self, value: types.ModuleType) -> str:
        """Describe a module that is a value: all of it, since any name may be used."""
        if is_library(value.__name__):
            return value.__name__
        return self.module_parts(value, {n for n in vars(value) if not n.startswith("__")})

    def code(self, value: types.CodeType) -> str:
        n_named = value.co_argcount + value.co_kwonlyargcount
        arguments = value.co_flags, value.co_posonlyargcount, value.co_varnames[:n_named]
        parts = value.co_code, value.co_exceptiontable, value.co_names, value.co_consts
        return self.members([*arguments, value.co_argcount, *parts])

    def method(self, value: types.MethodType) -> str:
        return f"{self.describe(value.__self__)}.{self.describe(value.__func__)}"

    def builtin(self, value: Any) -> str:
        """Describe a function that is not written in Python by its name and its owner."""
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
        """Describe a library's ufunc; the function that np.frompyfunc wraps cannot be read."""
        name = library_name(value)
        if name is None:
            raise Indescribable(value)
        return name

    def wrapper(self, value: Any) -> str:
        names = "__func__", "fget", "fset", "fdel", "func"
        return f"{type(value).__name__} {self.members([getattr(value, n, None) for n in names])}"

    def partial(self, value: partial) -> str:
        return f"partial {self.members([value.func, value.args, value.keywords, vars(value)])}"


def is_library(module: str | None) -> bool:
    """Tell whether a module, by its name, is skfed's, Python's or that of an installed package.

    Its code is not edited from run to run. A package that is installed as a link to its sources is
    the user's own, but for skfed.
    """
    name = module or ""
    top = name.partition(".")[0]
    if top in ("__main__", "__mp_main__", "skfed"):
        return top == "skfed"
    file = _file(name) or _file(top)
    return top in sys.stdlib_module_names if file is None else _is_installed(file)


def _file(name: str) -> str | None:
    """Return the path of a module, also before it is imported; None if it has none."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
    else:
        spec = find_spec(name) if name and "." not in name else None
        file = None if spec is None or not spec.has_location else spec.origin
    return file if file and os.path.isabs(file) else None


@cache
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    homes = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    homes.append(site.getusersitepackages())
    return not _SITE_FOLDERS.isdisjoint(Path(file).parts) or any(
        path.is_relative_to(Path(home).resolve()) for home in homes
    )


def full_name(value: Any) -> str:
    """Return module and name of a class or a function; of known libraries, the public ones."""
    name = getattr(value, "__qualname__", None) or value.__name__
    module = value.__module__
    public, top = module.partition("._")[0], module.partition(".")[0]
    if top not in _EXPORTING:
        return f"{module}.{name}"
    names = name, getattr(value, "__name__", name)
    for package, one in product((public, *_EXPORTING[top]), names):
        if _find(package, one) is value:
            return f"{package}.{one}"
    return f"{public if top == 'skfed' else module}.{name}"


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def library_name(value: Any) -> str | None:
    """Return the full name of a library's function, class or other object; None of others."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    module = getattr(value, "__module__", None)
    if module is None:  # as of some that are written in C
        return _exported_name(getattr(value, "__name__", name), value)
    return full_name(value) if is_library(module) and _find(module, name) is value else None


def _exported_name(name: str, value: Any) -> str | None:
    homes = [
        module
        for module, held in sys.modules.items()
        if getattr(held, "__dict__", {}).get(name) is value and is_library(module)
    ]
    return f"{min(homes, key=lambda home: (home.count('.'), home))}.{name}" if homes else None


def _is_of_library(name: str, value: Any) -> bool:
    """Tell whether the library of a value's type has the value under the same name."""
    module = type(value).__module__
    homes = {module, module.partition(".")[0]}
    return is_library(module) and any(
        getattr(sys.modules.get(home), name, None) is value for home in homes
    )


def by_name(state: Any) -> Any:
    """Sort attributes by name, since copies may have them in another order."""
    is_named = type(state) is dict and all(isinstance(name, str) for name in state)
    return dict(sorted(state.items())) if is_named else state


def _is_setting(name: str, value: Any) -> bool:
    """Tell whether the author of a class has set an attribute, not Python or a library."""
    slots = types.GetSetDescriptorType, types.MemberDescriptorType
    if name in _MADE_BY_PYTHON or isinstance(value, slots):
        return False
    is_special = name.startswith("__") and name.endswith("__")
    return not is_special or isinstance(value, _SETTINGS)


def _cells(function: types.FunctionType) -> list[Any]:
    """Return the values of a function's closure."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not filled yet
            found.append("empty")
    return found


def _names(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes that code and nested code use."""
    return set(code.co_names).union(*map(_names, _nested(code)))


def _globals(code: types.CodeType) -> set[str]:
    """Return the names of globals that code and nested code use."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname in _LOADS}
    return own.union(*map(_globals, _nested(code)))


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    return (const for const in code.co_consts if isinstance(const, types.CodeType))


def _imported_modules(function: types.FunctionType) -> dict[str, types.ModuleType]:
    """Return the user's own modules that a function imports when it is called."""
    package = function.__globals__.get("__package__") or ""
    modules = (_own_module(name, package) for name in sorted(_imports(function.__code__)))
    return {module.__name__: module for module in modules if module is not None}


def _imports(code: types.CodeType) -> set[str]:
    """Return the names that code imports, and those from them, which may be modules too."""
    found = set().union(*map(_imports, _nested(code)))
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, wanted = steps[i - 2].argval, steps[i - 1].argval or ()
            parent = f"{step.argval}." if step.argval else ""
            found |= {"." * level + name for name in (step.argval, *(parent + n for n in wanted))}
    return found


def _own_module(name: str, package: str) -> types.ModuleType | None:
    try:
        name = resolve_name(name, package)
        return None if is_library(name) else import_module(name)
    except ImportError:  # no module, or the function can do without it
        return None
