"""Columns and targets far from 0: fits are as good as those of the same values near 0."""

import pickle
import tracemalloc
from tempfile import mkdtemp

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_config
from sklearn.callback import ScoringMonitor
from sklearn.preprocessing import FunctionTransformer
from skorch import NeuralNetClassifier
from skorch.callbacks import EpochScoring
from torch import nn

import skfed
from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.metrics import client_scores, personalised_scores
from skfed.modules import MLP, LinearRegression, Standardize
from skfed.nets import _inputs
from skfed.server import _moments, _validation
from skfed.utils import _files

N = 400
CLIENTS = np.repeat(list("abcd"), [150, 60, 90, 100])
EPOCH = 1_764_000_000_000  # a time in milliseconds


def drawn(kind):
    """Return a column, and the same one near 0."""
    rng = np.random.default_rng(7)
    near = {
        "milliseconds": rng.integers(0, 60_000, N),
        "ids": rng.permutation(N),
        "Julian dates": rng.uniform(0, 30, N),
        "1e8": rng.normal(size=N),
        "1e12": 1e3 * rng.normal(size=N),
    }[kind]
    offset = {"milliseconds": EPOCH, "ids": 10**15, "Julian dates": 2_461_000.5, "1e8": 1e8}
    far = near + offset.get(kind, 1e12)
    return far, far - offset.get(kind, 1e12)  # as float64 holds it


def table(kind):
    """X, the same near 0, targets and labels that depend on the column, the clients."""
    far, near = drawn(kind)
    other = np.random.default_rng(1).normal(size=N)
    X, X_near = (np.column_stack([column.astype(float), other]) for column in (far, near))
    if far.dtype.kind == "i":
        X = np.column_stack([far, np.round(1000 * other).astype(np.int64)])
        X_near = np.column_stack([near, X[:, 1]]).astype(float)
    y = (near - near.mean()) / near.std() + 0.5 * other
    return X, X_near, y, (y > 0).astype(int)


KINDS = ["milliseconds", "ids", "Julian dates", "1e8", "1e12"]


def own_net(n_features=3):
    torch.manual_seed(0)
    module = nn.Sequential(Standardize(n_features), MLP(n_features, (8,), 2))
    return NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=16)


def classifier(estimator=None, **params):
    return FederatedClassifier(estimator, **{"n_rounds": 20, "random_state": 0} | params)


def regressor(**params):
    return FederatedRegressor(**{"n_rounds": 20, "random_state": 0} | params)


@pytest.fixture
def far():
    """X of 1e9 + N(0, 1) and 1e12 + N(0, 1), targets and labels of their deviations."""
    rng = np.random.default_rng(0)
    X = np.array([1e9, 1e12, 0.0]) + rng.normal(size=(N, 3))
    y = (X - [1e9, 1e12, 0.0]) @ [1.0, 2.0, 1.0]
    return X, y, (y > 0).astype(int)


@pytest.mark.parametrize(
    ("kind", "engine"), [*((kind, "stacked") for kind in KINDS), ("milliseconds", "loop")]
)
def test_the_score_is_that_of_the_same_columns_near_0(kind, engine):
    X, near, y, labels = table(kind)
    for model, targets in (
        (classifier(engine=engine), labels),
        (classifier(own_net(2), engine=engine), labels),
        (regressor(engine=engine), y),
    ):
        score = model.fit(X, targets, clients=CLIENTS).score(X, targets)
        predicted = model.predict(X)
        assert score > 0.97
        model.fit(near, targets, clients=CLIENTS)
        assert score == pytest.approx(model.score(near, targets), abs=0.005)
        if targets is labels:
            assert np.mean(predicted == model.predict(near)) > 0.99
        else:
            np.testing.assert_allclose(predicted, model.predict(near), atol=1e-3)


@pytest.mark.parametrize("kind", ["milliseconds", "1e12"])
def test_tables(kind):
    X, _, _, labels = table(kind)
    frame = pd.DataFrame({"when": X[:, 0], "other": X[:, 1]})
    model = classifier().fit(X, labels, clients=CLIENTS)
    named = classifier().fit(frame, labels, clients=CLIENTS)
    np.testing.assert_array_equal(named.predict_proba(frame), model.predict_proba(X))


def test_the_shift_is_of_the_far_columns_alone(far):
    X, _, labels = far
    model = classifier().fit(X, labels, clients=CLIENTS)
    layer = model.net_.module_.standardize
    np.testing.assert_allclose(layer.shift[:2], X[:, :2].mean(axis=0), rtol=1e-15)
    assert layer.shift[2] == 0
    assert layer.mean[:2].tolist() == [0.0, 0.0]
    assert layer.mean[2] == np.float32(X[:, 2].mean())
    near = classifier().fit(X - [1e9, 1e12, 0], labels, clients=CLIENTS)
    assert near.net_.module_.standardize.shift is None


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_validation_scores_as_score_does(far, engine):
    X, y, labels = far
    for model, targets in ((classifier(engine=engine), labels), (regressor(engine=engine), y)):
        model.set_params(n_rounds=3)
        model.fit(X, targets, clients=CLIENTS, X_val=X[:100], y_val=targets[:100])
        assert model.history_["val_score"].iloc[-1] == pytest.approx(
            model.score(X[:100], targets[:100])
        )
        own = {"X_val": X, "y_val": targets, "clients_val": CLIENTS}
        worst = model.fit(X, targets, clients=CLIENTS, **own).history_["val_score_worst"].iloc[-1]
        scores = [model.score(X[CLIENTS == k], targets[CLIENTS == k]) for k in "abcd"]
        assert worst == pytest.approx(min(scores))


def test_coefficients_predict_the_same(far):
    X, y, labels = far
    model = regressor().fit(X, y, clients=CLIENTS)
    np.testing.assert_allclose(model.coef_, [1, 2, 1], atol=0.01)
    # Sums of 1e12 are exact to 1e-4.
    np.testing.assert_allclose(X @ model.coef_ + model.intercept_, model.predict(X), atol=2e-3)
    model = classifier().fit(X, labels, clients=CLIENTS)
    logits = X @ model.coef_.T + model.intercept_
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        odds / odds.sum(axis=1, keepdims=True), model.predict_proba(X), atol=2e-3
    )


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_float32_with_an_offset(engine):
    """At 1e5 float32 still has 7 bits below 1."""
    rng = np.random.default_rng(0)
    X = (np.array([1e5, 0.0]) + rng.normal(size=(N, 2))).astype(np.float32)
    y = (X - np.float32([1e5, 0])).astype(float) @ [1.0, 1.0]
    model = regressor(engine=engine).fit(X, y, clients=CLIENTS)
    assert model.net_.module_.standardize.shift is None  # there are no digits to save
    assert model.score(X, y) > 0.999
    assert model.score(X.astype(float), y) == pytest.approx(model.score(X, y), abs=1e-6)
    np.testing.assert_allclose(
        X.astype(float) @ model.coef_ + model.intercept_, model.predict(X), atol=1e-3
    )
    labels = (y > 0).astype(int)
    assert classifier(engine=engine).fit(X, labels, clients=CLIENTS).score(X, labels) > 0.97


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize("value", [1e12, 0.1, -7.0, 0.0])
def test_a_constant_column_stays_one(value, dtype):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(0, 100, N), np.full(N, value)]).astype(dtype)
    y = X[:, 0] / 100.0
    for model, targets in ((classifier(), (y > 0).astype(int)), (regressor(), y)):
        model.fit(X, targets, clients=CLIENTS)
        layer = model.net_.module_.standardize
        assert layer.scale[1] == 1
        assert not np.atleast_2d(model.coef_)[:, 1].any()
        assert model.score(X, targets) > 0.97


@pytest.mark.parametrize("make", [classifier, lambda: classifier(own_net()), regressor])
def test_it_is_read_from_files(far, make, tmp_path):
    X, y, labels = far
    targets = y if make is regressor else labels
    model = make().set_params(n_rounds=5).fit(X, targets, clients=CLIENTS)
    model.save(tmp_path / "model.safetensors")
    joblib.dump(model, tmp_path / "model.joblib")
    others = [
        make().load(tmp_path / "model.safetensors"),
        pickle.loads(pickle.dumps(model)),
        joblib.load(tmp_path / "model.joblib"),
    ]
    for other in others:
        np.testing.assert_array_equal(other.predict(X), model.predict(X))


@pytest.mark.parametrize(
    "shift", [np.zeros(2), np.zeros((3, 1)), np.array(["a", "b", "c"]), np.array([np.nan, 0, 0])]
)
@pytest.mark.parametrize("with_moments", [True, False])
def test_a_file_with_another_shift_is_refused(far, shift, with_moments, tmp_path):
    X, _, labels = far
    classifier(n_rounds=1).fit(X, labels, clients=CLIENTS).save(tmp_path / "model")
    fitted = _files.read(tmp_path / "model")
    fitted["state"]["shift"] = shift
    if not with_moments:
        fitted["state"]["columns"] = None
    _files.write(tmp_path / "model", fitted)
    with pytest.raises(ValueError, match="it holds no valid state.*the shift of columns"):
        classifier().load(tmp_path / "model")


class Cut(skfed.callbacks.RoundCallback):
    """Stops a fit after three rounds."""

    def on_round_end(self, estimator, record):
        if record["round"] == 2:
            raise OSError("the disk is full")


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("make", [classifier, lambda **p: classifier(own_net(), **p), regressor])
def test_a_resumed_fit_is_the_same_bit_for_bit(far, make, engine, same_model, tmp_path):
    X, y, labels = far
    targets = y if make is regressor else labels
    whole = make(n_rounds=6, engine=engine).fit(X, targets, clients=CLIENTS)
    model = make(n_rounds=6, engine=engine, checkpoint=tmp_path).set_callbacks(Cut())
    interrupted = pytest.warns(UserWarning, match="interrupted")
    with interrupted, pytest.raises(OSError, match="the disk is full"):
        model.fit(X, targets, clients=CLIENTS)
    again = make(n_rounds=6, engine=engine, checkpoint=tmp_path).fit(X, targets, clients=CLIENTS)
    assert same_model(again, whole)
    np.testing.assert_array_equal(again.predict(X), whole.predict(X))
    assert again.history_["scalars_up"].tolist() == whole.history_["scalars_up"].tolist()


@pytest.mark.parametrize("make", [classifier, regressor])
def test_warm_starts(far, make, same_model):
    X, y, labels = far
    targets = y if make is regressor else labels
    model = make(n_rounds=20, warm_start=True).fit(X, targets, clients=CLIENTS)
    predicted = model.predict(X)
    moved = X + np.array([2, 0, 0])
    model.set_params(n_rounds=21, lr_schedule=0.0).fit(moved, targets, clients=CLIENTS)
    np.testing.assert_allclose(model.predict(X), predicted, rtol=1e-4, atol=1e-3)
    model.set_params(n_rounds=60, lr_schedule=None).fit(X, targets, clients=CLIENTS)
    assert model.score(X, targets) > 0.97


@pytest.mark.parametrize("make", [classifier, regressor])
def test_partial_fits(far, make):
    """Columns that come nearer to 0 than at first, and farther."""
    X, y, labels = far
    targets = y if make is regressor else labels
    model = make()
    for _ in range(15):
        for rows in (slice(0, None, 2), slice(1, None, 2)):
            model.partial_fit(X[rows], targets[rows], clients=CLIENTS[rows])
    assert model.score(X, targets) > 0.97
    model = make().partial_fit(X - [1e9, 1e12, 0], targets, clients=CLIENTS)
    assert model.net_.module_.standardize.shift is None
    assert np.isfinite(model.partial_fit(X, targets, clients=CLIENTS).predict(X)).all()


@pytest.mark.parametrize("backend", ["threading", "loky"])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_jobs(far, make, backend, same_model):
    X, y, labels = far
    targets = y if make is regressor else labels
    one = make(n_rounds=3, engine="loop").fit(X, targets, clients=CLIENTS)
    with parallel_config(backend):
        two = make(n_rounds=3, engine="loop", n_jobs=2).fit(X, targets, clients=CLIENTS)
    assert same_model(two, one)
    np.testing.assert_array_equal(two.predict(X), one.predict(X))


def test_monitors_of_scikit_learn_see_what_score_sees(far):
    X, y, labels = far
    for make, targets, scoring in ((classifier, labels, "accuracy"), (regressor, y, "r2")):
        monitor = ScoringMonitor(scoring=scoring)
        model = make(n_rounds=3).set_callbacks(monitor).fit(X, targets, clients=CLIENTS)
        assert monitor.get_logs().data[-1][scoring] == pytest.approx(model.score(X, targets))


def test_epoch_scoring_sees_what_score_sees(far):
    X, _, labels = far
    net = own_net().set_params(
        callbacks=[
            ("acc", EpochScoring("accuracy", on_train=True, lower_is_better=False, name="acc"))
        ]
    )
    model = classifier(net, n_rounds=3).fit(X, labels, clients=CLIENTS)
    assert model.net_.history[-1]["acc"] == pytest.approx(model.score(X, labels))


@pytest.mark.parametrize("make", [classifier, regressor])
def test_scores_by_client(far, make):
    X, y, labels = far
    targets = y if make is regressor else labels
    model = make().fit(X, targets, clients=CLIENTS)
    scores = client_scores(model, X, targets, clients=CLIENTS)
    expected = [model.score(X[CLIENTS == k], targets[CLIENTS == k]) for k in "abcd"]
    name = "r2" if make is regressor else "accuracy"
    np.testing.assert_allclose(scores[name], expected)
    found = personalised_scores(model, X, targets, CLIENTS, X, targets, CLIENTS)
    np.testing.assert_allclose(found[f"global_{name}"], expected)
    assert (found[f"personalised_{name}"] > 0.95).all()


def test_pipelines(far):
    X, _, labels = far
    steps = skfed.make_pipeline(FunctionTransformer(lambda X: X * 2), classifier())
    steps.fit(X, labels, clients=CLIENTS)
    assert steps.score(X, labels) > 0.97
    centred = skfed.make_pipeline(skfed.preprocessing.FederatedStandardScaler(), classifier())
    assert centred.fit(X, labels, clients=CLIENTS).score(X, labels) > 0.97


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("standardized", [True, False])
def test_targets_far_from_0(standardized, engine):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    y = X @ [1.0, -1.0]
    model = regressor(standardize_targets=standardized, engine=engine)
    model.fit(X, 1e8 + y, clients=CLIENTS, X_val=X, y_val=1e8 + y)
    np.testing.assert_allclose(model.predict(X), 1e8 + y, atol=0.01)
    np.testing.assert_allclose(model.target_mean_, [1e8 + y.mean()], rtol=1e-15)
    np.testing.assert_allclose(model.target_scale_, [y.std() if standardized else 1])
    assert model.score(X, 1e8 + y) > 0.999
    assert model.history_["val_score"].iloc[-1] == pytest.approx(model.score(X, 1e8 + y))
    np.testing.assert_allclose(X @ model.coef_ + model.intercept_, model.predict(X), atol=1e-3)


def test_targets_of_a_net_of_ones_own():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    y = 1e12 + X @ [1.0, -1.0]
    model = FederatedRegressor(
        LinearRegression(2), standardize_targets=True, n_rounds=200, random_state=0
    ).fit(X, y, clients=CLIENTS)
    assert model.score(X, y) > 0.99


def test_a_constant_target_stays_one():
    X = np.random.default_rng(0).normal(size=(N, 2))
    for value in (1e12, 0.1):
        for standardized in (True, False):
            model = regressor(standardize_targets=standardized)
            model.fit(X, np.full(N, value), clients=CLIENTS)
            np.testing.assert_allclose(model.predict(X), value, rtol=1e-6)
            assert not model.coef_.any()


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("value", [1e39, 1e160, 1e300])
def test_values_too_large_for_the_module_are_named(value, make):
    X = np.random.default_rng(0).normal(size=(N, 2))
    labels = (X[:, 0] > 0).astype(int)
    X[7, 0] = value
    with pytest.raises(ValueError, match="X has values too large for the module's dtype, float32"):
        make(n_rounds=1).fit(X, labels, clients=CLIENTS)


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """Return a function that makes a memory map of 20,000 rows, which have chunks of 0.5 MB."""
    monkeypatch.setattr(_inputs, "_CHUNK", 2**19)
    monkeypatch.setattr(_moments, "_CHUNK", 2**19)

    def make(dtype):
        offset = {"float64": 1e9, "int64": 2**40}.get(dtype, 100)
        X = 20 * np.random.default_rng(0).normal(size=(20_000, 100)) + offset
        np.save(tmp_path / "X.npy", X.astype(dtype))
        return np.load(tmp_path / "X.npy", mmap_mode="r")

    return make


def traced_peak(function):
    """The most bytes that a call allocates."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_memory_maps_with_offsets_are_not_copied_whole(make, dtype, engine, mapped):
    X, rng = mapped(dtype), np.random.default_rng(0)
    y, clients = rng.integers(0, 3, len(X)), rng.integers(0, 50, len(X))
    model = make(n_rounds=2, engine=engine, selector=RandomSelector(2))
    model.fit(X[:500], y[:500], clients=clients[:500])  # what is imported at first use
    assert traced_peak(lambda: model.fit(X, y, clients=clients)) < X.nbytes / 4
    assert not X.flags.writeable


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8"])
@pytest.mark.parametrize("make", [classifier, regressor])
def test_a_memory_map_is_as_the_same_array(make, dtype, mapped):
    X, rng = mapped(dtype), np.random.default_rng(0)
    y, clients = rng.integers(0, 3, len(X)), rng.integers(0, 50, len(X))
    jobs = {"n_jobs": 2, "engine": "loop"}

    def fitted(X, **params):
        model = make(n_rounds=2, selector=RandomSelector(2), **params)
        return model.fit(X, y, clients=clients, X_val=X, y_val=y)

    expected = fitted(np.array(X))
    for model in (fitted(X), fitted(X, checkpoint=mkdtemp())):
        np.testing.assert_array_equal(model.coef_, expected.coef_)
        np.testing.assert_array_equal(model.predict(X), expected.predict(np.array(X)))
        for name in ("val_loss", "val_score"):
            np.testing.assert_array_equal(model.history_[name], expected.history_[name])
    expected = fitted(np.array(X), engine="loop")
    np.testing.assert_array_equal(fitted(X, **jobs).coef_, expected.coef_)


def test_callbacks_read_a_memory_map(mapped):
    X, rng = mapped("float64"), np.random.default_rng(0)
    y, clients = rng.integers(0, 2, len(X)), rng.integers(0, 50, len(X))
    scoring = EpochScoring("accuracy", on_train=True, name="own", lower_is_better=False)

    def fitted(X):
        torch.manual_seed(0)
        module = nn.Sequential(Standardize(100), nn.Linear(100, 2))
        net = NeuralNetClassifier(
            module, criterion=nn.CrossEntropyLoss, batch_size=512, callbacks=[scoring]
        )
        return classifier(net, n_rounds=1, selector=RandomSelector(2)).fit(X, y, clients=clients)

    of_map, of_array = (fitted(data).net_.history[:, "own"] for data in (X, np.array(X)))
    assert of_map == of_array


@pytest.mark.parametrize("shift", [None, np.array([1e9, 0.0, 5.0])])
def test_rows_of_a_map_are_indexed_as_an_array(shift):
    X = np.arange(60.0).reshape(20, 3) + np.array([1e9, 0, 5])
    whole = (X - (0 if shift is None else shift)).astype("float32")
    chosen = np.array([7, 3, 3, 11])
    for rows, expected in (
        (_inputs.CastRows(X, whole.dtype, shift), whole),
        (_inputs.CastRows(X, whole.dtype, shift, chosen), whole[chosen]),
    ):
        for index in (2, slice(1, 3), [0, 2], (slice(None), 0), (slice(1, 4), [0, 2]), (1, 2)):
            np.testing.assert_array_equal(rows[index], expected[index])
        np.testing.assert_array_equal(np.asarray(rows), expected)
        assert (len(rows), rows.shape, rows.nbytes) == (
            len(expected),
            expected.shape,
            12 * len(rows),
        )


def test_validation_by_client_does_not_copy_a_map(mapped, monkeypatch):
    monkeypatch.setattr(_validation, "_SAMPLE_SIZE", 2**14)  # values that are looked at
    X, rng = mapped("float64"), np.random.default_rng(0)
    y, clients = rng.integers(0, 3, len(X)), rng.integers(0, 50, len(X))
    model = classifier(n_rounds=2, selector=RandomSelector(2))
    held_out = {"X_val": X, "y_val": y, "clients_val": clients}
    model.fit(X[:500], y[:500], clients=clients[:500], **{k: v[:500] for k, v in held_out.items()})

    def fit():
        model.fit(X, y, clients=clients, **held_out)

    # In float32, and validated at once, as it is far below memory_budget.
    assert traced_peak(fit) < 0.75 * X.nbytes
    expected = model.history_["val_score"].iloc[-1]
    assert traced_peak(lambda: model.score(X, y, clients=clients)) < 0.75 * X.nbytes
    assert model.score(X, y, clients=clients) == expected
