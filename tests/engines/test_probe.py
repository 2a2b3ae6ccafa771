"""What is run of a module before an engine is chosen."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier
from skfed.engines._probe import Probe

CALLS = []


class Convolutions(nn.Sequential):
    """A step of it is large; each of its calls is noted."""

    def __init__(self):
        super().__init__(
            nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 16, 5), nn.Flatten(), nn.Linear(9216, 3)
        )

    def forward(self, X):
        CALLS.append((X.device.type, len(X)))
        return super().forward(X)


class Functional(nn.Module):
    """The same step with weights of its own: no module in it is a convolution."""

    def __init__(self):
        super().__init__()
        self.kernels = nn.Parameter(torch.randn(16, 1, 5, 5))
        self.linear = nn.Linear(9216, 3)

    def forward(self, X):
        CALLS.append((X.device.type, len(X)))
        return self.linear(nn.functional.conv2d(X.unsqueeze(1), self.kernels).flatten(1))


class OfValues(Convolutions):
    """Asks for values, which meta tensors have not."""

    def forward(self, X):
        return super().forward(X if X.mean() < 100 else X / 100)


class Small(nn.Sequential):
    def __init__(self, n_values=784, width=4):
        first, last = nn.Linear(n_values, width), nn.Linear(width, 3)
        super().__init__(nn.Flatten(), first, nn.LayerNorm(width), last)

    def forward(self, X):
        CALLS.append((X.device.type, len(X)))
        return super().forward(X)


class Remembering(Small):
    """Keeps what it first computes in training, of the device that X is on."""

    ones = None

    def forward(self, X):
        if self.training and self.ones is None:
            self.ones = X.new_ones(28)
        return super().forward(X * self.ones if self.training else X)


LARGE = "loop: on a CPU, a step with so much to compute gains nothing"


def calls(module, engine, side=28):
    """Return the engine of a fit, and the device and rows of each call of a module."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(64, side, side)).astype("float32"), rng.integers(0, 3, 64)
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, batch_size=32)
    model = FederatedClassifier(net, engine=engine, n_rounds=1, random_state=0)
    CALLS.clear()
    return model.fit(X, y, clients=np.arange(64) % 2).engine_, list(CALLS)


@pytest.fixture
def no_batching(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("torch.func was used")

    monkeypatch.setattr(torch.func, "vmap", fail)


@pytest.mark.parametrize("module", [Convolutions, Functional])
def test_shapes_alone_leave_a_large_step_to_the_loop(no_batching, module):
    chosen, found = calls(module, "auto")
    _, of_loop = calls(module, "loop")
    assert chosen == LARGE
    assert [call for call in found if call[0] == "meta"] == [("meta", 8)] * 2
    # The net that is looked at is set up by one row.
    on_rows = [call for call in found if call[0] != "meta"]
    assert sorted(on_rows) == sorted([("cpu", 1), *of_loop])


def test_a_module_that_needs_values_is_run_on_few_rows(no_batching):
    chosen, found = calls(OfValues, "auto")
    _, of_loop = calls(OfValues, "loop")
    assert chosen == LARGE
    n_rows = sum(n for _, n in found) - sum(n for _, n in of_loop)
    assert n_rows <= 56  # of 8 at once, and each alone


def test_a_module_that_remembers_does_not_remember_meta_tensors():
    module = Remembering()
    chosen, found = calls(module, "auto")
    assert chosen == "stacked: torch.func"
    assert "meta" in {device for device, _ in found}
    assert module.ones is None


def test_a_stack_is_tried_once():
    """Not each size of batch by itself, nor a client's own step more than once."""
    chosen, found = calls(Small, "auto")
    assert chosen == "stacked: torch.func"
    assert len(found) <= 23


@pytest.mark.parametrize(
    ("module", "side", "devices"),
    [
        (Small(25), 5, {"cpu"}),
        (Small(25, width=500), 5, {"cpu", "meta"}),
        (Small(784), 28, {"cpu", "meta"}),
    ],
    ids=["small", "large model", "long rows"],
)
def test_small_models_of_short_rows_are_not_run_on_meta_tensors(module, side, devices):
    chosen, found = calls(module, "auto", side)
    assert chosen == "stacked: torch.func"
    assert {device for device, _ in found} == devices


@pytest.mark.parametrize(("layers", "random"), [([], False), ([nn.Dropout(0.5)], True)])
def test_a_module_is_random_if_it_draws_in_training(layers, random):
    module = nn.Sequential(*layers, nn.Linear(5, 3))
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss).initialize()
    probe = Probe(net, torch.randn(8, 5), torch.arange(8) % 3)
    probe.check()
    assert probe.random is random
