"""What is found out about a net is kept for the same net on the same rows, and for no other."""

import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn import functional as F

from skfed import FederatedClassifier, PowerOfChoice
from skfed.engines import _choose
from skfed.engines._probe import Probe
from skfed.engines._verdicts import Verdicts


@pytest.fixture
def trials(monkeypatch):
    """Begin with no verdicts, and list the trials."""
    done = []

    class Counted(Probe):
        def __init__(self, *args):
            done.append(args)
            super().__init__(*args)

    monkeypatch.setattr(_choose, "Probe", Counted)
    monkeypatch.setattr(_choose, "_VERDICTS", Verdicts(64))
    return done


def layers(activation=None, n_hidden=4, bias=True, n_features=5):
    torch.manual_seed(0)
    hidden = nn.Linear(n_features, n_hidden, bias=bias)
    return nn.Sequential(hidden, activation or nn.ReLU(), nn.Linear(n_hidden, 3))


def net(module=None, kind=NeuralNetClassifier, **settings):
    return kind(module or layers(), **{"criterion": nn.CrossEntropyLoss, "lr": 0.1} | settings)


def fit(blobs, estimator, **params):
    X, y, clients = blobs
    params = {"n_rounds": 1, "engine": "stacked", "random_state": 0} | params
    return FederatedClassifier(estimator, **params).fit(X, y, clients=clients)


def test_a_second_fit_tries_nothing_and_gives_the_same_model(blobs, trials, same_model):
    first = fit(blobs, net(), n_rounds=3)
    second = fit(blobs, clone(net()), n_rounds=3)
    assert len(trials) == 1
    assert same_model(first, second)
    assert first.engine_ == second.engine_ == "stacked: linear layers"


def test_how_the_net_is_federated_does_not_matter(blobs, trials):
    fit(blobs, None)
    fit(blobs, None, selector=PowerOfChoice(d=4), n_rounds=2, proximal_mu=0.1, random_state=1)
    fit(blobs, None, engine="auto", memory_budget=2**20)
    assert len(trials) == 1


def changed_weight():
    module = layers()
    with torch.no_grad():
        module[0].bias[0] += 1e-6
    return module


def frozen():
    module = layers()
    module[0].bias.requires_grad_(False)
    return module


OTHERS = {
    "module's width": net(layers(n_hidden=3)),
    "module's bias": net(layers(bias=False)),
    "a module's class": net(layers(nn.Tanh())),
    "a module's argument": net(layers(nn.LeakyReLU(0.1))),
    "dropout": net(layers(nn.Dropout(0.5))),
    "a weight": net(changed_weight()),
    "what is trained": net(frozen()),
    "the module's dtype": net(layers().double()),
    "a buffer": net(layers(nn.BatchNorm1d(4))),
    "criterion": net(criterion=nn.MultiMarginLoss),
    "criterion's argument": net(criterion__label_smoothing=0.1),
    "criterion's weights": net(criterion__weight=torch.ones(3)),
    "optimizer": net(optimizer=torch.optim.Adam),
    "optimizer's argument": net(optimizer__momentum=0.9),
    "learning rate": net(lr=0.2),
    "batch size": net(batch_size=4),
    "batch size of evaluation": net(iterator_valid__batch_size=4),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_setting_is_tried_anew(blobs, trials, other):
    for estimator in (net(), OTHERS[other], net(layers(nn.LeakyReLU(0.2)))):
        fit(blobs, estimator, engine="auto")
    assert len(trials) == 3


def test_other_rows_are_tried_anew(blobs, trials):
    X, y, clients = blobs
    other_X, other_y = X.copy(), y.copy()
    other_X[0, 0] += 1e-3
    other_y[-1] = (y[-1] + 1) % 3
    for data in [(X, y), (other_X, y), (X, other_y), (X[:-1], y[:-1])]:
        fit((*data, clients[: len(data[0])]), net())
    assert len(trials) == 4


def test_the_number_of_features_and_classes_matters(blobs, trials):
    X, y, clients = blobs
    fit(blobs, None)
    fit((X[:, :4], y, clients), None)
    fit((X, np.minimum(y, 1), clients), None)
    assert len(trials) == 3


def test_autocast_matters(blobs, trials):
    fit(blobs, net())
    with torch.autocast("cpu", enabled=True):
        model = fit(blobs, net(), engine="auto")
    assert model.engine_.startswith("loop: torch.autocast is on")
    assert len(trials) == 1


class Written(nn.Linear):
    """The user's own, whose code may use what changes."""

    def __init__(self):
        super().__init__(5, 3)


class WrittenLoss(nn.CrossEntropyLoss):
    pass


class WrittenNet(NeuralNetClassifier):
    pass


class WrittenTensor(torch.Tensor):
    def __deepcopy__(self, memo):
        return self.clone().as_subclass(WrittenTensor)


def patched():
    module = layers()
    module.forward = lambda X: module[2](F.relu(module[0](X)))
    return module


def with_written_tensor():
    module = layers()
    module.register_buffer("shift", torch.zeros(1).as_subclass(WrittenTensor))
    return module


OWN = {
    "a class": net(Written),
    "an instance": net(Written()),
    "inside of a module": net(nn.Sequential(Written())),
    "a criterion": net(criterion=WrittenLoss),
    "a net": net(kind=WrittenNet),
    "forward of an instance": net(patched()),
    "a tensor": net(with_written_tensor()),
    "a function": net(layers(nn.Softplus(beta=np.float32(1)))),
}


@pytest.mark.parametrize("own", OWN)
def test_what_may_change_unseen_is_tried_each_time(blobs, trials, own):
    for _ in range(2):
        fit(blobs, OWN[own], engine="auto")
    assert len(trials) == 2


def test_a_class_defined_anew_gets_a_verdict_of_its_own(blobs):
    def define(forward):
        return type("Net", (nn.Linear,), {"forward": forward, "__module__": "__main__"})

    linear = define(nn.Linear.forward)
    noisy = define(lambda self, X: nn.Linear.forward(self, X + torch.randn_like(X)))
    assert fit(blobs, net(linear(5, 3)), engine="auto").engine_ == "stacked: linear layers"
    assert fit(blobs, net(noisy(5, 3)), engine="auto").engine_.startswith("loop: ")


def test_refusals_are_not_kept(blobs, trials):
    for _ in range(2):
        assert fit(blobs, net(layers(nn.RReLU())), engine="auto").engine_.startswith("loop: ")
    assert len(trials) == 2


def test_those_used_longest_ago_go_first():
    verdicts = Verdicts(2)
    verdicts.keep("a", 1)
    verdicts.keep("b", 2)
    assert verdicts.get("a") == 1
    verdicts.keep("c", 3)
    assert [verdicts.get(key) for key in "abc"] == [1, None, 3]
    verdicts.keep(None, 4)
    assert verdicts.get(None) is None


@pytest.mark.parametrize("module", [layers(), layers(nn.BatchNorm1d(4))], ids=["linear", "other"])
def test_no_net_is_kept(blobs, trials, module):
    class Seen(pickle.Pickler):
        def persistent_id(self, value):
            held.append(value)

    held = []
    fit(blobs, net(module))
    Seen(io.BytesIO()).dump(_choose._VERDICTS._kept)
    assert any(isinstance(value, _choose.Plan) for value in held)
    assert not [v for v in held if isinstance(v, nn.Module | NeuralNetClassifier | torch.Tensor)]


def test_fits_side_by_side(blobs, trials, same_model):
    widths = [2, 3, 4] * 4
    alone = {width: fit(blobs, net(layers(n_hidden=width))) for width in set(widths)}
    estimators = [net(layers(n_hidden=width)) for width in widths]
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda estimator: fit(blobs, estimator), estimators))
    assert len(trials) == 3
    assert all(same_model(alone[w], model) for w, model in zip(widths, models, strict=True))
