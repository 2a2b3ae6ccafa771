"""X, y and clients that are no data: told by name, and the estimator is as it was."""

import numpy as np
import pandas as pd
import pytest
from generated import generated
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError
from strategies import (
    CLIENTS,
    DIVERGES,
    INF,
    NAN,
    REFUSED,
    X,
    Y,
    is_sane,
    is_usable,
    junk,
    make,
    outcome,
    weights,
)

from skfed import FederatedRegressor

DATA = {"X": X, "y": Y, "clients": CLIENTS}


def put(array, value, where):
    """Return a copy with a value at some positions, of a dtype that holds it."""
    of_objects = array.dtype.kind == "U" or isinstance(value, str | None | list | dict)
    changed = array.astype(object if of_objects else float)
    for position in where:
        changed[np.unravel_index(position % changed.size, changed.shape)] = value
    return changed


positions = st.lists(st.integers(0, 99), min_size=1, max_size=3)
lengths = st.integers(0, 30).filter(lambda n: n != len(X))
shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)

wrong_X = st.one_of(
    st.builds(put, st.just(X), st.sampled_from([NAN, INF, -INF, 1e300, None, "x", {}]), positions),
    lengths.map(lambda n: np.resize(X, (n, 2))),
    st.integers(0, 5).filter(lambda n: n != 2).map(lambda n: np.resize(X, (12, n))),
    shapes.map(np.zeros),
    st.sampled_from([complex, "U4", object, "M8[s]", "S2", bool]).map(
        lambda dtype: np.arange(24).reshape(12, 2).astype(dtype)
    ),
    st.sampled_from(
        [pd.DataFrame({"a": ["x"] * 12}), [[1, 2]] * 11 + [[1]], pd.DataFrame(X[:, :0])]
    ),
    junk,
)
wrong_y = st.one_of(
    st.builds(put, st.just(Y), st.sampled_from([NAN, INF, 0.5, None, "x", {}]), positions),
    lengths.map(lambda n: np.resize(Y, n)),
    shapes.map(np.zeros),
    st.integers(0, 3).map(lambda n: np.zeros((12, n))),
    st.lists(st.one_of(st.integers(0, 9), st.text(max_size=1)), min_size=12, max_size=12),
    st.lists(st.floats(), min_size=12, max_size=12),
    junk,
)
plain = st.one_of(st.none(), st.floats(), st.integers(), st.text(max_size=2), st.booleans())
others = [object(), pd.NaT, pd.Timestamp("2026-01-01"), frozenset("a"), 1j, 10**30, b"x", [1]]
ids = st.one_of(plain, st.tuples(plain, plain), st.sampled_from(others))
wrong_clients = st.one_of(
    st.lists(ids, min_size=12, max_size=12),
    lengths.map(lambda n: np.resize(CLIENTS, n)),
    shapes.map(np.zeros),
    st.builds(put, st.just(CLIENTS), st.sampled_from([None, NAN, [], {}]), positions),
    junk,
)
wrong = st.one_of(
    st.tuples(st.just("X"), wrong_X),
    st.tuples(st.just("y"), wrong_y),
    st.tuples(st.just("clients"), wrong_clients),
)
some_lacking = st.lists(st.sampled_from(sorted(DATA)), min_size=1, unique=True)


@pytest.fixture(scope="session")
def fitted():
    return make().fit(X, Y, CLIENTS)


@generated(120, wrong)
def test_fit(drawn):
    name, value = drawn
    model = make()
    if outcome(lambda: model.fit(**DATA | {name: value}), name) is REFUSED:
        with pytest.raises(NotFittedError):
            model.predict(X)
    else:
        assert is_sane(model, value if name == "X" else X)
    assert is_usable(model)


@generated(70, wrong, st.booleans())
def test_partial_fit(drawn, warm):
    name, value = drawn
    model = make().fit(X, Y, CLIENTS) if warm else make()
    before = model.predict_proba(X) if warm else None
    if outcome(lambda: model.partial_fit(**DATA | {name: value}), name) is not REFUSED:
        assert is_sane(model, value if name == "X" else X)
    elif warm:
        np.testing.assert_array_equal(model.predict_proba(X), before)
        again = make().fit(X, Y, CLIENTS).partial_fit(X, Y, clients=CLIENTS)
        np.testing.assert_array_equal(
            weights(model.partial_fit(X, Y, clients=CLIENTS)), weights(again)
        )
    assert is_usable(model)


@generated(40, wrong_y)
def test_fit_of_a_regressor(value):
    model = FederatedRegressor(engine="loop", n_rounds=1, random_state=0)
    good = weights(model.fit(X, Y, CLIENTS))
    if outcome(lambda: model.fit(X, value, CLIENTS), "y", DIVERGES) is not REFUSED:
        assert np.isfinite(model.predict(X)).all()
    np.testing.assert_array_equal(weights(model.fit(X, Y, CLIENTS)), good)


@generated(60, wrong)
def test_validation_data(drawn):
    name, value = drawn
    model = make()
    given = {f"{n}_val": v for n, v in (DATA | {name: value}).items()}
    if outcome(lambda: model.fit(X, Y, CLIENTS, **given), f"{name}_val") is not REFUSED:
        assert is_sane(model)
        assert "val_loss" in model.history_ or given["X_val"] is None
    assert is_usable(model)


@generated(10, some_lacking)
def test_validation_data_that_is_not_all_there(lacking):
    model = make()
    given = {f"{n}_val": v for n, v in DATA.items() if n not in lacking}
    if outcome(lambda: model.fit(X, Y, CLIENTS, **given), "X_val", "y_val") is not REFUSED:
        assert "val_loss" in model.history_ or not given
    assert is_usable(model)


@generated(60, wrong_y)
def test_classes(value):
    model = make()
    if outcome(lambda: model.partial_fit(X, Y, value, CLIENTS), "y", "classes") is not REFUSED:
        assert is_sane(model)
        assert set(Y) <= set(model.classes_.tolist())
    assert is_usable(model)


@generated(100, wrong_X, st.sampled_from(["predict", "predict_proba"]))
def test_predict(value, method, fitted):
    predicted = outcome(lambda: getattr(fitted, method)(value), "X")
    if predicted is not REFUSED:
        assert len(predicted) == len(value)
        assert set(np.ravel(fitted.predict(value))) <= {0, 1}
    with pytest.raises(NotFittedError, match="fit"):
        getattr(make(), method)(value)


@generated(80, wrong, st.booleans())
def test_score(drawn, by_client, fitted):
    name, value = drawn
    given = DATA | {name: value}
    if not by_client and name != "clients":
        del given["clients"]
    score = outcome(lambda: fitted.score(**given), name)
    assert score is REFUSED or 0 <= score <= 1
    with pytest.raises(NotFittedError, match="fit"):
        make().score(**given)


fine_ids = st.lists(
    st.one_of(st.integers(), st.text(max_size=2), st.booleans(), st.tuples(st.integers())),
    min_size=1,
    max_size=40,
)


@generated(40, fine_ids, st.integers(1, 3))
def test_odd_but_fine(ids, n_classes):
    """Mixed ids, clients of one sample, one client, one class."""
    n = len(ids)
    rows, labels = np.resize(X, (n, 2)), np.arange(n) % n_classes
    model = make().fit(rows, labels, ids)
    assert is_sane(model, rows)
    assert set(model.predict(rows)) <= set(labels)
    kinds = {(type(one), one) for one in ids}
    assert len(model.clients_) == len(kinds)
    assert model.sizes_.sum() == n
