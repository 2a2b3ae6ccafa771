"""Clients' nets have convolutions in a form that is faster; nothing else shows it."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier
from skfed.aggregation import Scaffold
from skfed.nets import NetPool, _convolutions
from skfed.nets._convolutions import _pool_before_relu


class Small(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 3, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


class Pooled(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 3, 3),
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


def make(module=Small, net=NeuralNetClassifier, engine="loop", **params):
    estimator = net(module, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=8)
    return FederatedClassifier(estimator, n_rounds=3, engine=engine, random_state=0, **params)


def in_usual_order(net):
    return [w.is_contiguous() for w in net.module_.parameters() if w.dim() == 4]


def of_clients(net, X):
    with NetPool(net, X[:1]).borrowed() as own:
        return own


def test_results_are_the_same_up_to_rounding(images, tmp_path, monkeypatch):
    X, y, clients = images
    params = {"aggregator": Scaffold(), "checkpoint": tmp_path}
    model = make(**params).fit(X, y, clients=clients)
    assert in_usual_order(of_clients(model.net_, X)) == [False, False]
    assert in_usual_order(model.net_) == [True, True]
    monkeypatch.setattr(_convolutions, "_put_channels_last", lambda module: None)
    plain = make(aggregator=Scaffold()).fit(X, y, clients=clients)
    for one, other in zip(
        model.net_.module_.parameters(), plain.net_.module_.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_not_where_a_users_code_sees_the_weights(images):
    X, y, clients = images
    model = make(net=Penalised).fit(X, y, clients=clients)
    assert in_usual_order(of_clients(model.net_, X)) == [True, True]
    assert not any(model.history_["failed"])


def test_a_copy_that_a_user_may_see_is_as_it_was_made(images):
    """Callbacks of scikit-learn's get one, and personalised scores are of one."""
    X, y, clients = images
    model = make(Pooled).fit(X, y, clients=clients)
    copy = NetPool(model.net_, X[:1]).set_up()
    assert in_usual_order(copy) == in_usual_order(model.net_) == [True, True]
    assert kinds(copy.module_) == kinds(model.net_.module_)


def kinds(module):
    return [type(layer).__name__ for layer in module]


def exchanged(module):
    """Return a copy of a module whose layers were exchanged, if they may be."""
    copy = deepcopy(module)
    _pool_before_relu(copy)
    return copy


def extreme_values(shape):
    """Return values with ties, zeros of both signs, infinities, NaN and windows below 0."""
    rng = np.random.default_rng(0)
    values = np.array([-2.0, -1.0, -0.0, 0.0, 1.0, 1.0, 2.0, np.inf, -np.inf, np.nan])
    return torch.from_numpy(rng.choice(values, shape, p=[0.2, 0.2] + [0.075] * 8))


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.MaxPool2d(3, stride=2, ceil_mode=True),
    ],
    ids=["apart", "padded", "overlapping"],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_pooling_first_gives_the_same_bits(pool, in_place):
    X = extreme_values((40, 3, 7, 8))
    found = []
    plain = nn.Sequential(nn.Identity(), nn.ReLU(in_place), pool)
    for module in plain, exchanged(plain):
        leaf = X.clone().requires_grad_()
        output = module(leaf + 0)  # what is changed in place must not be a leaf
        output.backward(torch.arange(output.numel()).reshape(output.shape).double())
        found.append((kinds(module)[1], output.detach(), leaf.grad))
    (first, output, gradient), (other, same_output, same_gradient) = found
    assert (first, other) == ("ReLU", "MaxPool2d")
    torch.testing.assert_close(output, same_output, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(gradient, same_gradient, rtol=0, atol=0, equal_nan=True)
    assert gradient.count_nonzero() > 100


def test_each_pooling_moves_before_the_relus_above_it():
    relu = nn.ReLU()  # one layer may stand at several places
    block = nn.Sequential(nn.Conv2d(2, 2, 3), relu, nn.MaxPool2d(2))
    module = exchanged(nn.Sequential(block, relu, nn.MaxPool2d(1), nn.MaxPool2d(1), nn.Flatten()))
    assert kinds(module) == ["Sequential", "MaxPool2d", "MaxPool2d", "ReLU", "Flatten"]
    assert kinds(module[0]) == ["Conv2d", "MaxPool2d", "ReLU"]
    assert [*module.state_dict()] == ["0.0.weight", "0.0.bias"]


class Intermediate(nn.Module):
    """Uses the first layers of its features alone."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, X):
        return self.features[:1](X)


class Backwards(nn.Sequential):
    def forward(self, X):
        for layer in reversed(self):
            X = layer(X)
        return X


def hooked():
    module = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    module[0].register_forward_hook(lambda layer, inputs, output: output + 1)
    return module


def patched():
    module = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    module[1].forward = lambda X: X[..., ::2, ::2]
    return module


@pytest.mark.parametrize(
    "module",
    [
        Intermediate(),
        Backwards(nn.ReLU(), nn.MaxPool2d(2)),
        hooked(),
        patched(),
        nn.Sequential(nn.LeakyReLU(-1.0), nn.MaxPool2d(2)),
        nn.Sequential(nn.ReLU(), nn.AvgPool2d(2)),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, padding=1, dilation=2)),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True)),
    ],
    ids=["part", "forward", "hook", "patch", "leaky", "average", "dilation", "indices"],
)
def test_layers_that_may_do_something_else_stay(module):
    layers = [*module.modules()]
    _pool_before_relu(module)
    assert [*module.modules()] == layers


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_fit_has_the_same_bits(images, same_model, monkeypatch, engine):
    X, y, clients = images
    model = make(Pooled, engine=engine).fit(X, y, clients=clients)
    assert kinds(of_clients(model.net_, X).module_)[1:3] == ["MaxPool2d", "ReLU"]
    monkeypatch.setattr(_convolutions, "_pool_before_relu", lambda module: None)
    plain = make(Pooled, engine=engine).fit(X, y, clients=clients)
    assert same_model(model, plain)
