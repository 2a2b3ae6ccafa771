"""What the guide's table of nets says: what they predict, and which engine trains them."""

import numpy as np
import pytest
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import Callback
from torch import nn

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector

N, N_WORDS, LONGEST = 96, 12, 6
LINEAR, FUNC = "stacked: linear layers", "stacked: torch.func"
CE, BCE = nn.CrossEntropyLoss, nn.BCEWithLogitsLoss

rng = np.random.default_rng(0)
TABLE = rng.normal(size=(N, 16)).astype("float32")
INPUTS = {
    "table": TABLE,
    "images": TABLE.reshape(N, 1, 4, 4),
    "integers": rng.integers(0, 9, (N, 16)),
    "ids": rng.integers(0, N_WORDS, (N, LONGEST)),
}
INPUTS["texts"] = {
    "tokens": INPUTS["ids"],
    "mask": np.arange(LONGEST) < rng.integers(1, LONGEST + 1, N)[:, None],
}
CLASSES = rng.integers(0, 3, N)
PAIR = np.where(TABLE[:, 0] > 0, "yes", "no")
INDICATOR = rng.integers(0, 2, (N, 3))
TARGETS = {
    "classes": CLASSES,
    "pair": PAIR,
    "indicator": INDICATOR,
    "number": TABLE[:, 1],
    "numbers": TABLE[:, :2],
}


class Layers(nn.Sequential):
    def __init__(self, n_outputs=3, *last):
        super().__init__(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, n_outputs), *last)


class Convolution(nn.Sequential):
    def __init__(self, n_outputs=3):
        super().__init__(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, n_outputs))


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(16, 3).requires_grad_(False)
        self.adapter = nn.Sequential(nn.Linear(16, 2, bias=False), nn.Linear(2, 3, bias=False))

    def forward(self, X):
        return self.frozen(X) + self.adapter(X)


class Sequences(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(N_WORDS, 4)
        self.layer = kind(4, 4, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, tokens):
        return self.out(self.layer(self.embedding(tokens))[0].mean(1))


class Packed(Sequences):
    def forward(self, tokens, mask):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        last = self.layer(packed)[1]
        return self.out((last[0] if isinstance(last, tuple) else last)[-1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_WORDS, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(4, 3)

    def forward(self, tokens, mask):
        words = self.encoder(self.embedding(tokens), src_key_padding_mask=~mask)
        return self.out(words.mean(1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_WORDS, 4)
        self.query, self.key, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, tokens, mask):
        words = self.embedding(tokens)
        products = self.query(words) @ self.key(words).transpose(1, 2)
        weights = products.masked_fill(~mask.unsqueeze(1), -1e9).softmax(-1)
        return self.out((weights @ words).mean(1))


class OwnStep(NeuralNetClassifier):
    def train_step_single(self, batch, **fit_params):
        return super().train_step_single(batch, **fit_params)


class OnBatches(Callback):
    def on_batch_end(self, net, **kwargs):
        pass


def classifier(module, criterion=CE, **params):
    return NeuralNetClassifier(module, criterion=criterion, batch_size=8, **params)


def frozen_first():
    module = Layers()
    module[0].requires_grad_(False)
    return module


# name: what makes the estimator, X, y, the engine
ROWS = {
    "default, classes": (lambda: None, "table", "classes", LINEAR),
    "default, images": (lambda: None, "images", "classes", LINEAR),
    "default, integers": (lambda: None, "integers", "pair", LINEAR),
    "default, indicator": (lambda: None, "table", "indicator", LINEAR),
    "default, number": (lambda: None, "table", "number", LINEAR),
    "default, numbers": (lambda: None, "table", "numbers", LINEAR),
    "class": (lambda: Layers, "table", "classes", LINEAR),
    "module, integers": (Layers, "integers", "classes", LINEAR),
    "module, images": (Convolution, "images", "classes", FUNC),
    "module, indicator": (Layers, "table", "indicator", LINEAR),
    "module, numbers": (lambda: Layers(2), "table", "numbers", LINEAR),
    "module, one output": (lambda: Layers(1), "table", "pair", LINEAR),
    "module, number": (lambda: Layers(1), "table", "number", LINEAR),
    "cross-entropy": (lambda: classifier(Layers), "table", "classes", LINEAR),
    "log-likelihood": (
        lambda: NeuralNetClassifier(Layers(3, nn.Softmax(dim=-1))),
        *("table", "classes", LINEAR),
    ),
    "logits, indicator": (lambda: classifier(Layers, BCE), "table", "indicator", LINEAR),
    "logits, one output": (lambda: classifier(Layers(1), BCE), "table", "pair", LINEAR),
    "logits, other layers": (
        lambda: classifier(Convolution, BCE),
        *("images", "indicator", "loop: on a CPU, clients whose last batches"),
    ),
    "binary": (lambda: NeuralNetBinaryClassifier(Layers(1)), "table", "pair", LINEAR),
    "regressor": (lambda: NeuralNetRegressor(Layers(1)), "table", "number", LINEAR),
    "regressor, numbers": (lambda: NeuralNetRegressor(Layers(2)), "table", "numbers", LINEAR),
    "own step": (
        lambda: OwnStep(Layers, criterion=CE),
        *("table", "classes", "loop: estimator overrides train_step"),
    ),
    "callbacks": (
        lambda: classifier(Layers, callbacks=[OnBatches()]),
        *("table", "classes", "loop: callbacks act on batches"),
    ),
    "frozen": (frozen_first, "table", "classes", FUNC),
    "adapter": (Adapted, "table", "classes", FUNC),
    "GRU": (lambda: Sequences(nn.GRU), "ids", "classes", FUNC),
    "RNN": (lambda: Sequences(nn.RNN), "ids", "classes", FUNC),
    "GRU, packed": (lambda: Packed(nn.GRU), "texts", "classes", "loop: torch.func cannot batch"),
    "LSTM": (lambda: Sequences(nn.LSTM), "ids", "classes", "loop: the module has an nn.LSTM"),
    "LSTM, packed": (
        lambda: Packed(nn.LSTM),
        *("texts", "classes", "loop: the module has an nn.LSTM"),
    ),
    "transformer": (Transformer, "texts", "classes", "loop: torch.func cannot batch"),
    "attention": (Attention, "texts", "classes", FUNC),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_guides_table(name):
    make, inputs, targets, engine = ROWS[name]
    X, y = INPUTS[inputs], TARGETS[targets]
    is_number = targets.startswith("number")
    kind = FederatedRegressor if is_number else FederatedClassifier
    # 13 rows a client, or 12: batches of 8 differ in size.
    model = kind(make(), selector=RandomSelector(4), n_rounds=2, random_state=0)
    model.fit(X, y, clients=np.arange(N) % 7)
    assert model.engine_.startswith(engine)
    predicted = model.predict(X)
    assert predicted.shape == y.shape
    assert np.isfinite(model.score(X, y))
    if is_number:
        return
    assert np.isin(predicted, np.unique(y)).all()
    proba = model.predict_proba(X)
    assert proba.shape == (N, 2 if targets == "pair" else 3)
    if targets != "indicator":
        np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)


def test_what_the_table_rules_out():
    model = FederatedClassifier(n_rounds=1)
    clients = np.arange(N) % 7
    with pytest.raises(ValueError, match="default net takes an array"):
        model.fit(INPUTS["texts"], CLASSES, clients=clients)
    one_logit = FederatedClassifier(NeuralNetBinaryClassifier(Layers(1)), n_rounds=1)
    for y in (CLASSES, INDICATOR):
        with pytest.raises(ValueError, match="pass a NeuralNetClassifier"):
            one_logit.fit(TABLE, y, clients=clients)
