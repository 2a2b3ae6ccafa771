"""Polls of stacks of linear layers, without calls of the module."""

import numpy as np
import pytest
import torch
from families import BATCHED, LINEAR, build, data_for
from parity import assert_same, both, net
from torch import nn

from skfed import PowerOfChoice
from skfed.engines._probe import Probe
from skfed.engines.products._evaluated_layers import EvaluatedLayers
from skfed.engines.products._linear import Linear
from skfed.modules import Standardize
from skfed.nets import get_state
from skfed.utils import _onednn
from skfed.utils._products import PRODUCTS


class OtherWhenEvaluated(nn.Sequential):
    """Another function, and probabilities, when it is evaluated."""

    def __init__(self, n_features, n_classes):
        super().__init__(nn.Linear(n_features, 4), nn.Linear(4, n_classes))

    def forward(self, X):
        if self.training:
            return self[1](self[0](X).relu())
        return self[1](self[0](X).tanh()).softmax(1)


STACKS = LINEAR | {
    "dropout": lambda *of: nn.Sequential(nn.Dropout(0.5), nn.Linear(*of), nn.Dropout(0.9)),
    "standardized": lambda n, k: nn.Sequential(Standardize(n), nn.Linear(n, k)),
    "ends with softmax": lambda n, k: nn.Sequential(nn.Linear(n, k), nn.LogSoftmax(dim=-1)),
    "in place": lambda n, k: nn.Sequential(
        nn.ReLU(inplace=True), nn.Linear(n, 4), nn.ReLU(inplace=True), nn.Linear(4, k)
    ),
    "other when evaluated": OtherWhenEvaluated,
}


def layers_of(module, X):
    probe = Probe(net(module).initialize(), X, torch.arange(len(X)) % 3)
    return probe.evaluated_layers(), probe.states[0]


@pytest.mark.parametrize("family", STACKS)
def test_the_output_is_that_of_the_evaluated_module(family):
    torch.manual_seed(0)
    module, X = STACKS[family](5, 3), torch.randn(8, 5)
    layers, _ = layers_of(module, X.clone())  # which a module may change
    for buffer in module.buffers():
        nn.init.uniform_(buffer, 1, 2)
    estimator = net(module).initialize()
    before = X.clone()
    found = layers.output(get_state(estimator), X, 8)
    assert X.equal(before)
    torch.testing.assert_close(found, estimator.module_.eval()(X.clone()))


def test_images_are_flattened():
    module, X = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), torch.randn(8, 3, 4)
    layers, state = layers_of(module, X)
    expected = X.flatten(1) @ state["module.1.weight"].T + state["module.1.bias"]
    torch.testing.assert_close(layers.output(state, X, 8), expected)


@pytest.mark.parametrize("family", BATCHED)
def test_other_modules_are_called(family):
    X = torch.from_numpy(data_for(family, np.random.default_rng(0).normal(size=(8, 21))))
    X = X if X.dtype == torch.int64 else X.float()
    layers, _ = layers_of(build(family, 21, 3).to(X.dtype if X.is_floating_point() else None), X)
    assert layers is None


@pytest.mark.parametrize(
    "read",
    [
        lambda X: np.isnan(np.asarray(X)).any(),
        lambda X: np.isnan(X.numpy()).any(),
        lambda X: max(X.flatten().tolist()) > 100,
        lambda X: X[:1, :1].item() > 100,
        lambda X: torch.equal(X, X - 1),
        lambda X: torch.allclose(X, torch.zeros(())),
    ],
    ids=["array", "numpy", "tolist", "item", "equal", "allclose"],
)
def test_a_module_that_reads_values_is_called(read):
    """It may refuse a client's rows."""

    class Reading(nn.Linear):
        def forward(self, X):
            if read(X):
                raise ValueError("these rows")
            return super().forward(X)

    layers, _ = layers_of(Reading(5, 3), torch.randn(8, 5))
    assert layers is None


@pytest.mark.parametrize("most_rows", [39, 40])
def test_rows_are_multiplied_alike_however_many_there_are(monkeypatch, most_rows):
    """The library is that of the largest call."""
    taken = []

    def large_linear(*of):
        taken.append(len(of[0]))
        return nn.functional.linear(*of)

    monkeypatch.setattr(PRODUCTS, "by_onednn", True)
    monkeypatch.setattr(_onednn, "fewest_rows", lambda weight: 40)
    monkeypatch.setattr(_onednn, "large_linear_of_rows", large_linear)
    layers = EvaluatedLayers([Linear("weight", None)])
    state = {"module.weight": torch.eye(3)}
    for n_rows in (1, 30):
        X = torch.randn(n_rows, 3)
        assert layers.output(state, X, most_rows).equal(X)
    assert taken == ([1, 30] if most_rows == 40 else [])


@pytest.mark.parametrize("memory_budget", [None, 8000])
@pytest.mark.parametrize("family", ["user-written", "in place", "other when evaluated"])
def test_selection_by_polls_is_that_of_the_loop(blobs, monkeypatch, family, memory_budget):
    n_rows = []
    output = EvaluatedLayers.output

    def noted(self, state, X, most_rows):
        assert len(X) <= most_rows
        n_rows.append(len(X))
        return output(self, state, X, most_rows)

    monkeypatch.setattr(EvaluatedLayers, "output", noted)
    params = {} if memory_budget is None else {"memory_budget": memory_budget}
    module = STACKS[family](blobs[0].shape[1], 3)
    models = both(blobs, net(module), selector=PowerOfChoice(4, 2), **params)
    assert_same(*models, atol=1e-6)
    rows_of_the_probe, *rows_of_rounds = n_rows
    assert rows_of_the_probe == 8
    polled = models[1].history_["samples_evaluated"]
    assert sum(rows_of_rounds) == polled.sum()
    assert (len(rows_of_rounds) == len(polled)) == (memory_budget is None)
