"""Outputs and predictions of nets."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier
from skorch.dataset import Dataset
from skorch.utils import to_device, to_numpy
from torch import nn
from torch.nn.functional import logsigmoid
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
from skfed.nets._logits import (
    CLASSIFIERS,
    as_inferred,
    has_binary_loss,
    is_by_logit,
    is_single,
    probability_of,
    takes_no_classes,
    threshold_of,
)
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
        output = _evaluated(net, *to_tensors(net, X))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"estimator cannot take rows of X {describe_samples(X)}: {error}{_hint(net, X)}"
        ) from error
    return output[0] if isinstance(output, tuple) else output


def _evaluated(net: NeuralNet, X: Any) -> torch.Tensor:
    """Return what skorch's evaluation_step does, of a binary net whatever its shape."""
    if type(net).infer is not NeuralNetBinaryClassifier.infer:
        return net.evaluation_step((X, None))
    net._set_training(False)
    with torch.no_grad():
        return NeuralNet.infer(net, X)


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


def predictions(net: NeuralNet, X: Samples, labels: bool = False) -> np.ndarray:
    """Return what a net predicts: positions of classes, an indicator of labels, or targets."""
    if overridden(net, ["predict"]):
        found = _in_chunks(net, X, net.predict)
        return found.astype(np.intp) if isinstance(net, CLASSIFIERS) else found
    return _decided(net, predict(net, X), labels)


def final_predictions(
    net: NeuralNet, outputs: torch.Tensor, X: Samples, labels: bool = False
) -> np.ndarray:
    """Return what ``predictions`` does, given the module's outputs for X."""
    if overridden(net, _PREDICTIONS):
        return predictions(net, X, labels)
    found = outputs if predicts_largest(net) else _nonlinearity(net)(outputs)
    return _decided(net, to_numpy(found), labels)


def _decided(net: NeuralNet, found: np.ndarray, labels: bool) -> np.ndarray:
    """Return the predictions for a predict_proba, or what has its largest values where it has."""
    if not isinstance(net, CLASSIFIERS):
        return found
    if labels:
        return (found > threshold_of(net)).astype(np.intp)
    if isinstance(net, NeuralNetBinaryClassifier):
        return (found[:, 1] > threshold_of(net)).astype(np.intp)
    return found.argmax(1)


def wrong_rows(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a mask of the rows of which a label is not what a classifier predicts."""
    return (predicted.reshape(len(y), -1) != y.reshape(len(y), -1)).any(axis=1)


def _nonlinearity(net: NeuralNet) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what makes predictions of outputs."""
    # skorch makes two columns of each output, also of a regressor's, or of several labels'.
    if net.predict_nonlinearity == "auto" and has_binary_loss(net):
        return partial(_of_outputs, net)
    return net._get_predict_nonlinearity()


def _of_outputs(net: NeuralNet, outputs: torch.Tensor) -> torch.Tensor:
    """Return probabilities: a column for each label, or two for the classes of a single output."""
    found = probability_of(net, outputs)
    if not (isinstance(net, CLASSIFIERS) and is_single(outputs)):
        return found
    found = found.reshape(-1)
    return torch.stack((1 - found, found), 1)


def predicts_by_outputs(net: NeuralNet) -> bool:
    """Tell whether the module's outputs for a row tell what a classifier's net predicts for it."""
    by_logit = takes_no_classes(net) and net.predict_nonlinearity == "auto"
    return predicts_largest(net) or (by_logit and not overridden(net, _PREDICTIONS))


def predicted_by(net: NeuralNet, outputs: torch.Tensor) -> torch.Tensor:
    """Return the predictions of a classifier's net that ``predicts_by_outputs``."""
    if is_by_logit(net):
        return probability_of(net, outputs) > threshold_of(net)
    # The indices of ``max`` are those of ``argmax``, in a seventh of the time if rows are last.
    return outputs.max(1).indices


def predicts_largest(net: NeuralNet) -> bool:
    """Tell whether a classifier's net predicts the class of the largest output."""
    as_usual = not overridden(net, _PREDICTIONS) and net.predict_nonlinearity in ("auto", None)
    return as_usual and not (is_by_logit(net) or has_binary_loss(net))


def probabilities(net: NeuralNet, X: Samples, labels: bool = False) -> np.ndarray:
    """Return a classifier's predict_proba; of ``labels`` a column each.

    Raise NotProbabilities where its rows are none, unless the net says what makes them.
    """
    found = predict(net, X)
    is_known = labels or says_probabilities(net) or _predicts_softmax(net)
    return found if is_known else check_probabilities(found)


def says_probabilities(net: NeuralNet) -> bool:
    """Tell whether a net says itself what makes probabilities of outputs."""
    return net.predict_nonlinearity != "auto" or bool(overridden(net, _PREDICTIONS))


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


def predict_log(net: NeuralNet, X: Samples, labels: bool = False) -> np.ndarray:
    """Return the logarithms of predict_proba, computed from logits if it is made of these."""
    log_of: Callable[[torch.Tensor], torch.Tensor]
    if _predicts_softmax(net):
        log_of = partial(torch.log_softmax, dim=-1)
    elif _predicts_sigmoid(net):
        log_of = _log_of_logits
    else:
        with np.errstate(divide="ignore"):  # log(0) is -inf
            return np.log(probabilities(net, X, labels))
    return _in_chunks(net, X, lambda X: log_of(torch.cat(_outputs(net, X))).numpy())


def _log_of_logits(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of probabilities, in the columns of ``_of_outputs``."""
    if is_single(logits):
        logits = logits.reshape(-1)
        logits = torch.stack((-logits, logits), 1)
    return logsigmoid(logits)


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
                to_device(as_inferred(net, call_module(net.module_, batch)), "cpu")
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


def _predicts_sigmoid(net: NeuralNet) -> bool:
    """Tell whether predict_proba is the sigmoid of the module's output."""
    return (
        not overridden(net, _PREDICTIONS)
        and net.predict_nonlinearity == "auto"
        and net._criteria == ["criterion"]
        and isinstance(net.criterion_, nn.BCEWithLogitsLoss)
    )


def _in_chunks(
    net: NeuralNet, X: Samples, function: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Apply a function to all rows, some at a time: X is not copied as a whole."""
    starts = range(0, len(X), _PREDICT_ROWS)
    # Seeded, since a DataLoader and random layers draw from torch's global generator.
    with torch_seeded(np.random.default_rng(0), net.device), evaluated_channels_last(net, X):
        return np.concatenate([function(plain(X[i : i + _PREDICT_ROWS])) for i in starts])
