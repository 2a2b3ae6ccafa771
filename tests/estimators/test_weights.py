"""Weights of rows (``sample_weight``) and of classes (``class_weight``)."""

import numpy as np
import pytest
import sklearn
import torch
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.class_weight import compute_class_weight
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skfed import (
    FedAlignSelector,
    FederatedClassifier,
    FederatedRegressor,
    PowerOfChoice,
    RandomSelector,
)
from skfed._federation import make_federation
from skfed.aggregation import Scaffold
from skfed.engines._data import Dataset
from skfed.engines.workers._worker_data import ClientData, WorkerCache
from skfed.modules import SoftmaxRegression
from skfed.nets import weighted_mean
from skfed.privacy import GaussianMechanism

EVERYBODY = RandomSelector(1.0, "uniform", False)
ENGINES = pytest.mark.parametrize("engine", ["stacked", "loop"])


@pytest.fixture(scope="module")
def weights(blobs):
    rng = np.random.default_rng(1)
    return rng.integers(0, 4, len(blobs[1])).astype(float)


def fit(blobs, net=None, estimator=FederatedClassifier, sample_weight=None, **params):
    X, y, clients = blobs
    given = {"selector": EVERYBODY, "n_rounds": 3, "random_state": 0} | params
    return estimator(net, **given).fit(X, y, clients=clients, sample_weight=sample_weight)


def assert_close(one, other, atol=1e-6):
    for name, tensor in one.net_.module_.state_dict().items():
        torch.testing.assert_close(
            tensor, other.net_.module_.state_dict()[name], rtol=1e-4, atol=atol
        )


@ENGINES
def test_weights_multiply_the_losses_of_rows_and_divide_by_their_sum(engine):
    """From w = 0, x = 1, targets 2 and 4, weights 3 and 1: the loss is (3 * 4 + 1 * 16) / 4 = 7.

    Its slope is -2 (3 * 2 + 1 * 4) / 4 = -5.
    """
    net = NeuralNetRegressor(nn.Linear(1, 1, bias=False), lr=0.5)
    with torch.no_grad():
        net.module.weight.zero_()
    model = FederatedRegressor(net, n_rounds=1, selector=EVERYBODY, engine=engine)
    model.fit([[1.0], [1.0]], [2.0, 4.0], clients=["a", "a"], sample_weight=[3, 1])
    assert model.history_["train_loss"].tolist() == [7.0]
    assert model.net_.module_.weight.item() == 2.5


def test_sizes_and_fractions_count_rows_whatever_their_weights():
    """Client a has half of the weight in one row of three; its share stays 1 / 3."""
    net = NeuralNetRegressor(nn.Linear(1, 1, bias=False), lr=0.5)
    with torch.no_grad():
        net.module.weight.zero_()
    model = FederatedRegressor(net, n_rounds=1, selector=EVERYBODY)
    model.fit(np.ones((3, 1)), [3.0, 6.0, 6.0], clients=["a", "b", "b"], sample_weight=[2, 1, 1])
    assert model.sizes_.tolist() == [1, 2]
    np.testing.assert_allclose(model.fractions_, [1 / 3, 2 / 3])
    assert model.net_.module_.weight.item() == pytest.approx(3 / 3 + 6 * 2 / 3)


class Normalised(nn.Module):
    """Rows influence each other, by the statistics of a batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    def forward(self, X):
        return self.layers(X)


def classifier(module, criterion=nn.CrossEntropyLoss, **params):
    torch.manual_seed(0)
    return NeuralNetClassifier(
        module, criterion=criterion, **({"lr": 0.1, "batch_size": 8} | params)
    )


NETS = {
    "default": lambda: None,
    "linear layers": lambda: classifier(nn.Linear(5, 3)),
    "momentum": lambda: classifier(nn.Linear(5, 3), optimizer__momentum=0.9),
    "softmax": lambda: classifier(nn.Sequential(nn.Linear(5, 3), nn.Softmax(1)), nn.NLLLoss),
    "smoothed": lambda: classifier(nn.Linear(5, 3), criterion__label_smoothing=0.1),
    "torch.func": lambda: classifier(nn.Sequential(nn.RMSNorm(5), nn.Linear(5, 3))),
    "batch statistics": lambda: classifier(Normalised()),
}  # fmt: skip


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_engines_agree_on_weighted_rows(blobs, weights, net):
    # Rounding breaks the ties of the default net, whose first losses are all equal.
    selector = PowerOfChoice(d=5, clients_per_round=2) if net() else EVERYBODY
    kept = {"selector": selector, "sample_weight": weights}
    loop, stacked = (fit(blobs, net(), engine=e, **kept) for e in ("loop", "stacked"))
    assert stacked.engine_.startswith("stacked")
    assert_close(stacked, loop)
    for column in ("train_loss", "objective"):
        np.testing.assert_allclose(loop.history_[column], stacked.history_[column], rtol=1e-4)
    assert loop.history_["cohort"].tolist() == stacked.history_["cohort"].tolist()


def test_engines_agree_on_weighted_rows_of_several_targets(blobs, weights):
    X, _, clients = blobs
    data = X, X[:, :2] * 2.0, clients
    kept = {"estimator": FederatedRegressor, "sample_weight": weights}
    loop, stacked = (fit(data, engine=e, **kept) for e in ("loop", "stacked"))
    assert_close(stacked, loop)


@ENGINES
@pytest.mark.parametrize("net", [None, "momentum"])
def test_equal_weights_change_nothing_but_rounding(blobs, engine, net):
    net = NETS.get(net, lambda: None)
    kept = {"engine": engine, "aggregator": Scaffold()} if net() is None else {"engine": engine}
    plain = fit(blobs, net(), **kept)
    weighted = fit(blobs, net(), sample_weight=np.full(len(blobs[1]), 1e-30), **kept)
    assert_close(plain, weighted)
    np.testing.assert_allclose(plain.history_["train_loss"], weighted.history_["train_loss"], 1e-5)


@ENGINES
def test_full_batches_with_whole_weights_are_those_of_repeated_rows(engine):
    """One client, so that no size matters."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)).astype("f"), np.arange(20) % 2
    repeats = rng.integers(0, 3, 20)
    module = SoftmaxRegression(3, 2)  # the default net standardises, and its batches are small
    weighted = FederatedClassifier(module, n_rounds=5, engine=engine, random_state=0)
    weighted.fit(X, y, clients=np.zeros(20), sample_weight=repeats)
    repeated = FederatedClassifier(module, n_rounds=5, engine=engine, random_state=0)
    repeated.fit(X.repeat(repeats, 0), y.repeat(repeats), clients=np.zeros(repeats.sum()))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-5)


@ENGINES
def test_polls_are_weighted_means_over_the_rows_of_a_client(engine):
    """At w = 0 every row has loss log 2 and is predicted as class 0."""
    X, y = np.ones((6, 1)), np.array([0, 1, 1, 0, 1, 1])
    clients, weights = np.array(list("aaabbb")), [2, 1, 1, 1, 0, 0]
    asked = {}

    class Asking(FedAlignSelector):
        def _select(self, round):
            for metric in ("loss", "error"):
                asked[metric] = round.poll(np.array([0, 1]), metric=metric)
            return super()._select(round)

    model = FederatedClassifier(selector=Asking(), priority=["a"], n_rounds=1, engine=engine)
    model.fit(X, y, clients=clients, sample_weight=weights)
    np.testing.assert_allclose(asked["loss"], np.log(2), rtol=1e-6)
    assert asked["error"].tolist() == [0.5, 0.0]


@ENGINES
def test_a_batch_without_weight_takes_no_step_and_has_loss_0(engine):
    model = FederatedRegressor(
        NeuralNetRegressor(nn.Linear(1, 1, bias=False), lr=0.5, batch_size=1),
        n_rounds=1, selector=EVERYBODY, engine=engine, random_state=0,
    )  # fmt: skip
    with torch.no_grad():
        model.estimator.module.weight.zero_()
    model.fit(np.ones((2, 1)), [1.0, 9.0], clients=["a", "a"], sample_weight=[5, 0])
    assert model.net_.module_.weight.item() == 1.0
    assert model.history_["train_loss"].tolist() == [0.5]


def test_a_poll_of_rows_without_weight_is_0(blobs):
    _, y, clients = blobs
    weights = np.zeros(len(y))
    weights[np.unique(clients, return_index=True)[1]] = 1.0  # the first row of each client
    selector = PowerOfChoice(d=6, clients_per_round=2, loss="batch")
    for engine in ("loop", "stacked"):
        net = classifier(nn.Linear(5, 3), batch_size=2)
        model = fit(blobs, net, selector=selector, engine=engine, sample_weight=weights)
        assert model.history_["n_failed"].tolist() == [0, 0, 0]


BAD = {
    "length": (lambda y: np.ones(3), "sample_weight"),
    "negative": (lambda y: -np.ones(len(y)), "Negative values in data passed to `sample_weight`"),
    "nan": (lambda y: np.full(len(y), np.nan), "sample_weight.*NaN"),
    "two columns": (lambda y: np.ones((len(y), 2)), "[Ss]ample.weight"),
}


@pytest.mark.parametrize(("make", "match"), BAD.values(), ids=BAD)
def test_bad_weights_are_refused(blobs, make, match):
    with pytest.raises(ValueError, match=match):
        fit(blobs, sample_weight=make(blobs[1]))


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_a_client_whose_weights_are_all_0_takes_no_part(blobs, engine):
    """The fit is that of the other clients' rows, with the weights that are left."""
    X, y, clients = blobs
    rng = np.random.default_rng(0)
    weights = np.where(clients == "c", 0.0, rng.uniform(1, 2, len(y)))
    params = {"engine": engine, "priority": ["a", "c"], "n_rounds": 3, "random_state": 0}
    model = FederatedClassifier(**params).fit(X, y, clients=clients, sample_weight=weights)
    assert model.clients_.tolist() == ["a", "b", "d", "e", "f"]
    own, params["priority"] = clients != "c", ["a"]
    alone = FederatedClassifier(**params)
    alone.fit(X[own], y[own], clients=clients[own], sample_weight=weights[own])
    np.testing.assert_array_equal(model.predict_proba(X), alone.predict_proba(X))
    with pytest.raises(ValueError, match="zero in all rows of the priority clients"):
        FederatedClassifier(priority=["c"]).fit(X, y, clients=clients, sample_weight=weights)


class OwnLoss(NeuralNetClassifier):
    def get_loss(self, y_pred, y_true, *args, **kwargs):
        return super().get_loss(y_pred, y_true, *args, **kwargs)


class OwnStep(NeuralNetClassifier):
    def train_step(self, batch, **fit_params):
        return super().train_step(batch, **fit_params)


class Plain(nn.Module):
    def forward(self, output, target):
        return nn.functional.cross_entropy(output, target)


class Deaf(Plain):
    """Says that it has a reduction, and heeds none."""

    reduction = "mean"


REFUSED = {
    "get_loss": (OwnLoss(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss), "overrides get_loss"),
    "train_step": (OwnStep(nn.Linear(5, 3), criterion=nn.CrossEntropyLoss), "overrides train_step"),
    "no reduction": (classifier(nn.Linear(5, 3), Plain), r"Plain\(\) has no reduction='mean'"),
    "deaf": (classifier(nn.Linear(5, 3), Deaf), r"Deaf\(\) returns no loss of each row"),
    "sum": (classifier(nn.Linear(5, 3), criterion__reduction="sum"), "no reduction='mean'"),
    "class weights": (
        classifier(nn.Linear(5, 3), criterion__weight=torch.tensor([1.0, 2.0, 1.0])),
        "weights of its own: put them into sample_weight",
    ),
    "ignored": (classifier(nn.Linear(5, 3), criterion__ignore_index=2), "leaves out rows"),
}


@pytest.mark.parametrize(("net", "match"), REFUSED.values(), ids=REFUSED)
def test_a_loss_that_is_no_mean_of_rows_is_refused(blobs, weights, net, match):
    with pytest.raises(ValueError, match=f"sample_weight needs a loss.*{match}"):
        fit(blobs, net, sample_weight=weights)


class Focal(nn.Module):
    """A criterion of one's own that gives losses of rows."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, output, target):
        losses = nn.functional.cross_entropy(output, target, reduction="none")
        losses = (1 - (-losses).exp()) * losses
        return losses.mean() if self.reduction == "mean" else losses


def test_a_criterion_of_ones_own_with_a_reduction_is_weighted_by_the_loop(blobs, weights):
    net = classifier(nn.Linear(5, 3), Focal)
    model = fit(blobs, net, sample_weight=weights)
    assert model.engine_ == "loop: rows have weights, and the criterion is not one of torch's"
    assert not np.array_equal(model.coef_, fit(blobs, net).coef_)


def test_partial_fit_takes_weights(blobs, weights):
    X, y, clients = blobs
    model = FederatedClassifier(selector=EVERYBODY, random_state=0)
    for _ in range(3):
        model.partial_fit(X, y, clients=clients, sample_weight=weights)
    np.testing.assert_array_equal(model.coef_, fit(blobs, sample_weight=weights).coef_)


def test_searches_slice_weights_and_routing_asks_for_a_request(blobs, weights):
    X, y, clients = blobs
    weights = weights + 1
    grid = {"local_epochs": [1, 2]}
    plain = FederatedClassifier(n_rounds=1, random_state=0)
    search = GridSearchCV(plain, grid, cv=2).fit(X, y, clients=clients, sample_weight=weights)
    with sklearn.config_context(enable_metadata_routing=True):
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            GridSearchCV(plain, grid, cv=2).fit(X, y, clients=clients, sample_weight=weights)
        asking = plain.set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        routed = GridSearchCV(asking, grid, cv=2)
        routed.fit(X, y, clients=clients, sample_weight=weights)
    np.testing.assert_array_equal(search.best_estimator_.coef_, routed.best_estimator_.coef_)


def test_weights_are_sent_to_other_processes():
    X, y, weights = np.arange(6.0)[:, None], np.arange(6), np.linspace(0, 1, 6)
    federation = make_federation(["a", "b", "a", "b", "a", "b"], 6)
    digests = set()
    for given in (weights, None):
        data = ClientData(Dataset(X, y, weights=given), federation, budget=10**6)
        dataset, rows = WorkerCache().load(data.payload([1, 0], complete=True))([1, 0])
        found = [dataset.weigh(own) for own in rows]
        expected = [None] * 2 if given is None else [weights[1::2].tolist(), weights[::2].tolist()]
        assert [w if w is None else w.tolist() for w in found] == expected
        digests |= {data.digest(0)}
    assert len(digests) == 2  # so that rows with weights are not taken for those without


def test_weights_follow_the_losses_to_their_device():
    """A loop engine's rows are on the CPU, and its net may be on a GPU."""
    losses = torch.zeros(3, device="meta")
    assert weighted_mean(losses, torch.ones(3)).device == losses.device


def test_a_checkpoint_depends_on_weights(blobs, weights, tmp_path):
    fit(blobs, checkpoint=tmp_path)
    weighted = fit(blobs, checkpoint=tmp_path, sample_weight=weights)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2
    np.testing.assert_array_equal(weighted.coef_, fit(blobs, sample_weight=weights).coef_)
    fit(blobs, checkpoint=tmp_path, sample_weight=weights)  # goes on with the second
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def test_class_weights_are_weights_of_rows(blobs):
    X, y, clients = blobs
    names = np.array(["one", "two", "three"])[y]
    given = {"one": 3.0, "three": 0.5}
    model = fit((X, names, clients), class_weight=given)
    by_row = fit((X, names, clients), sample_weight=[given.get(name, 1.0) for name in names])
    assert model.engine_ == by_row.engine_ == "stacked: linear layers"
    np.testing.assert_array_equal(model.coef_, by_row.coef_)
    loop = fit((X, names, clients), class_weight=given, engine="loop")
    np.testing.assert_allclose(model.coef_, loop.coef_, rtol=1e-4, atol=1e-6)


def test_class_weights_multiply_sample_weights(blobs, weights):
    _, y, _ = blobs
    both = fit(blobs, class_weight={0: 3.0}, sample_weight=weights)
    by_row = fit(blobs, sample_weight=np.where(y == 0, 3.0, 1.0) * weights)
    np.testing.assert_allclose(both.coef_, by_row.coef_, rtol=1e-6)


def test_balanced_class_weights_are_scikit_learns_over_the_priority_clients(blobs):
    _, y, clients = blobs
    labels = np.arange(3)
    for priority in (None, ["b", "c"]):
        rows = y if priority is None else y[np.isin(clients, priority)]
        expected = compute_class_weight("balanced", classes=labels, y=rows)
        params = {"selector": FedAlignSelector(), "priority": priority}
        balanced = fit(blobs, class_weight="balanced", **params)
        by_hand = fit(blobs, class_weight=dict(enumerate(expected)), **params)
        np.testing.assert_array_equal(balanced.coef_, by_hand.coef_)
        asked = balanced.history_["scalars_up"] - by_hand.history_["scalars_up"]
        assert asked.tolist() == [3 * (6 if priority is None else 2), 0, 0]


def test_balanced_class_weights_count_clients_by_their_weight(blobs):
    """A client of half the priority counts half."""
    _, y, clients = blobs
    counts = np.bincount(y[clients == "b"], minlength=3)
    counts = counts + np.bincount(y[clients == "c"], minlength=3) / 2
    params = {"selector": FedAlignSelector(), "priority": {"b": 1.0, "c": 0.5}}
    balanced = fit(blobs, class_weight="balanced", **params)
    by_hand = fit(blobs, class_weight=dict(enumerate(1 / counts)), **params)
    np.testing.assert_allclose(balanced.coef_, by_hand.coef_, rtol=1e-5, atol=1e-7)


def test_balanced_classes_are_found_where_one_is_rare():
    rng = np.random.default_rng(0)
    y = (np.arange(600) % 20 == 0).astype(int)
    X, clients = rng.normal(size=(600, 3)) + y[:, None], np.arange(600) % 7
    found = [
        fit((X, y, clients), class_weight=weight, n_rounds=40, lr_schedule=0.5).predict(X)[y == 1]
        for weight in (None, "balanced")
    ]
    assert found[1].mean() > found[0].mean() + 0.3


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"estimator": nn.Linear(5, 3), "class_weight": {0: 2.0}}, "set the weights of the crit"),
        ({"class_weight": {0: -1.0}}, "class_weight.* has a negative weight"),
        ({"class_weight": {0: np.inf}}, "class_weight has values that are not finite"),
        (
            {"class_weight": {7: 2.0}},
            "class_weight names 7, which is not among classes_",
        ),
        ({"class_weight": "even"}, "'class_weight' parameter"),
        (
            {"class_weight": "balanced", "loss_privacy": GaussianMechanism(1.0, 1.0)},
            "number of their rows of each class, which loss_privacy does not cover",
        ),
    ],
)
def test_class_weights_that_do_not_fit_are_refused(blobs, params, match):
    X, y, clients = blobs
    with pytest.raises(ValueError, match=match):
        FederatedClassifier(**params).fit(X, y, clients=clients)


def test_a_client_whose_classes_have_no_weight_is_named():
    with pytest.raises(ValueError, match="class_weight times sample_weight is zero.*'b'"):
        FederatedClassifier(class_weight={1: 0.0}).fit(
            np.eye(4), [0, 1, 1, 1], clients=["a", "a", "b", "b"]
        )


def test_partial_fit_takes_class_weights_by_label_only(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(class_weight={0: 3.0}, selector=EVERYBODY, random_state=0)
    model.partial_fit(X, y, clients=clients)
    once = fit(blobs, class_weight={0: 3.0}, n_rounds=1)
    np.testing.assert_array_equal(model.coef_, once.coef_)
    with pytest.raises(ValueError, match="'balanced' needs the labels of all rows"):
        model.set_params(class_weight="balanced").partial_fit(X, y, clients=clients)


def test_a_classifier_and_a_regressor_differ_in_one_parameter_each():
    classifier, regressor = FederatedClassifier().get_params(), FederatedRegressor().get_params()
    assert classifier | {"standardize_targets": False} == regressor | {"class_weight": None}
