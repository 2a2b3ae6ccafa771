"""X, y and clients of many kinds: the same model, bit for bit, and the same predictions."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from torch import nn

from skfed import (
    FederatedClassifier,
    FederatedRegressor,
    PowerOfChoice,
    RandomSelector,
    make_pipeline,
)
from skfed.preprocessing import FederatedOneHotEncoder

EVERYBODY = RandomSelector(1.0, "uniform", replace=False)


def test_text_in_X_is_refused_with_the_way_out():
    X = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "ward": ["a", "b", "b", "a"]})
    with pytest.raises(
        ValueError, match="string to float: 'a'. X is .* by .*FederatedOneHotEncoder"
    ):
        FederatedClassifier(n_rounds=1).fit(X, [0, 1, 0, 1], clients=[0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"^y: could not convert string to float: \S+$"):
        FederatedRegressor(n_rounds=1).fit(X[["age"]], ["yes"] * 4, clients=[0, 0, 1, 1])


def test_sparse_X_is_refused_with_the_way_out():
    X, y, clients = [["a"], ["b"], ["b"], ["a"]], [0, 1, 0, 1], [0, 0, 1, 1]
    model = FederatedClassifier(n_rounds=1)
    with pytest.raises(TypeError, match="^Sparse .* array. Of an encoder .* sparse_output=False;"):
        make_pipeline(FederatedOneHotEncoder(), model).fit(X, y, clients=clients)
    X = FederatedOneHotEncoder(sparse_output=False).fit_transform(X, clients=clients)
    model.fit(X, y, clients=clients)
    with pytest.raises(TypeError, match="sparse_threshold=0"):
        model.predict(csr_array(X))


VARIANTS = {
    "string labels": lambda X, y, c: (X, np.array(["red", "green", "blue"])[y], c),
    "string ids of objects": lambda X, y, c: (X, y, c.astype(object)),
    "mixed ids": lambda X, y, c: (X, y, [1 if k == "a" else k for k in c]),
    "float64": lambda X, y, c: (X.astype(np.float64), y, c),
    "int32 labels": lambda X, y, c: (X, y.astype(np.int32), c),
    "DataFrame and Series": lambda X, y, c: (pd.DataFrame(X), pd.Series(y), pd.Series(c)),
    "lists": lambda X, y, c: (X.tolist(), y.tolist(), c.tolist()),
    "tensors": lambda X, y, c: (torch.from_numpy(X), torch.from_numpy(y), c),
    "not writable": lambda X, y, c: (np.lib.stride_tricks.as_strided(X, writeable=False), y, c),
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_inputs_of_many_kinds_give_the_same_model(blobs, same_model, variant):
    X, y, clients = variant(*blobs)
    model = FederatedClassifier(n_rounds=3, random_state=0, selector=RandomSelector(1.0, "uniform"))
    model.fit(X, y, clients=clients)
    assert model.n_features_in_ == 5
    assert set(model.predict(X)) <= set(model.classes_)
    if variant not in (VARIANTS["mixed ids"], VARIANTS["string labels"]):
        plain = clone(model).fit(*blobs[:2], clients=blobs[2])
        assert same_model(model, plain)
        assert (plain.predict(blobs[0]) == model.predict(X)).all()


@pytest.fixture
def of_kind(tmp_path):
    """Return functions that bring an array of rows to what users have."""

    def memmap(X):
        np.save(tmp_path / "X.npy", X)
        return np.load(tmp_path / "X.npy", mmap_mode="r")

    def polars(X):
        frame = pytest.importorskip("polars").DataFrame
        return frame(X, schema=NAMES)

    return {
        "numpy": np.array,
        "pandas": lambda X: pd.DataFrame(X, columns=NAMES),
        "pandas, another index": lambda X: pd.DataFrame(X, columns=NAMES, index=-np.arange(len(X))),
        "polars": polars,
        "memmap": memmap,
        "torch": torch.from_numpy,
    }


NAMES = ["v", "w", "x", "y", "z"]
KINDS = ["numpy", "pandas", "pandas, another index", "polars", "memmap", "torch"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [FederatedClassifier, FederatedRegressor])
def test_rows_of_each_kind_give_the_same_model_and_predictions(blobs, of_kind, make, kind):
    X, y, clients = blobs
    model = make(selector=EVERYBODY, engine="loop", n_rounds=3, random_state=0)
    plain = clone(model).fit(X, y, clients=clients, X_val=X, y_val=y)
    rows = of_kind[kind](X)
    model.fit(rows, y, clients=clients, X_val=rows, y_val=y)
    one, other = (m.net_.module_.state_dict() for m in (model, plain))
    assert all(torch.equal(one[name], other[name]) for name in other)
    np.testing.assert_array_equal(model.predict(rows), plain.predict(X))
    np.testing.assert_array_equal(model.history_["val_loss"], plain.history_["val_loss"])
    assert model.score(rows, y, clients=clients) == plain.score(X, y)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_names_of_columns_are_kept_and_checked(blobs, of_kind, kind):
    X, y, clients = blobs
    model = FederatedClassifier(engine="loop", n_rounds=1)
    rows = of_kind[kind](X)
    model.fit(rows, y, clients=clients)
    assert model.feature_names_in_.tolist() == NAMES
    model.partial_fit(rows, y, clients=clients)
    assert model.feature_names_in_.tolist() == NAMES
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(rows[NAMES[::-1]])
    model.fit(X, y, clients=clients)
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize("series", ["pandas", "polars"])
def test_labels_and_clients_as_series(blobs, same_model, series):
    X, y, clients = blobs
    make = pytest.importorskip(series).Series
    model = FederatedClassifier(priority=["b"], engine="loop", n_rounds=3, random_state=0)
    plain = clone(model).fit(X, y, clients=clients)
    model.fit(X, make(y), clients=make(clients))
    assert same_model(model, plain)
    assert model.clients_.tolist() == list("abcdef")
    score = plain.score(X, y, clients=clients)
    assert model.score(X, make(y), clients=make(clients)) == score


def test_string_labels_are_predicted_and_int32_features_are_cast():
    X = np.array([[0], [1], [8], [9]] * 5, dtype=np.int32)
    y = np.array(["low", "low", "up", "up"] * 5)
    model = FederatedClassifier(n_rounds=300, random_state=0).fit(X, y, clients=list("abcde") * 4)
    assert model.classes_.tolist() == ["low", "up"]
    assert (model.predict(X) == y).all()


def test_integers_stay_integers_in_front_of_an_embedding():
    X = np.arange(40).reshape(-1, 2) % 7
    y = X[:, 0] % 2
    module = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 2))
    model = FederatedClassifier(module, n_rounds=2).fit(X, y, clients=np.arange(20) % 4)
    assert model.predict(X).shape == (20,)


def test_images(blobs):
    _, y, clients = blobs
    X = np.random.default_rng(0).normal(size=(len(y), 1, 6, 6))
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    for net in (module, None):
        model = FederatedClassifier(net, n_rounds=2).fit(X, y, clients=clients)
        assert model.predict(X).shape == y.shape
        with pytest.raises(ValueError, match=r"samples of shape \(1, 5, 5\).*fitted.*\(1, 6, 6\)"):
            model.predict(X[:, :, :5, :5])


def test_a_column_of_labels_is_taken_with_a_warning_as_scikit_learn_does(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(engine="loop", n_rounds=2, random_state=0)
    plain = model.fit(X, y, clients=clients, X_val=X, y_val=y).history_
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        model.fit(X, y, clients=clients, X_val=X, y_val=y[:, None])
    pd.testing.assert_series_equal(model.history_["val_loss"], plain["val_loss"])
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        model.fit(X, y[:, None], clients=clients)


def test_one_hot_validation_labels_are_refused(blobs):
    X, y, clients = blobs
    with pytest.raises(ValueError, match=r"y_val has shape \(140, 3\).*y_val.argmax\(axis=1\)"):
        FederatedClassifier().fit(X, y, clients=clients, X_val=X, y_val=np.eye(3)[y])


@pytest.fixture
def every_warning_of_torch():
    """Let torch warn each time, and not once a process, when it is given a read-only array."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def test_read_only_and_reversed_arrays(every_warning_of_torch):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 4)).astype("float32"), rng.integers(0, 2, 40)
    frozen = X.copy()
    frozen.flags.writeable = False
    with pytest.warns(UserWarning, match="not writable"):
        torch.from_numpy(frozen)
    clients = np.arange(40) % 4
    model = FederatedClassifier(selector=PowerOfChoice(d=4), n_rounds=2, random_state=0)
    expected = model.fit(X, y, clients=clients, X_val=X, y_val=y).predict_proba(X)
    from_the_end = X[::-1].copy()[::-1]
    for other in (pd.DataFrame(X), frozen, np.asfortranarray(X), from_the_end):
        model.fit(other, y, clients=clients, X_val=other, y_val=y)
        assert (model.predict_proba(other) == expected).all(), type(other)
        np.testing.assert_allclose(model.predict_proba(other[:1]), expected[:1], rtol=1e-6)
    model.fit(X[::-1, ::-1], y[::-1], clients=clients).predict(X[::-1, ::-1])
