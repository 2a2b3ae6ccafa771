"""Aggregators and server optimizers change nothing that they are given."""

import numpy as np
import pytest
import torch
from generated import generated
from hypothesis import strategies as st

from skfed.aggregation import (
    CoordinateMedian,
    NormClipping,
    Scaffold,
    ServerOptimizer,
    TrimmedMean,
    WeightedMean,
)
from skfed.aggregation._scaffold import correction, new_variate, updated_variates
from skfed.selection import Cohort

RULES = [WeightedMean(), NormClipping(0.1), CoordinateMedian(), TrimmedMean(0.3), Scaffold()]
SGD, ADAM, RMSPROP = torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop
OPTIMIZERS = {
    "SGD": (SGD, {}),
    "momentum": (SGD, {"momentum": 0.9}),
    "nesterov": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "Adam": (ADAM, {}),
    "amsgrad": (ADAM, {"amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "RMSprop": (RMSPROP, {"momentum": 0.5, "centered": True}),
}

FLOATS = st.sampled_from([torch.float32, torch.float64])
BUFFERS = [torch.float32, torch.float64, torch.int64, torch.complex64, torch.bfloat16]
SPECS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "dtype": FLOATS,
        "buffers": st.lists(st.sampled_from(BUFFERS), max_size=2),
        "n": st.integers(1, 5),
        "unbiased": st.booleans(),
        "still": st.booleans(),  # whether a parameter is the same in all models
        "finite": st.booleans(),
    }
)
SHAPES = {"w": (3, 2)}


def content(value):
    """Return all values in an object, to the bit."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        return value.dtype, tuple(value.shape), raw
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(key, content(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [content(one) for one in value]
    return content(vars(value)) if isinstance(value, Cohort) else value


def kept(call, *arguments):
    """Return what a function returns, which must not change its arguments."""
    before = content(arguments)
    result = call(*arguments)
    assert content(arguments) == before
    return result


def drawn(spec):
    """Return a function that draws a state, or with a leading dimension a stack of them."""
    rng = torch.Generator().manual_seed(spec["seed"])

    def draw(*leading):
        dtypes = {"w": spec["dtype"], "v": spec["dtype"]}
        dtypes |= {f"buffer{i}": dtype for i, dtype in enumerate(spec["buffers"])}
        return {
            name: (100 * torch.randn(*leading, *SHAPES.get(name, (2,)), generator=rng)).to(dtype)
            for name, dtype in dtypes.items()
        }

    return draw


def updates_of(spec):
    """Return a model, a stack of updates, their cohort, and the names of the parameters."""
    draw, n = drawn(spec), spec["n"]
    model, stack = draw(), draw(n)
    if spec["still"]:
        stack["v"] = model["v"].expand(n, 2).clone()
    if not spec["finite"]:
        stack["w"][-1, 0, 0] = torch.inf
    weights = np.random.default_rng(spec["seed"]).dirichlet(np.ones(n))
    return model, stack, Cohort(np.arange(n), weights, spec["unbiased"]), ("w", "v")


@generated(20, SPECS)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_rule_keeps_the_model_and_the_updates(spec, rule):
    model, stack, cohort, parameters = updates_of(spec)
    updates = [{name: w[k] for name, w in stack.items()} for k in range(spec["n"])]
    kept(rule.aggregate, model, updates, cohort, parameters)
    parts = []
    for k in range(spec["n"]):
        members, one = np.array([k]), {name: w[k : k + 1] for name, w in stack.items()}
        part = kept(rule.collect, model, one, cohort.weights[members], parameters)
        earlier = list(parts)  # accumulate changes the list, not what was collected
        kept(lambda e, m, p: rule.accumulate(parts, m, p), earlier, members, part)
    first = kept(rule.combine, model, parts, cohort, parameters)
    assert content(kept(rule.combine, model, parts, cohort, parameters)) == content(first)


@generated(20, SPECS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_server_optimizer_keeps_the_model_and_its_state(spec, name):
    """A step is the same a second time, and a chain of them is that of one torch optimizer."""
    optimizer, options = OPTIMIZERS[name]
    server = ServerOptimizer(optimizer, lr=0.1, options=options)
    draw, parameters = drawn(spec), ["w", "v"]
    model, state = draw(), None
    live = {n: model[n].clone().requires_grad_() for n in parameters}
    reference = optimizer(list(live.values()), lr=0.1, **options)
    for _ in range(3):
        aggregate = draw()
        arguments = model, aggregate, parameters, state
        model, state = kept(server.step, *arguments)
        assert content(kept(server.step, *arguments)) == content((model, state))
        for n, w in live.items():
            w.grad = w.detach() - aggregate[n]
        reference.step()
        assert content(model) == content(aggregate | live)


@generated(20, SPECS)
def test_scaffold_keeps_its_variates(spec):
    draw, names = drawn(spec), ("w", "v")
    c, own, state, trained, correct, *copies = (
        {name: one[name] for name in names} for one in (draw() for _ in range(5 + spec["n"]))
    )
    if spec["still"]:
        del own["v"], correct["v"]
    kept(correction, c, own)
    kept(new_variate, state, trained, correct, {"w": 0.3, "v": 0.0 if spec["still"] else 0.1})
    old, new = {b"a": own, b"b": {}}, {b"a": copies, b"b": copies[:1], b"c": copies[-1:]}
    first = kept(updated_variates, c, old, new, 7)
    assert content(kept(updated_variates, c, old, new, 7)) == content(first)
