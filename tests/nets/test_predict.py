"""Predictions and losses are those of skorch's own methods, without its DataLoader."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.dataset import Dataset
from torch import nn
from torch.utils.data import DataLoader

from skfed import FederatedClassifier, FederatedRegressor
from skfed.modules import MLP, SoftmaxRegression


class OwnInfer(NeuralNetClassifier):
    def infer(self, x, **params):
        return 2 * super().infer(x, **params)


class OwnStep(NeuralNetClassifier):
    def evaluation_step(self, batch, training=False):
        return 2 * super().evaluation_step(batch, training)

    def validation_step(self, batch, **params):
        step = super().validation_step(batch, **params)
        return step | {"loss": 3 * step["loss"]}


class OwnForward(NeuralNetClassifier):
    def forward_iter(self, X, training=False, device="cpu"):
        for output in super().forward_iter(X, training, device):
            yield 2 * output


class OwnProbabilities(NeuralNetClassifier):
    def predict_proba(self, X):
        return super().predict_proba(X)[:, ::-1]


class OwnNonlinearity(NeuralNetClassifier):
    def _get_predict_nonlinearity(self):
        return torch.sigmoid


class Doubled(Dataset):
    def transform(self, X, y):
        return super().transform(2 * X, y)


def backwards(rows):
    X, y = zip(*rows, strict=True)
    return torch.tensor(np.stack(X[::-1])), torch.tensor(y)


class Pair(nn.Linear):
    def forward(self, X):
        return super().forward(X), X


class FirstLoss(nn.CrossEntropyLoss):
    def forward(self, outputs, target):
        return super().forward(outputs[0], target)


def of_rows(output):
    return output - output.mean(0)


NETS = {
    "logits": NeuralNetClassifier(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "probabilities": NeuralNetClassifier(nn.Sequential(nn.Linear(5, 3), nn.Softmax(-1))),
    "all rows at once": NeuralNetClassifier(
        nn.Linear(5, 3), criterion=nn.CrossEntropyLoss, batch_size=-1
    ),
    "other batches": NeuralNetClassifier(
        nn.Linear(5, 3), criterion=nn.CrossEntropyLoss, iterator_valid__batch_size=7
    ),
    "two outputs": NeuralNetClassifier(Pair(5, 3), criterion=FirstLoss),
    "own function": NeuralNetClassifier(
        nn.Linear(5, 3), criterion=nn.CrossEntropyLoss, predict_nonlinearity=of_rows, batch_size=7
    ),
    "no function": NeuralNetClassifier(
        nn.Linear(5, 3), criterion=nn.CrossEntropyLoss, predict_nonlinearity=None
    ),
}
OTHERS = {
    "infer": OwnInfer(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "evaluation_step": OwnStep(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "forward_iter": OwnForward(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "predict_proba": OwnProbabilities(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "nonlinearity": OwnNonlinearity(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss),
    "dataset": NeuralNetClassifier(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss, dataset=Doubled),
    "collate_fn": NeuralNetClassifier(
        nn.Linear(5, 3), criterion=nn.CrossEntropyLoss, iterator_valid__collate_fn=backwards
    ),
}


def fit(net, blobs, **params):
    X, y, clients = blobs
    model = FederatedClassifier(net, n_rounds=1, random_state=0, **params)
    return model.fit(X, y, clients=clients)


@pytest.mark.filterwarnings("ignore:estimator has settings that are not used")
@pytest.mark.parametrize("name", NETS | OTHERS)
def test_predictions_are_skorchs(blobs, name):
    model = fit((NETS | OTHERS)[name], blobs)
    X = blobs[0].astype("float32")
    found = model.predict_proba(X)
    if name in ("logits", "no function"):  # whose batches are larger: the same rows for skorch
        model.net_.batch_size = 512
    assert found.tolist() == model.net_.predict_proba(X).tolist()
    assert model.predict(X).tolist() == model.net_.predict_proba(X).argmax(1).tolist()


@pytest.mark.parametrize("name", NETS)
def test_rows_are_not_taken_one_by_one(blobs, monkeypatch, name):
    model = fit(NETS[name], blobs)
    monkeypatch.setattr(DataLoader, "__iter__", None)
    model.predict_proba(blobs[0])
    if name == "logits":
        model.predict_log_proba(blobs[0])


class OwnLinear(nn.Linear):
    """A module that is the user's."""


def halved(module, X, output):
    return output / 2


def with_hook():
    module = nn.Linear(5, 3)
    module.register_forward_hook(halved)
    return module


class MinusMean(nn.Sequential):
    """A Sequential that compares rows."""

    def forward(self, X):
        X = super().forward(X)
        return X - X.mean(0)


@pytest.mark.parametrize(
    ("params", "rows"),
    [
        ({}, 512),
        ({"module": nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))}, 512),
        ({"module": SoftmaxRegression(5, 3, standardize=True)}, 512),
        ({"module": MLP(5, (8,), 3, dropout=0.5)}, 512),
        ({"predict_nonlinearity": None}, 512),
        ({"batch_size": -1}, 600),
        ({"iterator_valid__batch_size": 200}, 200),
        ({"predict_nonlinearity": of_rows}, 200),
        ({"module": nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))}, 200),
        ({"module": nn.Sequential(OwnLinear(5, 3))}, 200),
        ({"module": with_hook()}, 200),
        ({"module": MinusMean(nn.Linear(5, 3))}, 200),
    ],
    ids=[
        "linear",
        "layers",
        "SoftmaxRegression",
        "MLP",
        "no function",
        "all rows at once",
        "the user's number",
        "of rows",
        "batch normalisation",
        "own module",
        "hook",
        "own Sequential",
    ],
)
def test_linear_layers_get_larger_batches_than_in_training(blobs, monkeypatch, params, rows):
    """Not with the user's number, nor where a module or the last step may compare rows."""
    net = NeuralNetClassifier(
        **{"module": nn.Linear(5, 3), "criterion": nn.CrossEntropyLoss, "batch_size": 200} | params
    )
    model = fit(net, blobs)
    X = np.random.default_rng(0).normal(size=(600, 5)).astype("float32")
    with monkeypatch.context() as patch:
        seen = sizes_of_batches(patch)
        found = model.predict_proba(X)
    assert seen == [rows]
    model.net_.batch_size = rows
    assert found.tolist() == model.net_.predict_proba(X).tolist()


def sizes_of_batches(monkeypatch):
    """Return a list that gets the size of the batches of each chunk."""
    seen, split = [], torch.Tensor.split
    monkeypatch.setattr(
        torch.Tensor, "split", lambda self, size: seen.append(size) or split(self, size)
    )
    return seen


def test_layers_on_positions_of_a_row_get_the_batches_of_training(blobs, monkeypatch):
    X = np.repeat(blobs[0][:, None], 4, axis=1)
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, batch_size=20)
    model = fit(net, (X, *blobs[1:]))
    seen = sizes_of_batches(monkeypatch)
    model.predict_proba(X)
    assert seen == [20]


def test_a_regressors_predictions_are_skorchs(blobs):
    X, y, clients = blobs
    model = FederatedRegressor(n_rounds=1, random_state=0).fit(X, y, clients=clients)
    found = model.predict(X)
    model.net_.batch_size = 512
    assert found.tolist() == model.net_.predict(X.astype("float32")).ravel().tolist()


@pytest.mark.parametrize("name", ["logits", "other batches", "infer", "evaluation_step"])
def test_the_loss_of_validation_is_of_the_nets_own_steps(blobs, name):
    X, y, clients = blobs
    net = (NETS | OTHERS)[name]
    model = FederatedClassifier(net, n_rounds=1, engine="loop", random_state=0)
    model.fit(X, y, clients=clients, X_val=X, y_val=y)
    size = net.get_params_for("iterator_valid").get("batch_size", 128)
    total = 0.0
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        batch = torch.tensor(X[rows], dtype=torch.float32), torch.tensor(y[rows])
        total += model.net_.validation_step(batch)["loss"].item() * len(batch[1])
    # Not to the bit: a product of the same rows elsewhere in memory may round otherwise.
    assert model.history_["val_loss"].iloc[-1] == pytest.approx(total / len(y), rel=1e-5)
