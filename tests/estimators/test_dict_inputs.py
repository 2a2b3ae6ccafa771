"""X as a dict of arrays, through the estimators and what is called with them."""

import copy
import re

import numpy as np
import pandas as pd
import pytest
import torch
from dicts import MaskedMean, net, rows_of, sentences
from parity import ALL, assert_same, both
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from skorch import NeuralNetRegressor
from skorch.callbacks import EpochScoring
from skorch.helper import SliceDict
from torch import nn
from torch.nn import functional as F

import skfed
from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.aggregation import Scaffold
from skfed.contribution import LeaveOneOut
from skfed.diagnostics import optima
from skfed.inspection import participation_report
from skfed.metrics import (
    client_scores,
    mean_client_accuracy,
    personalised_scores,
    priority_accuracy,
    usefulness,
)
from skfed.model_selection import WithinClientKFold
from skfed.modules import MLP, SoftmaxRegression


@pytest.fixture(scope="module")
def data():
    return sentences()


def estimator(**params):
    selector = FedAlignSelector() if "priority" in params else ALL
    params = {"n_rounds": 5, "random_state": 0, "selector": selector, **params}
    return FederatedClassifier(params.pop("net", None) or net(), **params)


@pytest.fixture(scope="module")
def model(data):
    X, y, clients = data
    torch.manual_seed(0)
    return estimator(priority=["a", "b"]).fit(X, y, clients=clients)


def same(one, other):
    mine, theirs = (m.net_.module_.state_dict() for m in (one, other))
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_the_loop_is_federated_averaging_by_hand(data):
    X, y, clients = data
    module = MaskedMean()
    fitted = estimator(net=net(module, batch_size=-1), engine="loop").fit(X, y, clients=clients)
    tensors = {
        "tokens": torch.tensor(X["tokens"].astype(np.int64)),
        "mask": torch.tensor(X["mask"]),
        "numbers": torch.tensor(X["numbers"], dtype=torch.float32),
    }
    for _ in range(5):
        mean = dict.fromkeys(module.state_dict(), 0.0)
        for client in "abcdef":
            rows = torch.tensor(np.flatnonzero(clients == client))
            own = copy.deepcopy(module)
            output = own(**{key: one[rows] for key, one in tensors.items()})
            F.cross_entropy(output, torch.tensor(y)[rows]).backward()
            for name, w in own.named_parameters():
                mean[name] = mean[name] + len(rows) / len(y) * (w - 0.3 * w.grad).detach()
        module.load_state_dict(mean)
    for name, w in fitted.net_.module_.state_dict().items():
        torch.testing.assert_close(w, module.state_dict()[name], rtol=0, atol=1e-6)
    expected = module(**tensors).softmax(1).detach().numpy()
    np.testing.assert_allclose(fitted.predict_proba(X), expected, atol=1e-6)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"aggregator": Scaffold(), "local_steps": 3},
        {"selector": FedAlignSelector(match="accuracy", eps=0.4, warmup=1), "priority": ["a", "b"]},
        {"contribution": LeaveOneOut()},
    ],
    ids=["plain", "SCAFFOLD", "FedALIGN by accuracy", "contributions"],
)
def test_stacked_clients_have_the_results_of_the_loop(data, params):
    loop, stacked = both(data, net(), **params)
    assert_same(loop, stacked, atol=1e-6)


def test_stacked_batch_normalisation_takes_clients_of_equal_batches_together(data):
    class Normed(MaskedMean):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, **X):
            return self.norm(super().forward(**X))

    assert_same(*both(data, net(Normed, batch_size=5), local_steps=3), atol=1e-6)


def test_weights_of_rows(data):
    X, y, clients = data
    weights = np.random.default_rng(0).uniform(0.5, 2, len(y))
    fitted = [
        estimator(engine=engine).fit(X, y, clients=clients, sample_weight=weights)
        for engine in ("loop", "stacked")
    ]
    assert_same(*fitted, atol=1e-6)


def test_values_that_change_how_a_module_runs_are_for_the_loop(data):
    class Branching(MaskedMean):
        def forward(self, tokens, mask, numbers):
            if not mask.any():
                return self.out(torch.zeros(len(tokens), 6))
            return super().forward(tokens, mask, numbers)

    X, y, clients = data
    assert estimator(net=net(Branching)).fit(X, y, clients=clients).engine_.startswith("loop: ")


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_jobs_give_the_same_model(data, engine, backend):
    from joblib import parallel_config

    X, y, clients = data
    alone = estimator(engine=engine).fit(X, y, clients=clients, sample_weight=np.ones(len(y)))
    with parallel_config(backend=backend, n_jobs=2):
        shared = estimator(engine=engine).fit(X, y, clients=clients, sample_weight=np.ones(len(y)))
    assert same(alone, shared)


def test_a_run_that_is_interrupted_resumes_bit_for_bit(data, tmp_path):
    class Stops(skfed.callbacks.RoundCallback):
        def on_round_end(self, estimator, record):
            if record["round"] == 2:
                raise KeyboardInterrupt

    X, y, clients = data
    kept = estimator(checkpoint=tmp_path).set_callbacks(Stops())
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="interrupted"):
        kept.fit(X, y, clients=clients)
    backwards = {key: X[key].copy() for key in reversed(X)}  # the same values
    resumed = estimator(checkpoint=tmp_path).fit(backwards, y, clients=clients)
    assert same(resumed, estimator().fit(X, y, clients=clients))
    assert len(list(tmp_path.iterdir())) == 1
    other = X | {"mask": ~X["mask"]}
    estimator(checkpoint=tmp_path).fit(other, y, clients=clients)
    assert len(list(tmp_path.iterdir())) == 2


def test_more_rounds_of_a_warm_start_and_partial_fit(data):
    X, y, clients = data
    whole = estimator().fit(X, y, clients=clients)
    warm = estimator(n_rounds=2, warm_start=True).fit(X, y, clients=clients)
    warm.set_params(n_rounds=5).fit(X, y, clients=clients)
    assert same(whole, warm)
    partial = estimator()
    for _ in range(5):
        partial.partial_fit(X, y, clients=clients)
    assert same(whole, partial)


def test_saved_and_loaded(data, model, tmp_path):
    X, y, clients = data
    model.save(tmp_path / "model")
    loaded = estimator(priority=["a", "b"]).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="no key 'mask'"):
        loaded.predict({key: X[key] for key in ("tokens", "numbers")})
    more = [copy.deepcopy(one).partial_fit(X, y, clients=clients) for one in (loaded, model)]
    assert same(*more)


def test_validation_rows_and_callbacks(data):
    X, y, clients = data
    train, val = np.arange(len(y)) < 60, np.arange(len(y)) >= 60
    scoring = EpochScoring("accuracy", lower_is_better=False, name="scored")
    model = estimator(net=net(callbacks=[scoring]), priority=["a", "b", "c"]).fit(
        rows_of(X, train),
        y[train],
        clients=clients[train],
        X_val=rows_of(X, val),
        y_val=y[val],
        clients_val=clients[val],
    )
    held_out = rows_of(X, val)
    score = model.score(held_out, y[val], clients=clients[val])
    assert model.history_["val_score"].iloc[-1] == score
    assert model.net_.history[-1]["scored"] == pytest.approx(score)


def test_columns_of_a_dict_of_validation_rows_that_are_not_scaled_are_named(data):
    X, y, clients = data
    far = X | {"numbers": 1e3 + 1e3 * X["numbers"]}
    message = r"X_val\['numbers'\] has columns .* X_val\['numbers'\]\[:, 0"
    with pytest.warns(UserWarning, match=message):
        estimator(n_rounds=1).fit(X, y, clients=clients, X_val=far, y_val=y)


def test_scores_by_client(data, model):
    X, y, clients = data
    scores = client_scores(model, X, y, clients)
    own = clients == "c"
    assert scores.loc["c", "accuracy"] == model.score(rows_of(X, own), y[own])
    priority = np.isin(clients, ["a", "b"])
    expected = model.score(rows_of(X, priority), y[priority])
    assert model.score(X, y, clients=clients) == expected
    assert priority_accuracy(model, X, y, clients=clients) == expected
    assert mean_client_accuracy(model, X, y, clients=clients) == scores["accuracy"].mean()


def test_scores_of_a_calibrated_model(data):
    X, y, clients = data
    model = CalibratedClassifierCV(estimator(n_rounds=2), cv=2)
    model.fit(SliceDict(**X), y, clients=clients)
    scores = client_scores(model, X, y, clients)
    expected = (model.predict(SliceDict(**X)) == y)[clients == "c"].mean()
    assert scores.loc["c", "accuracy"] == expected


def test_the_optima_of_clients(data, model):
    X, y, clients = data
    found = optima(model, X, y, clients, l2=0.1)
    assert (found["minimum"] <= found["loss"]).all()


def test_tensors_tables_and_lists_are_arrays(data, model):
    X, y, clients = data
    given = {
        "tokens": torch.tensor(X["tokens"]),
        "mask": pd.DataFrame(X["mask"]),
        "numbers": X["numbers"].tolist(),
    }
    np.testing.assert_array_equal(model.predict_proba(given), model.predict_proba(X))
    score = model.score(X, y, clients=clients)
    assert model.score(given, y, clients=clients) == score


def test_scores_of_models_that_clients_tune_or_train_alone(data, model):
    X, y, clients = data
    everything = X, y, clients, X, y, clients
    tuned = personalised_scores(model, *everything, local_steps=2)
    assert (tuned["personalised_accuracy"] != tuned["global_accuracy"]).any()
    alone = usefulness(model, *everything)
    assert alone["local_accuracy"].between(0, 1).all()
    test = {"X_test": X, "y_test": y, "clients_test": clients}
    report = participation_report(model, X, y, clients, **test)
    np.testing.assert_array_equal(report["local_accuracy"], alone["local_accuracy"])


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_slice_dict_is_split_by_searches(data, n_jobs):
    X, y, clients = data
    rows = SliceDict(**X)
    cv = WithinClientKFold(n_splits=2, random_state=0)
    found = cross_val_score(
        *(estimator(n_rounds=2), rows, y),
        cv=list(cv.split(X, y, groups=clients)),
        params={"clients": clients},
        n_jobs=n_jobs,
    )
    train, test = next(cv.split(rows, y, groups=clients))
    by_hand = estimator(n_rounds=2).fit(rows_of(X, train), y[train], clients=clients[train])
    assert found[0] == by_hand.score(rows_of(X, test), y[test])
    search = GridSearchCV(estimator(n_rounds=2), {"local_epochs": [1, 2]}, cv=cv, n_jobs=n_jobs)
    search.fit(rows, y, clients=clients, groups=clients)
    assert search.predict(X).shape == y.shape


def test_a_regressor_takes_arrays_of_one_dimension():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.by_day = nn.Embedding(7, 1)
            self.slope = nn.Linear(1, 1)

        def forward(self, day, size):
            return self.by_day(day) + self.slope(size.unsqueeze(-1))

    rng = np.random.default_rng(0)
    X = {"day": rng.integers(0, 7, 210), "size": rng.normal(size=210)}
    y = X["day"] + 3 * X["size"]
    model = FederatedRegressor(
        NeuralNetRegressor(Sum, lr=0.2, batch_size=16), n_rounds=60, random_state=0
    )
    model.fit(X, y, clients=np.arange(210) % 3)
    assert model.score(X, y) > 0.95
    floats = {"day": X["day"], "size": np.arange(210)}  # integers where fit had floats
    np.testing.assert_array_equal(model.predict(floats)[:2].shape, (2,))


def test_a_memory_map_is_neither_copied_nor_written(tmp_path):
    path = tmp_path / "images"
    array = np.memmap(path, np.float64, "w+", shape=(3000, 1000))
    array[:] = np.random.default_rng(0).normal(size=array.shape)
    array.flush()

    class Image(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(1000, 2)

        def forward(self, image):
            return self.linear(image)

    X = {"image": np.memmap(path, np.float64, "r", shape=array.shape)}
    y, clients = np.arange(3000) % 2, np.arange(3000) % 5
    mapped = estimator(net=net(Image), n_rounds=1).fit(X, y, clients=clients)
    loaded = estimator(net=net(Image), n_rounds=1).fit(
        {"image": array.astype(np.float32)}, y, clients=clients
    )
    assert same(mapped, loaded)
    assert type(mapped._check_X(X)["image"]).__name__ == "CastRows"
    np.testing.assert_array_equal(mapped.predict(X), loaded.predict(X))


def test_what_is_passed_in_is_not_changed(data):
    X, y, clients = data
    before = {key: array.copy() for key, array in X.items()}
    for array in X.values():
        array.flags.writeable = False
    estimator().fit(X, y, clients=clients).predict(X)
    assert list(X) == list(before)
    for key, array in X.items():
        np.testing.assert_array_equal(array, before[key])


def test_features_are_not_counted(data, model):
    X, y, clients = data
    assert not hasattr(model, "n_features_in_")
    table = pd.DataFrame(X["numbers"], columns=["height", "weight"])
    refitted = estimator(net=MLP(2, [4], 3), n_rounds=1).fit(table, y, clients=clients)
    assert refitted.n_features_in_ == 2
    refitted.set_params(estimator=net()).fit(X, y, clients=clients)
    assert not hasattr(refitted, "n_features_in_")
    assert not hasattr(refitted, "feature_names_in_")
    refitted.predict(X)


def without(X, key):
    return {name: array for name, array in X.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: without(X, "mask"), r"no key 'mask', .*\['mask', 'numbers', 'tokens'\]"),
        (lambda X: X | {"age": X["numbers"]}, "the key 'age', .* pass the same keys"),
        (lambda X: X | {"mask": X["mask"][:5]}, r"X\['tokens'\] has 90 rows.*X\['mask'\] has 5"),
        (lambda X: X | {"tokens": X["tokens"][:, :3]}, r"'tokens' of int64 and shape \(3,\)"),
        (lambda X: X | {"tokens": X["tokens"] / 2}, "'tokens' of float64"),
        (lambda X: X | {"numbers": X["numbers"] * np.nan}, r"X\['numbers'\] contains NaN"),
        (
            lambda X: X | {"numbers": X["numbers"].astype(object)},
            r"X\['numbers'\] has dtype object",
        ),
        (lambda X: X | {"mask": X["mask"].astype(str)}, r"X\['mask'\] has dtype <U5"),
        (lambda X: X | {"mask": True}, r"X\['mask'\] is one value"),
        (lambda X: X["numbers"], "samples of shape .* a dict with the keys"),
        (lambda X: {}, "X is an empty dict"),
    ],
)
def test_later_data_that_differ_are_errors_that_name_the_key(data, model, change, message):
    X, y, clients = data
    with pytest.raises(ValueError, match=message):
        model.predict(change(X))
    with pytest.raises(ValueError, match=message):
        model.score(change(X), y, clients=clients)
    with pytest.raises(ValueError, match=re.sub(r"X(?= is|\\\[)", "X(_val)?", message)):
        estimator().fit(X, y, clients=clients, X_val=change(X), y_val=y)


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        ({3: np.ones((4, 1))}, TypeError, "the key 3, .* pass strings"),
        ({"a": np.ones((4, 1))}, ValueError, "'a' of shape .* names of the arguments"),
        (
            {"tokens": np.full((4, 2), 2**64 - 1, dtype=np.uint64), "mask": [True] * 4},
            *(ValueError, r"X\['tokens'\] has the integer 18446744073709551615"),
        ),
        ({"numbers": np.full((4, 2), 1e300)}, ValueError, r"X\['numbers'\] has values too large"),
    ],
)
def test_a_dict_that_the_module_cannot_take(X, error, message):
    with pytest.raises(error, match=message):
        estimator().fit(X, [0, 1, 2, 0], clients=[0, 1, 0, 1])


def test_the_default_net_and_layers_that_standardise_take_arrays(data):
    X, y, clients = data
    for model in (FederatedClassifier(), FederatedRegressor()):
        with pytest.raises(ValueError, match="the default net takes an array: pass as estimator"):
            model.fit(X, y, clients=clients)
    with pytest.raises(ValueError, match="a layer Standardize, which is set by the columns"):
        estimator(net=net(SoftmaxRegression(2, 3, standardize=True))).fit(
            {"X": X["numbers"]}, y, clients=clients
        )


def test_a_model_of_arrays_takes_no_dict(data):
    X, y, clients = data
    model = estimator(net=MLP(2, [4], 3), n_rounds=1).fit(X["numbers"], y, clients=clients)
    with pytest.raises(ValueError, match=r"a dict with the keys .* on samples of shape \(2,\)"):
        model.predict({"numbers": X["numbers"]})


def test_random_selection_without_clients(data):
    X, y, _ = data
    with pytest.warns(UserWarning, match="clients"):
        model = estimator(selector=RandomSelector(1)).fit(X, y)
    assert model.sizes_.tolist() == [len(y)]
