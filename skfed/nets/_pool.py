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
from skfed.utils._seeding import torch_seeded
from skfed.utils._torch_context import TorchContext


class NetPool:
    """Copies of a net, with only its batch-level callbacks, for the work of clients.

    A copy is reset before each use and runs under the caller's ``torch.autocast``.

    Pickles hold the net's settings, and each process initialises its own copies. A fitted skorch
    net cannot always be sent: it pickles its module by itself, without joblib's support for classes
    that are defined in a notebook or a script.
    """

    def __init__(self, net: NeuralNet, row: np.ndarray):
        self._settings = cloned(net, keep=False)
        self._classes = getattr(net, "classes_inferred_", None)  # for scorers
        self._row = row  # of X, in the net's dtype: a lazy module infers its shapes from it
        self._idle: list[tuple[NeuralNet, ResetPoint]] = []
        self.torch_context = TorchContext.current(net.device)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_idle": []}

    @property
    def device(self) -> str:
        """The device of the net."""
        return self._settings.device

    @contextmanager
    def borrowed(self) -> Iterator[NeuralNet]:
        """Context manager for a copy that no other thread uses; its weights are to be overwritten.

        All else is as initialised, and torch's settings are those where the pool was made.
        """
        with self.torch_context.applied():
            try:
                net, reset_point = self._idle.pop()
            except IndexError:
                net = self.set_up()
                reset_point = ResetPoint(net)
            try:
                reset_point.reset()
                yield net
            finally:
                self._idle.append((net, reset_point))

    def set_up(self) -> NeuralNet:
        """Return a new copy, initialised."""
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
