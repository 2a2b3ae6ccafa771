"""Torch modules to federate. They return logits."""

import torch
from torch import nn


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
