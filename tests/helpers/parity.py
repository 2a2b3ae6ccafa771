"""The same fit on either engine, and what must be the same about it."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, RandomSelector

ALL = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)


def both(data, estimator, **params):
    """Fit with either engine."""
    X, y, clients = data
    params = {"selector": ALL, "n_rounds": 3, "random_state": 0, **params}
    return [
        FederatedClassifier(estimator, engine=engine, **params).fit(X, y, clients=clients)
        for engine in ("loop", "stacked")
    ]


def flat(module, without=()):
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    kept = [t.detach().double().flatten() for name, t in tensors.items() if name not in without]
    return torch.cat(kept)


def assert_same(loop, stacked, atol=1e-9, without=()):
    assert loop.engine_.startswith("loop")
    assert stacked.engine_.startswith("stacked")
    mine, reference = (flat(m.net_.module_, without) for m in (stacked, loop))
    torch.testing.assert_close(mine, reference, rtol=0, atol=atol)
    columns = [
        "cohort", "polled", "models_down", "models_up", "bytes_up", "samples_evaluated",
        "samples_trained",
    ]  # fmt: skip
    assert loop.history_[columns].equals(stacked.history_[columns])
    for column in ("objective", "train_loss"):
        np.testing.assert_allclose(
            stacked.history_[column], loop.history_[column], rtol=max(atol, 1e-9)
        )


def net(module, **settings):
    settings = {"criterion": nn.CrossEntropyLoss, "batch_size": 16, "lr": 0.1, **settings}
    return NeuralNetClassifier(module, **settings)
