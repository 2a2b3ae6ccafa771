"""Nets that train clients have convolutions in a form that is faster; only rounding shows it."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn
from torch.nn.utils import prune

from skfed import FederatedClassifier, PowerOfChoice
from skfed.aggregation import Scaffold
from skfed.engines import _loop
from skfed.nets import NetPool, _pool, evaluated_channels_last, pool_before_relu


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
    settings = {"criterion": nn.CrossEntropyLoss, "optimizer": torch.optim.SGD}
    settings |= {name: params.pop(name) for name in settings if name in params}
    estimator = net(module, lr=0.1, batch_size=8, **settings)
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


@pytest.fixture
def large():
    """Images large and many enough for a trial."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    X = rng.normal(size=(600, 2, 16, 16)) + y[:, None, None, None]
    return X.astype(np.float32), y


@pytest.fixture
def watched(monkeypatch):
    """The rows of each call of a convolution, and whether its weights are in the usual order."""
    calls, forward = [], nn.Conv2d.forward

    def watching(layer, X):
        calls.append((len(X), layer.weight.is_contiguous()))
        return forward(layer, X)

    monkeypatch.setattr(nn.Conv2d, "forward", watching)
    return calls


def fit_large(large, *args, **params):
    X, y = large
    return make(*args, **params).fit(X[:60], y[:60], clients=np.arange(60) % 4)


def by_hand(net, X):
    with torch.no_grad():
        return net.module_.eval()(torch.from_numpy(X)).softmax(1).numpy()


@pytest.mark.parametrize("n_rows", [512, 600])
def test_many_rows_are_predicted_channels_last(large, watched, n_rows):
    X, model = large[0][:n_rows], fit_large(large)
    weights = [w.data_ptr() for w in model.net_.module_.parameters()]
    watched.clear()
    found = model.predict_proba(X)
    trial = [(2, True)] * 2 + [(2, False)] * 2
    assert watched == trial + [(8, False)] * (2 * n_rows // 8)
    assert [w.data_ptr() for w in model.net_.module_.parameters()] == weights
    np.testing.assert_allclose(found, by_hand(model.net_, X), rtol=1e-5)
    log = model.predict_log_proba(X)
    np.testing.assert_allclose(log, np.log(by_hand(model.net_, X)), rtol=1e-4, atol=1e-6)


def test_many_rows_are_validated_channels_last(large, watched):
    X, y = large
    model = make().fit(X[:60], y[:60], clients=np.arange(60) % 4, X_val=X, y_val=y)
    assert watched[-150:] == [(8, False)] * 150
    assert in_usual_order(model.net_) == [True, True]
    loss = log_loss(y, by_hand(model.net_, X))
    assert model.history_["val_loss"].iloc[-1] == pytest.approx(loss, rel=1e-5)


class OwnCode(Small):
    def forward(self, X):
        return super().forward(X)


def hooked():
    module = Small()
    module[0].register_forward_hook(lambda layer, X, output: None)
    return module


def compiled():
    module = Small()
    module[0].compile(backend="eager")
    return module


def with_maps():
    """Its outputs would be in the order of the weights."""
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 3))


def initialized(module, net=NeuralNetClassifier, **settings):
    return net(module, criterion=nn.CrossEntropyLoss, **settings).initialize()


@pytest.mark.parametrize("module", [OwnCode, hooked, compiled, with_maps])
def test_no_other_order_where_it_may_be_seen(large, module):
    net = initialized(module())
    with evaluated_channels_last(net, large[0]):
        assert all(in_usual_order(net))


@pytest.mark.parametrize(
    "settings", [{"net": Penalised}, {"compile": True, "compile__backend": "eager"}]
)
def test_no_other_order_where_a_net_has_its_own_way(large, settings):
    net = initialized(Small(), **settings)
    with evaluated_channels_last(net, large[0]):
        assert all(in_usual_order(net))


@pytest.mark.parametrize(("n_rows", "width"), [(511, 16), (600, 15)])
def test_no_other_order_for_few_or_small_rows(large, n_rows, width):
    net = initialized(Small())
    with evaluated_channels_last(net, large[0][:n_rows, ..., :width]):
        assert all(in_usual_order(net))


def test_no_trial_of_kernels_of_one_pixel(large, watched):
    net = initialized(nn.Sequential(nn.Conv2d(2, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    with evaluated_channels_last(net, large[0]):
        assert not watched


@pytest.mark.parametrize("n_rows", [10, 600])
def test_pruned_weights_stay_as_they_are_computed(large, n_rows):
    model = fit_large(large)
    layer = model.net_.module_[0]
    prune.random_unstructured(layer, "weight", 0.5)
    with torch.no_grad():
        layer.weight_orig.mul_(2)
    model.predict(large[0][:n_rows])
    assert torch.equal(layer.weight, layer.weight_orig * layer.weight_mask)


def test_weights_are_put_back_after_an_error(large):
    net = fit_large(large).net_
    with pytest.raises(KeyboardInterrupt), evaluated_channels_last(net, large[0]):
        assert in_usual_order(net) == [False, False]
        raise KeyboardInterrupt
    assert in_usual_order(net) == [True, True]


def test_threads_may_predict_by_one_model(large):
    X, model = large[0], fit_large(large)
    one = model.predict_proba(X)
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(model.predict_proba, [X] * 8):
            assert found.tolist() == one.tolist()
    assert in_usual_order(model.net_) == [True, True]


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
