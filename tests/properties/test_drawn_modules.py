"""Modules drawn at random: what no client changed is unchanged, and the engines agree."""

import numpy as np
import pytest
import torch
from generated import generated
from hypothesis import strategies as st
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, RandomSelector
from skfed.aggregation import CoordinateMedian, NormClipping, Scaffold, TrimmedMean

RNG = np.random.default_rng(0)
# No batch, of 4 at most, is of one row; no mean of counts is halfway between two integers.
CLIENTS = np.repeat(["a", "b", "c", "d"], [3, 7, 4, 8])
X = RNG.normal(size=(len(CLIENTS), 3))
Y = np.arange(len(CLIENTS)) % 2
COHORTS = {
    "all": RandomSelector(1.0, "uniform", False),
    "with copies": RandomSelector(3),
    "unbiased": RandomSelector(2, "uniform", False, weighting="unbiased"),
}
RULES = [None, NormClipping(0.1), CoordinateMedian(), TrimmedMean(0.3), Scaffold()]

INT64 = st.integers(-(2**63), 2**63 - 1)
KINDS = {
    torch.float32: st.floats(width=32),
    torch.float64: st.floats(),
    torch.complex64: st.complex_numbers(width=64),
    torch.complex128: st.complex_numbers(),
    torch.int64: INT64,
    torch.uint8: st.integers(0, 255),
    torch.bool: st.booleans(),
}


@st.composite
def constants(draw):
    """Tensors of any dtype and shape, infinite and NaN included."""
    dtype = draw(st.sampled_from(list(KINDS)))
    values = draw(st.lists(KINDS[dtype], max_size=4))
    scalar = len(values) == 1 and draw(st.booleans())
    return torch.tensor(values[0] if scalar else values, dtype=dtype)


PARTS = ["frozen bias", "rotation", "tied", "norm", "mean", "count", "minimum", "mask"]
SPECS = st.fixed_dictionaries(
    {
        "constants": st.lists(constants(), max_size=4),
        "parts": st.sets(st.sampled_from(PARTS)),
        "start": INT64.filter(lambda n: n < 2**63 - 1000),
        "still": st.sampled_from([None, "first*", "out*"]),  # parameters with a rate of 0
        "rule": st.sampled_from(RULES),
        "cohort": st.sampled_from(list(COHORTS)),
    }
)


class Drawn(nn.Module):
    """Has the parts that were drawn, each of which does something to the rows."""

    def __init__(self, constants, parts, start):
        super().__init__()
        torch.manual_seed(0)
        self.parts = sorted(parts)
        for i, constant in enumerate(constants):
            self.register_buffer(f"constant{i}", constant)
        self.first, self.second, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        phases = torch.polar(torch.ones(3), torch.tensor([0.3, 0.7, 1.1])).to(torch.complex128)
        if "tied" in parts:
            self.second.weight = self.first.weight
        if "frozen bias" in parts:
            self.first.bias.requires_grad_(False)
        if "rotation" in parts:
            self.rotation = nn.Parameter(phases, requires_grad=False)
        if "norm" in parts:
            self.norm = nn.BatchNorm1d(3)
        if "mask" in parts:
            self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        if "mean" in parts:
            self.register_buffer("mean", phases.clone())
        if "count" in parts:
            self.register_buffer("count", torch.tensor([start, 0]))
        if "minimum" in parts:
            self.register_buffer("minimum", torch.full((3,), torch.inf))
        self.double()

    def forward(self, X):
        if self.training:
            self.remember(X.detach())
        h = self.second(self.first(X).tanh())
        if hasattr(self, "norm"):
            h = self.norm(h)
        if hasattr(self, "rotation"):
            h = (h * self.rotation).imag
        if hasattr(self, "mask"):
            h = h @ self.mask.softmax(1).T
        return self.out(h)

    def remember(self, X):
        if hasattr(self, "mean"):
            self.mean.mul_(0.9).add_(0.1 * X.mean(0) * (1 + 2j))
        if hasattr(self, "count"):
            self.count.add_(len(X))
        if hasattr(self, "minimum"):
            lowest = torch.minimum(self.minimum, X.amin(0))
            self.minimum.copy_(torch.where(X.new_tensor([1, 1, 0]) == 1, lowest, self.minimum))


def module_of(spec):
    return Drawn(spec["constants"], spec["parts"], spec["start"])


def fitted(spec, engine):
    groups = [(spec["still"], {"lr": 0.0})] if spec["still"] else []
    net = NeuralNetClassifier(
        module_of(spec),
        criterion=nn.CrossEntropyLoss,
        lr=0.1,
        batch_size=4,
        optimizer__param_groups=groups,
    )
    model = FederatedClassifier(
        net,
        selector=COHORTS[spec["cohort"]],
        aggregator=spec["rule"],
        n_rounds=2,
        engine=engine,
        random_state=0,
    )
    return model.fit(X, Y, clients=CLIENTS)


def tensors(module):
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def bits(tensor):
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.uint8).tolist() if len(flat) else []


def unchanged_names(spec):
    """Name what no client changes: constants, what is frozen, and groups with a rate of 0."""
    before = module_of(spec)
    still = (spec["still"] or "-").rstrip("*")
    return [
        name
        for name, tensor in tensors(before).items()
        if name.startswith(("constant", "mask", still))
        or (isinstance(tensor, nn.Parameter) and not tensor.requires_grad)
    ]


def assert_unchanged(spec, model):
    before, after = tensors(module_of(spec)), tensors(model.net_.module_)
    for name in unchanged_names(spec):
        assert bits(after[name]) == bits(before[name]), name
    assert model.history_["n_failed"].sum() == 0
    assert np.isfinite(model.predict_proba(X)).all()


@generated(15, SPECS)
def test_what_no_client_changed_is_unchanged_and_the_engines_agree(spec):
    loop = fitted(spec, "loop")
    assert_unchanged(spec, loop)
    try:
        stacked = fitted(spec, "stacked")
    except ValueError as error:
        reason = str(error).partition("cannot run this estimator: ")[2].partition(". Pass")[0]
        assert reason
        assert fitted(spec, "auto").engine_ == f"loop: {reason}"
        return
    assert_unchanged(spec, stacked)
    mine, reference = tensors(stacked.net_.module_), tensors(loop.net_.module_)
    for name, tensor in mine.items():
        rtol = 0 if not (tensor.is_floating_point() or tensor.is_complex()) else 1e-9
        torch.testing.assert_close(
            tensor, reference[name], rtol=rtol, atol=rtol and 1e-9, equal_nan=True
        )


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_stacked_by_itself(part):
    """So that the property above does not hold for want of stacked modules."""
    spec = {"constants": [torch.tensor([torch.nan, torch.inf])], "parts": {part}, "start": 2**60}
    spec |= {"still": None, "rule": None, "cohort": "all"}
    loop, stacked = fitted(spec, "loop"), fitted(spec, "stacked")
    assert_unchanged(spec, stacked)
    for name, tensor in tensors(stacked.net_.module_).items():
        expected = tensors(loop.net_.module_)[name]
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-9, equal_nan=True)
