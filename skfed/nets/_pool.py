"""Copies of a net for the work of clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from pickle import PicklingError
from typing import Any

import numpy as np
from sklearn.base import clone
from skorch import NeuralNet

from skfed.callbacks._skorch import acts_on_batches
from skfed.nets._predict import to_tensors
from skfed.nets._reset import ResetPoint
from skfed.utils._ambient import Ambient
from skfed.utils._seeding import torch_seeded


class NetPool:
    """A net of its own for client work: the same settings, with callbacks that act on batches.

    Each client's work begins with the net as it was set up, whomever it served before, and under
    the caller's ``torch.autocast``.

    It travels to another process as its settings and is set up there. A fitted skorch net would
    not always arrive: it pickles its module by itself, without joblib's help for classes that are
    defined in a notebook or a script.

    Parameters
    ----------
    net : NeuralNet
        The net whose settings are taken.
    row : ndarray of shape (1, ...)
        A row of X in the net's dtype, to give a lazy module its shapes.
    """

    def __init__(self, net: NeuralNet, row: np.ndarray):
        self._settings = cloned(net, keep=False)
        self._classes = getattr(net, "classes_inferred_", None)  # which a scorer asks for
        self._row = row
        self._idle: list[tuple[NeuralNet, ResetPoint]] = []
        self.ambient = Ambient.here(net.device)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_idle": []}

    @property
    def device(self) -> str:
        """Where the net computes."""
        return self._settings.device

    @contextmanager
    def borrowed(self) -> Iterator[NeuralNet]:
        """Lend a net to one thread at a time; its weights are to be written over.

        All else is as the net was set up, and torch's state as where this was made.
        """
        with self.ambient.applied():
            try:
                net, beginning = self._idle.pop()
            except IndexError:
                net = self.set_up()
                beginning = ResetPoint(net)
            try:
                beginning.reset()
                yield net
            finally:
                self._idle.append((net, beginning))

    def set_up(self) -> NeuralNet:
        """Return a new net with these settings."""
        net = clone(self._settings)
        with torch_seeded(np.random.default_rng(0), net.device):
            net.initialize()
            net.evaluation_step((*to_tensors(net, self._row), None))
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
    """Clone a net; of callbacks that hold what cannot be copied, such as TensorBoard's writer.

    They are shared, or, where none but the global net has use for them (``keep=False``), left out.
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
