"""Nets that train clients have convolutions in a form that is faster; only rounding shows it."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from convolutional import Penalised, Small, in_usual_order, make
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from skfed import PowerOfChoice
from skfed.aggregation import Scaffold
from skfed.engines import _loop
from skfed.nets import NetPool, _pool, pool_before_relu


class Pooled(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 3, 3),
            nn.Flatten(),
        )


class Usual(nn.Sequential):
    """Has what most convolutional nets have."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 3, 3),
            nn.Dropout2d(),
            nn.Flatten(),
        )


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    X = rng.normal(size=(60, 2, 6, 6)) + y[:, None, None, None]
    return X.astype(np.float32), y, np.arange(60) % 4


def of_clients(net, X):
    with NetPool(net, X[:1]).borrowed() as own:
        return own


def test_results_are_the_same_up_to_rounding(images, tmp_path, monkeypatch):
    X, y, clients = images
    params = {"aggregator": Scaffold(), "checkpoint": tmp_path}
    model = make(**params).fit(X, y, clients=clients)
    assert in_usual_order(of_clients(model.net_, X)) == [False, False]
    assert in_usual_order(model.net_) == [True, True]
    monkeypatch.setattr(_pool, "put_channels_last", lambda module: None)
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


@pytest.mark.parametrize("module", [Small, Pooled, Usual])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_usual_modules_have_channels_last(images, module, optimizer):
    X, y, clients = images
    model = make(module, optimizer=optimizer).fit(X, y, clients=clients)
    assert in_usual_order(of_clients(model.net_, X)) == [False, False]


class Viewing(nn.Module):
    """Has a view of activations, which fails where channels are last."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 2)
        self.out = nn.Linear(27, 3)

    def forward(self, X):
        return self.out(self.second(self.first(X).relu()).view(-1, 27))


class ViewingInTraining(Viewing):
    def forward(self, X):
        return super().forward(X) if self.training else X.flatten(1)[:, :3]


class Noisy(Viewing):
    """Has random values of the shape of activations, which another order draws otherwise."""

    def forward(self, X):
        X = self.second(self.first(X).relu())
        return self.out((X + torch.randn_like(X)).flatten(1))


class WithFeatures(Small):
    """Returns features too, of which the criterion has a view."""

    def forward(self, X):
        features = output = self[0](X)
        for layer in list(self)[1:]:
            output = layer(output)
        return output, features


class FeatureNorm(nn.CrossEntropyLoss):
    def forward(self, output, y):
        return super().forward(output[0], y) + 0.01 * output[1].view(-1).square().mean()


class OwnSGD(torch.optim.SGD):
    """Has a view of gradients."""

    def step(self, closure=None):
        loss = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter.grad.view(-1)
        return loss


@pytest.mark.parametrize(
    ("module", "settings", "engine"),
    [
        (Viewing, {}, "loop"),
        (Viewing, {}, "stacked"),  # its polls are not stacked
        (ViewingInTraining, {}, "loop"),
        (Noisy, {}, "loop"),
        (WithFeatures, {"criterion": FeatureNorm}, "loop"),
        (Small, {"optimizer": OwnSGD}, "loop"),
        (Small, {"optimizer": torch.optim.LBFGS}, "loop"),
    ],
)
def test_code_that_needs_the_usual_order_gets_it(images, module, settings, engine):
    X, y, clients = images
    model = make(module, engine=engine, selector=PowerOfChoice(d=3), **settings)
    model.fit(X, y, clients=clients)
    assert not any(model.history_["failed"])
    assert np.isfinite(model.history_["train_loss"]).all()
    assert in_usual_order(of_clients(model.net_, X)) == [True, True]


def test_the_order_is_found_before_a_pool_is_sent(images):
    """So that all processes compute alike, and no task tries it again."""
    X, y, clients = images
    model = make().fit(X, y, clients=clients)
    sent = pickle.loads(pickle.dumps(NetPool(model.net_, X[:1])))
    assert sent._channels_last is True


def test_a_copy_that_a_user_may_see_is_as_it_was_made(images):
    """scikit-learn's callbacks get one, and personalised scores are of one."""
    X, y, clients = images
    model = make(Pooled).fit(X, y, clients=clients)
    copy = NetPool(model.net_, X[:1]).set_up()
    assert in_usual_order(copy) == in_usual_order(model.net_) == [True, True]
    expected = ["Conv2d", "ReLU", "MaxPool2d", "Conv2d", "Flatten"]
    assert kinds(copy.module_) == kinds(model.net_.module_) == expected


def kinds(module):
    return [type(layer).__name__ for layer in module]


def exchanged(module, callbacks=()):
    """Return a copy of a module whose layers were exchanged, if they may be."""
    module = deepcopy(module)
    module.register_parameter("unused", nn.Parameter(torch.zeros(1)))  # an optimizer needs one
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss).initialize()
    net.callbacks_ = list(callbacks)
    pool_before_relu(net)
    return net.module_


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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_pooling_first_gives_the_same_values(pool, in_place, dtype, order):
    X = extreme_values((40, 8, 7, 8)).to(dtype, memory_format=order)
    found = []
    plain = nn.Sequential(nn.Identity(), nn.ReLU(in_place), pool)
    for module in plain, exchanged(plain):
        leaf = X.clone().requires_grad_()
        output = module(leaf + 0)  # what is changed in place must not be a leaf
        weights = torch.arange(output.numel()).reshape(output.shape) % 1000
        output.backward(weights.to(dtype, memory_format=order))
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
    assert [*module.state_dict()] == ["unused", "0.0.weight", "0.0.bias"]


class Intermediate(nn.Module):
    """Uses the first layers of its features alone."""

    def __init__(self, features):
        super().__init__()
        self.features = features

    def forward(self, X):
        return self.features[:1](X)


class Backwards(nn.Sequential):
    def forward(self, X):
        for layer in reversed(self):
            X = layer(X)
        return X


class First(nn.Sequential):
    def __iter__(self):
        return iter([self[0]])


def pair():
    return nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))


def shared():
    features = pair()
    return nn.Sequential(features, Intermediate(features))


def shared_deep():
    features = pair()
    return nn.Sequential(features, Intermediate(nn.Sequential(features)))


def hooked(place):
    module = nn.Sequential(nn.Identity(), nn.ReLU(), nn.MaxPool2d(2))
    [module, *module][place].register_forward_hook(lambda layer, inputs, output: None)
    return module


def patched():
    module = pair()
    module[1].forward = lambda X: X[..., ::2, ::2]
    return module


@pytest.mark.parametrize(
    "module",
    [
        Intermediate(pair()),
        shared(),
        shared_deep(),
        Backwards(*pair()),
        First(*pair()),
        hooked(0),
        hooked(1),
        hooked(3),
        patched(),
        nn.Sequential(nn.LeakyReLU(-1.0), nn.MaxPool2d(2)),
        nn.Sequential(nn.ReLU(), nn.AvgPool2d(2)),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, padding=1, dilation=2)),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True)),
    ],
    ids=[
        "part", "shared", "deep", "forward", "iter", "hook", "hook of another", "hook of pooling",
        "patch", "leaky", "average", "dilation", "indices",
    ],
)  # fmt: skip
def test_layers_that_may_do_something_else_stay(module):
    assert names_of(exchanged(module)) == names_of(module)


def names_of(module):
    return [(name, type(layer)) for name, layer in module.named_modules(remove_duplicate=False)]


def test_layers_stay_where_batch_callbacks_see_them():
    module = pair()
    assert names_of(exchanged(module, [("own", Callback())])) == names_of(module)


def test_a_fit_has_the_same_bits(images, same_model, monkeypatch):
    X, y, clients = images
    called = []

    def kept(net):
        pool_before_relu(net)
        called.append(kinds(net.module_))

    monkeypatch.setattr(_loop, "pool_before_relu", kept)
    model = make(Pooled).fit(X, y, clients=clients)
    assert called == [["Conv2d", "MaxPool2d", "ReLU", "Conv2d", "Flatten"]] * len(called) != []
    monkeypatch.setattr(_loop, "pool_before_relu", lambda net: None)
    assert same_model(model, make(Pooled).fit(X, y, clients=clients))
