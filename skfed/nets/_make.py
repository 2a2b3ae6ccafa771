"""The net of an estimator: the ``estimator`` parameter as an initialised skorch net."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from skorch import (
    NeuralNet,
    NeuralNetBinaryClassifier,
    NeuralNetClassifier,
    NeuralNetRegressor,
)
from skorch.dataset import Dataset
from torch import nn
from torch.utils.data import DataLoader

from skfed.callbacks._sklearn import check_callbacks_of_net
from skfed.callbacks._skorch import idle_callbacks
from skfed.modules import LinearRegression, SoftmaxRegression
from skfed.nets._dict_rows import DictRows
from skfed.nets._inputs import cast, standardize_layers
from skfed.nets._logits import has_binary_loss, is_by_logit, is_single, takes_no_classes
from skfed.nets._own_code import overridden
from skfed.nets._pool import cloned
from skfed.nets._predict import output_of, predict, says_probabilities
from skfed.nets._state import named_tensors
from skfed.utils._seeding import Purpose, stream, torch_seeded
from skfed.utils._warnings import warn


@dataclass(frozen=True)
class NetSpec:
    """Defaults and limits of the nets of classifiers, or of regressors."""

    net: type[NeuralNet]  # skorch's class
    default: type[nn.Module]  # module of the default net
    criterion: type[nn.Module]  # of a torch module without a net
    lr: Callable[[int, int], float]  # of the default net, from the numbers of columns and outputs
    outputs: str  # what the outputs are of
    n_outputs: str  # parameter of the default net
    hint: str  # added to the error for a wrong number of outputs


CLASSIFIER = NetSpec(
    NeuralNetClassifier,
    SoftmaxRegression,
    nn.CrossEntropyLoss,
    # On standardised columns, with a larger rate the last round's few clients change the model
    # more, and a smaller one needs more rounds. The gradient of the cross-entropy is bounded, so
    # the rate does not depend on the number of columns.
    lambda n_features, n_outputs: 0.1,
    "classes",
    "module__n_classes",
    ", or name all classes with partial_fit(X, y, classes=...)",
)

LABELS = replace(
    CLASSIFIER,
    criterion=nn.BCEWithLogitsLoss,
    # The loss is the mean over labels: each is learned as by a net of its own.
    lr=lambda n_features, n_outputs: 0.1 * n_outputs,
    outputs="labels",
    hint="",
)

ONE_LOGIT = replace(
    CLASSIFIER, net=NeuralNetBinaryClassifier, criterion=nn.BCEWithLogitsLoss, hint=""
)

REGRESSOR = NetSpec(
    NeuralNetRegressor,
    LinearRegression,
    nn.MSELoss,
    # Gradient descent on squared error diverges above 1 / (the largest eigenvalue of the mean of
    # x x'), which is at most the mean of |x|^2: n_features + 1 for standardised columns and a bias.
    # That holds for batches of all rows of all clients; ``skfed.server._standardize`` lowers it to
    # what is safe for batches of each client.
    lambda n_features, n_outputs: 1.0 / (n_features + 1),
    "targets",
    "module__n_targets",
    "",
)

_BATCH_SIZE = 16  # of the default nets


def make_net(
    spec: NetSpec, estimator: Any, X: np.ndarray | DictRows, n_outputs: int, seed: int
) -> NeuralNet:
    """Build and initialise the net for ``estimator``, which is not changed.

    One output is enough for two classes, of skorch's binary net, which also wraps torch modules.
    """
    if estimator is None and isinstance(X, dict):
        raise ValueError(
            f"X is a dict with the keys {list(X)}, and the default net takes an array: pass as "
            "estimator a module of your own, whose forward takes them as arguments."
        )
    if isinstance(estimator, NeuralNetBinaryClassifier):
        _check_binary(spec, n_outputs)
        spec = ONE_LOGIT
    net, output = _initialised(spec, estimator, X, n_outputs, seed)
    is_pair = spec is CLASSIFIER and n_outputs == 2 and is_single(output)
    if is_pair and not isinstance(estimator, NeuralNet):
        spec = ONE_LOGIT
        net, output = _initialised(spec, estimator, X, n_outputs, seed)
    if spec is ONE_LOGIT or (is_pair and is_by_logit(net)):
        _check_one_logit(net, output, X)
    else:
        _check_criterion(spec, net)
        _check_output(spec, output, n_outputs)
        _check_log(net, output)
    _warn_of_idle_settings(net)
    return net


def _initialised(
    spec: NetSpec, estimator: Any, X: np.ndarray | DictRows, n_outputs: int, seed: int
) -> tuple[NeuralNet, torch.Tensor]:
    """Return the net, and its module's output for a row of X."""
    net = _unfitted(spec, estimator, int(np.prod(X.shape[1:])), n_outputs)
    with torch_seeded(stream(seed, Purpose.MODULE_INIT), net.device):
        try:
            net.initialize()
        except TypeError as error:
            raise TypeError(
                f"estimator's module cannot be built: {error}. A bare class is built without "
                "arguments: pass an instance, or a skorch net with module__... parameters."
            ) from error
        _check_trained(net)
        _check_scaling(net, X)
        # Seeded too: a lazy module draws its weights here.
        return net, output_of(net, cast(net, X[:1]))


def _unfitted(spec: NetSpec, estimator: Any, n_features: int, n_outputs: int) -> NeuralNet:
    """Clone the skorch net, or wrap the torch module in one."""
    if isinstance(estimator, spec.net):
        check_callbacks_of_net(estimator.callbacks)
        # Epochs and validation data are the federated estimator's.
        return cloned(estimator, keep=True).set_params(train_split=None)
    if estimator is None:
        module: Any = spec.default
        params = {
            "module__n_features": n_features,
            spec.n_outputs: n_outputs,
            "module__standardize": True,
            "lr": spec.lr(n_features, n_outputs),
            "batch_size": _BATCH_SIZE,
        }
    elif isinstance(estimator, nn.Module) or (
        isinstance(estimator, type) and issubclass(estimator, nn.Module)
    ):
        module, params = estimator, {}
    else:
        also = " or NeuralNetBinaryClassifier" if spec is CLASSIFIER else ""
        raise TypeError(
            f"estimator must be a skorch {spec.net.__name__}{also}, a torch module class or "
            f"instance, or None; got {estimator!r}."
        )
    # Cloned, since skorch would train a module instance in place.
    return clone(spec.net(module, criterion=spec.criterion, train_split=None, **params))


def _check_binary(spec: NetSpec, n_outputs: int) -> None:
    """Check that y is for a net of one logit."""
    if spec is LABELS:
        raise ValueError(
            f"y is an indicator of {n_outputs} labels, but estimator is a "
            "NeuralNetBinaryClassifier, which has one logit: pass a NeuralNetClassifier with "
            "criterion=torch.nn.BCEWithLogitsLoss, and a module with one output a label."
        )
    if spec is CLASSIFIER and n_outputs != 2:
        raise ValueError(
            "Only binary classification is supported by a NeuralNetBinaryClassifier, whose one "
            f"logit is for two classes, but y has {n_outputs} classes: pass a NeuralNetClassifier "
            f"as estimator{spec.hint}."
        )


def _check_one_logit(net: NeuralNet, output: torch.Tensor, X: np.ndarray) -> None:
    """Check the output for one row of a net for two classes, and what is predicted of it."""
    if not is_single(output) or output.dim() > 2:
        raise ValueError(
            f"estimator returns shape {tuple(output.shape)} for one row of X, but a "
            "NeuralNetBinaryClassifier has one logit: give its module one output, of shape "
            "(n_samples,) or (n_samples, 1), or pass a NeuralNetClassifier with "
            "criterion=torch.nn.CrossEntropyLoss."
        )
    shape = predict(net, cast(net, X[:1])).shape
    if shape != (1, 2):
        raise ValueError(
            f"estimator's predict_proba returns shape {shape} for one row of X, but there are 2 "
            "classes: pass predict_nonlinearity to the net, which makes (n_samples, 2) of outputs."
        )


def _check_criterion(spec: NetSpec, net: NeuralNet) -> None:
    """Check that a net's loss is of classes, or else of labels."""
    kind = type(getattr(net, "criterion_", None)).__name__
    if spec is CLASSIFIER and takes_no_classes(net):
        raise ValueError(
            f"estimator's criterion {kind} takes one logit for two classes, but its module has "
            "more outputs, or y has more classes: give the module one output, or pass "
            "criterion=torch.nn.CrossEntropyLoss."
        )
    by_class = isinstance(getattr(net, "criterion_", None), nn.CrossEntropyLoss | nn.NLLLoss)
    is_known = has_binary_loss(net) or says_probabilities(net)
    if spec is LABELS and (by_class or not is_known):
        raise ValueError(
            f"y is an indicator of several labels, but estimator's criterion {kind} is for one "
            "label a row, or unknown: pass criterion=torch.nn.BCEWithLogitsLoss; with a criterion "
            "of your own predict_nonlinearity, for logits torch.sigmoid; or y.argmax(axis=1) if "
            "its rows are one-hot."
        )


def _check_log(net: NeuralNet, output: torch.Tensor) -> None:
    """Refuse outputs whose logarithm skorch would take, and that have none."""
    takes_log = isinstance(getattr(net, "criterion_", None), nn.NLLLoss)
    if not takes_log or overridden(net, ("get_loss",)) or not bool((output < 0).any()):
        return
    sums_to_one = bool((output.double().exp().sum(1) - 1).abs().max() < 1e-3)
    found = "log-probabilities" if sums_to_one else "negative numbers"
    raise ValueError(
        f"estimator's module returns {found}, but skorch takes the logarithm of its output with "
        "NLLLoss: end the module with softmax instead of log_softmax, or let it return logits and "
        "pass criterion=torch.nn.CrossEntropyLoss."
    )


def _check_output(spec: NetSpec, output: torch.Tensor, n_outputs: int) -> None:
    """Check the shape of the output for one row, before any training."""
    fits = output.ndim >= 2 and output.shape[1] == output.numel() == n_outputs
    squeezed = spec is REGRESSOR and n_outputs == 1 and output.shape == (1,)
    if not (fits or squeezed):
        raise ValueError(
            f"estimator returns shape {tuple(output.shape)} for one row of X, but there are "
            f"{n_outputs} {spec.outputs} in y: give its module {n_outputs} outputs, of shape "
            f"(n_samples, {n_outputs}){spec.hint}."
        )


def _check_trained(net: NeuralNet) -> None:
    """Refuse trained parameters that are complex: clients send real numbers."""
    for name, tensor in named_tensors(net).items():
        if tensor.requires_grad and tensor.dtype.is_complex:
            raise ValueError(
                f"estimator's parameter {name} is complex ({tensor.dtype}), and no complex "
                "parameter is trained: keep torch.view_as_real of it as the parameter, and call "
                "torch.view_as_complex in forward; or freeze it with requires_grad_(False)."
            )


def _check_scaling(net: NeuralNet, X: np.ndarray | DictRows) -> None:
    """Refuse layers that are to be set by the columns of X, where X has several arrays."""
    if isinstance(X, dict) and standardize_layers(net):
        raise ValueError(
            f"X is a dict with the keys {list(X)}, and estimator has a layer Standardize, which is "
            "set by the columns of an array: scale the arrays of the dict, and leave it out."
        )


def _warn_of_idle_settings(net: NeuralNet) -> None:
    """Warn of settings of the user's net that are not used."""
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
