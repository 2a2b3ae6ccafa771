"""Which tensors of a net training leaves alone."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, GradientNormClipping
from torch import nn

from skfed.modules import SoftmaxRegression
from skfed.nets import get_state, left_alone, parameter_names

ROW = np.zeros((1, 4), np.float32)


def net_of(module):
    torch.manual_seed(0)
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, train_split=None)
    return net.initialize()


def statistics(layer):
    names = "running_mean", "running_var", "num_batches_tracked"
    return {f"module.{layer}.{name}" for name in names}


def fixed(net, row=ROW):
    return left_alone(net, row) - set(parameter_names(net))


class Frozen(nn.Sequential):
    """A frozen layer before one that is trained."""

    def __init__(self, *between):
        super().__init__(nn.Linear(4, 5, bias=False), *between, nn.Linear(5, 3, bias=False))
        self[0].requires_grad_(False)


class InEvaluation(nn.BatchNorm1d):
    """Keeps its statistics."""

    def train(self, mode=True):
        return super().train(False)


class Counting(nn.Module):
    """Counts its passes in a buffer and in an attribute, and lets a teacher follow a student."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
        self.register_buffer("n_passes", torch.zeros((), dtype=torch.long))
        self.scaled = InEvaluation(3, affine=False)
        self.calls = []

    def forward(self, X):
        if self.training:
            self.calls.append(len(X))
            self.n_passes += 1
            with torch.no_grad():
                self.teacher.weight.lerp_(self.student.weight, 0.1)
        return self.scaled(self.student(X))


class Refusing(nn.Module):
    """Takes no two rows in training."""

    def __init__(self):
        super().__init__()
        self.frozen, self.out = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)
        self.register_buffer("constant", torch.ones(3))

    def forward(self, X):
        if self.training and len(X) == 2:
            raise RuntimeError("no two rows")
        return self.out(self.frozen(X)) * self.constant


def test_frozen_parameters_are_left_alone():
    assert fixed(net_of(Frozen())) == {"module.0.weight"}
    assert fixed(net_of(nn.Linear(4, 3))) == set()


def test_running_statistics_are_not_though_the_mean_of_a_layer_may_stay():
    """Without biases, each mean after the first is 0, as it was before."""
    norms = nn.BatchNorm1d(5), nn.Linear(5, 5, bias=False), nn.BatchNorm1d(5)
    assert fixed(net_of(Frozen(*norms))) == {"module.0.weight"}


def test_statistics_that_a_module_keeps_are():
    assert fixed(net_of(Frozen(InEvaluation(5)))) == {"module.0.weight", *statistics("1")}


def test_the_scaling_of_columns_is():
    net = net_of(SoftmaxRegression(4, 3, standardize=True))
    assert fixed(net) == {"module.standardize.mean", "module.standardize.scale"}


def test_a_teacher_that_follows_is_not_and_the_net_is_as_before():
    net = net_of(Counting())
    before, random = get_state(net), torch.get_rng_state()
    net.module_.eval()
    assert fixed(net) == {"module.teacher.bias", *statistics("scaled")}
    assert all(torch.equal(before[name], w) for name, w in get_state(net).items())
    assert torch.equal(random, torch.get_rng_state())
    assert net.module_.calls == [] and not net.module_.training


class InTraining(Frozen):
    """Counts its passes that have gradients, in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n_passes", torch.zeros(()))

    def forward(self, X):
        if torch.is_grad_enabled():
            self.n_passes += 1
        return super().forward(X)


def test_a_pass_has_gradients_as_in_training():
    assert fixed(net_of(InTraining())) == {"module.0.weight"}


class Follows(Callback):
    """Changes what is frozen after each batch."""

    def on_batch_end(self, net, **kwargs):
        net.module_[0].weight.mul_(0.9)


class FollowingNet(NeuralNetClassifier):
    """Changes it in its train step."""

    def train_step(self, batch, **fit_params):
        self.module_[0].weight.mul_(0.9)
        return super().train_step(batch, **fit_params)


@pytest.mark.parametrize(
    ("kind", "callbacks", "expected"),
    [
        (FollowingNet, [], set()),
        (NeuralNetClassifier, [Follows()], set()),
        (NeuralNetClassifier, [GradientNormClipping(1.0)], {"module.0.weight"}),
    ],
)
def test_nothing_is_known_where_code_of_the_users_acts_around_passes(kind, callbacks, expected):
    net = kind(Frozen(), criterion=nn.CrossEntropyLoss, callbacks=callbacks).initialize()
    assert fixed(net) == expected


def test_of_a_module_that_does_not_take_the_rows_only_parameters_are():
    assert fixed(net_of(Refusing())) == {"module.frozen.weight", "module.frozen.bias"}


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_ids_are_in_range(dtype):
    module = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(8, 3))
    module[0].requires_grad_(False)
    row = np.zeros((1, 4), dtype)
    assert fixed(net_of(module), row) == {"module.0.weight"}


class Remaking(nn.Module):
    """Replaces a buffer in each pass, by one of another shape."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.register_buffer("last", torch.zeros(1))

    def forward(self, X):
        if self.training:
            self.last = X.detach().sum(1)
        return self.out(X)


def test_a_buffer_that_is_made_anew_is_as_before():
    net = net_of(Remaking())
    last = net.module_.last
    assert fixed(net) == set()
    assert net.module_.last is last and last.tolist() == [0.0]
