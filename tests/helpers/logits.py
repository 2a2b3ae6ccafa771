"""Nets with one logit for two classes, or one a label, and their data."""

import numpy as np
import torch
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier


class Seeded(nn.Sequential):
    """Two layers with the same first weights in every process."""

    def __init__(self, n_outputs=1, *last):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            super().__init__(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, n_outputs), *last)


WHOLE = {"lr": 0.5, "batch_size": -1}  # a step a round
BCE = nn.BCEWithLogitsLoss
ONE_LOGIT = {
    "binary net": NeuralNetBinaryClassifier(Seeded, threshold=0.6, **WHOLE),
    "binary net, (n_samples,)": NeuralNetBinaryClassifier(
        Seeded(1, nn.Flatten(0)), criterion__pos_weight=torch.tensor(2.0), **WHOLE
    ),
    "classifier's net": NeuralNetClassifier(Seeded, criterion=BCE, **WHOLE),
    "module": Seeded,
}
LABELS = {
    "classifier's net of labels": NeuralNetClassifier(
        Seeded, module__n_outputs=3, criterion=BCE, **WHOLE
    ),
    "module of labels": Seeded(3),
}
NETS = ONE_LOGIT | LABELS
#: No module of its own is trained by hand.
ALL_NETS = NETS | {"default net of labels": None}


def targets(name, X, y):
    """Return labels "no" and "yes", or an indicator; the first client lacks its last label."""
    if name in ONE_LOGIT:
        return np.where(y == 0, "no", "yes")
    indicator = (X[:, :3] > 0.5).astype(int)
    indicator[:10, 2] = 0
    return indicator


def federated(name, **params):
    """Return a classifier that polls losses and errors."""
    selector = FedAlignSelector(eps=0.3, warmup=1, match="accuracy")
    params = {"selector": selector, "priority": ["a", "b"], "random_state": 3, **params}
    return FederatedClassifier(ALL_NETS[name], **{"n_rounds": 5, **params})
