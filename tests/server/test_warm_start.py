"""What a fit that goes on takes of an estimator that has changed since."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import Callback, EarlyStopping, LRScheduler
from torch import nn

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector

X = np.ones((4, 1), dtype=np.float32)
Y = np.zeros((4, 1), dtype=np.float32)
CLIENTS = list("aabb")
EVERYBODY = RandomSelector(1.0, probability="uniform", replace=False)


class Slope(nn.Module):
    """Its loss is its output, so that its one weight falls by the rate in each step."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1))

    def forward(self, X):
        return X @ self.weight


class Mean(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, output, y):
        return self.factor * output.mean()


class Learned(Mean):
    """A criterion that is trained too."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def slope(**params):
    given = {"module": Slope, "criterion": Mean, "lr": 0.5, "batch_size": 4}
    return NeuralNetRegressor(**given | params)


def fitted(net, n_rounds=1, **params):
    given = {"selector": EVERYBODY, "warm_start": True, "random_state": 0} | params
    return FederatedRegressor(net, n_rounds=n_rounds, **given).fit(X, Y, clients=CLIENTS)


def fit_on(model):
    return model.set_params(n_rounds=model.n_rounds_ + 1).fit(X, Y, clients=CLIENTS)


def one_more(model):
    return model.partial_fit(X, Y, clients=CLIENTS)


def steps(model, n_rounds=1, go_on=fit_on):
    """Return by how much the weight falls in each of the next rounds."""
    found = []
    for _ in range(n_rounds):
        before = model.net_.module_.weight.item()
        go_on(model)
        found.append(round(before - model.net_.module_.weight.item(), 6))
    return found


def through_a_file(model, path):
    model.save(path / "model")
    return clone(model).load(path / "model")


WAYS = {
    "itself": lambda model, path: model,
    "copied": lambda model, path: copy.deepcopy(model),
    "pickled": lambda model, path: pickle.loads(pickle.dumps(model)),
    "loaded": through_a_file,
}


@pytest.mark.parametrize("go_on", [fit_on, one_more])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("way", WAYS)
def test_a_warm_start_takes_a_new_learning_rate(tmp_path, way, engine, go_on):
    model = WAYS[way](fitted(slope(), engine=engine), tmp_path)
    assert steps(model, go_on=go_on) == [0.5]
    model.set_params(estimator__lr=0.25)
    assert steps(model, 2, go_on) == [0.25, 0.25]
    assert model.history_["lr"].tolist() == [0.5, 0.5, 0.25, 0.25]
    assert model.net_.lr == 0.25
    model.set_params(estimator=slope(lr=0.125))  # another net that says so
    assert steps(model, go_on=go_on) == [0.125]


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"batch_size": 1}, 1.0),  # two steps a client
        ({"optimizer__weight_decay": 0.5}, 0.5 - 0.5 * 0.5 * 0.5),  # of the weight of -0.5
        ({"criterion__factor": 3.0}, 1.5),
        ({"criterion": nn.L1Loss}, -0.5),  # towards 0
        ({"optimizer": torch.optim.Adam, "lr": 0.25}, 0.25),
        ({"optimizer__param_groups": [("weight", {"lr": 2.0})]}, 2.0),
        ({"optimizer__lr": 0.75}, 0.75),
        ({"device": torch.device("cpu"), "iterator_train__batch_size": 1}, 1.0),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_warm_start_takes_what_can_be_taken(changes, step):
    model = fitted(slope())
    model.set_params(**{f"estimator__{name}": value for name, value in changes.items()})
    assert steps(model) == [pytest.approx(step)]


def test_momentum_is_taken_and_the_rates_of_a_scheduler_go_on():
    """With momentum .5 the second of two steps is 1.5 times the first."""
    halved = [("halved", LRScheduler("StepLR", step_size=1, gamma=0.5))]
    model = fitted(slope(callbacks=halved), n_rounds=2, local_steps=2)
    model.set_params(estimator__optimizer__momentum=0.5)
    assert steps(model, 2) == [0.125 * 2.5, 0.0625 * 2.5]
    assert model.history_["lr"].tolist() == [0.5, 0.25, 0.125, 0.0625]


def test_a_new_rate_begins_its_schedule_anew():
    halved = [("halved", LRScheduler("StepLR", step_size=1, gamma=0.5))]
    model = fitted(slope(callbacks=halved), n_rounds=2)
    model.set_params(estimator__lr=1.0)
    assert steps(model, 3) == [1.0, 0.5, 0.25]
    model.set_params(estimator__callbacks__halved__gamma=0.1)
    assert steps(model, 2) == [1.0, 0.1]
    model.set_params(estimator__callbacks=[])
    assert steps(model, 2) == [1.0, 1.0]
    warm_up = LRScheduler("LambdaLR", lr_lambda=lambda t: 0.25 * (t + 1))
    model.set_params(estimator__callbacks=[("warm_up", warm_up)])
    assert steps(model, 2) == [0.25, 0.5]


def test_a_new_rate_begins_its_schedule_anew_from_a_file(tmp_path):
    warm_up = LRScheduler("LambdaLR", lr_lambda=lambda t: 0.25 * (t + 1))
    model = through_a_file(fitted(slope(callbacks=[("up", warm_up)]), n_rounds=3), tmp_path)
    assert steps(model) == [0.5]
    model.set_params(estimator__lr=2.0)
    assert steps(model, 2) == [0.5, 1.0]


class Counting(Callback):
    """Counts rounds, and sets weights when training begins."""

    def __init__(self, start=0):
        self.start = start

    def on_train_begin(self, net, **kwargs):
        nn.init.zeros_(net.module_.weight)
        self.n_ = self.start

    def on_epoch_end(self, net, **kwargs):
        self.n_ += 1


def test_callbacks_that_change_begin_anew_and_the_others_go_on():
    one, other = ("one", Counting()), ("other", Counting())
    model = fitted(slope(callbacks=[one, other]), n_rounds=2)
    model.set_params(estimator__callbacks__one__start=10)
    assert steps(model) == [0.5]
    counts = {k: c.n_ for k, c in model.net_.callbacks_ if isinstance(c, Counting)}
    assert counts == {"one": 11, "other": 3}
    assert len(model.net_.history) == 3


def test_more_patience_lets_a_stopped_fit_go_on():
    net = slope(callbacks=[("stop", EarlyStopping(monitor="train_loss", patience=2))], lr=0.0)
    model = fitted(net, n_rounds=9)
    assert model.n_rounds_ == 3
    model.set_params(estimator__callbacks__stop__patience=3, n_rounds=12)
    model.fit(X, Y, clients=CLIENTS)
    assert model.n_rounds_ == 3 + 4


class Other(Slope):
    """Another module, of the same parameters."""


@pytest.mark.parametrize("go_on", [fit_on, one_more])
@pytest.mark.parametrize(
    ("first", "changes", "match"),
    [
        (
            slope(),
            {"estimator__module": Other},
            "estimator__module has .* from .*Slope.* to .*Ot",
        ),
        (slope(), {"estimator": slope(module=Other)}, "estimator__module has changed"),
        (slope(), {"estimator__module__n": 3}, "estimator__module__n .* from not given to 3, but"),
        (
            slope(module=nn.Linear(1, 1)),
            {"estimator": slope(module=nn.Linear(1, 1))},
            "estimator__module has changed since the last fit, from Linear.* of the 1 rounds",
        ),
        (slope(), {"estimator": None}, "estimator .* from .*NeuralNetRegressor'> to None"),
        (None, {"estimator": Slope}, "estimator .* from None to <class .*Slope"),
        (Slope, {"estimator": Other}, "estimator has changed .*Slope.* to <class .*Other"),
        (slope(), {"estimator__criterion": Learned}, "estimator__criterion has changed.*trained"),
    ],
)
def test_a_warm_start_refuses_another_module(first, changes, match, go_on):
    model = fitted(clone(first, safe=False))
    weights = copy.deepcopy(model.net_.module_.state_dict())
    before = model.get_params(deep=False)["estimator"]
    model.set_params(**changes)
    with pytest.raises(ValueError, match=match):
        go_on(model)
    assert model.n_rounds_ == 1
    for name, tensor in model.net_.module_.state_dict().items():
        assert torch.equal(tensor, weights[name])
    if changes.keys() == {"estimator"}:
        model.set_params(estimator=before)  # the way out
        assert go_on(model).n_rounds_ == 2


def test_an_equal_module_is_not_another_one():
    layer = nn.Linear(1, 1)
    model = fitted(slope(module=layer))
    model.set_params(estimator=slope(module=copy.deepcopy(layer)))
    whole = fitted(slope(module=layer), n_rounds=2)
    assert torch.equal(fit_on(model).net_.module_.weight, whole.net_.module_.weight)


def test_classifiers_take_a_new_rate_and_write_it_to_their_own_run(blobs, tmp_path, same_model):
    (X, y, clients), layer = blobs, nn.Linear(5, 3)

    def second(directory):
        net = NeuralNetClassifier(layer, criterion=nn.CrossEntropyLoss, lr=0.1)
        first = FederatedClassifier(net, n_rounds=2, random_state=0, warm_start=True)
        first.fit(X, y, clients=clients).set_params(checkpoint=directory)
        return first.set_params(estimator__lr=0.5, n_rounds=4).fit(X, y, clients=clients)

    whole = second(None)
    changed = second(tmp_path)
    assert changed.history_["lr"].tolist() == [0.1, 0.1, 0.5, 0.5]
    assert second(tmp_path).history_.equals(changed.history_)  # nothing was trained again
    assert same_model(changed, whole)
