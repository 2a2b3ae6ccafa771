"""Resets the attributes of a net, so that no client's work depends on the one before."""

from collections.abc import Set
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from skorch import NeuralNet
from torch import nn

# Classes of these change nothing from batch to batch but parameters and buffers.
_LIBRARIES = "torch.", "skorch.", "skfed."
_PLAIN = bool, int, float, complex, str, bytes, type(None)
_OF_MODULES = vars(nn.Module()).keys()


@dataclass(frozen=True)
class _Part:
    """An object of a net, and its first attributes."""

    attributes: dict[str, Any]  # its __dict__
    known: bool  # whether its class is of a library
    names: Set[str]  # of the first attributes
    fixed: dict[str, Any]  # immutable values
    copies: dict[str, Any]  # of mutable values

    @classmethod
    def of(cls, one: Any, skipped: Set[str], memo: dict[Any, Any]) -> "_Part":
        """Record an object; ``memo`` holds what copies share with the net."""
        attributes, known = getattr(one, "__dict__", {}), _is_known(one)
        fixed: dict[str, Any] = {}
        copies: dict[str, Any] = {}
        for name, value in attributes.items():
            if name in skipped or (known and name != "_buffers" and type(value) not in _PLAIN):
                continue
            try:
                copy = deepcopy(value, memo)
            except Exception:  # a class of the user's may raise anything: the value is kept
                continue
            (fixed if copy is value else copies)[name] = copy
        return cls(attributes, known, set(attributes), fixed, copies)


class ResetPoint:
    """The attributes of a net outside of its state, to which it can be reset.

    These are the plain attributes of its modules and criteria, the criteria's buffers, and the
    attributes of the net and of its callbacks. If all their classes are of torch, skorch and this
    package, none of them changes, and nothing is recorded. Values that cannot be copied are not
    reset.
    """

    def __init__(self, net: NeuralNet):
        others = [net, *(callback for _, callback in net.callbacks_)]
        modules = _objects(net, net._modules)
        # skorch lists only criteria that are torch modules.
        criteria = _objects(net, net._criteria or ["criterion"])
        self._parts: list[_Part] = []
        if all(map(_is_known, [*others, *modules, *criteria])):
            return
        model = [
            *(w for one in (*modules, *criteria) for w in _own(one, "_parameters")),
            *(w for one in modules for w in _own(one, "_buffers")),
        ]
        shared = [net.optimizer_, net.history_, *others, *modules, *criteria, *model]
        self._shared = {id(one): one for one in shared}
        self._storages = {s._cdata: s for s in (tensor.untyped_storage() for tensor in model)}
        memo = self._memo()
        self._parts += [_Part.of(one, frozenset(), memo) for one in others]
        self._parts += [_Part.of(one, _OF_MODULES, memo) for one in modules]
        self._parts += [_Part.of(one, _OF_MODULES - {"_buffers"}, memo) for one in criteria]

    def reset(self) -> None:
        """Restore the attributes; parameters and the modules' buffers are not changed."""
        copies = [part.copies for part in self._parts]
        if any(copies):
            copies = deepcopy(copies, self._memo())
        for part, fresh in zip(self._parts, copies, strict=True):
            for name in () if part.known else part.attributes.keys() - part.names:
                del part.attributes[name]
            part.attributes.update(part.fixed)
            part.attributes.update(fresh)

    def _memo(self) -> dict[Any, Any]:
        """Return what copies share with the net: its objects, and the storages of its tensors."""
        # Tensors look their storages up under "torch", so that copies share them too.
        return {**self._shared, "torch": dict(self._storages)}


def _is_known(one: Any) -> bool:
    return type(one).__module__.startswith(_LIBRARIES)


def _objects(net: NeuralNet, names: list[str]) -> list[Any]:
    """Return modules or criteria with their submodules; a criterion may be something else."""
    found = [getattr(net, f"{name}_") for name in names if hasattr(net, f"{name}_")]
    return [m for one in found for m in (one.modules() if isinstance(one, nn.Module) else [one])]


def _own(one: Any, name: str) -> list[torch.Tensor]:
    """Return a module's own parameters or buffers."""
    return [tensor for tensor in getattr(one, name, {}).values() if tensor is not None]
