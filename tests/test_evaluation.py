"""Clients evaluate the global model on rows that they keep aside."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import get_scorer, log_loss
from sklearn.model_selection import train_test_split

import skfed
from skfed import FederatedClassifier, FederatedRegressor, PowerOfChoice
from skfed.availability import BaseAvailability
from skfed.devices import TraceDevices
from skfed.evaluation import _OF_LABELS, _OF_NUMBERS, FederatedEvaluation
from skfed.metrics import client_evaluations, client_exchanges, cost_to
from skfed.privacy import GaussianMechanism

SCORES = ["accuracy", "neg_log_loss", "neg_brier_score", "top_k_accuracy"]
LABELS = np.array(["x", "y", "z"])


@pytest.fixture(scope="module")
def held_out(blobs):
    """Return X, y and clients of the training, and of rows that all but b keep aside."""
    X, y, clients = blobs
    parts = train_test_split(X, LABELS[y], clients, test_size=0.5, random_state=0)
    X, X_val, y, y_val, clients, clients_val = parts
    kept = clients_val != "b"
    val = {"X_val": X_val[kept], "y_val": y_val[kept], "clients_val": clients_val[kept]}
    return (X, y, clients), val


def fitted(held_out, metrics=None, model=None, **params):
    (X, y, clients), val = held_out
    params = {"n_rounds": 3, "random_state": 0, **params}
    evaluation = FederatedEvaluation(metrics, min_answers=params.pop("min_answers", 1))
    model = FederatedClassifier() if model is None else model
    return model.set_params(evaluation=evaluation, **params).fit(X, y, clients=clients, **val)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_each_client_has_the_metrics_of_its_own_rows(engine, held_out):
    """Also one that lacks a label."""
    (X, y, clients), val = held_out
    y_val = np.where(val["clients_val"] == "c", "x", val["y_val"])
    held_out = (X, y, clients), val | {"y_val": y_val}
    model = fitted(held_out, ["loss", *SCORES], engine=engine)
    table = client_evaluations(model)
    assert table["round"].tolist() == np.repeat([0, 1, 2], 5).tolist()
    last = table[table["round"] == 2].set_index("client")
    assert last.index.tolist() == ["a", "c", "d", "e", "f"]
    for name, row in last.iterrows():
        rows = val["clients_val"] == name
        X_own, y_own = val["X_val"][rows], y_val[rows]
        assert row["n_samples"] == rows.sum() and row["priority"]
        assert row["accuracy"] == pytest.approx(model.score(X_own, y_own))
        entropy = log_loss(y_own, model.predict_proba(X_own), labels=LABELS)
        assert row["loss"] == pytest.approx(entropy, rel=1e-5)
        assert row["neg_log_loss"] == pytest.approx(-entropy, rel=1e-5)
        assert row["accuracy"] < row["top_k_accuracy"] <= 1.0 or row["accuracy"] == 1.0
    scorer = get_scorer("neg_brier_score")
    rows = val["clients_val"] == "f"
    expected = scorer(model, val["X_val"][rows], y_val[rows])
    assert last["neg_brier_score"]["f"] == pytest.approx(expected, rel=1e-5)


def test_the_weighted_means_are_the_metrics_of_all_rows(held_out):
    _, val = held_out
    model = fitted(held_out, SCORES, priority={"a": 1.0, "d": 0.5, "b": 1.0})
    history, table = model.history_, client_evaluations(model)
    for name in SCORES:
        expected = get_scorer(name)(model, val["X_val"], val["y_val"])
        assert history[f"eval_{name}"].iloc[-1] == pytest.approx(expected, rel=1e-5)
        last = table[table["round"] == 2].set_index("client")
        assert history[f"eval_{name}_worst"].iloc[-1] == last[name].min()
        sizes = last["n_samples"]
        weights = np.array([sizes["a"], 0.5 * sizes["d"]])
        expected = np.average(last[name][["a", "d"]], weights=weights)
        assert history[f"eval_{name}_priority"].iloc[-1] == pytest.approx(expected)
    assert last["priority"].tolist() == [True, False, True, False, False]
    assert history["n_evaluated"].tolist() == [5, 5, 5]


def test_the_worst_of_a_loss_is_the_highest(held_out):
    model = fitted(held_out, ["loss"])
    losses = client_evaluations(model).groupby("round")["loss"]
    assert model.history_["eval_loss_worst"].tolist() == losses.max().tolist()


def test_one_round_by_hand():
    """Two clients, a model that predicts the same for all rows: losses -log p, weights 1 and 3."""
    X = np.zeros((4, 1))
    y, clients = np.array([0, 0, 0, 1]), ["a", "b", "b", "b"]
    model = FederatedClassifier(
        estimator=torch.nn.Linear(1, 2, bias=False),
        evaluation=FederatedEvaluation(),
        n_rounds=1,
        random_state=0,
    ).fit(X, y, clients=clients, X_val=X, y_val=y, clients_val=clients)
    (row,) = model.history_.to_dict("records")
    assert row["eval_loss"] == pytest.approx(np.log(2))
    assert row["eval_accuracy"] == pytest.approx(1 / 4 * 1 + 3 / 4 * 2 / 3)
    assert row["eval_accuracy_worst"] == pytest.approx(2 / 3)
    # Down: the model of 2 numbers for the training, and the new one; up: the model, two numbers.
    assert (row["models_down"], row["models_up"], row["scalars_up"]) == (4, 2, 4)
    assert (row["bytes_down"], row["bytes_up"]) == (4 * 8, 2 * 8 + 4 * 8)
    assert row["samples_evaluated"] == 4


@pytest.mark.parametrize("standardize_targets", [False, True])
def test_metrics_of_numbers_are_in_units_of_y(standardize_targets):
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(60, 3)), np.repeat(["a", "b", "c"], 20)
    y = 50 + np.exp(X[:, 0]) + 5 * rng.random(60)
    model = FederatedRegressor(
        standardize_targets=standardize_targets,
        evaluation=FederatedEvaluation(["loss", *_OF_NUMBERS]),
        n_rounds=3,
        random_state=0,
    ).fit(X, y, clients=clients, X_val=X, y_val=y, clients_val=clients)
    last = model.history_.iloc[-1]
    for name in _OF_NUMBERS:
        expected = get_scorer(name)(model, X, y)
        assert last[f"eval_{name}"] == pytest.approx(expected, rel=1e-4), name


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_several_labels(engine, held_out):
    (X, y, clients), val = held_out
    indicator = np.stack([y == "x", y != "z"], axis=1).astype(int)
    y_val = np.stack([val["y_val"] == "x", val["y_val"] != "z"], axis=1).astype(int)
    names = ["accuracy", *_OF_LABELS]
    model = fitted(((X, indicator, clients), val | {"y_val": y_val}), names, engine=engine)
    last = model.history_.iloc[-1]
    for name in names:  # a row without labels, as those of z are, has the value 0
        expected = get_scorer(name)(model, val["X_val"], y_val)
        assert last[f"eval_{name}"] == pytest.approx(expected), name
    assert len({last[f"eval_{name}"] for name in names}) > 3
    with pytest.raises(ValueError, match="'neg_log_loss'.*use some of loss, accuracy"):
        fitted(((X, indicator, clients), val | {"y_val": y_val}), ["neg_log_loss"])


def test_the_model_and_the_other_columns_are_as_without(held_out):
    with_it = fitted(held_out, selector=PowerOfChoice(d=4, clients_per_round=2))
    (X, y, clients), val = held_out
    without = FederatedClassifier(
        selector=PowerOfChoice(d=4, clients_per_round=2), n_rounds=3, random_state=0
    ).fit(X, y, clients=clients, **val)
    np.testing.assert_array_equal(with_it.coef_, without.coef_)
    same = ["cohort", "polled", "objective", "train_loss", "val_loss", "samples_trained"]
    pd.testing.assert_frame_equal(with_it.history_[same], without.history_[same])
    extra = with_it.history_["models_down"] - without.history_["models_down"]
    assert extra.tolist() == [5] * 3  # to those that keep rows aside


def test_rounds_between_have_none(held_out):
    history = fitted(held_out, n_rounds=5, validate_every=2).history_
    assert history["n_evaluated"].tolist() == [0, 5, 0, 5, 5]
    assert history["eval_loss"].isna().tolist() == [True, False, True, False, False]


class NotD(BaseAvailability):
    """In round 1 client d is out of reach."""

    def _reachable(self, federation, t, rng, fixed_rng):
        return np.array([not (t == 1 and name == "d") for name in federation.ids])


def test_who_is_out_of_reach_is_not_asked(held_out):
    model = fitted(held_out, availability=NotD())
    assert model.history_["n_evaluated"].tolist() == [5, 4, 5]
    table = client_evaluations(model)
    assert "d" not in set(table["client"][table["round"] == 1])


def test_with_too_few_answers_only_their_number_is_kept(held_out):
    model = fitted(held_out, min_answers=5, availability=NotD())
    history = model.history_
    assert history["n_evaluated"].tolist() == [5, 4, 5]
    assert history["eval_loss"].isna().tolist() == [False, True, False]
    assert set(client_evaluations(model)["round"]) == {0, 2}
    with pytest.raises(ValueError, match="fewer clients than min_answers"):
        client_evaluations(fitted(held_out, min_answers=6))


class Overflowing(torch.nn.Linear):
    """Has no finite output for rows that begin with 99."""

    def forward(self, X):
        return torch.where(X[:, :1] == 99, torch.nan, super().forward(X))


def test_a_client_that_fails_is_named_and_the_others_count(held_out):
    (X, y, clients), val = held_out
    X_val = val["X_val"].copy()
    X_val[val["clients_val"] == "e", 0] = 99
    held_out = (X, y, clients), val | {"X_val": X_val}
    model = fitted(held_out, model=FederatedClassifier(Overflowing(5, 3)))
    history = model.history_
    assert history["failed"].tolist() == [("e",)] * 3
    assert all(
        "its loss or accuracy is NaN or infinite" in causes[0] for causes in history["causes"]
    )
    assert history["n_evaluated"].tolist() == [4, 4, 4]
    assert history["n_aggregated"].tolist() == [6, 6, 6]
    assert "e" not in set(client_evaluations(model)["client"])


def test_a_metric_that_a_client_s_rows_do_not_have(held_out):
    (X, _, clients), val = held_out
    ages = np.abs(X[:, 0]) + 1
    y_val = np.where(val["clients_val"] == "e", 0.0, np.abs(val["X_val"][:, 0]) + 1)
    model = fitted(
        ((X, ages, clients), val | {"y_val": y_val}),
        ["neg_mean_gamma_deviance"],
        model=FederatedRegressor(),
    )
    assert model.history_["failed"].tolist() == [("e",)] * 3
    assert "strictly positive y" in model.history_["causes"][0][0]


def test_it_takes_seconds_and_may_be_late(held_out):
    """The rows of d are so many, at one a second, that it is late."""
    _, val = held_out
    speeds = pd.DataFrame(
        {
            "client": list("abcdef"),
            "rows_per_second": [1e6, 1e6, 1e6, 1.0, 1e6, 1e6],
            "bytes_down_per_second": 1e9,
            "bytes_up_per_second": 1e9,
        }
    )
    n_d = int((val["clients_val"] == "d").sum())
    model = fitted(
        held_out,
        devices=TraceDevices(speeds),
        deadline=n_d / 3 - 1,
        selector=skfed.RandomSelector(clients_per_round=1, replace=False),
        n_rounds=4,
    )
    exchanges = client_exchanges(model)
    late = (exchanges["client"] == "d") & (exchanges["kind"] == "training")
    n_asked = 4 - late.sum()  # not again in a round in which it was late already
    evaluations = exchanges[exchanges["kind"] == "evaluation"].set_index("client")
    assert evaluations.loc[["d"], "outcome"].tolist() == ["late"] * n_asked
    seconds = evaluations.loc[["d"], "seconds"].tolist()
    assert seconds == pytest.approx([n_d / 3] * n_asked, rel=1e-3)
    assert set(evaluations.drop("d")["outcome"]) == {"answered"}
    assert evaluations["bytes_up"].drop("d").eq(16).all()  # two numbers
    assert model.history_["n_evaluated"].tolist() == [4] * 4


def test_a_run_that_is_resumed_has_the_same_table(held_out, tmp_path):
    whole = fitted(held_out, n_rounds=5)
    (X, y, clients), val = held_out
    model = FederatedClassifier(
        evaluation=FederatedEvaluation(), n_rounds=3, random_state=0, checkpoint=tmp_path / "run"
    )
    model.fit(X, y, clients=clients, **val)
    saved = tmp_path / "model.safetensors"
    skfed.save(model, saved)
    loaded = skfed.load(clone(model), saved)
    pd.testing.assert_frame_equal(client_evaluations(loaded), client_evaluations(model))
    resumed = loaded.set_params(n_rounds=5, warm_start=True, checkpoint=None)
    resumed.fit(X, y, clients=clients, **val)
    pd.testing.assert_frame_equal(client_evaluations(resumed), client_evaluations(whole))


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["r2"], "evaluation__metrics has 'r2', which is not known from those of clients"),
        (["roc_auc"], "use some of loss, accuracy, neg_log_loss, neg_brier_score"),
        (["neg_mean_squared_error"], "or not for this y"),
        (["f1_samples"], "or not for this y"),
        ("accuracy", "must be an instance of 'list'"),
        (["loss", "loss"], "each once"),
        ([], "each once"),
    ],
)
def test_wrong_metrics_are_refused(metrics, message, held_out):
    with pytest.raises(ValueError, match=message):
        fitted(held_out, metrics)


def test_the_best_two_of_two_classes_are_refused(held_out):
    (X, y, clients), val = held_out
    two = (X, y == "x", clients), val | {"y_val": val["y_val"] == "x"}
    with pytest.raises(ValueError, match="'top_k_accuracy', .* use some of loss.*brier_score.$"):
        fitted(two, ["top_k_accuracy"])


def test_without_rows_that_clients_keep_aside_it_is_refused(held_out):
    (X, y, clients), val = held_out
    model = FederatedClassifier(evaluation=FederatedEvaluation(), n_rounds=1)
    for given in ({}, {"X_val": val["X_val"], "y_val": val["y_val"]}):
        with pytest.raises(ValueError, match="needs rows that clients keep aside: give X_val"):
            model.fit(X, y, clients=clients, **given)
    with pytest.raises(ValueError, match="partial_fit has none"):
        model.partial_fit(X, y, classes=LABELS, clients=clients)
    with pytest.raises(ValueError, match="min_answers"):
        fitted(held_out, min_answers=0)
    with pytest.raises(ValueError, match="loss_privacy does not cover"):
        fitted(held_out, loss_privacy=GaussianMechanism(1.0, 1.0))
    with pytest.raises(ValueError, match="no round of this model has an evaluation"):
        client_evaluations(FederatedClassifier(n_rounds=1).fit(X, y, clients=clients))


def test_what_never_changes_is_sent_once_to_those_who_only_evaluate(held_out):
    """One client trains; a frozen layer of 100 x 4 bytes reaches each of the others once."""
    net = torch.nn.Sequential(torch.nn.Linear(5, 20, bias=False), torch.nn.Linear(20, 3))
    net[0].requires_grad_(False)
    model = fitted(
        held_out,
        ["loss"],
        model=FederatedClassifier(net),
        selector=skfed.RandomSelector(clients_per_round=1, replace=False),
    )
    head, fixed = 4 * (20 * 3 + 3), 4 * 5 * 20
    known, expected = set(), []
    for (name,) in model.history_["cohort"]:
        asked = {*"acdef", name}
        expected.append(6 * head + fixed * len(asked - known))
        known |= asked
    assert model.history_["bytes_down"].tolist() == expected


def test_a_failed_call_leaves_the_model_as_it_was(held_out):
    (X, y, clients), _ = held_out
    model = FederatedClassifier(n_rounds=1, random_state=0).fit(X, y, clients=clients)
    model.set_params(evaluation=FederatedEvaluation())
    with pytest.raises(ValueError, match="partial_fit has none"):
        model.partial_fit(X + 100, y, clients=clients)
    model.set_params(evaluation=None).partial_fit(X, y, clients=clients)
    other = FederatedClassifier(n_rounds=1, random_state=0).fit(X, y, clients=clients)
    other.partial_fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.coef_, other.coef_)


def test_costs_until_a_loss_has_fallen_and_a_score_has_risen():
    history = pd.DataFrame({"bytes_down": [1, 1, 1], "bytes_up": [1, 1, 1]})
    falling, rising = [3.0, 2.0, 1.0], [-3.0, -2.0, -1.0]
    for name in ("eval_loss", "eval_loss_priority", "eval_loss_worst", "train_loss"):
        assert cost_to(history.assign(**{name: falling}), name, 2.0)["rounds"] == 2
    for name in ("eval_neg_log_loss", "eval_neg_log_loss_worst", "eval_accuracy_worst"):
        assert cost_to(history.assign(**{name: rising}), name, -2.0)["rounds"] == 2
