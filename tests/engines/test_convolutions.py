"""Clients' nets store the weights of convolutions in another order; nothing else shows it."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier
from skfed.aggregation import Scaffold
from skfed.nets import NetPool, _pool


class Small(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 3, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


class Penalised(NeuralNetClassifier):
    """Has a penalty on weights, whose view needs them in the order of their indices."""

    def get_loss(self, output, y, *args, **named):
        penalty = sum(w.view(-1).square().sum() for w in self.module_.parameters())
        return super().get_loss(output, y, *args, **named) + 1e-3 * penalty


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    X = rng.normal(size=(60, 2, 6, 6)) + y[:, None, None, None]
    return X.astype(np.float32), y, np.arange(60) % 4


def make(net=NeuralNetClassifier, **params):
    estimator = net(Small, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=8)
    return FederatedClassifier(estimator, n_rounds=3, engine="loop", random_state=0, **params)


def in_usual_order(net):
    return [w.is_contiguous() for w in net.module_.parameters() if w.dim() == 4]


def test_results_are_the_same_up_to_rounding(images, tmp_path, monkeypatch):
    X, y, clients = images
    params = {"aggregator": Scaffold(), "checkpoint": tmp_path}
    model = make(**params).fit(X, y, clients=clients)
    assert in_usual_order(NetPool(model.net_, X[:1]).set_up()) == [False, False]
    assert in_usual_order(model.net_) == [True, True]
    monkeypatch.setattr(_pool, "_put_channels_last", lambda net: None)
    plain = make(aggregator=Scaffold()).fit(X, y, clients=clients)
    for one, other in zip(
        model.net_.module_.parameters(), plain.net_.module_.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_not_where_a_users_code_sees_the_weights(images):
    X, y, clients = images
    model = make(Penalised).fit(X, y, clients=clients)
    assert in_usual_order(NetPool(model.net_, X[:1]).set_up()) == [True, True]
    assert not any(model.history_["failed"])
