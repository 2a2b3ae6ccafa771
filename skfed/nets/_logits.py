"""Nets with one logit for two classes, or one for each of several labels."""

from typing import Any

import numpy as np
import torch
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

from skfed.nets._own_code import overridden

#: The nets of classifiers.
CLASSIFIERS = NeuralNetClassifier, NeuralNetBinaryClassifier

_BY_LOGIT = nn.BCEWithLogitsLoss, nn.BCELoss


def is_by_logit(net: NeuralNet) -> bool:
    """Tell whether a classifier's net has one output for two classes, or for each label."""
    if isinstance(net, NeuralNetBinaryClassifier):
        return True
    return isinstance(net, NeuralNetClassifier) and has_binary_loss(net)


def has_binary_loss(net: NeuralNet) -> bool:
    """Tell whether a net's loss is a binary cross-entropy of each output."""
    return isinstance(_criterion(net), _BY_LOGIT)


def takes_no_classes(net: NeuralNet) -> bool:
    """Tell whether a net's loss takes a number for each output, not the position of a class."""
    return type(_criterion(net)) in _BY_LOGIT and not overridden(net, ["get_loss"])


def probability_of(net: NeuralNet, outputs: torch.Tensor) -> torch.Tensor:
    """Return the probability that each output of a net ``is_by_logit`` is for."""
    return outputs if isinstance(_criterion(net), nn.BCELoss) else torch.sigmoid(outputs)


def threshold_of(net: NeuralNet) -> float:
    """Return the probability above which a net ``is_by_logit`` predicts 1."""
    return net.threshold if isinstance(net, NeuralNetBinaryClassifier) else 0.5


def is_single(outputs: torch.Tensor) -> bool:
    """Tell whether there is one output a row; of one row it may be a number."""
    return not outputs.dim() or outputs.numel() == len(outputs)


def has_labels(y: np.ndarray) -> bool:
    """Tell whether a classifier's targets are an indicator of several labels."""
    return y.ndim > 1 and y.shape[1] > 1


def as_inferred(net: NeuralNet, output: Any) -> Any:
    """Return a module's output as skorch's own ``infer`` does: of one logit in one dimension."""
    if not isinstance(net, NeuralNetBinaryClassifier):
        return output
    if isinstance(output, tuple):
        return output[0].reshape(-1), *output[1:]
    return output.reshape(-1)


def _criterion(net: NeuralNet) -> Any:
    return getattr(net, "criterion_", None)
