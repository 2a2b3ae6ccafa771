"""Which engine runs a net, and the reason that is given."""

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from families import FAMILIES, LINEAR, Attention, build
from sklearn.base import clone
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, GradientNormClipping
from torch import nn

from skfed import FederatedClassifier


def net(module, **settings):
    settings = {"criterion": nn.CrossEntropyLoss, "batch_size": 16, **settings}
    return NeuralNetClassifier(module, **settings)


def mlp(**settings):
    return net(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), **settings)


def engine_of(blobs, estimator, **params):
    X, y, clients = blobs
    return FederatedClassifier(estimator, n_rounds=1, **params).fit(X, y, clients=clients).engine_


class OwnStep(NeuralNetClassifier):
    def train_step(self, batch, **fit_params):
        return super().train_step(batch, **fit_params)


class OwnLoss(NeuralNetClassifier):
    def get_loss(self, *args, **kwargs):
        return super().get_loss(*args, **kwargs)


class Margins(nn.Module):
    """A criterion that learns."""

    def __init__(self):
        super().__init__()
        self.margin = nn.Parameter(torch.zeros(3))

    def forward(self, logits, target):
        return nn.functional.cross_entropy(logits + self.margin, target)


class Assigning(nn.Module):
    """Writes in place into a tensor that torch.func does not know to be batched."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, X):
        output = torch.zeros(len(X), 3)
        output[:] = self.linear(X)
        return output


class Counting(nn.Module):
    """Remembers, outside of its buffers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.calls = 0

    def forward(self, X):
        self.calls += 1
        return self.linear(X) / self.calls


class AlwaysRandom(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, X):
        return nn.functional.dropout(self.linear(X), 0.1, training=True)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, X):
        return self.linear(X + torch.randn_like(X) if self.training else X)


class Pair(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)

    def forward(self, X):
        return super().forward(X), X


class FirstLoss(nn.CrossEntropyLoss):
    def forward(self, outputs, target):
        return super().forward(outputs[0], target)


class Unused(nn.Module):
    """A parameter without a gradient, which an optimizer leaves alone."""

    def __init__(self):
        super().__init__()
        self.linear, self.other = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, X):
        return self.linear(X)


class Centred(nn.Module):
    """Rows influence each other, behind weights that hide it at first."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
        nn.init.zeros_(self.linear.weight)

    def forward(self, X):
        return self.linear(X - X.mean(0))


class Listed(nn.Module):
    """Finds a parameter where torch.func does not put the clients' own."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(5, 3), nn.Dropout(0.5)
        self.weights = [self.linear.weight]

    def forward(self, X):
        return self.dropout(X) @ self.weights[0].T + self.linear.bias


class Remaking(nn.Module):
    """Makes a buffer anew for each size of batch, which the loop cannot train."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("offsets", torch.zeros(1, 1))

    def forward(self, X):
        if not self.training:
            return self.linear(X)
        if len(self.offsets) != len(X):
            self.offsets = torch.zeros(len(X), 1)
        return self.linear(X) + self.offsets


class CountingLoss(nn.CrossEntropyLoss):
    calls = 0

    def forward(self, logits, target):
        self.calls = self.calls + 1
        return super().forward(logits, target)


class RandomLoss(nn.CrossEntropyLoss):
    def forward(self, logits, target):
        return super().forward(nn.functional.dropout(logits, 0.5), target)


class NoModule:
    def __call__(self, logits, target):
        return nn.functional.cross_entropy(logits, target)


class TwoModules(NeuralNetClassifier):
    def initialize_module(self):
        super().initialize_module()
        self.other_ = nn.Linear(5, 3)
        return self


class FiveRows(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)

    def forward(self, X):
        if self.training and len(X) < 5:
            raise RuntimeError("needs 5 rows")
        return super().forward(X)


class OwnHook(NeuralNetClassifier):
    def on_grad_computed(self, *args, **kwargs):
        nn.utils.clip_grad_norm_(self.module_.parameters(), 0.01)


class OwnOptimizer(NeuralNetClassifier):
    def initialize_optimizer(self, *args, **kwargs):
        return super().initialize_optimizer(*args, **kwargs)


class ClampedGradient(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)
        self.weight.register_hook(clamp)


def clamp(grad):
    return grad.clamp(-1, 1)


class Hooked(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)
        self.register_forward_hook(print_shape)


def print_shape(module, args, output):
    return None


class ShowBatch(Callback):
    def on_batch_end(self, net, **kwargs):
        pass


REASONS = {
    "overrides train_step": OwnStep(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "overrides get_loss": OwnLoss(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "callbacks act on batches: ShowBatch": mlp(callbacks=[ShowBatch()]),
    "callbacks act on batches: clip": mlp(callbacks=[("clip", GradientNormClipping(1.0))]),
    "LBFGS is not an optimizer known to act on each element by itself": mlp(
        optimizer=torch.optim.LBFGS
    ),
    "the optimizer has parameter groups": mlp(optimizer__param_groups=[("0.*", {"lr": 0.1})]),
    "the criterion has parameters": mlp(criterion=Margins),
    "the module has hooks": net(Hooked()),
    "has hooks": net(ClampedGradient),
    "torch.func cannot batch the module or criterion": net(Assigning()),
    "module or criterion changes attributes of its own": net(Counting()),
    "draws random numbers when it is evaluated": net(AlwaysRandom()),
    "overrides on_grad_computed": OwnHook(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "overrides initialize_optimizer": OwnOptimizer(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "random numbers other than by dropout": net(Noisy()),
    "more than one tensor": net(Pair(), criterion=FirstLoss),
    "module.other.weight gets no gradient": net(Unused()),
    "rows influence each other when the module is evaluated": net(Centred()),
    "batched gradients differ from those of one client": net(Listed()),
    "criterion changes attributes of its own": mlp(criterion=CountingLoss),
    "the criterion draws random numbers": mlp(criterion=RandomLoss),
    "the criterion is not a torch module": mlp(criterion=NoModule),
    "more than one module or criterion": TwoModules(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "the module fails on a few rows: needs 5 rows": net(FiveRows(), batch_size=-1),
    "batching rule for aten::multi_margin_loss": mlp(criterion=nn.MultiMarginLoss),
}


@pytest.mark.parametrize("reason", REASONS)
def test_auto_takes_the_loop_and_says_why_where_stacked_raises(blobs, caplog, reason):
    with caplog.at_level(logging.INFO, logger="skfed"):
        chosen = engine_of(blobs, REASONS[reason])
    assert chosen.startswith("loop: ")
    assert reason in chosen
    assert [reason in record.getMessage() for record in caplog.records] == [True]
    with pytest.raises(ValueError, match="engine='stacked' cannot run this estimator") as error:
        engine_of(blobs, REASONS[reason], engine="stacked")
    assert reason in str(error.value)
    assert "engine='auto' or engine='loop'" in str(error.value)


def test_a_buffer_made_anew_is_not_stacked(blobs):
    with pytest.raises(ValueError, match="differ from those of one client"):
        engine_of(blobs, net(Remaking()), engine="stacked")


@pytest.mark.parametrize("family", LINEAR)
def test_stacks_of_linear_layers_are_found(blobs, family):
    assert engine_of(blobs, net(build(family, 5, 3).float())) == "stacked: linear layers"


def test_large_linear_layers_are_stacked(blobs):
    wide = nn.Sequential(nn.Linear(5, 40_000), nn.ReLU(), nn.Linear(40_000, 3))
    assert engine_of(blobs, net(wide)) == "stacked: linear layers"


def test_the_default_estimator_is_stacked(blobs):
    assert engine_of(blobs, None) == "stacked: linear layers"
    assert engine_of(blobs, None, engine="loop") == "loop: engine='loop'"


def test_a_stack_with_softmax_and_skorchs_default_criterion(blobs):
    module = nn.Sequential(nn.Linear(5, 4), nn.ELU(inplace=True), nn.Linear(4, 3), nn.Softmax(-1))
    assert engine_of(blobs, NeuralNetClassifier(module)) == "stacked: linear layers"


def test_images_are_flattened_by_the_module():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2, 3)).astype("float32"), rng.integers(0, 3, 30)
    blobs = X, y, np.arange(30) % 3
    flat = net(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)))
    assert engine_of(blobs, flat) == "stacked: linear layers"


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(LINEAR) - {"words"}))
def test_other_modules_are_no_stacks_of_linear_layers(blobs, family):
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(len(blobs[1]), 21)).astype("float32"), *blobs[1:]
    chosen = engine_of(wide, net(build(family, 21, 3).float()), engine="stacked")
    assert chosen == "stacked: torch.func"


def test_an_operation_without_a_batching_rule_is_left_to_the_loop(blobs):
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(len(blobs[1]), 21)).astype("float32"), *blobs[1:]
    assert engine_of(wide, net(Attention(21, 3))).startswith("loop: torch.func cannot batch")


@pytest.mark.parametrize("params", [{"engine": "fast"}, {"memory_budget": 0}], ids=repr)
def test_parameters_out_of_range(blobs, params):
    with pytest.raises(ValueError, match=f"The '{next(iter(params))}' parameter"):
        engine_of(blobs, None, **params)


LARGE = nn.Sequential(
    nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 16, 5), nn.Flatten(), nn.Linear(9216, 3)
)


@pytest.mark.parametrize(
    ("module", "shape", "reason"),
    [
        (LARGE, (28, 28), "a step with so much to compute gains nothing"),
        (build("batch normalisation", 21, 3).float(), (21,), "rows influence each other"),
    ],
    ids=["images", "batch normalisation"],
)
def test_auto_leaves_to_the_loop_what_gains_nothing_by_being_stacked(module, shape, reason):
    rng = np.random.default_rng(0)
    data = (
        rng.normal(size=(64, *shape)).astype("float32"),
        rng.integers(0, 3, 64),
        np.arange(64) % 2,
    )
    assert reason in engine_of(data, net(module, batch_size=32))
    assert engine_of(data, net(module, batch_size=32), engine="stacked") == "stacked: torch.func"


def test_each_fit_looks_at_its_own_net(blobs):
    """Nets that differ in their code only, or in a weight, one after the other."""

    def define(forward):
        return type("Net", (nn.Linear,), {"forward": forward, "__module__": "__main__"})

    linear = define(nn.Linear.forward)
    noisy = define(lambda self, X: nn.Linear.forward(self, X + torch.randn_like(X)))
    gated = define(lambda self, X: nn.Linear.forward(self, X) * X.mean(1, keepdim=True))
    found = [engine_of(blobs, net(kind(5, 3))) for kind in (linear, noisy, gated, linear)]
    assert found[0] == found[3] == "stacked: linear layers"
    assert found[1].startswith("loop: the module draws random numbers")
    assert found[2] == "stacked: torch.func"
    frozen = linear(5, 3)
    assert engine_of(blobs, net(frozen)) == "stacked: linear layers"
    frozen.bias.requires_grad_(False)
    assert engine_of(blobs, net(frozen)) == "stacked: torch.func"


def test_autocast_takes_the_loop(blobs):
    assert engine_of(blobs, mlp()) == "stacked: linear layers"
    with torch.autocast("cpu", enabled=True):
        assert engine_of(blobs, mlp()).startswith("loop: torch.autocast is on")


def test_a_second_fit_of_the_same_net_gives_the_same_model(blobs, same_model):
    X, y, clients = blobs
    estimator = FederatedClassifier(mlp(), n_rounds=3, engine="stacked", random_state=0)
    torch.manual_seed(0)
    first = clone(estimator).fit(X, y, clients=clients)
    second = clone(estimator).fit(X, y, clients=clients)
    assert same_model(first, second)
    assert first.engine_ == second.engine_ == "stacked: linear layers"


def test_nets_chosen_side_by_side(blobs, same_model):
    X, y, clients = blobs
    nets = [net(nn.Sequential(nn.Linear(5, width), nn.Linear(width, 3))) for width in (2, 3, 4)]

    def fit(estimator):
        model = FederatedClassifier(estimator, n_rounds=1, engine="stacked", random_state=0)
        return model.fit(X, y, clients=clients)

    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(fit, nets * 2))
    for estimator, first, second in zip(nets, together[:3], together[3:], strict=True):
        assert same_model(fit(estimator), first)
        assert same_model(first, second)
