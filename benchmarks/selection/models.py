"""The models of the benchmark: skorch nets for rows of so many columns and classes."""

from collections.abc import Callable

from skorch import NeuralNetClassifier
from torch import nn

from skfed.modules import SoftmaxRegression, Standardize

N_HIDDEN = 64


def linear(n_features: int, n_classes: int, batch_size: int) -> NeuralNetClassifier:
    """Return the default net of FederatedClassifier."""
    return NeuralNetClassifier(
        SoftmaxRegression,
        module__n_features=n_features,
        module__n_classes=n_classes,
        module__standardize=True,
        criterion=nn.CrossEntropyLoss,
        batch_size=batch_size,
    )


class HiddenLayer(nn.Sequential):
    """A hidden layer of ReLU on standardised columns."""

    def __init__(self, n_features: int, n_classes: int):
        super().__init__(
            Standardize(n_features),
            nn.Linear(n_features, N_HIDDEN),
            nn.ReLU(),
            nn.Linear(N_HIDDEN, n_classes),
        )


def mlp(n_features: int, n_classes: int, batch_size: int) -> NeuralNetClassifier:
    """Return a net with a hidden layer."""
    return NeuralNetClassifier(
        HiddenLayer,
        module__n_features=n_features,
        module__n_classes=n_classes,
        criterion=nn.CrossEntropyLoss,
        batch_size=batch_size,
    )


MODELS: dict[str, Callable[[int, int, int], NeuralNetClassifier]] = {"linear": linear, "mlp": mlp}
GRIDS = {"linear": (0.01, 0.03, 0.1, 0.3), "mlp": (0.01, 0.03, 0.1, 0.3)}  # of learning rates
