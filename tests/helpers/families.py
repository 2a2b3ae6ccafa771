"""Module families, optimizers and criteria that both engines run."""

import numpy as np
import torch
from torch import nn


class UserWritten(nn.Module):
    """Linear layers and functions, as people write them: found to be a stack of linear layers."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.n_features = n_features
        self.hidden = nn.Linear(n_features, 12)
        self.out = nn.Linear(12, n_classes, bias=False)

    def forward(self, X):
        return self.out(nn.functional.gelu(torch.tanh(self.hidden(X.view(X.size(0), -1)))))


class Gated(nn.Module):
    """Two branches and a parameter of its own: for torch.func."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.gate = nn.Linear(n_features, 12)
        self.value = nn.Linear(n_features, 12)
        self.scale = nn.Parameter(torch.ones(12))
        self.norm = nn.LayerNorm(12)
        self.out = nn.Linear(12, n_classes)

    def forward(self, X):
        return self.out(self.norm(torch.sigmoid(self.gate(X)) * self.value(X) * self.scale))


class Convolutions(nn.Module):
    def __init__(self, n_features, n_classes):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.pool = nn.AdaptiveMaxPool1d(5)
        self.out = nn.Linear(20, n_classes)

    def forward(self, X):
        return self.out(self.pool(self.conv(X.unsqueeze(1)).relu()).flatten(1))


class Recurrent(nn.Module):
    def __init__(self, n_features, n_classes):
        super().__init__()
        self.rnn = nn.GRU(1, 6, batch_first=True)
        self.out = nn.Linear(6, n_classes)

    def forward(self, X):
        return self.out(self.rnn(X[:, :5].unsqueeze(2))[0][:, -1])


class Attention(nn.Module):
    def __init__(self, n_features, n_classes):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.out = nn.Linear(4, n_classes)

    def forward(self, X):
        return self.out(self.layer(X[:, :20].view(len(X), 5, 4)).mean(1))


class Tied(nn.Module):
    def __init__(self, n_features, n_classes):
        super().__init__()
        self.into = nn.Linear(n_features, n_features)
        self.back = nn.Linear(n_features, n_features)
        self.back.weight = self.into.weight
        self.out = nn.Linear(n_features, n_classes)

    def forward(self, X):
        return self.out(self.back(self.into(X).tanh()))


class Words(nn.Module):
    """Integers in front of an embedding."""

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.embedding = nn.Embedding(8, 3)
        self.out = nn.Linear(3 * n_features, n_classes)

    def forward(self, X):
        return self.out(self.embedding(X).flatten(1))


def mlp(n_features, n_classes, *ends):
    first = nn.Linear(n_features, 16), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(16, 8), nn.LeakyReLU(), nn.Linear(8, n_classes), *ends)


def normalised(n_features, n_classes):
    return nn.Sequential(
        nn.Linear(n_features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n_classes)
    )


LINEAR = {"softmax regression": nn.Linear, "mlp": mlp, "user-written": UserWritten}
BATCHED = {
    "gated": Gated,
    "convolutions": Convolutions,
    "recurrent": Recurrent,
    "tied": Tied,
    "words": Words,
    "batch normalisation": normalised,
}
FAMILIES = LINEAR | BATCHED

SGD_FAMILY = {
    "sgd": {"lr": 0.1},
    "weight decay": {"lr": 0.1, "optimizer__weight_decay": 0.1},
    "momentum": {"lr": 0.05, "optimizer__momentum": 0.9, "optimizer__dampening": 0.1},
    "nesterov": {
        "lr": 0.05,
        "optimizer__momentum": 0.9,
        "optimizer__nesterov": True,
        "optimizer__weight_decay": 0.01,
    },
}
ADAPTIVE = {
    "adam": {"optimizer": torch.optim.Adam, "lr": 0.01},
    "amsgrad": {"optimizer": torch.optim.Adam, "lr": 0.01, "optimizer__amsgrad": True},
    "adamw": {"optimizer": torch.optim.AdamW, "lr": 0.01},
    "rmsprop": {"optimizer": torch.optim.RMSprop, "lr": 0.005, "optimizer__momentum": 0.5},
    "adagrad": {"optimizer": torch.optim.Adagrad, "lr": 0.05, "optimizer__lr_decay": 0.1},
}
OPTIMIZERS = SGD_FAMILY | ADAPTIVE


class Focal(nn.Module):
    """A criterion of the user's own."""

    def forward(self, logits, target):
        losses = nn.functional.cross_entropy(logits, target, reduction="none")
        return ((1 - (-losses).exp()) ** 2 * losses).mean()


CRITERIA = {
    "cross-entropy": (nn.CrossEntropyLoss, {}, ()),
    "weighted": (nn.CrossEntropyLoss, {"weight": torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 1.0])}, ()),
    "smoothed": (nn.CrossEntropyLoss, {"label_smoothing": 0.1}, ()),
    "negative log-likelihood": (nn.NLLLoss, {}, (nn.Softmax(dim=-1),)),
    "focal": (Focal, {}, ()),
}


def build(family, n_features, n_classes, seed=0, ends=()):
    """Return a float64 module of a family."""
    torch.manual_seed(seed)
    module = FAMILIES[family](n_features, n_classes)
    return nn.Sequential(module, *ends).double() if ends else module.double()


def data_for(family, X):
    """Return X as the family takes it."""
    return np.clip(np.round(X + 4), 0, 7).astype(np.int64) if family == "words" else X
