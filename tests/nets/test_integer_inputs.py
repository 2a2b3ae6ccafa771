"""Integer X stays integer where the module needs it, whatever its layers are called."""

import numpy as np
import pandas as pd
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn import functional as F

from skfed import FederatedClassifier
from skfed.nets import cast

N_IDS = 6


class OneHot(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2 * N_IDS, 2)

    def forward(self, X):
        return self.linear(F.one_hot(X, N_IDS).flatten(1).float())


class GruFirst(nn.Module):
    """The layer that is registered first is not the first that is called."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 5, batch_first=True)
        self.embedding = nn.Embedding(N_IDS, 4)
        self.linear = nn.Linear(5, 2)

    def forward(self, X):
        return self.linear(self.gru(self.embedding(X))[0][:, -1])


class Indexed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(N_IDS, 2))

    def forward(self, X):
        return self.table[X].sum(1)


class EmbeddingOfOneColumn(nn.Module):
    """It begins with an embedding, but its other column is a number."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_IDS, 3)
        self.linear = nn.Linear(4, 2)

    def forward(self, X):
        return self.linear(torch.cat([self.embedding(X[:, 0].long()), X[:, 1:].float()], 1))


class Hashed(nn.Module):
    """It takes floats too, but the digits of large ids would be lost."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(N_IDS, 2)

    def forward(self, X):
        return self.embedding(X.long() % N_IDS).sum(1)


def table(dtype=np.int64, offset=0):
    rng = np.random.default_rng(0)
    X = rng.integers(0, N_IDS, (240, 2)).astype(dtype) + dtype(offset)
    return X, (X[:, 0] % N_IDS + X[:, 1] % N_IDS > N_IDS).astype(int), np.arange(240) % 4


def fit(module, X, y, clients, **params):
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        module, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, lr=0.05, batch_size=16
    )
    model = FederatedClassifier(net, **{"n_rounds": 15, "random_state": 0} | params)
    return model.fit(X, y, clients=clients, X_val=X, y_val=y)


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("module", [OneHot, GruFirst, Indexed, EmbeddingOfOneColumn, Hashed])
def test_modules_of_integers(module, engine, tmp_path):
    X, y, clients = table()
    model = fit(module, X, y, clients, engine=engine)
    assert model.score(X, y) > 0.8
    assert model.history_["val_score"].iloc[-1] == model.score(X, y)
    model.save(tmp_path / "model")
    loaded = FederatedClassifier(model.estimator).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_ids_beyond_the_digits_of_float32(dtype):
    """2**24 + 1 is 2**24 in float32."""
    X, y, clients = table(dtype, 2**24 // N_IDS * N_IDS + N_IDS)
    model = fit(Hashed, X, y, clients)
    assert cast(model.net_, X).dtype == np.int64
    assert cast(model.net_, X % N_IDS).dtype == np.float32
    near = X - X.min() // N_IDS * N_IDS
    np.testing.assert_array_equal(model.predict(X), model.predict(near))
    assert model.score(X, y) > 0.8


@pytest.mark.parametrize("module", [nn.Linear(2, 2), None])
def test_integers_of_other_modules_are_numbers(module):
    X, y, clients = table()
    model = FederatedClassifier(module, n_rounds=3, random_state=0).fit(X, y, clients=clients)
    as_float = FederatedClassifier(module, n_rounds=3, random_state=0)
    as_float.fit(X.astype("float32"), y, clients=clients)
    np.testing.assert_array_equal(
        model.predict_proba(X), as_float.predict_proba(X.astype("float32"))
    )


def test_ids_that_the_module_does_not_know_are_said_by_it():
    X, y, clients = table()
    X[0] = 99
    with pytest.raises(ValueError, match="index out of range"):
        fit(GruFirst, X, y, clients)


@pytest.mark.parametrize("dtype", ["Int64", object, float, "category"])
def test_tables_that_arrive_as_floats_get_the_way_out(dtype):
    X, y, clients = table()
    with pytest.raises(ValueError, match=r"takes integers: .* X\.astype\('int64'\)"):
        fit(OneHot, pd.DataFrame(X).astype(dtype), y, clients)
    fit(OneHot, pd.DataFrame(X).astype(dtype).astype("int64"), y, clients)


def test_integers_beyond_int64_are_refused():
    X, y, clients = table(np.uint64)
    X[3, 0] = 2**63 + 1
    with pytest.raises(ValueError, match=r"9223372036854775809, and torch's int64 ends at 2\*\*63"):
        fit(Hashed, X, y, clients)
