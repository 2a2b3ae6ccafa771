"""What is trained: from the ``estimator`` parameter to an initialised skorch net, and its model.

The model is what travels between server and clients: every parameter and buffer of the net.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNet, NeuralNetClassifier, NeuralNetRegressor
from skorch.dataset import Dataset
from torch import nn
from torch.utils.data import DataLoader

from skfed._callbacks import acts_on_batches, idle_callbacks
from skfed._reset import ResetPoint
from skfed.modules import LinearRegression, SoftmaxRegression, Standardize
from skfed.utils._ambient import Ambient
from skfed.utils._seeding import Purpose, stream, torch_seeded
from skfed.utils._warnings import warn

Model = dict[str, torch.Tensor]

_PREDICT_ROWS = 4096


@dataclass(frozen=True)
class Kind:
    """What the nets of classifiers, or of regressors, are made of."""

    net: type[NeuralNet]  # skorch's class
    default: type[nn.Module]  # takes n_features and n_outputs
    criterion: type[nn.Module]  # of a bare module
    rate: Callable[[int], float]  # learning rate of the default, by its number of features
    outputs: str  # "classes" or "targets"
    remedy: str  # what else to do about a module with another number of outputs


CLASSIFIER = Kind(
    NeuralNetClassifier,
    SoftmaxRegression,
    nn.CrossEntropyLoss,
    # On standardised columns larger rates let the last round's few clients weigh more, smaller
    # ones need more rounds. The gradient of the cross-entropy is bounded, so it needs no regard to
    # the number of columns.
    lambda n_features: 0.1,
    "classes",
    ", or name all classes with partial_fit(X, y, classes=...)",
)
REGRESSOR = Kind(
    NeuralNetRegressor,
    LinearRegression,
    nn.MSELoss,
    # Gradient descent on squared error diverges above 1 / (the largest eigenvalue of the mean of
    # x x'), which is at most the mean of |x|^2: n_features + 1 for standardised columns and a bias.
    lambda n_features: 0.5 / (n_features + 1),
    "targets",
    "",
)
_BATCH_SIZE = 16  # of the default nets


def make_net(kind: Kind, estimator: Any, X: np.ndarray, n_outputs: int, seed: int) -> NeuralNet:
    """Build and initialise the net that ``estimator`` stands for; ``estimator`` is not touched."""
    net = _unfitted(kind, estimator, int(np.prod(X.shape[1:])), n_outputs)
    with torch_seeded(stream(seed, Purpose.MODULE_INIT), net.device):
        try:
            net.initialize()
        except TypeError as error:
            raise TypeError(
                f"estimator's module cannot be built: {error}. A bare class is built without "
                "arguments: pass an instance, or a skorch net with module__... parameters."
            ) from error
        _check_trained(net)
        # Seeded too, since a lazy module draws only here.
        _check_output(kind, output_of(net, cast(net, X[:1])), n_outputs)
    _warn_of_idle_settings(net)
    return net


class Workbench:
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
        self._settings = _cloned(net, keep=False)
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


def _unfitted(kind: Kind, estimator: Any, n_features: int, n_outputs: int) -> NeuralNet:
    """Clone the skorch net, or wrap the torch module in one."""
    if isinstance(estimator, kind.net):
        # The federation decides on epochs and validation data; the net says the rest.
        return _cloned(estimator, keep=True).set_params(train_split=None)
    if estimator is None:
        module: Any = kind.default
        params = {
            "module__n_features": n_features,
            f"module__n_{kind.outputs}": n_outputs,
            "module__standardize": True,
            "lr": kind.rate(n_features),
            "batch_size": _BATCH_SIZE,
        }
    elif isinstance(estimator, nn.Module) or (
        isinstance(estimator, type) and issubclass(estimator, nn.Module)
    ):
        module, params = estimator, {}
    else:
        raise TypeError(
            f"estimator must be a skorch {kind.net.__name__}, a torch module class or instance, or "
            f"None; got {estimator!r}."
        )
    # Cloned, since skorch would train a module instance in place.
    return clone(kind.net(module, criterion=kind.criterion, train_split=None, **params))


def _cloned(net: NeuralNet, keep: bool) -> NeuralNet:
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


def output_of(net: NeuralNet, X: np.ndarray) -> torch.Tensor:
    """Return the module's output for a few rows of X, in the net's dtype; say what misfits."""
    try:
        output = net.evaluation_step((*to_tensors(net, X), None))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"estimator cannot take rows of X of shape {X.shape[1:]} and dtype {X.dtype}: {error}"
        ) from error
    return output[0] if isinstance(output, tuple) else output


def _check_output(kind: Kind, output: torch.Tensor, n_outputs: int) -> None:
    """Check the output for one row, so that a misfit is told before any training."""
    fits = output.ndim >= 2 and output.shape[1] == output.numel() == n_outputs
    squeezed = kind is REGRESSOR and n_outputs == 1 and output.shape == (1,)
    if not (fits or squeezed):
        raise ValueError(
            f"estimator returns shape {tuple(output.shape)} for one row of X, but there are "
            f"{n_outputs} {kind.outputs} in y: give its module {n_outputs} outputs, of shape "
            f"(n_samples, {n_outputs}){kind.remedy}."
        )


def _check_trained(net: NeuralNet) -> None:
    """Refuse complex parameters that are trained: what they send would not be real numbers."""
    for name, tensor in _tensors(net).items():
        if tensor.requires_grad and tensor.dtype.is_complex:
            raise ValueError(
                f"estimator's parameter {name} is complex ({tensor.dtype}), and no complex "
                "parameter is trained: keep torch.view_as_real of it as the parameter, and call "
                "torch.view_as_complex in forward; or freeze it with requires_grad_(False)."
            )


def _warn_of_idle_settings(net: NeuralNet) -> None:
    """Say what of the user's net is not used."""
    idle = idle_callbacks(net)
    if net.dataset is not Dataset:
        idle.append("dataset")
    for iterator in ("iterator_train", "iterator_valid"):
        if getattr(net, iterator) is not DataLoader:
            idle.append(iterator)
        used = ("batch_size", "shuffle")
        params = net.get_params_for(iterator)
        idle += [f"{iterator}__{param}" for param in params if param not in used]
    if idle:
        warn(
            f"estimator has settings that are not used when it is federated: {', '.join(idle)}. "
            "history_ has the losses and times of every round; pass X_val to fit for scores."
        )


def to_tensors(net: NeuralNet, *arrays: np.ndarray) -> list[torch.Tensor]:
    """Put rows on the net's device; torch takes neither read-only arrays nor negative strides."""
    return [torch.from_numpy(_plain(array)).to(net.device) for array in arrays]


def predict(net: NeuralNet, X: np.ndarray) -> np.ndarray:
    """Return the net's own predict_proba.

    skorch's regressors have it too, and give their predictions.
    """
    return _in_chunks(net, X, net.predict_proba)


def predict_log(net: NeuralNet, X: np.ndarray) -> np.ndarray:
    """Return the logarithms of predict_proba: of logits where that is their softmax."""
    if not _predicts_softmax(net):
        with np.errstate(divide="ignore"):  # log(0) is -inf
            return np.log(predict(net, X))

    def log_softmax(X: np.ndarray) -> np.ndarray:
        outputs = (o[0] if isinstance(o, tuple) else o for o in net.forward_iter(X))
        return torch.cat([output.log_softmax(-1) for output in outputs]).cpu().numpy()

    return _in_chunks(net, X, log_softmax)


def _predicts_softmax(net: NeuralNet) -> bool:
    """Tell whether predict_proba is the softmax of the module's output."""
    return (
        type(net).predict_proba is NeuralNetClassifier.predict_proba
        and net.predict_nonlinearity == "auto"
        and net._criteria == ["criterion"]
        and isinstance(net.criterion_, nn.CrossEntropyLoss)
    )


def _in_chunks(
    net: NeuralNet, X: np.ndarray, function: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Apply a function of the net to all rows, so that X is not copied whole."""
    starts = range(0, len(X), _PREDICT_ROWS)
    # Seeded, since a DataLoader draws from torch's global generator.
    with torch_seeded(np.random.default_rng(0), net.device):
        return np.concatenate([function(_plain(X[i : i + _PREDICT_ROWS])) for i in starts])


def _plain(array: np.ndarray) -> np.ndarray:
    """Copy an array that is read-only or not contiguous."""
    return np.require(array, requirements=("C", "W"))


def cast(net: NeuralNet, X: np.ndarray) -> np.ndarray:
    """Bring X to the dtype that the module takes, without a copy where it has that dtype.

    Integers stay integers in front of an embedding.
    """
    if X.dtype.kind in "iu" and _begins_with_embedding(net.module_):
        return X.astype(np.int64, copy=False)
    parameter = next((p for p in net.module_.parameters() if p.is_floating_point()), None)
    dtype = torch.get_default_dtype() if parameter is None else parameter.dtype
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


def get_model(net: NeuralNet) -> Model:
    """Copy the net's parameters and buffers to the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in _tensors(net).items()}


def parameter_names(net: NeuralNet) -> list[str]:
    """Name the trained parameters of a model; its other tensors are buffers."""
    return [name for name, tensor in _tensors(net).items() if tensor.requires_grad]


def group_of_parameters(net: NeuralNet) -> dict[str, int]:
    """Return the parameter group of each trained parameter that the net's optimizer has."""
    groups = enumerate(net.optimizer_.param_groups)
    owners = {id(parameter): i for i, group in groups for parameter in group["params"]}
    named = ((name, id(w)) for name, w in _tensors(net).items() if w.requires_grad)
    return {name: owners[key] for name, key in named if key in owners}


def buffer_names(net: NeuralNet) -> list[str]:
    """Name what training may change without gradients, as running statistics."""
    constants = {
        id(buffer)
        for layer in net.module_.modules()
        if isinstance(layer, Standardize)
        for buffer in layer.buffers()
    }
    tensors = _tensors(net).items()
    return [n for n, w in tensors if not isinstance(w, nn.Parameter) and id(w) not in constants]


def add_to_gradients(net: NeuralNet, extra: Callable[[str, torch.Tensor], torch.Tensor]):
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


def by_member(stack: torch.Tensor) -> torch.Tensor:
    """View tensors that are stacked along a leading axis as one row each."""
    return stack.reshape(len(stack), stack[0].numel())


def set_model(net: NeuralNet, model: Model) -> None:
    """Write a model into the net, in place."""
    with torch.no_grad():
        for name, tensor in _tensors(net).items():
            tensor.copy_(model[name])
    torch.clear_autocast_cache()  # of casts of the weights that were there before


def model_bytes(net: NeuralNet) -> int:
    """Return the bytes of a model on the wire."""
    return sum(tensor.nbytes for tensor in _tensors(net).values())


def _tensors(net: NeuralNet) -> Model:
    """Name what training changes: the modules' parameters and buffers, each once if it is shared.

    Of a criterion only the parameters: its buffers (class weights) are settings. What a module
    keeps elsewhere, in plain attributes, is not part of the model: each client begins with it as it
    was set up, and it does not reach the server.
    """
    tensors: Model = {}
    for name in net._modules:
        module = getattr(net, f"{name}_")
        tensors |= {f"{name}.{key}": tensor for key, tensor in module.named_parameters()}
        tensors |= {f"{name}.{key}": tensor for key, tensor in module.named_buffers()}
    for name in net._criteria:
        criterion = getattr(net, f"{name}_")
        if isinstance(criterion, nn.Module):
            tensors |= {f"{name}.{key}": tensor for key, tensor in criterion.named_parameters()}
    return tensors
