"""Ids that hold other values, priorities that can be read once, and what no client trains."""

import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pytest
import torch
from sklearn.pipeline import FeatureUnion
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn

import skfed
from skfed import FederatedClassifier, RandomSelector
from skfed.aggregation import Scaffold, ServerOptimizer
from skfed.utils._ids import canonical, digest, native

Ward = namedtuple("Ward", "site number")


@dataclass(frozen=True)
class Team:
    members: frozenset


class Group(Enum):
    RED = frozenset({"a", "b"})


def fit(clients, n_rows=24, estimator=None, **params):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3)).astype("float32")
    y = np.arange(n_rows) % 2
    model = FederatedClassifier(estimator, **{"n_rounds": 2, "random_state": 0} | params)
    return model.fit(X, y, clients=[clients[i % len(clients)] for i in range(n_rows)])


def test_namedtuples_of_numpy_numbers_are_those_of_pythons():
    of_numpy, plain = Ward("a", np.int64(3)), Ward("a", 3)
    assert type(native(of_numpy)) is Ward
    assert type(native(of_numpy).number) is int
    assert digest(of_numpy) == digest(plain) != digest(("a", 3))
    assert canonical(Ward("a", 1)) != canonical(Ward("a", 1.0))
    models = [
        fit([Ward("a", number(k)) for k in range(4)], selector=RandomSelector(2))
        for number in (int, np.int64)
    ]
    assert models[0].history_["cohort"].tolist() == models[1].history_["cohort"].tolist()


IDS_WITH_SETS = """
from dataclasses import dataclass
from collections import namedtuple
from skfed.utils._ids import digest

@dataclass(frozen=True)
class Team:
    members: frozenset

Ward = namedtuple("Ward", "names")
names = frozenset(map(str, range(20)))
for client in (names, (1, names), Ward(names), Team(names), frozenset({names, frozenset()})):
    print(digest(client).hex())
"""


def test_ids_that_hold_sets_are_the_same_in_each_process():
    """The order of a set of strings differs from process to process."""

    def digests(seed):
        env = os.environ | {"PYTHONHASHSEED": seed}
        run = [sys.executable, "-c", IDS_WITH_SETS]
        return subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout

    first = digests("1")
    assert len(set(first.split())) == 5
    assert first == digests("2")


def test_ids_whose_text_shows_a_set_are_refused():
    with pytest.raises(ValueError, match="of type Group, whose text shows a set or dict"):
        fit([Group.RED, 1])
    fit(["{a, b}", "c"])  # a text of its own


@pytest.mark.parametrize("missing", [np.nan, None, float("nan")])
@pytest.mark.parametrize("make", [lambda m: ("a", m), lambda m: Ward("a", m), lambda m: Team((m,))])
def test_missing_values_in_tuples_are_refused(missing, make):
    with pytest.raises(ValueError, match="clients has 12 missing value"):
        fit([make(missing), ("a", 1)])


def test_a_priority_that_can_be_read_once_is_refused():
    for priority in (iter(["a"]), (name for name in "a"), map(str, ["a"])):
        with pytest.raises(ValueError, match="can be read only once, and each fit reads it: pass"):
            fit(["a", "b"], priority=priority)
    fit(["a", "b"], priority={"a": 1}.keys())


class Sparse(nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.embedding = nn.EmbeddingBag(5, 2, sparse=sparse)

    def forward(self, X):
        return self.embedding(X)


@pytest.mark.parametrize("params", [{"proximal_mu": 0.5}, {"aggregator": Scaffold()}])
def test_sparse_gradients_with_other_terms(params):
    X, y = np.random.default_rng(0).integers(0, 5, (40, 3)), np.arange(40) % 2
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        module = Sparse(sparse)
        model = FederatedClassifier(module, n_rounds=3, lr_schedule=0.5, random_state=0, **params)
        model.fit(X, y, clients=np.arange(40) % 4)
        assert not model.history_["n_failed"].any()
        found.append(model.predict_proba(X))
    np.testing.assert_allclose(*found, rtol=1e-5)


class HalfTrained(nn.Module):
    """The second layer takes no part in the output."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, X):
        return self.used(X)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_weight_decay_of_the_server_leaves_what_nobody_trains(optimizer):
    torch.manual_seed(0)
    module = HalfTrained()
    decaying = ServerOptimizer(optimizer, lr=0.5, options={"weight_decay": 0.3})
    model = fit(["a", "b"], estimator=module, server_optimizer=decaying, n_rounds=3)
    trained = model.net_.module_
    assert torch.equal(trained.unused.weight, module.unused.weight)
    assert not torch.equal(trained.used.weight, module.used.weight)


def test_load_compares_dicts(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 2))

    def union(**weights):
        steps = [("a", StandardScaler()), ("b", MinMaxScaler())]
        return FeatureUnion(steps, transformer_weights=weights)

    fitted = union(a=2.0, b=3.0).fit(X)
    skfed.save(fitted, tmp_path / "union")
    loaded = skfed.load(union(b=3.0, a=2.0), tmp_path / "union")
    np.testing.assert_array_equal(loaded.transform(X), fitted.transform(X))
    with pytest.raises(ValueError, match="saved with transformer_weights="):
        skfed.load(union(a=2.0, b=4.0), tmp_path / "union")


def test_a_round_refers_to_names_and_makes_none():
    clients = [f"client {k:04d}" for k in range(300)]
    everybody = RandomSelector(1.0, "uniform", False)
    model = fit(clients, 300, selector=everybody, n_rounds=3)
    first, *others = (row["cohort"] for row in model._server.rows)
    for other in others:
        assert all(one is another for one, another in zip(first, other, strict=True))
    losses = [row["losses"]["client"][1] for row in model._server.rows]
    assert all(one is another for one, another in zip(first, losses[-1], strict=True))
