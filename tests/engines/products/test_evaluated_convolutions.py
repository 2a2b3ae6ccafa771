"""Many rows are evaluated with channels-last weights; only rounding shows it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from convolutional import Penalised, Small, in_usual_order, make
from sklearn.metrics import log_loss
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn.utils import prune

from skfed.nets import evaluated_channels_last


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


def fit_large(large):
    X, y = large
    return make().fit(X[:60], y[:60], clients=np.arange(60) % 4)


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
