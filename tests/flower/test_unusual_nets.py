"""Nets with constants of any dtype are trained over messages as in the simulation."""

import pytest
import torch
from local_grid import requests
from torch import nn

from skfed import FederatedClassifier, RandomSelector
from skfed.aggregation import CoordinateMedian


class Rotating(nn.Module):
    """Has complex, integer, infinite and changing buffers."""

    def __init__(self, trained=False):
        super().__init__()
        torch.manual_seed(0)
        phases = torch.polar(torch.ones(5), torch.linspace(0.3, 1.1, 5))
        self.phases = nn.Parameter(phases, requires_grad=trained)
        self.register_buffer("f", phases.detach().clone())
        self.register_buffer("large", torch.tensor([2**53 + 1, 9223372036854775783]))
        self.register_buffer("mask", torch.full((5, 5), -torch.inf).triu(1))
        self.norm = nn.BatchNorm1d(5)
        self.out = nn.Linear(5, 3)

    def forward(self, X):
        X = (self.norm(X) * self.f * self.phases).real
        return self.out(X @ self.mask.softmax(1).T)


CONSTANTS = {"phases", "f", "large", "mask"}


def tensors(model):
    module = model.net_.module_
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@pytest.mark.parametrize("aggregator", [None, CoordinateMedian()], ids=repr)
def test_constants_are_unchanged_bit_for_bit_over_messages(blobs, federate, aggregator):
    X, y, clients = blobs
    selector = RandomSelector(4, "uniform", False, weighting="unbiased")
    estimator = FederatedClassifier(
        Rotating, selector=selector, aggregator=aggregator, n_rounds=3, random_state=0,
        engine="loop",
    )  # fmt: skip
    simulated = estimator.fit(X, y, clients=clients)
    strategy, grid = federate(estimator)
    strategy.start(grid)
    assert strategy.model_.history_["n_failed"].sum() == 0
    before, after = dict(Rotating().state_dict()), tensors(strategy.model_)
    for name, tensor in tensors(simulated).items():
        assert torch.equal(after[name], tensor)
        assert torch.equal(after[name], before[name]) == (name in CONSTANTS)


def test_a_trainable_complex_parameter_is_an_error_at_the_server_and_at_a_client(federate):
    trained = FederatedClassifier(Rotating(trained=True), n_rounds=1, random_state=0)
    strategy, grid = federate(trained)
    with pytest.raises(ValueError, match="phases is complex"):
        strategy.start(grid)
    assert not requests(grid.sent, "train")
    frozen = FederatedClassifier(Rotating(), n_rounds=1, random_state=0)
    strategy, grid = federate(frozen, at_client=trained)
    with pytest.raises(RuntimeError, match="ValueError"):
        strategy.start(grid)
