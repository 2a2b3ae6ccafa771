"""F_k is the criterion on all rows of a client, whatever its kind, the batches and the engine."""

import numpy as np
import pytest
import torch
from generated import generated
from hypothesis import strategies as st
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn
from torch.nn import functional as F

from skfed import FederatedClassifier, FederatedRegressor, PowerOfChoice


class Focal(nn.Module):
    """Weights of classes and of hard rows, as own criteria have them."""

    def forward(self, output, y):
        log_p = F.log_softmax(output, 1).gather(1, y[:, None])[:, 0]
        weights = torch.tensor([1.0, 5.0, 9.0])[y]
        return -((1 - log_p.exp()) ** 2 * log_p * weights).sum() / weights.sum()


class Root(nn.Module):
    def forward(self, output, y):
        return F.mse_loss(output, y).sqrt()


class WithPenalty(NeuralNetClassifier):
    def get_loss(self, y_pred, y_true, X=None, training=False):
        loss = super().get_loss(y_pred, y_true, X=X, training=training)
        return loss + 0.1 * self.module_.weight.abs().sum() + X.square().mean()


CLASSES = 3
WEIGHTS = st.none() | st.lists(st.sampled_from([0.2, 1.0, 7.0]), min_size=3, max_size=3)
CROSS_ENTROPIES = st.fixed_dictionaries(
    {
        "criterion": st.just(nn.CrossEntropyLoss),
        "criterion__weight": WEIGHTS,
        "criterion__ignore_index": st.sampled_from([-100, 0, 2]),
        "criterion__label_smoothing": st.sampled_from([0.0, 0.3]),
        "criterion__reduction": st.sampled_from(["mean", "sum"]),
    }
)
NETS = CROSS_ENTROPIES | st.sampled_from(
    [
        {"criterion": Focal},
        {"criterion": nn.NLLLoss},
        {"criterion": nn.NLLLoss, "criterion__weight": [1.0, 5.0, 0.2]},
        {"criterion": nn.MultiMarginLoss, "criterion__weight": [1.0, 2.0, 3.0]},
        {"criterion": nn.MultiMarginLoss, "criterion__reduction": "sum"},
    ]
)
CASES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**16),
        "batch_size": st.sampled_from([1, 3, 16, -1]),
        "sizes": st.lists(st.integers(4, 30), min_size=2, max_size=4),
        "weighted_rows": st.booleans(),
        "kind": st.sampled_from([nn.Linear, nn.Sequential]),
    }
)


def drawn(case, n_features=4):
    rng = np.random.default_rng(case["seed"])
    clients = np.repeat(np.arange(len(case["sizes"])), case["sizes"])
    X = rng.normal(size=(len(clients), n_features)).astype("float32")
    y = rng.integers(0, CLASSES, len(X))
    starts = np.flatnonzero(np.diff(clients, prepend=-1))
    for label in range(CLASSES):  # so that a row of each client counts
        y[starts + label] = label
    order = np.lexsort((y, clients)) if case["seed"] % 2 else np.arange(len(X))
    return X[order], y[order], clients


def module(case, n_outputs):
    torch.manual_seed(case["seed"])
    if case["kind"] is nn.Linear:
        return nn.Linear(4, n_outputs)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, n_outputs))


def check_losses(make, net, X, y, clients, weights=None):
    """Compare what each engine reports with the criterion on all rows; or the rows are refused."""
    for engine in ("stacked", "loop"):
        selector = PowerOfChoice(d=len(set(clients)), clients_per_round=1)
        model = make(net, selector=selector, n_rounds=1, engine=engine, random_state=0)
        held_out = {"X_val": X, "y_val": y}
        try:
            model.fit(X, y, clients=clients, sample_weight=weights, **held_out)
        except ValueError as error:
            assert "engine='stacked' cannot run" in str(error) or "sample_weight needs" in str(
                error
            )
            continue
        losses = [loss_of(model.net_, X[clients == k], y[clients == k]) for k in set(clients)]
        sizes = [np.count_nonzero(clients == k) for k in set(clients)]
        row = model.history_.iloc[0]
        if weights is None:
            assert row["objective"] == pytest.approx(np.average(losses, weights=sizes), rel=1e-6)
            # At rate 0, and in one batch, the training loss is that of the client.
            if net.batch_size == -1:
                (k,) = row["cohort"]
                assert row["train_loss"] == pytest.approx(losses[k], rel=1e-6)
        assert row["val_loss"] == pytest.approx(loss_of(model.net_, X, y), rel=1e-6)


def loss_of(net, X, y):
    net._set_training(False)
    X, y = torch.from_numpy(X), torch.from_numpy(np.ascontiguousarray(y))
    with torch.no_grad():
        return net.get_loss(net.module_(X), y, X=X, training=False).item()


@generated(60, CASES, NETS)
def test_losses_of_classifiers(case, settings):
    settings = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in settings.items()}
    X, y, clients = drawn(case)
    own = module(case, CLASSES)
    if settings["criterion"] is nn.NLLLoss:
        own = nn.Sequential(own, nn.Softmax(-1))
    net = NeuralNetClassifier(own, lr=0.0, batch_size=case["batch_size"], **settings)
    weights = np.linspace(1, 2, len(X)) if case["weighted_rows"] else None
    check_losses(FederatedClassifier, net, X, y, clients, weights)


REGRESSIONS = st.sampled_from(
    [
        {"criterion": nn.MSELoss},
        {"criterion": nn.MSELoss, "criterion__reduction": "sum"},
        {"criterion": nn.HuberLoss, "criterion__delta": 0.5},
        {"criterion": nn.PoissonNLLLoss},
        {"criterion": Root},
    ]
)


@generated(30, CASES, REGRESSIONS)
def test_losses_of_regressors(case, settings):
    X, y, clients = drawn(case)
    net = NeuralNetRegressor(module(case, 1), lr=0.0, batch_size=case["batch_size"], **settings)
    check_losses(FederatedRegressor, net, X, y.astype("float32")[:, None], clients)


@generated(10, CASES)
def test_a_loss_of_the_nets_own(case):
    X, y, clients = drawn(case)
    net = WithPenalty(
        nn.Linear(4, CLASSES),
        criterion=nn.CrossEntropyLoss,
        criterion__weight=torch.tensor([1.0, 5.0, 0.2]),
        lr=0.0,
        batch_size=case["batch_size"],
    )
    check_losses(FederatedClassifier, net, X, y, clients)


class WithState(nn.Module):
    """Its second output has the rows along its second axis, as that of torch's recurrent layers."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, CLASSES, batch_first=True)

    def forward(self, X):
        output, state = self.gru(X[:, None])
        return output[:, -1], state


class OfState(nn.Module):
    def forward(self, outputs, y):
        logits, state = outputs
        return F.cross_entropy(logits, y) + state[0].square().mean()


class RootStep(NeuralNetClassifier):
    def validation_step(self, batch, **fit_params):
        step = super().validation_step(batch, **fit_params)
        return step | {"loss": step["loss"].sqrt()}


@generated(6, CASES)
def test_losses_of_modules_with_several_outputs_and_of_own_steps(case):
    X, y, clients = drawn(case)
    params = {"lr": 0.0, "batch_size": case["batch_size"]}
    torch.manual_seed(0)
    check_losses(
        FederatedClassifier,
        NeuralNetClassifier(WithState, criterion=OfState, **params),
        *(X, y, clients),
    )
    net = RootStep(nn.Linear(4, CLASSES), criterion=nn.CrossEntropyLoss, **params)
    selector = PowerOfChoice(d=len(set(clients)), clients_per_round=1)
    model = FederatedClassifier(net, selector=selector, n_rounds=1, random_state=0)
    row = model.fit(X, y, clients=clients, X_val=X, y_val=y).history_.iloc[0]
    losses = [loss_of(model.net_, X[clients == k], y[clients == k]) for k in set(clients)]
    sizes = [np.count_nonzero(clients == k) for k in set(clients)]
    assert row["objective"] == pytest.approx(np.average(np.sqrt(losses), weights=sizes), rel=1e-6)
    assert row["val_loss"] == pytest.approx(np.sqrt(loss_of(model.net_, X, y)), rel=1e-6)
