"""Copies of a net for the work of clients, reset so that no work depends on the one before."""

from collections.abc import Iterator, Set
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNet
from torch import nn

from skfed.callbacks._skorch import acts_on_batches
from skfed.nets._convolutions import has_convolutions, put_channels_last, takes_channels_last
from skfed.nets._inputs import set_shift, shift_of, to_tensors
from skfed.nets._state import State, model_bytes, parameter_names, set_state, set_trained
from skfed.utils._pools import Pool
from skfed.utils._seeding import StreamKey, stream, torch_seeded
from skfed.utils._torch_context import TorchContext, deterministic_cudnn, one_torch_thread

# Classes of these change nothing from batch to batch but parameters and buffers.
_LIBRARIES = "torch.", "skorch.", "skfed."
_PLAIN = bool, int, float, complex, str, bytes, type(None)
_OF_MODULES = vars(nn.Module()).keys()


class NetPool(Pool["tuple[NeuralNet, ResetPoint]"]):
    """Copies of a net, with only its batch-level callbacks, for the work of clients.

    A copy is reset before each use and runs under the caller's ``torch.autocast``; its convolutions
    have channels-last weights where a trial step works with them.

    Pickles hold the net's settings, and each process initialises its own copies. A fitted skorch
    net cannot always be sent: it pickles its module by itself, without joblib's support for classes
    that are defined in a notebook or a script.
    """

    def __init__(self, net: NeuralNet, row: np.ndarray):
        super().__init__()
        self._settings = cloned(net, keep=False)
        self._classes = getattr(net, "classes_inferred_", None)  # for scorers
        self._row = row  # of X, in the net's dtype: a lazy module infers its shapes from it
        self.trained = parameter_names(net)  # a fitted net may have others than a new one
        self._shift = shift_of(net)
        self._channels_last: bool | None = None  # of copies; None: not tried
        self.torch_context = TorchContext.current(net.device)

    @property
    def device(self) -> str:
        """The device of the net."""
        return self._settings.device

    @contextmanager
    def borrowed(self) -> Iterator[NeuralNet]:
        """Context manager for a copy that no other thread uses; its weights are to be overwritten.

        All else is as initialised, and torch's settings are those where the pool was made.
        """
        with self.torch_context.applied(), self._borrowed(self._new) as (net, reset_point):
            reset_point.reset()
            yield net

    @contextmanager
    def for_client(self, state: State, layers_key: StreamKey) -> Iterator[NeuralNet]:
        """Context manager for a copy with a state, for the work of one client.

        Its layers draw from the stream of the key, and one thread computes, the same in each run.
        """
        with (
            torch_seeded(stream(*layers_key), self.device),
            self.borrowed() as net,
            one_torch_thread(),
            deterministic_cudnn(self.device),
        ):
            set_state(net, state)
            yield net

    def _new(self) -> tuple[NeuralNet, "ResetPoint"]:
        net = self.set_up()
        if self._is_channels_last(net):
            put_channels_last(net.module_)
        return net, ResetPoint(net)

    def _is_channels_last(self, net: NeuralNet) -> bool:
        """Tell whether copies, of which ``net`` is one, have channels-last weights."""
        if self._channels_last is None:
            tried = has_convolutions(net) and takes_channels_last(self.set_up(), self._row)
            self._channels_last = tried
        return self._channels_last

    def __getstate__(self) -> dict[str, Any]:
        # Tried before, so that all processes compute alike.
        if self._channels_last is None:
            with self.torch_context.applied():
                self._is_channels_last(self.set_up())
        return super().__getstate__()

    def _n_bytes(self, one: tuple[NeuralNet, "ResetPoint"]) -> int:
        return model_bytes(one[0])

    def set_up(self) -> NeuralNet:
        """Return a new copy, initialised."""
        net = clone(self._settings)
        with torch_seeded(np.random.default_rng(0), net.device):
            net.initialize()
            net.evaluation_step((*to_tensors(net, self._row), None))
        set_shift(net, self._shift)
        set_trained(net, self.trained)
        if self._classes is not None:
            net.classes_inferred_ = self._classes
        defaults = {name for name, _ in net.get_default_callbacks()}
        net.callbacks_ = [
            (name, callback)
            for name, callback in net.callbacks_
            if name not in defaults and acts_on_batches(callback)
        ]
        return net


def cloned(net: NeuralNet, keep: bool) -> NeuralNet:
    """Clone a net; callbacks that cannot be cloned are shared if ``keep``, else left out.

    TensorBoard's callback is one: it holds a writer.
    """
    params = net.get_params(deep=False)
    callbacks = params.pop("callbacks")
    if isinstance(callbacks, list):
        copies = [_copied(callback) for callback in callbacks]
        pairs = zip(copies, callbacks, strict=True)
        callbacks = [callback if copy is None else copy for copy, callback in pairs if keep or copy]
    copied = {name: clone(value, safe=False) for name, value in params.items()}
    return type(net)(**copied, callbacks=callbacks)


def _copied(callback: Any) -> Any:
    """Clone a callback, or its pair of name and callback; None if it cannot be."""
    try:
        return clone(callback, safe=False)
    except (TypeError, PicklingError, RuntimeError):
        return None


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
        attributes, known = getattr(one, "__dict__", {}), is_known(one)
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
        if all(map(is_known, [*others, *modules, *criteria])):
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


def is_known(one: Any) -> bool:
    """Tell whether the class of an object is of torch, skorch or this package."""
    return type(one).__module__.startswith(_LIBRARIES)


def _objects(net: NeuralNet, names: list[str]) -> list[Any]:
    """Return modules or criteria with their submodules; a criterion may be something else."""
    found = [getattr(net, f"{name}_") for name in names if hasattr(net, f"{name}_")]
    return [m for one in found for m in (one.modules() if isinstance(one, nn.Module) else [one])]


def _own(one: Any, name: str) -> list[torch.Tensor]:
    """Return a module's own parameters or buffers."""
    return [tensor for tensor in getattr(one, name, {}).values() if tensor is not None]
