"""Outputs and predictions of nets."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet, NeuralNetClassifier
from skorch.dataset import Dataset
from skorch.utils import to_device, to_numpy
from torch import nn
from torch.utils.data import DataLoader

from skfed.modules import MLP, LinearRegression, SoftmaxRegression, Standardize
from skfed.nets._convolutions import evaluated_channels_last
from skfed.nets._dict_rows import (
    DictRows,
    arrays_of,
    call_module,
    describe_samples,
    from_arrays,
)
from skfed.nets._inputs import Samples, batch_size, plain, takes_rows, to_tensors, whole
from skfed.nets._own_code import FORWARD_METHODS, has_hooks, overridden
from skfed.utils._products import PRODUCTS
from skfed.utils._seeding import torch_seeded

_PREDICT_ROWS = 4096
_BATCH_OF_ROWWISE = 512
_ROUNDING = 1e-3  # by which the sum of probabilities may differ from 1, in half precision too
#: Methods of skorch that make predictions of outputs.
_PREDICTIONS = "predict", "predict_proba", "_get_predict_nonlinearity"
#: Modules that map each row by itself when they are evaluated.
_ROWWISE = {
    MLP, LinearRegression, SoftmaxRegression, Standardize, nn.Dropout, nn.ELU, nn.Flatten, nn.GELU,
    nn.Identity, nn.LeakyReLU, nn.Linear, nn.ReLU, nn.Sequential, nn.Sigmoid, nn.SiLU, nn.Tanh,
}  # fmt: skip


def output_of(net: NeuralNet, X: np.ndarray | DictRows) -> torch.Tensor:
    """Return the module's output for a few rows of X, which are in the net's dtype."""
    try:
        output = net.evaluation_step((*to_tensors(net, X), None))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"estimator cannot take rows of X {describe_samples(X)}: {error}{_hint(net, X)}"
        ) from error
    return output[0] if isinstance(output, tuple) else output


def _hint(net: NeuralNet, X: np.ndarray | DictRows) -> str:
    """Return what to do about rows that a net does not take, to be added to the error."""
    if isinstance(X, dict):
        return ". The keys of X are the names of the arguments of its module's forward"
    # Tables of objects and of pandas' nullable integers arrive as floats.
    if X.dtype.kind == "f" and takes_rows(net, X[:1].astype(np.int64)):
        return ". It takes integers: pass X of an integer dtype, such as X.astype('int64')"
    return ""


class NotProbabilities(ValueError):
    """The outputs of a classifier's net are no probabilities."""


def predictions(net: NeuralNet, X: Samples) -> np.ndarray:
    """Return what a net predicts: positions of classes, or values of targets."""
    if overridden(net, ["predict"]):
        found = _in_chunks(net, X, net.predict)
        return found.astype(np.intp) if isinstance(net, NeuralNetClassifier) else found
    found = predict(net, X)
    return found.argmax(1) if isinstance(net, NeuralNetClassifier) else found


def final_outputs(net: NeuralNet, outputs: torch.Tensor, X: Samples) -> np.ndarray:
    """Return a regressor's predictions; of a classifier a row's largest value is the prediction.

    ``outputs`` are the module's for X.
    """
    if overridden(net, ["predict"]):
        found = predictions(net, X)
        is_classifier = isinstance(net, NeuralNetClassifier)
        return np.eye(outputs.shape[1])[found] if is_classifier else found
    if overridden(net, _PREDICTIONS):
        return predict(net, X)
    return to_numpy(outputs if predicts_largest(net) else _nonlinearity(net)(outputs))


def _nonlinearity(net: NeuralNet) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what makes predictions of outputs."""
    criterion = getattr(net, "criterion_", None)
    is_auto = net.predict_nonlinearity == "auto" and not isinstance(net, NeuralNetClassifier)
    # skorch makes two columns of each, as for a classifier.
    if is_auto and isinstance(criterion, nn.BCEWithLogitsLoss):
        return torch.sigmoid
    if is_auto and isinstance(criterion, nn.BCELoss):
        return nn.Identity()
    return net._get_predict_nonlinearity()


def predicts_largest(net: NeuralNet) -> bool:
    """Tell whether a classifier's net predicts the class of the largest output."""
    as_usual = not overridden(net, _PREDICTIONS) and net.predict_nonlinearity in ("auto", None)
    # With these two skorch makes columns of the outputs.
    is_binary = isinstance(getattr(net, "criterion_", None), nn.BCELoss | nn.BCEWithLogitsLoss)
    return as_usual and not is_binary


def probabilities(net: NeuralNet, X: Samples) -> np.ndarray:
    """Return a classifier's predict_proba.

    Raise NotProbabilities where its rows are none, unless the net says what makes them.
    """
    found = predict(net, X)
    is_own = net.predict_nonlinearity != "auto" or overridden(net, _PREDICTIONS)
    return found if is_own or _predicts_softmax(net) else check_probabilities(found)


def check_probabilities(found: np.ndarray) -> np.ndarray:
    """Check that rows are probabilities, or NaN as of a net that has diverged."""
    wrong = (found < 0).any(axis=1) | (np.abs(found.sum(axis=1, dtype=float) - 1) > _ROUNDING)
    if wrong.any():
        raise NotProbabilities(
            "the net's predict_proba returns rows that are no probabilities, such as "
            f"{np.round(found[wrong.argmax()], 3).tolist()}, as skorch does not know what its "
            "criterion makes of outputs: pass predict_nonlinearity to the net, for logits "
            "functools.partial(torch.softmax, dim=-1). predict needs none."
        )
    return found


def predict(net: NeuralNet, X: Samples) -> np.ndarray:
    """Return the net's predict_proba; that of skorch's regressors returns predictions."""
    if overridden(net, ("predict_proba", "_get_predict_nonlinearity")):
        return _in_chunks(net, X, net.predict_proba)
    nonlinearity = _nonlinearity(net)

    def probabilities(X: np.ndarray) -> np.ndarray:
        outputs = _outputs(net, X)
        if _ends_by_row(net):
            return to_numpy(nonlinearity(torch.cat(outputs)))
        return np.concatenate([to_numpy(nonlinearity(output)) for output in outputs])

    return _in_chunks(net, X, probabilities)


def predict_log(net: NeuralNet, X: Samples) -> np.ndarray:
    """Return the logarithms of predict_proba, computed from logits if it is their softmax."""
    if not _predicts_softmax(net):
        with np.errstate(divide="ignore"):  # log(0) is -inf
            return np.log(probabilities(net, X))
    return _in_chunks(net, X, lambda X: torch.cat(_outputs(net, X)).log_softmax(-1).numpy())


def _outputs(net: NeuralNet, X: np.ndarray) -> list[torch.Tensor]:
    """Return the module's first output for each batch, on the CPU, as skorch's forward_iter does.

    skorch's DataLoader takes rows one by one, and would take longer than most modules.
    """
    if not _iterates_as_skorch(net):
        outputs = list(net.forward_iter(X))
    else:
        net._set_training(False)
        n_rows = _rows_a_batch(net, X)
        with torch.no_grad(), PRODUCTS.evaluating(net.module_, n_rows):
            outputs = [
                to_device(call_module(net.module_, batch), "cpu")
                for batch in _batches(net, X, n_rows)
            ]
    return [output[0] if isinstance(output, tuple) else output for output in outputs]


def _batches(net: NeuralNet, X: Samples, n_rows: int) -> Iterator[Any]:
    """Yield batches of rows on the net's device."""
    keys, arrays = arrays_of(X)
    parts = (torch.from_numpy(one).split(n_rows) for one in arrays)
    for batch in zip(*parts, strict=True):
        yield from_arrays(keys, [one.to(net.device) for one in batch])


def _rows_a_batch(net: NeuralNet, X: np.ndarray) -> int:
    """Return the rows of a batch: at least 512 for rowwise nets, if the user gives no number.

    Batches of training are small, and linear layers take less time for each row of a larger one.
    Not if X has more dimensions: a layer may act on each position of a row, and its activations
    would no longer fit in the cache.
    """
    size = whole(batch_size(net, "iterator_valid"), len(X))
    given = "batch_size" in net.get_params_for("iterator_valid")
    if given or X.ndim > 2 or not (_is_rowwise(net.module_) and _ends_by_row(net)):
        return size
    return max(size, _BATCH_OF_ROWWISE)


def _ends_by_row(net: NeuralNet) -> bool:
    """Tell whether what makes predictions of outputs acts on each row by itself."""
    return net.predict_nonlinearity in ("auto", None)


def _is_rowwise(module: nn.Module) -> bool:
    """Tell whether an evaluated module is known to map each row by itself."""
    modules = list(module.modules())
    return all(
        type(one) in _ROWWISE and "forward" not in vars(one) for one in modules
    ) and not has_hooks(*modules)


def _iterates_as_skorch(net: NeuralNet) -> bool:
    """Tell whether rows go to the module in batches, in their order, and as they are."""
    return (
        not overridden(net, FORWARD_METHODS)
        and net.dataset is Dataset
        and not net.get_params_for("dataset")
        and net.iterator_valid is DataLoader
        and net.get_params_for("iterator_valid").keys() <= {"batch_size"}
    )


def _predicts_softmax(net: NeuralNet) -> bool:
    """Tell whether predict_proba is the softmax of the module's output."""
    return (
        type(net).predict_proba is NeuralNetClassifier.predict_proba
        and net.predict_nonlinearity == "auto"
        and net._criteria == ["criterion"]
        and isinstance(net.criterion_, nn.CrossEntropyLoss)
    )


def _in_chunks(
    net: NeuralNet, X: Samples, function: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Apply a function to all rows, some at a time: X is not copied as a whole."""
    starts = range(0, len(X), _PREDICT_ROWS)
    # Seeded, since a DataLoader and random layers draw from torch's global generator.
    with torch_seeded(np.random.default_rng(0), net.device), evaluated_channels_last(net, X):
        return np.concatenate([function(plain(X[i : i + _PREDICT_ROWS])) for i in starts])
