"""Torch modules to federate. They return logits, unless they say otherwise."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

__all__ = [
    "MLP",
    "ConvNet",
    "LinearRegression",
    "MeanOutput",
    "Quadratic",
    "SoftmaxRegression",
]


class SoftmaxRegression(nn.Module):
    """One linear layer, zero-initialised: multinomial logistic regression.

    Parameters
    ----------
    n_features : int
        Number of values in a sample; samples of more dimensions (images) are flattened.
    n_classes : int
        Number of classes.
    """

    def __init__(self, n_features: int, n_classes: int):
        super().__init__()
        self.linear = nn.Linear(n_features, n_classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Map samples (n_samples, ...) to logits (n_samples, n_classes)."""
        return self.linear(X.flatten(1))

    def coefficients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights (n_classes, n_features) and intercepts (n_classes,), in units of X."""
        return self.linear.weight, self.linear.bias


class LinearRegression(nn.Module):
    """One linear layer, zero-initialised: least squares.

    Parameters
    ----------
    n_features : int
        Number of values in a sample; samples of more dimensions are flattened.
    n_targets : int, default=1
        Number of targets.
    """

    def __init__(self, n_features: int, n_targets: int = 1):
        super().__init__()
        self.linear = nn.Linear(n_features, n_targets)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Map samples (n_samples, ...) to predictions (n_samples, n_targets)."""
        return self.linear(X.flatten(1))

    def coefficients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights (n_targets, n_features) and intercepts (n_targets,), in units of X."""
        return self.linear.weight, self.linear.bias


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
    Kaiming. The running statistics of a batch normalisation are buffers of the model: like its
    weights they are sent, and averaged over the cohort.

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
        """Average outputs (n_samples, 1); targets are not looked at."""
        return output.mean()
