"""What is trained: from the ``estimator`` parameter to an initialised skorch net, and its model.

The model is what travels between server and clients: every parameter and buffer of the net.
"""

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from skfed.modules import SoftmaxRegression
from skfed.utils._seeding import Purpose, stream, torch_seeded

Model = dict[str, torch.Tensor]


def make_classifier_net(
    estimator: Any, X: np.ndarray, n_classes: int, seed: int
) -> NeuralNetClassifier:
    """Build and initialise the net that ``estimator`` stands for; ``estimator`` is not touched."""
    net = _unfitted(estimator, int(np.prod(X.shape[1:])), n_classes)
    with torch_seeded(stream(seed, Purpose.MODULE_INIT), net.device):
        net.initialize()
        _check_output(net, cast(net, X[:1]), n_classes)  # seeded: a lazy module draws only here
    _warn_of_epoch_callbacks(net)
    return net


class Workbench:
    """A net of its own for client work: the same settings, without callbacks that follow epochs.

    It travels to another process as its settings and is set up there. A fitted skorch net would
    not always arrive: it pickles its module by itself, without joblib's help for classes that are
    defined in a notebook or a script.

    Parameters
    ----------
    net : NeuralNetClassifier
        The net whose settings are taken.
    row : ndarray of shape (1, ...)
        A row of X in the net's dtype, to give a lazy module its shapes.
    """

    def __init__(self, net: NeuralNetClassifier, row: np.ndarray):
        self._settings = clone(net)
        self._row = row

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_row": self._row}

    @property
    def device(self) -> str:
        """Where the net computes."""
        return self._settings.device

    @cached_property
    def net(self) -> NeuralNetClassifier:
        """The net, set up at its first use; its weights are to be written over."""
        net = clone(self._settings)
        with torch_seeded(np.random.default_rng(0), net.device):
            net.initialize()
            net.evaluation_step((torch.from_numpy(self._row), None))
        net.callbacks_ = [(name, cb) for name, cb in net.callbacks_ if _acts_on_batches(cb)]
        return net


def _unfitted(estimator: Any, n_features: int, n_classes: int) -> NeuralNetClassifier:
    """Clone the skorch net, or wrap the torch module in one."""
    if isinstance(estimator, NeuralNetClassifier):
        # The federation decides on epochs and validation data; the net says the rest.
        return clone(estimator).set_params(train_split=None)
    if estimator is None:
        module: Any = SoftmaxRegression
        params = {"module__n_features": n_features, "module__n_classes": n_classes}
    elif isinstance(estimator, nn.Module) or (
        isinstance(estimator, type) and issubclass(estimator, nn.Module)
    ):
        module, params = estimator, {}
    else:
        raise TypeError(
            "estimator must be a skorch NeuralNetClassifier, a torch module class or instance, or "
            f"None; got {estimator!r}."
        )
    # Cloned, since skorch would train a module instance in place.
    return clone(
        NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, train_split=None, **params)
    )


def _check_output(net: NeuralNetClassifier, X: np.ndarray, n_classes: int) -> None:
    """Try the module on one row, so that a misfit is told before any training."""
    try:
        # Not net.forward, whose DataLoader would draw from torch's global generator.
        output = net.evaluation_step((torch.from_numpy(X), None))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"estimator cannot take rows of X of shape {X.shape[1:]} and dtype {X.dtype}: {error}"
        ) from error
    output = output[0] if isinstance(output, tuple) else output
    if output.ndim < 2 or output.shape[1] != n_classes:
        raise ValueError(
            f"estimator returns shape {tuple(output.shape)} for one row of X, but there are "
            f"{n_classes} classes: give its module {n_classes} outputs, or name all classes with "
            "partial_fit(X, y, classes=...)."
        )


def _acts_on_batches(callback: Callback) -> bool:
    """Tell callbacks that act on batches alone from those that follow epochs."""
    return _overrides(callback, "on_batch_begin", "on_batch_end", "on_grad_computed") and not (
        _follows_epochs(callback)
    )


def _follows_epochs(callback: Callback) -> bool:
    return _overrides(callback, "on_epoch_begin", "on_epoch_end")


def _overrides(callback: Callback, *hooks: str) -> bool:
    return any(getattr(type(callback), hook) is not getattr(Callback, hook) for hook in hooks)


def _warn_of_epoch_callbacks(net: NeuralNetClassifier) -> None:
    """Say which of the user's callbacks have no epoch to follow."""
    defaults = {name for name, _ in net.get_default_callbacks()}
    idle = [n for n, cb in net.callbacks_ if n not in defaults and _follows_epochs(cb)]
    if idle:
        warnings.warn(
            f"estimator has callbacks that follow epochs, which are not run here: {idle}. "
            "history_ has the losses and times of every round; pass X_val to fit for scores.",
            UserWarning,
            stacklevel=4,
        )


def cast(net: NeuralNetClassifier, X: np.ndarray) -> np.ndarray:
    """Bring X to the dtype that the module takes, without a copy where it has that dtype.

    Integers stay integers in front of an embedding.
    """
    if X.dtype.kind in "iu" and _begins_with_embedding(net.module_):
        return X.astype(np.int64, copy=False)
    parameter = next((p for p in net.module_.parameters() if p.is_floating_point()), None)
    dtype = torch.get_default_dtype() if parameter is None else parameter.dtype
    # numpy lacks torch's half types (bfloat16): hand those modules float32.
    name = str(dtype).removeprefix("torch.")
    name = name if name in ("float16", "float64") else "float32"
    if X.dtype == name:
        return X
    with np.errstate(over="ignore"):
        result = X.astype(name)
    if not np.isfinite(result).all():
        raise ValueError(f"X has values too large for the module's dtype, {name}: scale X.")
    return result


def _begins_with_embedding(module: nn.Module) -> bool:
    leaves = (m for m in module.modules() if not list(m.children()))
    return isinstance(next(leaves, None), nn.Embedding | nn.EmbeddingBag)


def get_model(net: NeuralNetClassifier) -> Model:
    """Copy the net's parameters and buffers to the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in _tensors(net).items()}


def parameter_names(net: NeuralNetClassifier) -> list[str]:
    """Name the trained parameters of a model; its other tensors are buffers."""
    return [name for name, tensor in _tensors(net).items() if tensor.requires_grad]


def add_to_gradients(net: NeuralNetClassifier, extra: Callable[[str, torch.Tensor], torch.Tensor]):
    """Add ``extra(name, parameter)`` to every gradient that backward computes; return an undo.

    As hooks, since they also act in a train step that the user has written.
    """
    handles = [
        parameter.register_hook(lambda grad, n=name, p=parameter: grad + extra(n, p.detach()))
        for name, parameter in _tensors(net).items()
        if parameter.requires_grad
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def set_model(net: NeuralNetClassifier, model: Model) -> None:
    """Write a model into the net, in place."""
    with torch.no_grad():
        for name, tensor in _tensors(net).items():
            tensor.copy_(model[name])


def model_bytes(net: NeuralNetClassifier) -> int:
    """Return the bytes of a model on the wire; a tensor that is shared is sent once."""
    return sum({t.data_ptr(): t.nbytes for t in _tensors(net).values()}.values())


def _tensors(net: NeuralNetClassifier) -> Model:
    """Name what training changes: the modules' state, and a criterion's parameters if it has any.

    A criterion's buffers (class weights) are settings, not part of the model.
    """
    tensors = {
        f"{name}.{key}": tensor
        for name in net._modules
        for key, tensor in getattr(net, f"{name}_").state_dict(keep_vars=True).items()
    }
    for name in net._criteria:
        criterion = getattr(net, f"{name}_")
        if isinstance(criterion, nn.Module):
            tensors |= {f"{name}.{key}": p for key, p in criterion.named_parameters()}
    return tensors
