"""Torch modules to federate. They return logits unless documented otherwise."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn

__all__ = [
    "MLP",
    "ConvNet",
    "LinearRegression",
    "MeanOutput",
    "Quadratic",
    "SoftmaxRegression",
    "Standardize",
]


class Standardize(nn.Module):
    """Subtract a mean from each column and divide by its scale.

    It has to be the first layer of a module. Before the first round, each priority client sends
    the mean, the variance and the largest deviation from the mean of its columns, which are charged
    to that round. The pooled values give the buffers ``mean`` and ``scale``, which are not trained.
    A column's scale is its standard deviation, but at least a tenth of its largest deviation, so
    that no value of a rare flag or of a heavy tail is above 10; of a constant column it is 1. With
    ``update_privacy`` clients do not send them, and the layer returns X unchanged.

    A column whose mean is more than 4,096 times its scale (a year in milliseconds, an id) would
    lose its digits when it is cast to the dtype of the module. Its mean is subtracted in the dtype
    of X before that, by the estimator; it is in ``shift``.

    Parameters
    ----------
    n_features : int
        Number of values in a sample; samples of more dimensions (images) are flattened.

    Attributes
    ----------
    mean, scale : Tensor of shape (n_features,)
        What is subtracted from a column, and by what it is then divided.
    shift : ndarray of shape (n_features,) or None
        What was subtracted from X before ``forward`` gets it; None: nothing.

    Examples
    --------
    >>> from torch import nn
    >>> from skfed.modules import Standardize
    >>> mlp = nn.Sequential(
    ...     Standardize(43), nn.Linear(43, 64), nn.ReLU(), nn.Linear(64, 6)
    ... )
    """

    mean: torch.Tensor
    scale: torch.Tensor
    shift: np.ndarray | None = None

    def __init__(self, n_features: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_features))
        self.register_buffer("scale", torch.ones(n_features))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Map samples (n_samples, ...) to standardised ones (n_samples, n_features)."""
        return (X.flatten(1) - self.mean) / self.scale

    def in_units(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and scale in units of X, as float64; the mean has ``shift`` in it."""
        mean, scale = self.mean.double(), self.scale.double()
        return mean if self.shift is None else mean + torch.from_numpy(self.shift).to(mean), scale


class LinearModel(nn.Module):
    """One linear layer, zero-initialised, optionally after :class:`Standardize`."""

    def __init__(self, n_features: int, n_outputs: int, standardize: bool):
        super().__init__()
        self.standardize = Standardize(n_features) if standardize else nn.Flatten()
        self.linear = nn.Linear(n_features, n_outputs)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Map samples (n_samples, ...) to outputs (n_samples, n_outputs)."""
        return self.linear(self.standardize(X))

    def coefficients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights (n_outputs, n_features) and intercepts (n_outputs,), in units of X."""
        weight, bias = self.linear.weight.double(), self.linear.bias.double()
        if isinstance(self.standardize, Standardize):
            mean, scale = self.standardize.in_units()
            weight = weight / scale
            bias = bias - weight @ mean
        return weight, bias


class SoftmaxRegression(LinearModel):
    """One linear layer, zero-initialised: multinomial logistic regression.

    It maps samples (n_samples, ...) to logits (n_samples, n_classes).

    Parameters
    ----------
    n_features : int
        Number of values in a sample; samples of more dimensions (images) are flattened.
    n_classes : int
        Number of classes.
    standardize : bool, default=False
        Whether a layer :class:`Standardize` comes first.
    """

    def __init__(self, n_features: int, n_classes: int, standardize: bool = False):
        super().__init__(n_features, n_classes, standardize)


class LinearRegression(LinearModel):
    """One linear layer, zero-initialised: least squares.

    It maps samples (n_samples, ...) to predictions (n_samples, n_targets).

    Parameters
    ----------
    n_features : int
        Number of values in a sample; samples of more dimensions are flattened.
    n_targets : int, default=1
        Number of targets.
    standardize : bool, default=False
        Whether a layer :class:`Standardize` comes first.
    """

    def __init__(self, n_features: int, n_targets: int = 1, standardize: bool = False):
        super().__init__(n_features, n_targets, standardize)


class MLP(nn.Module):
    """Linear layers with ReLU between them.

    ``MLP(784, (64, 30), 10, dropout=0.5)`` is what power-of-choice trains on Fashion-MNIST (its
    appendix F), ``MLP(784, (200, 200), 47)`` what FedALIGN trains on EMNIST.

    Parameters
    ----------
    n_features : int
        Number of values in a sample; samples of more dimensions (images) are flattened.
    hidden : sequence of int
        Widths of the hidden layers.
    n_classes : int
        Number of classes.
    dropout : float, default=0.0
        Probability of the dropout after the last hidden layer.
    """

    def __init__(
        self, n_features: int, hidden: Sequence[int], n_classes: int, dropout: float = 0.0
    ):
        super().__init__()
        widths = [n_features, *hidden]
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.hidden = nn.Sequential(*[m for layer in layers for m in (layer, nn.ReLU())])
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(widths[-1], n_classes)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Map samples (n_samples, ...) to logits (n_samples, n_classes)."""
        return self.out(self.dropout(self.hidden(X.flatten(1))))


class ConvNet(nn.Module):
    """The network that FedALIGN trains on CIFAR-10.

    Two convolutions of 5 x 5 (32 and 64 channels, padding 2), each followed by ReLU and a pooling
    by 2, the second with batch normalisation before them; then fully connected layers of 512 and
    128 units with batch normalisation and ReLU, and the logits. Weights are initialised after
    Kaiming. The running statistics of the batch normalisation are buffers, which are sent and
    averaged over the cohort as weights are.

    Parameters
    ----------
    n_channels : int, default=3
        Channels of an image.
    size : int, default=32
        Height and width of an image, a multiple of 4.
    n_classes : int, default=10
        Number of classes.
    """

    def __init__(self, n_channels: int = 3, size: int = 32, n_classes: int = 10):
        super().__init__()
        channels, widths = [n_channels, 32, 64], [64 * (size // 4) ** 2, 512, 128]
        layers: list[nn.Module] = []
        for a, b in pairwise(channels):
            layers.append(nn.Conv2d(a, b, 5, padding=2))
            layers += [nn.BatchNorm2d(b)] if b == channels[-1] else []
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        layers.append(nn.Flatten())
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], n_classes))
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Map images (n_samples, n_channels, size, size) to logits (n_samples, n_classes)."""
        return self.layers(X)


class Quadratic(nn.Module):
    """``F_k(w) = 1/2 h_k |w - e_k / h_k|^2`` for rows (h_k, e_k) of ``make_quadratic``.

    It returns the objective itself, so its criterion is :class:`MeanOutput`.

    Parameters
    ----------
    n_dims : int
        v, the length of w, which starts at zero.
    """

    def __init__(self, n_dims: int):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(n_dims, dtype=torch.double))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Map rows (n_samples, 1 + n_dims) to objectives (n_samples, 1)."""
        h, e = X[:, :1], X[:, 1:]
        return h / 2 * (self.w - e / h).square().sum(1, keepdim=True)


class MeanOutput(nn.Module):
    """The criterion of a module that returns the loss of each row."""

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean of outputs (n_samples, 1); targets are not used."""
        return output.mean()
