import math

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier
from skfed.schedules import (
    Constant,
    CosineDecay,
    ExponentialDecay,
    InverseTimeDecay,
    LinearDecay,
    StepDecay,
    value_at,
)

SCHEDULES = [
    Constant(0.2),
    LinearDecay(0.2, 0.1),
    CosineDecay(0.2),
    ExponentialDecay(0.2, 0.9),
    StepDecay(0.2, 0.5, [3, 0.5]),
    InverseTimeDecay(2, 0.1, 80),
]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(3), [3, 3, 3, 3, 3]),
        (LinearDecay(0.4), [0.4, 0.3, 0.2, 0.1, 0.0]),
        (LinearDecay(30, 10), [30, 25, 20, 15, 10]),
        (CosineDecay(1), [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0]),
        (ExponentialDecay(8, 0.5), [8, 4, 2, 1, 0.5]),
        (StepDecay(8, 0.5, [1, 3]), [8, 4, 4, 2, 2]),
        (StepDecay(30, 0.1), [30, 30, 30, 3, 3]),  # from half of 5 rounds
        (StepDecay(16, 0.5, milestones=2), [16, 16, 8, 8, 4]),
        (InverseTimeDecay(2, 0.5, 4), [1, 0.8, 2 / 3, 4 / 7, 0.5]),
    ],
    ids=repr,
)
def test_by_hand_over_5_rounds(schedule, expected):
    values = [value_at(schedule, "eps", t, 5) for t in range(5)]
    np.testing.assert_allclose(values, expected, atol=1e-12)


def test_decays_are_exact_at_both_ends():
    for schedule in (LinearDecay(0.3), CosineDecay(0.3)):
        assert schedule.at(0, 7) == 0.3
        assert schedule.at(6, 7) == schedule.at(9, 7) == 0
        assert schedule.at(0, 1) == 0.3


def test_inverse_time_counts_local_iterations():
    """Theorem 1: eta_t = 2 / (mu (t + gamma)), t over all local iterations."""
    schedule = InverseTimeDecay(2, 0.1, gamma=40)
    rates = [schedule.at(t, 10, step, 5) for t in range(10) for step in range(5)]
    np.testing.assert_allclose(rates, 2 / (0.1 * (np.arange(50) + 40)))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_cloned_printed_and_searched(schedule):
    assert repr(clone(schedule)) == repr(schedule)
    name = next(iter(schedule.get_params()))
    selector = FedAlignSelector(eps=clone(schedule)).set_params(**{f"eps__{name}": 0.7})
    assert getattr(selector.eps, name) == 0.7
    model = FederatedClassifier(selector=selector, lr_schedule=clone(schedule))
    assert {f"selector__eps__{name}", f"lr_schedule__{name}"} <= set(model.get_params())


@pytest.mark.parametrize(
    ("schedule", "match"),
    [
        (LinearDecay(-1), "'start' parameter of LinearDecay.*-1"),
        (ExponentialDecay(1, 0), "'factor' parameter of ExponentialDecay.*0"),
        (StepDecay(1, 0.5, [1.5]), "milestones has 1.5: name a round"),
        (StepDecay(1, 0.5, 0), "'milestones' parameter.*0"),
        (InverseTimeDecay(2, 0, 1), "'mu' parameter.*0"),
        (lambda t: -1.0, "eps is -1.0 in round 3: it must be a number >= 0"),
        (lambda t: math.nan, "eps is nan in round 3"),
        (lambda t: "big", "eps is 'big' in round 3"),
    ],
)
def test_values_out_of_range(schedule, match):
    with pytest.raises(ValueError, match=match):
        value_at(schedule, "eps", 3, 10)


def test_the_learning_rate_follows_its_schedule(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(lr_schedule=StepDecay(0.4, 0.5, [1, 2]), n_rounds=3, random_state=0)
    assert model.fit(X, y, clients=clients).history_["lr"].tolist() == [0.4, 0.2, 0.1]
    frozen = FederatedClassifier(lr_schedule=lambda t: 0.0, n_rounds=2).fit(X, y, clients=clients)
    assert not any(p.any() for p in frozen.net_.module_.parameters())


def test_a_constant_rate_equals_the_nets_own(blobs, same_model):
    X, y, clients = blobs
    own = FederatedClassifier(n_rounds=3, random_state=0).fit(X, y, clients=clients)
    given = FederatedClassifier(lr_schedule=own.net_.lr, n_rounds=3, random_state=0)
    assert same_model(own, given.fit(X, y, clients=clients))


class Quadratic(nn.Module):
    """The loss is (w - 5)^2, whatever the data, read from the logits by ReadLoss."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.double))

    def forward(self, X):
        return (self.w - 5).square().expand(len(X), 2)


class ReadLoss(nn.Module):
    def forward(self, output, target):
        return output[:, 0].mean()


@pytest.mark.parametrize(
    ("training", "batches"),
    [({"local_steps": 4}, 1), ({"local_epochs": 4}, 1), ({"local_epochs": 4}, 2)],
)
def test_each_local_iteration_takes_its_own_rate(training, batches):
    """w <- w - 2 eta (w - 5) with eta = 0.1 / (t + 1), t over iterations: a step, or an epoch,
    whose batches share the rate."""
    net = NeuralNetClassifier(Quadratic, criterion=ReadLoss, batch_size=4 // batches)
    schedule = InverseTimeDecay(0.1, 1, 1)
    model = FederatedClassifier(net, lr_schedule=schedule, n_rounds=2, **training)
    model.fit(np.zeros((4, 1)), [0, 1, 0, 1], clients=[0] * 4)
    w = 0.0
    for t in range(8):
        for _ in range(batches):
            w -= 2 * 0.1 / (t + 1) * (w - 5)
    assert model.net_.module_.w.item() == pytest.approx(w, rel=1e-12)
    assert model.history_["lr"].tolist() == pytest.approx([0.1, 0.1 / 5])


@pytest.mark.parametrize("infinite", [np.inf, np.float64(np.inf)])
def test_a_decay_to_infinity_is_an_error(infinite):
    with pytest.raises(ValueError, match=r"LinearDecay\(end=.*inf.*no value in round 0"):
        LinearDecay(1.0, infinite).at(0, 3)


def test_fedalign_with_eps_that_ends_at_0_ends_with_the_priority_clients(blobs):
    X, y, clients = blobs
    selector = FedAlignSelector(eps=LinearDecay(100.0), warmup=0)
    model = FederatedClassifier(selector=selector, priority=["a", "b"], n_rounds=3, random_state=0)
    history = model.fit(X, y, clients=clients).history_
    assert history["eps"].tolist() == [100.0, 50.0, 0.0]
    assert history["n_aggregated"].tolist() == [6, 6, 2]
