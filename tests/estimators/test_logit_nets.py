"""Nets with one logit for two classes, and nets with one logit for each of several labels."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from logits import ALL_NETS, BCE, NETS, ONE_LOGIT, Seeded, federated, targets
from parity import ALL, flat
from scipy import sparse
from sklearn.metrics import accuracy_score, log_loss
from sklearn.neural_network import MLPClassifier
from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier
from skfed.callbacks import RoundCallback
from skfed.metrics import (
    client_scores,
    mean_client_accuracy,
    personalised_scores,
    priority_accuracy,
    priority_neg_log_loss,
    usefulness,
)
from skfed.modules import SoftmaxRegression, Standardize
from skfed.selection import BaseSelector, Cohort


@pytest.fixture(params=ALL_NETS)
def name(request):
    return request.param


@pytest.fixture
def data(blobs, name):
    X, y, clients = blobs
    return X, targets(name, X, y), clients


def trained_by_hand(net, X, y, clients):
    """Return the module after 5 rounds of one step a client, of all its rows."""
    is_net = isinstance(net, NeuralNet)
    module = net.module if is_net else net
    options = net.get_params_for("module") if is_net else {}
    module = module(**options) if isinstance(module, type) else copy.deepcopy(module)
    criterion = (
        nn.BCEWithLogitsLoss(pos_weight=net.get_params().get("criterion__pos_weight"))
        if is_net
        else nn.BCEWithLogitsLoss()
    )
    rate = net.lr if is_net else 0.01
    X, y = torch.from_numpy(X), torch.from_numpy(y.astype(np.float32))
    for _ in range(5):
        models, weights = [], []
        for client in np.unique(clients):
            own = copy.deepcopy(module)
            rows = torch.from_numpy(clients == client)
            criterion(own(X[rows]).reshape(y[rows].shape), y[rows]).backward()
            with torch.no_grad():
                models.append([w - rate * w.grad for w in own.parameters()])
            weights.append(rows.sum().item() / len(X))
        with torch.no_grad():
            for w, own in zip(module.parameters(), zip(*models, strict=True), strict=True):
                w.copy_(sum(p * one for p, one in zip(weights, own, strict=True)))
    return module


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("name", NETS)
def test_five_rounds_are_those_of_plain_torch(name, data, engine):
    X, y, clients = data
    model = federated(name, selector=ALL, priority=None, engine=engine).fit(X, y, clients=clients)
    encoded = y == "yes" if name in ONE_LOGIT else y
    by_hand = trained_by_hand(NETS[name], X, encoded, clients)
    torch.testing.assert_close(flat(model.net_.module_), flat(by_hand), rtol=0, atol=1e-6)
    losses = nn.functional.binary_cross_entropy_with_logits
    logits = by_hand(torch.from_numpy(X)).detach()
    proba = torch.sigmoid(logits).numpy()
    found = model.predict_proba(X)
    if name in ONE_LOGIT:
        assert found.shape == (len(X), 2)
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
        found, proba = found[:, 1], proba.reshape(-1)
    np.testing.assert_allclose(found, proba, atol=1e-6)
    given = torch.from_numpy(np.asarray(encoded, dtype=np.float32)).reshape(logits.shape)
    expected = client_scores(model, X, y, clients)["loss"]
    own = [losses(logits[clients == k], given[clients == k]).item() for k in expected.index]
    np.testing.assert_allclose(expected, own, atol=1e-6)


def test_stacked_clients_are_trained_as_by_the_loop(name, data):
    X, y, clients = data
    kept = {"X_val": X, "y_val": y, "clients_val": clients}
    loop, stacked = (
        federated(name, engine=engine, local_epochs=2).fit(X, y, clients=clients, **kept)
        for engine in ("loop", "stacked")
    )
    assert stacked.engine_.startswith("stacked")
    states = flat(stacked.net_.module_), flat(loop.net_.module_)
    torch.testing.assert_close(*states, rtol=0, atol=1e-6)
    counts = [c for c in loop.history_ if not c.endswith(("seconds", "loss", "objective"))]
    pd.testing.assert_frame_equal(loop.history_[counts], stacked.history_[counts])


class Stop(RoundCallback):
    def on_round_end(self, estimator, record):
        if record["round"] == 2:
            raise OSError("killed")


def test_it_resumes_continues_and_shares_work_bit_for_bit(name, data, tmp_path, same_model):
    X, y, clients = data
    whole = federated(name).fit(X, y, clients=clients)
    stopped = federated(name, checkpoint=tmp_path)
    with pytest.warns(UserWarning, match="interrupted"), pytest.raises(OSError, match="killed"):
        stopped.set_callbacks(Stop()).fit(X, y, clients=clients)
    resumed = federated(name, checkpoint=tmp_path).fit(X, y, clients=clients)
    warm = federated(name, n_rounds=2, warm_start=True).fit(X, y, clients=clients)
    warm.set_params(n_rounds=5).fit(X, y, clients=clients)
    shared = federated(name, n_jobs=2).fit(X, y, clients=clients)
    for other in (resumed, warm, shared):
        assert same_model(other, whole)
        assert other.history_["objective"].equals(whole.history_["objective"])


def test_it_is_saved_and_loaded(name, data, tmp_path, same_model):
    X, y, clients = data
    model = federated(name).fit(X, y, clients=clients)
    model.save(tmp_path / "model")
    loaded = federated(name).load(tmp_path / "model")
    assert same_model(loaded, model)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.score(X, y) == model.score(X, y)
    for one in (model, loaded):
        one.partial_fit(X, y, clients=clients)
    assert same_model(loaded, model)


class Polls(BaseSelector):
    """Polls all clients for losses and errors, and trains all."""

    def _select(self, round):
        everyone = np.arange(len(round.sizes))
        self.found = [round.poll(everyone, metric) for metric in ("loss", "error")]
        return Cohort.mean(everyone)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("weighted", [False, True])
def test_polls_validation_and_scores_agree(name, data, engine, weighted):
    X, y, clients = data
    weights = np.arange(len(X)) % 3 + 1.0 if weighted else None
    selector = Polls()
    model = federated(name, engine=engine, selector=selector, priority=None, warm_start=True)
    model.fit(X, y, clients=clients, sample_weight=weights, X_val=X, y_val=y, clients_val=clients)
    scores = client_scores(model, X, y, clients)
    errors = {
        k: 1 - model.score(X[own], y[own], None if weights is None else weights[own])
        for k in model.clients_
        if (own := clients == k).any()
    }
    assert model.history_["val_score"].iloc[-1] == pytest.approx(model.score(X, y))
    assert model.history_["val_score_worst"].iloc[-1] == scores["accuracy"].min()
    assert mean_client_accuracy(model, X, y, clients) == pytest.approx(scores["accuracy"].mean())
    model.set_params(n_rounds=6).fit(X, y, clients=clients, sample_weight=weights)
    losses, found = model.selector.found
    np.testing.assert_allclose(found, list(errors.values()), atol=1e-12)
    if not (weighted or name == "binary net, (n_samples,)"):  # which weights positives in its loss
        np.testing.assert_allclose(losses, scores["loss"], rtol=1e-5)


def test_priority_scorers(name, data):
    X, y, clients = data
    model = federated(name).fit(X, y, clients=clients)
    own = np.isin(clients, ["a", "b"])
    assert priority_accuracy(model, X, y, clients) == model.score(X, y, clients=clients)
    proba = model.predict_proba(X[own]).astype(float)
    if name in ONE_LOGIT:
        expected = log_loss(y[own] == "yes", proba[:, 1])
    else:
        chosen = np.where(y[own] == 1, proba, 1 - proba)
        expected = -np.log(chosen).mean()
    assert priority_neg_log_loss(model, X, y, clients) == pytest.approx(-expected)


def test_other_measures_by_client(name, data):
    X, y, clients = data
    model = federated(name, n_rounds=2).fit(X, y, clients=clients)
    rest = X, y, clients
    useful = usefulness(model, *rest, *rest)
    assert useful.filter(like="global").iloc[:, 0].between(0, 1).all()
    own = personalised_scores(model, *rest, *rest, local_steps=2)
    assert len(own) == 6


def test_log_probabilities_are_finite_where_probabilities_are_0(name, data):
    X, y, clients = data
    model = federated(name).fit(X, y, clients=clients)
    expected = np.log(model.predict_proba(X))
    np.testing.assert_allclose(model.predict_log_proba(X), expected, rtol=1e-4, atol=1e-6)
    far = model.predict_log_proba(1e4 * X)
    assert np.isfinite(far).all() or name == "default net of labels"


def test_net_is_a_plain_skorch_net(name, data):
    X, y, clients = data
    model = federated(name).fit(X, y, clients=clients)
    kind = NeuralNetBinaryClassifier if name in ("module",) or "binary" in name else None
    assert type(model.net_) is (kind or NeuralNetClassifier)
    found = model.net_.predict(X)
    expected = model.predict(X)
    decoded = model.classes_[found.reshape(-1)] if name in ONE_LOGIT else found
    np.testing.assert_array_equal(decoded, expected)


# One logit


def test_the_threshold_is_the_nets(blobs):
    X, y, clients = blobs
    y = targets("binary net", X, y)
    model = FederatedClassifier(
        NeuralNetBinaryClassifier(nn.Linear(5, 1), threshold=0.9, lr=0.5), n_rounds=50
    )
    model.fit(X, y, clients=clients)
    assert model.classes_.tolist() == ["no", "yes"]
    is_yes = model.predict_proba(X)[:, 1] > 0.9
    assert 0 < is_yes.sum() < len(X)
    np.testing.assert_array_equal(model.predict(X), np.where(is_yes, "yes", "no"))
    assert model.coef_.shape == (1, 5)
    assert model.intercept_.shape == (1,)
    logits = X @ model.coef_[0] + model.intercept_
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-logits)), atol=1e-6)


class Squeezed(Seeded):
    def forward(self, X):
        return super().forward(X).squeeze()  # to a number, of one row


def test_a_module_may_return_a_number_for_one_row(blobs):
    X, y, clients = blobs
    y = targets("module", X, y)
    loop, stacked = (
        FederatedClassifier(Squeezed, n_rounds=2, engine=engine, random_state=0)
        for engine in ("loop", "stacked")
    )
    for model in (loop, stacked):
        model.fit(X[9:], y[9:], clients=clients[9:])  # the first client has one row
    states = flat(stacked.net_.module_), flat(loop.net_.module_)
    torch.testing.assert_close(*states, rtol=0, atol=1e-6)
    np.testing.assert_allclose(loop.predict_proba(X[:1]), loop.predict_proba(X)[:1], rtol=1e-6)


def test_a_module_with_two_outputs_is_trained_with_cross_entropy(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(nn.Linear(5, 2), n_rounds=1).fit(X, y > 0, clients=clients)
    assert type(model.net_) is NeuralNetClassifier
    assert isinstance(model.net_.criterion_, nn.CrossEntropyLoss)


def test_a_fit_that_learns_nothing_ends_above_equal_probabilities(blobs):
    X, y, clients = blobs
    y = targets("module", X, y)
    model = FederatedClassifier(nn.Linear(5, 1), n_rounds=1).fit(X, y, clients=clients)
    assert model._problem.guess(model.net_).loss == np.log(2)
    net = NeuralNetBinaryClassifier(nn.Linear(5, 1), criterion__pos_weight=torch.tensor(3.0))
    model = FederatedClassifier(net, n_rounds=1).fit(X, y, clients=clients)
    assert model._problem.guess(model.net_) is None  # not known without the classes' shares
    shares = nn.Sequential(Standardize(5), nn.Linear(5, 1))
    model = FederatedClassifier(shares, n_rounds=1).fit(X, y, clients=clients)
    p = (y == "yes").mean()
    assert model._server.guess.loss == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (NeuralNetBinaryClassifier(nn.Linear(5, 2)), r"\(1, 2\).*one logit.*one output"),
        (NeuralNetClassifier(nn.Linear(5, 2), criterion=BCE), "BCEWithLogitsLoss.*one output"),
        (NeuralNetClassifier(nn.Linear(5, 1), criterion=nn.CrossEntropyLoss), "2 outputs"),
        (
            NeuralNetBinaryClassifier(nn.Linear(5, 1), criterion=nn.SoftMarginLoss),
            "predict_nonlinearity",
        ),
        (nn.Linear(5, 3), "2 outputs"),
    ],
)
def test_nets_that_are_not_of_one_logit_are_refused(blobs, net, message):
    X, y, clients = blobs
    with pytest.raises(ValueError, match=f"estimator.*{message}"):
        FederatedClassifier(net).fit(X, y > 0, clients=clients)


def test_one_logit_is_for_two_classes(blobs):
    X, y, clients = blobs
    net = NeuralNetBinaryClassifier(nn.Linear(5, 1))
    with pytest.raises(ValueError, match=r"y has 3 classes: pass a NeuralNetClassifier"):
        FederatedClassifier(net).fit(X, y, clients=clients)
    with pytest.raises(ValueError, match="give its module 3 outputs"):
        FederatedClassifier(nn.Linear(5, 1)).fit(X, y, clients=clients)
    with pytest.raises(ValueError, match="class_weight.*criterion__pos_weight"):
        FederatedClassifier(net, class_weight="balanced").fit(X, y > 0, clients=clients)


# Several labels


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csc_array])
@pytest.mark.parametrize("dtype", [int, float, bool])
def test_labels_are_those_of_scikit_learns_network(blobs, kind, dtype):
    X, y, clients = blobs
    y = kind(targets("module of labels", X, y).astype(dtype))
    reference = MLPClassifier(random_state=0).fit(X, y)
    model = FederatedClassifier(n_rounds=5, random_state=0).fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.classes_, reference.classes_)
    for method in ("predict", "predict_proba", "predict_log_proba"):
        found, expected = getattr(model, method)(X), getattr(reference, method)(X)
        assert type(found) is type(expected)
        assert found.shape == expected.shape == (len(X), 3)
    assert model.predict(X).dtype == reference.predict(X).dtype
    assert model.score(X, y) == accuracy_score(y, model.predict(X))
    assert model.score(X, y, clients=clients) == model.score(X, y)
    assert client_scores(model, X, y, clients)["accuracy"].between(0, 1).all()
    dense = y.toarray() if sparse.issparse(y) else y
    rows = (model.predict_proba(X) > 0.5) == dense
    assert model.score(X, y) == rows.all(axis=1).mean()


def test_the_default_net_learns_each_label_as_by_a_net_of_its_own(blobs, same_model):
    X, y, clients = blobs
    y = targets("module of labels", X, y)
    model = FederatedClassifier(n_rounds=5, random_state=0).fit(X, y, clients=clients)
    net = NeuralNetClassifier(
        SoftmaxRegression(5, 3, standardize=True), criterion=BCE, lr=0.1 * 3, batch_size=16
    )
    given = FederatedClassifier(net, n_rounds=5, random_state=0).fit(X, y, clients=clients)
    assert same_model(model, given)
    assert model.coef_.shape == (3, 5)
    for j in range(3):
        one = NeuralNetBinaryClassifier(
            SoftmaxRegression(5, 1, standardize=True), lr=0.1, batch_size=16
        )
        alone = FederatedClassifier(one, n_rounds=5, random_state=0).fit(
            X, y[:, j], clients=clients
        )
        np.testing.assert_allclose(model.coef_[[j]], alone.coef_, atol=1e-6)


def test_clients_that_lack_a_label_train(blobs):
    X, y, clients = blobs
    y = targets("module of labels", X, y)
    y[:, 1] = 0  # nobody has it
    model = FederatedClassifier(n_rounds=20, random_state=0).fit(X, y, clients=clients)
    assert (model.predict(X)[:, 1] == 0).all()
    assert not model.history_["failed"].str.len().any()
    model.partial_fit(X, y, classes=[0, 1, 2], clients=clients)
    with pytest.raises(ValueError, match="5 columns.*3 labels"):
        model.partial_fit(X, np.zeros((len(X), 5)), clients=clients)


def test_equal_probabilities_of_labels(blobs):
    X, y, clients = blobs
    y = targets("module of labels", X, y)
    model = FederatedClassifier(n_rounds=1).fit(X, y, clients=clients)
    assert model._server.guess.loss == np.log(2)


def wrong(indicator, value):
    indicator = indicator.astype(type(value))
    indicator[4, 1] = value
    return indicator


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: wrong(y, 2), "y.*no indicator.*has 2 in row 4, column 1.*MultiOutputClassifier"),
        (lambda y: wrong(y, 0.5), "no indicator.*has 0.5 in row 4, column 1"),
        (lambda y: wrong(y, np.nan), "y contains NaN"),
        (lambda y: 2 * y - 1, "no indicator.*has -1 in row"),
        (lambda y: np.where(y, "a", "b"), "no indicator"),
    ],
)
def test_what_is_no_indicator_is_refused(blobs, change, message):
    X, y, clients = blobs
    y = targets("module of labels", X, y)
    with pytest.raises(ValueError, match=message):
        FederatedClassifier().fit(X, change(y), clients=clients)
    model = FederatedClassifier(n_rounds=1)
    with pytest.raises(ValueError, match=f"y_val.*{message.removeprefix('y.*')}"):
        model.fit(X, y, clients=clients, X_val=X, y_val=change(y))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (NeuralNetBinaryClassifier(nn.Linear(5, 1)), "3 labels.*NeuralNetBinaryClassifier"),
        (NeuralNetClassifier(nn.Linear(5, 3)), "NLLLoss.*BCEWithLogitsLoss"),
        (
            NeuralNetClassifier(nn.Linear(5, 3), criterion=nn.MultiLabelSoftMarginLoss),
            "MultiLabelSoftMarginLoss.*predict_nonlinearity",
        ),
        (nn.Linear(5, 2), "3 labels in y: give its module 3 outputs"),
        (nn.Linear(5, 1), "3 labels in y: give its module 3 outputs"),
    ],
)
def test_nets_that_are_not_of_labels_are_refused(blobs, net, message):
    X, y, clients = blobs
    y = targets("module of labels", X, y)
    with pytest.raises(ValueError, match=message):
        FederatedClassifier(net).fit(X, y, clients=clients)


def test_targets_of_another_kind_are_refused(blobs):
    X, y, clients = blobs
    indicator = targets("module of labels", X, y)
    with pytest.raises(ValueError, match="class_weight='balanced'.*several.*pos_weight"):
        FederatedClassifier(class_weight="balanced").fit(X, indicator, clients=clients)
    with pytest.raises(ValueError, match="classes=.*leave classes out"):
        FederatedClassifier().partial_fit(X, indicator, classes=[1, 2, 3], clients=clients)
    labels = FederatedClassifier(n_rounds=1).fit(X, indicator, clients=clients)
    classes = FederatedClassifier(n_rounds=1).fit(X, y, clients=clients)
    for call in (labels.score, labels.partial_fit):
        with pytest.raises(ValueError, match=r"y has shape \(140,\).*indicator"):
            call(X, y)
    with pytest.raises(ValueError, match="y should be a 1d array"):
        classes.partial_fit(X, indicator, clients=clients)
    labels.fit(X, y, clients=clients)  # a fit anew
    assert labels.classes_.tolist() == [0, 1, 2]
    assert labels.predict(X).shape == (140,)
