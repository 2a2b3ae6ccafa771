from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, mean_squared_error, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, GradientNormClipping, LRScheduler
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.availability import IndependentAvailability
from skfed.metrics import client_scores, summarise_clients, usefulness
from skfed.metrics._clients import _local_estimator
from skfed.privacy import GaussianMechanism
from skfed.schedules import LinearDecay

ALL = RandomSelector(1.0, probability="uniform", replace=False, ignore_priority=True)


@pytest.fixture(scope="module")
def fitted(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(selector=ALL, priority=["a", "b"], n_rounds=20, random_state=0)
    return model.fit(X, y, clients=clients)


def test_scores_of_each_client(fitted, blobs):
    X, y, clients = blobs
    scores = client_scores(fitted, X, y, clients)
    assert scores.index.tolist() == list("abcdef")
    assert scores["n_samples"].tolist() == [10, 20, 15, 30, 25, 40]
    assert scores["priority"].tolist() == [True, True, False, False, False, False]
    for client, row in scores.iterrows():
        own = clients == client
        assert row["accuracy"] == pytest.approx(fitted.score(X[own], y[own]))
        expected = log_loss(y[own], fitted.predict_proba(X[own]), labels=[0, 1, 2])
        assert row["loss"] == pytest.approx(expected, rel=1e-5)


def test_labels_of_another_length_are_an_error(fitted, blobs):
    X, y, clients = blobs
    with pytest.raises(ValueError, match="y has 139 entries, but X has 140 rows"):
        client_scores(fitted, X, y[1:], clients)


def test_clients_that_the_model_has_not_seen_are_free(fitted, blobs):
    X, y, _ = blobs
    scores = client_scores(fitted, X, y, ["a", *["new"] * 139])
    assert scores["priority"].to_dict() == {"a": True, "new": False}


@pytest.fixture(scope="module")
def piped(blobs):
    """Return a Pipeline, its federated step, and X as its first step transforms it."""
    X, y, clients = blobs
    scaler = StandardScaler().fit(X)
    pipeline = make_pipeline(StandardScaler(), FederatedClassifier(n_rounds=3, random_state=0))
    pipeline.fit(X, y, federatedclassifier__clients=clients)
    return pipeline, pipeline[-1], scaler.transform(X)


def test_x_passes_through_the_earlier_steps_of_a_pipeline(piped, blobs):
    pipeline, step, scaled = piped
    X, y, clients = blobs
    expected = client_scores(step, scaled, y, clients)
    pd.testing.assert_frame_equal(client_scores(pipeline, X, y, clients), expected)
    useful = usefulness(step, scaled, y, clients, scaled, y, clients)
    pd.testing.assert_frame_equal(usefulness(pipeline, X, y, clients, X, y, clients), useful)
    nested = GridSearchCV(clone(pipeline), {"federatedclassifier__n_rounds": [3]}, cv=2)
    nested.fit(X, y, federatedclassifier__clients=clients)
    pd.testing.assert_frame_equal(client_scores(nested, X, y, clients), expected)


def test_an_estimator_that_is_not_federated_is_an_error(blobs):
    X, y, clients = blobs
    for score, data in ((client_scores, (X, y, clients)), (usefulness, (X, y, clients) * 2)):
        with pytest.raises(TypeError, match=r"LogisticRegression\(\) has no.*pass a fitted Fed"):
            score(LogisticRegression().fit(X, y), *data)
        with pytest.raises(NotFittedError):
            score(make_pipeline(StandardScaler(), FederatedClassifier()), *data)


def test_the_spread_over_clients_by_hand():
    scores = pd.DataFrame(
        {"priority": [True, True, False, False, False], "accuracy": [0.5, 0.7, 0.0, 0.4, 1.0]},
        index=list("abcde"),
    )
    spread = summarise_clients(scores)
    assert spread.loc["priority", ("accuracy", "mean")] == pytest.approx(0.6)
    assert spread.loc["free", ("accuracy", 0.0)] == 0.0  # the worst client
    assert spread.loc["free", ("accuracy", 0.5)] == 0.4
    assert spread.loc["all", ("accuracy", 1.0)] == 1.0
    assert spread.loc["all", ("accuracy", "mean")] == pytest.approx(0.52)
    assert summarise_clients(scores[scores["priority"]]).index.tolist() == ["priority", "all"]


def test_the_global_model_is_useful_to_clients_with_little_data():
    """Clients of 6 rows each of one easy task, and one client whose labels are swapped."""
    rng = np.random.default_rng(0)

    def draw(n_rows):
        y = rng.integers(0, 2, n_rows)
        return rng.normal(size=(n_rows, 20)) + 0.7 * y[:, None], y

    clients, clients_test = np.repeat(np.arange(12), 6), np.repeat(np.arange(12), 40)
    (X, y), (X_test, y_test) = draw(72), draw(480)
    y[clients == 11], y_test[clients_test == 11] = (
        1 - y[clients == 11],
        1 - y_test[clients_test == 11],
    )
    model = FederatedClassifier(
        selector=FedAlignSelector(eps=0.2, warmup=0.1),
        priority=[0, 1, 2],
        n_rounds=30,
        local_epochs=5,
        random_state=0,
    ).fit(X, y, clients=clients)
    table = usefulness(model, X, y, clients, X_test, y_test, clients_test)
    assert table["priority"].sum() == 3
    assert not table.loc[11, "useful"]
    assert table.loc[:10, "useful"].mean() > 0.7
    assert table.loc[11, "local_accuracy"] > 0.5 > table.loc[11, "global_accuracy"]
    shares = summarise_clients(table)["useful", "mean"]
    assert shares.to_dict() == pytest.approx(
        {
            "priority": table.loc[:2, "useful"].mean(),
            "free": table.loc[3:, "useful"].mean(),
            "all": table["useful"].mean(),
        }
    )


@pytest.mark.filterwarnings("ignore:the fit ends with")  # at a rate of 30
def test_the_local_score_is_that_of_the_best_round(blobs):
    X, y, clients = blobs
    net = NeuralNetClassifier(
        nn.Linear,
        module__in_features=5,
        module__out_features=3,
        criterion=nn.CrossEntropyLoss,
        lr=30.0,
        batch_size=2,
    )
    params = {"estimator": net, "n_rounds": 7, "local_steps": 1, "random_state": 0}
    model = FederatedClassifier(selector=ALL, **params).fit(X, y, clients=clients)
    table = usefulness(model, X, y, clients, X, y, clients)
    falls_back = 0
    for client in "adf":
        own = clients == client
        alone = FederatedClassifier(selector=ALL, **params)
        alone.fit(X[own], y[own], clients=np.zeros(own.sum(), int), X_val=X[own], y_val=y[own])
        curve = alone.history_["val_score"]
        assert table.loc[client, "local_accuracy"] == pytest.approx(curve.max())
        falls_back += curve.max() > curve.iloc[-1]
    assert falls_back


def test_local_training_does_not_use_parameters_of_the_federation(blobs, tmp_path):
    """With min_clients=2 or noise, the local models would be no better than chance."""
    X, y, clients = blobs
    own = {"n_rounds": 3, "random_state": 0, "local_epochs": 2, "lr_schedule": 0.1}
    plain = FederatedClassifier(selector=ALL, **own).fit(X, y, clients=clients)
    federated = FederatedClassifier(
        selector=ALL,
        priority=["a"],
        min_clients=2,
        update_privacy=GaussianMechanism(0.1, 100.0),
        loss_privacy=GaussianMechanism(1.0, 10.0),
        availability=IndependentAvailability(0.9),
        checkpoint=tmp_path,
        verbose=1,
        **own,
    ).fit(X, y, clients=clients)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    tables = [usefulness(model, X, y, clients, X, y, clients) for model in (plain, federated)]
    assert tables[0]["local_accuracy"].tolist() == tables[1]["local_accuracy"].tolist()
    assert tables[1]["local_accuracy"].min() > 0.5
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize("class_weight", ["balanced", {0: 0.0, 2: 3.0}], ids=str)
def test_local_training_uses_class_weights(blobs, class_weight):
    """ "balanced" is by the rows of the client, which may lack a class."""
    X, y, clients = blobs
    keep = (clients != "b") | (y != 1)
    X, y, clients = X[keep], y[keep], clients[keep]
    params = {"selector": ALL, "class_weight": class_weight, "n_rounds": 2, "random_state": 0}
    model = FederatedClassifier(**params).fit(X, y, clients=clients)
    table = usefulness(model, X, y, clients, X, y, clients)
    assert table.index.tolist() == list("abcdef")
    own = clients == "a"  # it has every class
    data, zeros = (X[own], y[own]), np.zeros(own.sum(), int)
    alone = FederatedClassifier(**params).fit(*data, zeros, X_val=X[own], y_val=y[own])
    assert table.loc["a", "local_accuracy"] == alone.history_["val_score"].max()
    plain = usefulness(model.set_params(class_weight=None), X, y, clients, X, y, clients)
    assert table["local_accuracy"].tolist() != plain["local_accuracy"].tolist()


class Watch(Callback):
    """Records each round in a list that copies share, and stops after the second."""

    rounds: ClassVar[list] = []

    def on_epoch_end(self, net, **kwargs):
        self.rounds.append(len(net.history))
        if len(self.rounds) == 2:
            raise KeyboardInterrupt


class Clip(GradientNormClipping):
    """Records each step."""

    n_steps: ClassVar[list] = []

    def on_grad_computed(self, net, named_parameters, **kwargs):
        self.n_steps.append(1)
        super().on_grad_computed(net, named_parameters, **kwargs)


def test_local_training_uses_only_callbacks_of_batches_and_rates(blobs):
    X, y, clients = blobs
    Watch.rounds.clear(), Clip.n_steps.clear()
    net = NeuralNetClassifier(
        nn.Linear,
        module__in_features=5,
        module__out_features=3,
        criterion=nn.CrossEntropyLoss,
        callbacks=[
            ("watch", Watch),
            ("clip", Clip()),
            ("rates", LRScheduler("StepLR", step_size=1)),
            ("plateau", LRScheduler("ReduceLROnPlateau", monitor="train_loss")),
        ],
        callbacks__clip__gradient_clip_value=0.0,  # the weights stay as they are
    )
    # Stopped after 2 of 9 rounds; the rates are still those of 9 rounds.
    model = FederatedClassifier(
        net, selector=ALL, n_rounds=9, lr_schedule=LinearDecay(0.9, 0.1), random_state=0
    ).fit(X, y, clients=clients)
    assert model.n_rounds_ == 2
    n_steps = len(Clip.n_steps)
    alone = _local_estimator(model)
    assert [name for name, _ in alone.estimator.callbacks] == ["clip", "rates"]
    table = usefulness(model, X, y, clients, X, y, clients)
    assert Watch.rounds == [1, 2]
    assert len(Clip.n_steps) == 2 * n_steps
    assert table["local_accuracy"].tolist() == table["global_accuracy"].tolist()
    alone.fit(X, y, clients=clients)
    assert alone.history_["lr"].tolist() == model.history_["lr"].tolist()


def test_the_error_names_a_client_that_cannot_train_alone(blobs):
    X, y, _ = blobs
    clients = np.array(["lone"] + ["more"] * 139)
    normed = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))  # takes no batch of one row
    model = FederatedClassifier(normed, selector=ALL, n_rounds=1).fit(X, y, clients=clients)
    with pytest.raises(ValueError, match="more than 1 value per channel") as raised:
        usefulness(model, X, y, clients, X, y, clients)
    assert "usefulness: client 'lone' cannot train alone" in raised.value.__notes__


def test_clients_are_told_apart_by_type_and_value(blobs):
    X, y, _ = blobs
    ids = [1, 1.0, True, "1", (1,)]
    clients = [ids[row] for row in np.arange(len(y)) % 5]
    model = FederatedClassifier(selector=ALL, priority=[1.0, "1"], n_rounds=2, random_state=0)
    model.fit(X, y, clients=clients)
    scores = client_scores(model, X, y, clients)
    assert [*map(repr, scores.index)] == ["True", "1.0", "1", "'1'", "(1,)"]
    assert scores["priority"].tolist() == [False, True, False, True, False]
    table = usefulness(model, X, y, clients, X, y, clients)
    assert [*map(repr, table.index)] == ["True", "1.0", "1", "'1'", "(1,)"]
    plain = list("cbade")  # the same clients by names of their own
    named = [dict(zip(map(repr, ids), plain, strict=True))[repr(client)] for client in clients]
    right = model.predict(X) == y
    for position, client in enumerate("abcde"):
        own = np.array(named) == client
        assert scores["accuracy"].iloc[position] == right[own].mean()
        alone = _local_estimator(model).fit(X[own], y[own], clients=np.zeros(own.sum(), int))
        assert table["local_accuracy"].iloc[position] >= alone.score(X[own], y[own])
    # 1.0 has no training rows of its own; equality is no match where types tell ids apart.
    some = [client for client in clients if type(client) is not float]
    rows = [row for row, client in enumerate(clients) if type(client) is not float]
    model.set_params(priority=None).fit(X[rows], y[rows], clients=some)
    table = usefulness(model, X[rows], y[rows], some, X, y, clients)
    assert [*map(repr, table.index)] == ["True", "1", "'1'", "(1,)"]


# Regressors


@pytest.fixture(scope="module")
def numbers(blobs):
    """Return a fitted regressor, its priority clients "a" and "b", and its data."""
    X, _, clients = blobs
    y = (X @ [1.0, -1.0, 0.5, 0.0, 0.0] + 1).astype(float)
    model = FederatedRegressor(
        selector=ALL, priority=["a", "b"], n_rounds=10, lr_schedule=0.05, random_state=0
    )
    return model.fit(X, y, clients=clients), X, y, clients


def test_scores_of_each_client_of_a_regressor(numbers):
    model, X, y, clients = numbers
    scores = client_scores(model, X, y, clients)
    assert scores.columns.tolist() == ["n_samples", "priority", "loss", "r2"]
    assert scores["priority"].tolist() == [True, True, False, False, False, False]
    for client, row in scores.iterrows():
        own = clients == client
        assert row["r2"] == pytest.approx(model.score(X[own], y[own]))
        assert row["loss"] == pytest.approx(mean_squared_error(y[own], model.predict(X[own])))
    assert summarise_clients(scores).loc["all", ("r2", 0.0)] == scores["r2"].min()


def test_without_two_different_targets_a_client_has_no_r2(numbers):
    model, X, y, _ = numbers
    clients = ["one"] + ["equal"] * 3 + ["more"] * 136
    y = np.where(np.array(clients) == "equal", 2.0, y)
    scores = client_scores(model, X, y, clients)
    assert scores["r2"].isna().to_dict() == {"equal": True, "more": False, "one": True}
    assert np.isfinite(scores["loss"]).all()
    table = usefulness(
        model.set_params(priority=None).fit(X, y, clients=clients), X, y, clients, X, y, clients
    )
    assert table.index.tolist() == ["more"]
    model.set_params(priority=["a", "b"])


def test_several_targets_have_equal_weight(blobs):
    X, _, clients = blobs
    model = FederatedRegressor(n_rounds=2, random_state=0).fit(X, X[:, :2], clients=clients)
    scores = client_scores(model, X, X[:, :2], clients)
    own = clients == "c"
    expected = r2_score(X[own, :2], model.predict(X[own]))
    assert scores.loc["c", "r2"] == pytest.approx(expected, rel=1e-6)
    error = mean_squared_error(X[own, :2], model.predict(X[own]))
    assert scores.loc["c", "loss"] == pytest.approx(error)
    with pytest.raises(ValueError, match=r"y has targets of shape \(\), but"):
        client_scores(model, X, X[:, 0], clients)


def test_usefulness_of_a_regressor(numbers):
    """A client of 3 rows learns little alone; one whose targets are negated is better alone."""
    model, X, y, _ = numbers
    clients = np.repeat(["few", "many", "negated"], [3, 97, 40])
    y = np.where(clients == "negated", -y, y)
    X_test, y_test, clients_test = X[60:], y[60:], np.array(["few"] * 40 + [*clients[100:]])
    model = clone(model).set_params(priority=["many"], selector=FedAlignSelector(warmup=1.0))
    for piped in (model, make_pipeline(StandardScaler(), model)):
        step = "" if piped is model else "federatedregressor__"
        piped.fit(X, y, **{f"{step}clients": clients})
        table = usefulness(piped, X, y, clients, X_test, y_test, clients_test)
        assert table.columns.tolist() == ["priority", "global_r2", "local_r2", "useful"]
        assert table["useful"].to_dict() == {"few": True, "negated": False}
    scores = client_scores(piped, X_test, y_test, clients_test)
    assert table["global_r2"].tolist() == scores["r2"].tolist()
