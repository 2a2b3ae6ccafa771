"""Parameter groups of the net's optimizer: each keeps its own learning rate and weight decay."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler
from torch import nn

from skfed import FederatedClassifier, RandomSelector
from skfed.aggregation import Scaffold
from skfed.diagnostics import optima
from skfed.schedules import InverseTimeDecay

EVERYBODY = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)
X, Y, CLIENTS = np.array([[0.0], [2.0], [0.0], [6.0]]), [0, 1, 0, 1], list("aabb")


class Slopes(nn.Module):
    """The loss is body + neck + head, whatever the data: a step moves each by minus its rate."""

    def __init__(self):
        super().__init__()
        for name in ("body", "neck", "head"):
            setattr(self, name, nn.Parameter(torch.zeros(1, dtype=torch.double)))

    def forward(self, X):
        return (self.body + self.neck + self.head).expand(len(X), 2)


class FirstColumn(nn.Module):
    def forward(self, output, target):
        return output[:, 0].mean()


def groups(**rates):
    return [(name, {"lr": rate}) for name, rate in rates.items()]


def slopes(lr=1.0, *, callbacks=None, **rates):
    return NeuralNetClassifier(
        Slopes,
        criterion=FirstColumn,
        lr=lr,
        optimizer__param_groups=groups(**rates),
        callbacks=callbacks,
    )


def fit(net, n_rounds=2, **params):
    given = {"selector": EVERYBODY, "n_rounds": n_rounds, "local_steps": 2, "random_state": 0}
    return FederatedClassifier(net, **given | params).fit(X, Y, clients=CLIENTS)


def moved(model):
    return {name: -w.item() for name, w in model.net_.module_.named_parameters()}


def halved():
    return [("halved", LRScheduler("ExponentialLR", gamma=0.5))]


def test_without_a_schedule_each_group_has_its_own_rate():
    model = fit(slopes(body=0.01, neck=0.0))
    assert moved(model) == pytest.approx({"body": 0.04, "neck": 0.0, "head": 4.0})
    assert model.history_["lr"].tolist() == [1.0, 1.0]


def test_a_scheduler_keeps_each_groups_own_rate():
    """Two steps at 1, 1/2 and 1/4 of each group's rate."""
    model = fit(slopes(body=0.01, neck=0.0, callbacks=halved()), n_rounds=3)
    assert moved(model) == pytest.approx({"body": 0.035, "neck": 0.0, "head": 3.5})
    assert model.history_["lr"].tolist() == [1.0, 0.5, 0.25]


def test_a_schedule_scales_each_groups_own_rate():
    """Two steps of head at 1/2 and 1/4; body's rate is 1/10 of it, and that of neck stays 0."""
    model = fit(slopes(lr=2.0, body=0.2, neck=0.0), lr_schedule=lambda t: 0.5 / (t + 1))
    assert moved(model) == pytest.approx({"body": 0.15, "neck": 0.0, "head": 1.5})
    assert model.history_["lr"].tolist() == [0.5, 0.25]


def test_a_schedule_takes_every_epoch_of_a_group_into_account():
    """With a batch an epoch and E = 2, the rates of the four epochs are 1 / (1 + t E + i)."""
    schedule = InverseTimeDecay(1.0, 1.0, 1.0)
    model = fit(slopes(body=0.1), local_steps=None, local_epochs=2, lr_schedule=schedule)
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert moved(model) == pytest.approx({"body": 0.1 * total, "neck": total, "head": total})


def test_groups_that_share_a_rate_get_the_schedules():
    net = slopes(lr=3.0, **{"*": 0.5})
    model = fit(net, lr_schedule=0.25)
    assert moved(model) == pytest.approx(dict.fromkeys(("body", "neck", "head"), 1.0))
    assert model.history_["lr"].tolist() == [0.25, 0.25]


def test_a_schedule_of_a_net_whose_rate_is_0_is_refused_if_groups_differ():
    with pytest.raises(ValueError, match="lr_schedule.*lr is 0.*parameter groups"):
        fit(slopes(lr=0.0, body=0.1), lr_schedule=0.5)
    assert moved(fit(slopes(lr=0.0), lr_schedule=0.5))["head"] == pytest.approx(2.0)


def test_a_group_whose_rate_is_scaled_beyond_all_numbers_is_refused():
    with pytest.raises(ValueError, match="lr_schedule is .* in round 0"):
        fit(slopes(lr=1e-6, body=1e6), lr_schedule=1e35)


def test_a_resumed_run_keeps_each_groups_rate(tmp_path, same_model):
    net = slopes(body=0.01, callbacks=halved())
    whole = fit(net, n_rounds=4)
    fit(net, n_rounds=2).save(tmp_path / "half")
    again = FederatedClassifier(
        net, selector=EVERYBODY, n_rounds=4, local_steps=2, random_state=0, warm_start=True
    ).load(tmp_path / "half")
    again.fit(X, Y, clients=CLIENTS)
    assert same_model(again, whole)
    assert again.history_["lr"].tolist() == whole.history_["lr"].tolist()


def variate(model):
    c = model._server.variate
    return {name.removeprefix("module."): tensor.item() for name, tensor in c.items()}


def test_scaffold_divides_by_the_rates_of_each_parameters_own_group():
    """All gradients are 1, so every c_k is 1, and c with them."""
    model = fit(slopes(body=0.01, neck=0.5), n_rounds=1, aggregator=Scaffold())
    assert variate(model) == pytest.approx({"body": 1.0, "neck": 1.0, "head": 1.0})


def test_scaffold_keeps_the_variate_of_what_has_no_rate():
    """That of neck is never had; that of body is had in round 0, and kept in round 1."""
    decay = LRScheduler("LambdaLR", lr_lambda=[lambda t: 1.0 - t, lambda t: 1.0, lambda t: 1.0])
    net = slopes(body=0.01, neck=0.0, callbacks=[("decay", decay)])
    model = fit(net, n_rounds=3, aggregator=Scaffold())
    assert variate(model) == pytest.approx({"body": 1.0, "head": 1.0})
    assert model._server.variates
    for variate_of_client in model._server.variates.values():
        assert variate_of_client.keys() == {"module.body", "module.head"}
    assert moved(model)["neck"] == 0.0


class TwoMeans(nn.Module):
    """The loss of a row x is ((u - x)^2 + (v - x)^2) / 2, read from the output by RowLoss."""

    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.zeros(1, dtype=torch.double))
        self.v = nn.Parameter(torch.zeros(1, dtype=torch.double))

    def forward(self, X):
        return torch.stack([self.u - X[:, 0], self.v - X[:, 0]], dim=1)


class RowLoss(nn.Module):
    def forward(self, output, target):
        return output.square().sum(1).mean() / 2


def test_optima_take_the_weight_decay_of_each_group():
    """a holds 0 and 2, b 0 and 6. With l2 = 1 on u alone, the minimum for mean x and mean square q
    is at u = x / 2, v = x: (q - x^2 / 2 + q - x^2) / 2."""
    decay = {"weight_decay": 1.0}
    net = NeuralNetClassifier(
        TwoMeans, criterion=RowLoss, optimizer__param_groups=[("u", decay)], lr=0.1
    )
    frame = optima(fit(net), X, Y, CLIENTS)
    minimum = {k: (q - x**2 / 2 + q - x**2) / 2 for k, x, q in [("a", 1, 2), ("b", 3, 18)]}
    assert frame["minimum"].to_dict() == pytest.approx(minimum)
    # At w* of all four rows, u = 1 and v = 2.
    loss = {"a": (2 - 2 + 1 + 2 - 4 + 4 + 1) / 2, "b": (18 - 6 + 1 + 18 - 12 + 4 + 1) / 2}
    assert frame["loss"].to_dict() == pytest.approx(loss)
    assert frame["attained"].all()
    both = optima(fit(net), X, Y, CLIENTS, l2=1.0)
    assert both["minimum"]["a"] == pytest.approx(2 - 1 / 2)
