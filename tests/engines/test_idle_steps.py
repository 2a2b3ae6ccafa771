"""Steps in which no row counts in the criterion have gradient 0, in both engines."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, RandomSelector

MODULES = {
    "linear layers": nn.Linear(5, 3),
    "torch.func": nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
}
CRITERIA = [
    {"criterion__ignore_index": 0},
    {"criterion__ignore_index": 0, "criterion__label_smoothing": 0.2},
    {"criterion__weight": torch.tensor([0.0, 1.0, 2.0])},
]


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("kind", MODULES)
def test_a_step_in_which_no_row_counts_has_no_gradient(kind, criterion):
    """Of batches of three rows, many have none that counts; torch gives NaN for them."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 5)).astype("float32"), rng.integers(0, 3, 120)
    y[rng.random(120) < 0.7] = 0
    net = NeuralNetClassifier(
        MODULES[kind], criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=3, **criterion
    )
    fits = {}
    for engine in ("auto", "loop"):  # "auto" trains alone where the probe has no row that counts
        everybody = RandomSelector(1.0, "uniform", False)
        model = FederatedClassifier(
            net, selector=everybody, n_rounds=3, engine=engine, random_state=0
        )
        fits[engine] = model.fit(X, y, clients=np.arange(120) % 2)
        assert not model.history_["n_failed"].any()
        assert model.history_["train_loss"].iloc[-1] < model.history_["train_loss"].iloc[0]
    stacked, loop = fits.values()
    np.testing.assert_allclose(stacked.predict_proba(X), loop.predict_proba(X), rtol=1e-3)
    np.testing.assert_allclose(
        stacked.history_["train_loss"], loop.history_["train_loss"], rtol=1e-5
    )
