"""What code reaches by name, and whose it is: an installed library's or the user's own."""

import dis
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec, resolve_name
from itertools import product
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

# Libraries whose packages export what their private modules define; and others that may export it.
_EXPORTING: dict[str, tuple[str, ...]] = {
    "skfed": (),
    "sklearn": (),
    "skorch": (),
    "torch": ("torch.nn.functional",),
}
_FOLDERS = {"site-packages", "dist-packages"}
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}  # in functions, in classes


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
    return not _FOLDERS.isdisjoint(Path(file).parts) or any(
        path.is_relative_to(Path(home).resolve()) for home in homes
    )


def full_name(value: Any) -> str:
    """Return module and name of a class or a function; of known libraries, the public ones."""
    name = getattr(value, "__qualname__", None) or value.__name__
    module = value.__module__
    public, top = module.partition("._")[0], module.partition(".")[0]
    if top not in _EXPORTING:
        return f"{module}.{name}"
    for package, one in product(
        (public, *_EXPORTING[top]), (name, getattr(value, "__name__", name))
    ):
        if _find(package, one) is value:
            return f"{package}.{one}"
    return f"{public if top == 'skfed' else module}.{name}"


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def library_name(value: Any) -> str | None:
    """Return the name by which a library has a function, a class or another object, else None."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    module = getattr(value, "__module__", None)
    if module is None:  # as some of C have none
        return _any_library_name(getattr(value, "__name__", name), value)
    return full_name(value) if is_library(module) and _find(module, name) is value else None


def _any_library_name(name: str, value: Any) -> str | None:
    homes = [
        module
        for module, held in sys.modules.items()
        if getattr(held, "__dict__", {}).get(name) is value and is_library(module)
    ]
    return f"{min(homes, key=lambda home: (home.count('.'), home))}.{name}" if homes else None


def is_of_library(name: str, value: Any) -> bool:
    """Tell whether a global is an object that its type's library has under the same name."""
    module = type(value).__module__
    homes = {module, module.partition(".")[0]}
    return is_library(module) and any(
        getattr(sys.modules.get(home), name, None) is value for home in homes
    )


def names_in(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that code uses, that within it included."""
    return set(code.co_names).union(*map(names_in, _within(code)))


def globals_in(code: CodeType) -> set[str]:
    """Return the names of globals that code uses, that within it included."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname in _LOADS}
    return own.union(*map(globals_in, _within(code)))


def _within(code: CodeType) -> Iterator[CodeType]:
    return (const for const in code.co_consts if isinstance(const, CodeType))


def imported_by(function: FunctionType) -> dict[str, ModuleType]:
    """Return the user's own modules that a function imports when it is called."""
    package = function.__globals__.get("__package__") or ""
    modules = (_own_module(name, package) for name in sorted(_imports(function.__code__)))
    return {module.__name__: module for module in modules if module is not None}


def _imports(code: CodeType) -> set[str]:
    """Return the names that code imports, and those from them, which may be modules too."""
    found = set().union(*map(_imports, _within(code)))
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, wanted = steps[i - 2].argval, steps[i - 1].argval or ()
            parent = f"{step.argval}." if step.argval else ""
            found |= {"." * level + name for name in (step.argval, *(parent + n for n in wanted))}
    return found


def _own_module(name: str, package: str) -> ModuleType | None:
    try:
        name = resolve_name(name, package)
        return None if is_library(name) else import_module(name)
    except ImportError:  # no module, or one that the function can do without or will miss itself
        return None
