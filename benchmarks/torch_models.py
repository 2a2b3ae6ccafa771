"""The networks of the workloads in torch: skfed, the loops by hand and the peers share them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import nn

try:
    from benchmarks.workloads import Model, Workload
except ImportError:  # run from this folder
    from workloads import Model, Workload


def linear_layers(layers: Sequence[int]) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    made = [nn.Linear(a, b) for a, b in pairwise(layers)]
    return nn.Sequential(*[module for layer in made for module in (nn.ReLU(), layer)][1:])


class Convolutions(nn.Sequential):
    """A small convolutional network."""

    def __init__(self):
        super().__init__(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 8, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(784, 10),
        )


class Recurrent(nn.Module):
    """An image read row by row."""

    def __init__(self, layer: type[nn.RNNBase] = nn.GRU, n_units: int = 16):
        super().__init__()
        self.rnn = layer(28, n_units, batch_first=True)
        self.out = nn.Linear(n_units, 10)

    def forward(self, X):
        return self.out(self.rnn(X.view(-1, 28, 28))[0][:, -1])


def make_module(model: Model) -> nn.Module:
    """Return the network with torch's initial parameters."""
    if model.layers:
        return linear_layers(model.layers)
    return {"CNN": Convolutions, "GRU": Recurrent}[model.name]()


def make_optimizer(work: Workload, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer of a client's local steps."""
    return getattr(torch.optim, work.optimizer)(params, lr=work.lr)
