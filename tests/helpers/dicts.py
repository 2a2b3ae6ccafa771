"""Sentences as token ids with a padding mask, beside numbers: a dict of arrays, and its nets."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

N_TOKENS = 12


class MaskedMean(nn.Module):
    """The mean of the embeddings that are not padding, and a linear layer of it and numbers."""

    def __init__(self, n_outputs=3):
        super().__init__()
        self.embedding = nn.Embedding(N_TOKENS, 4)
        self.out = nn.Linear(4 + 2, n_outputs)

    def forward(self, tokens, mask, numbers):
        assert tokens.dtype == torch.int64
        assert mask.dtype == torch.bool
        used = mask.unsqueeze(-1)
        mean = (self.embedding(tokens) * used).sum(-2) / used.sum(-2).clamp(min=1)
        return self.out(torch.cat([mean, numbers], -1))


def sentences(n_rows=90, seed=0):
    """Return X, y and clients, of different sizes."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, N_TOKENS, (n_rows, 5)).astype(np.int32)
    X = {
        "tokens": tokens,
        "mask": np.arange(5) < rng.integers(1, 6, (n_rows, 1)),
        "numbers": rng.normal(size=(n_rows, 2)),
    }
    y = (tokens[:, 0] % 3).astype(int)
    y[:3] = 0, 1, 2
    return X, y, np.array(list("abcdef"))[rng.integers(0, 6, n_rows)]


def rows_of(X, rows):
    """Return rows of a dict of arrays."""
    return {key: array[rows] for key, array in X.items()}


def net(module=MaskedMean, **settings):
    """Return a net of a module with two rates to tell apart: seeds are the test's."""
    settings = {"criterion": nn.CrossEntropyLoss, "batch_size": 8, "lr": 0.3, **settings}
    return NeuralNetClassifier(module, **settings)
