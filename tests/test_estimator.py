"""FederatedClassifier as users of scikit-learn meet it."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_methods_sample_order_invariance,
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from skorch.callbacks import Callback, Freezer
from skorch.dataset import Dataset
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.model_selection import WithinClientKFold

# Their tolerance of 1e-7 is float32's rounding, that of a row depending on its place among others,
# and the means by which the default net standardises count rows. They run in float64 below.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "float32, and statistics that count rows",
    "check_methods_sample_order_invariance": "float32",
}


@pytest.mark.filterwarnings("ignore:clients was not given")
@parametrize_with_checks(
    [FederatedClassifier(n_rounds=15)], expected_failed_checks=lambda _: EXPECTED_FAILURES
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore:clients was not given", "ignore:the fit ends with objective")
@parametrize_with_checks(
    [FederatedClassifier(NeuralNetBinaryClassifier(nn.LazyLinear(1), lr=0.1), n_rounds=15)],
    expected_failed_checks=lambda _: (
        EXPECTED_FAILURES
        | {"check_class_weight_classifiers": "class_weight is for the default net"}
    ),
)
def test_scikit_learns_own_checks_of_binary_classifiers(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore:clients was not given")
@pytest.mark.parametrize(
    ("check", "n_features"),
    [
        (check_sample_weight_equivalence_on_dense_data, 30),
        (check_methods_sample_order_invariance, 3),
    ],
)
def test_scikit_learns_checks_to_rounding_hold_in_float64(check, n_features):
    net = nn.Linear(n_features, 3).double()
    check("FederatedClassifier", FederatedClassifier(net, n_rounds=30))


class MLP(nn.Module):
    def __init__(self, n_features=5, n_classes=3):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_features, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, n_classes)
        )

    def forward(self, X):
        return self.layers(X.flatten(1))


class Probabilities(MLP):
    """As skorch's default criterion, NLLLoss, wants it."""

    def forward(self, X):
        return super().forward(X).softmax(dim=-1)


def seeded(module_class):
    """Return a module whose first weights are the same in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return module_class()


NETS = {
    "none": None,
    "class": MLP,
    "instance": seeded(MLP),
    "skorch": NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss, lr=0.1, module__n_classes=3),
    "skorch, NLLLoss": NeuralNetClassifier(Probabilities, lr=0.1),
    "double": seeded(MLP).double(),
}


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_it_learns_with_any_kind_of_net(blobs, net):
    X, y, clients = blobs
    model = FederatedClassifier(
        net, selector=RandomSelector(3), n_rounds=50, local_epochs=3, random_state=0
    )
    model.fit(X, y, clients=clients)
    assert model.score(X, y) > 0.75
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert isinstance(model.net_, NeuralNetClassifier)
    assert (model.net_.predict(probabilities_input(model, X)) == y).mean() == model.score(X, y)


def probabilities_input(model, X):
    """Cast X as skorch wants it."""
    return X.astype(str(next(model.net_.module_.parameters()).dtype).removeprefix("torch."))


@pytest.mark.parametrize("net", [None, MLP, MLP(), NETS["skorch"]], ids=str)
def test_nothing_that_is_passed_in_is_changed(blobs, net):
    X, y, clients = blobs
    frame = pd.DataFrame(X).add_prefix("x")
    labels, ids, priority = y.tolist(), pd.Series(clients), ["a", "b"]
    selector = FedAlignSelector(eps=0.3)
    arguments = (frame, labels, ids, priority, net)
    before = copy.deepcopy(arguments)
    model = FederatedClassifier(net, selector=selector, priority=priority, n_rounds=3)
    params = copy.deepcopy(model.get_params(deep=False))
    model.fit(frame, labels, clients=ids, X_val=frame, y_val=labels, clients_val=ids)
    pd.testing.assert_frame_equal(frame, before[0])
    pd.testing.assert_series_equal(ids, before[2])
    assert (labels, priority) == (before[1], before[3])
    assert vars(selector) == vars(FedAlignSelector(eps=0.3))
    for name, value in model.get_params(deep=False).items():
        if name not in ("estimator", "selector"):
            assert value == params[name]
    if isinstance(net, nn.Module):
        for mine, theirs in zip(net.parameters(), before[4].parameters(), strict=True):
            assert torch.equal(mine, theirs)
    if isinstance(net, NeuralNetClassifier):
        assert not net.initialized_
        assert repr(net) == repr(before[4])


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"n_rounds": 0}, r"'n_rounds' parameter.*\[1, inf\).*Got 0"),
        ({"local_epochs": 0}, "'local_epochs' parameter.*Got 0"),
        ({"local_steps": 0}, "'local_steps' parameter.*Got 0"),
        ({"selector": "random"}, "'selector' parameter.*Got 'random'"),
        ({"selector": FedAlignSelector(eps=-1)}, r"'eps' parameter.*\[0.0, inf\].*Got -1"),
        ({"selector": PowerOfChoice(d=2, clients_per_round=3)}, "d=2.*raise d or lower clients"),
        ({"selector": PowerOfChoice(d=7)}, "d=7 asks for more.*6 clients.*pass d <= 6"),
        ({"priority": []}, r"priority is empty \(\[\]\).*name at least one"),
        ({"priority": ["a", "zoe"]}, "priority names 1.*'zoe'.*drop the unknown"),
        (
            {"estimator": MLP(n_classes=2)},
            r"estimator returns shape \(1, 2\).*3 classes.*3 outputs",
        ),
        ({"estimator": MLP(n_features=4)}, r"estimator cannot take rows of X of shape \(5,\)"),
    ],
)
def test_bad_parameters(blobs, params, match):
    X, y, clients = blobs
    with pytest.raises(ValueError, match=match):
        FederatedClassifier(**params).fit(X, y, clients=clients)


def test_an_estimator_of_another_kind():
    with pytest.raises(TypeError, match="estimator must be a skorch NeuralNetClassifier"):
        FederatedClassifier("svm").fit([[1.0], [2.0]], [0, 1], clients=[0, 1])


@pytest.mark.parametrize(
    ("clients", "match"),
    [
        (["a"], "clients has 1 entries, but X has 140 rows: pass one client id a row"),
        ([None, *"a" * 139], r"clients has 1 missing value\(s\), the first at row 0: give"),
    ],
)
def test_bad_clients(blobs, clients, match):
    X, y, _ = blobs
    with pytest.raises(ValueError, match=match):
        FederatedClassifier().fit(X, y, clients=clients)


def test_without_clients_there_is_one_and_a_warning(blobs):
    X, y, _ = blobs
    with pytest.warns(UserWarning, match="clients was not given.*pass clients= to fit"):
        model = FederatedClassifier(n_rounds=2).fit(X, y)
    assert model.clients_.tolist() == [0]
    with pytest.raises(ValueError, match="priority names clients, but clients was not given"):
        FederatedClassifier(priority=["a"]).fit(X, y)


@pytest.mark.parametrize("splitter", [2, WithinClientKFold(2)])
def test_cross_validation_without_clients_says_how_to_give_them(blobs, splitter):
    X, y, clients = blobs
    way_out = r'params=\{"clients": ids\} to cross_val_score'
    given = {} if splitter == 2 else {"groups": clients}  # for the splitter, not for fit
    model = FederatedClassifier(n_rounds=1)
    with pytest.warns(UserWarning, match=way_out):
        cross_val_score(model, X, y, cv=splitter, **given)
    model.set_params(priority=["a"])
    with pytest.raises(ValueError, match=way_out):
        cross_val_score(model, X, y, cv=splitter, error_score="raise", **given)


def test_predict_before_fit(blobs):
    for method in ("predict", "predict_proba"):
        with pytest.raises(NotFittedError):
            getattr(FederatedClassifier(), method)(blobs[0])
    with pytest.raises(NotFittedError):
        FederatedClassifier().score(*blobs[:2], clients=blobs[2])


def test_score_with_clients_counts_priority_rows_only(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(priority=["a", "d"], n_rounds=5, random_state=0)
    model.fit(X, y, clients=clients)
    rows = np.isin(clients, ["a", "d"])
    assert model.score(X, y, clients=clients) == model.score(X[rows], y[rows])
    weight = np.arange(len(y))
    frame = pd.DataFrame(X)
    model.fit(frame, y, clients=clients)
    assert model.score(frame, y, sample_weight=weight, clients=clients) == pytest.approx(
        np.average(model.predict(frame)[rows] == y[rows], weights=weight[rows])
    )
    with pytest.raises(ValueError, match="clients has no row of a priority client"):
        model.score(X[~rows], y[~rows], clients=clients[~rows])


def test_validation_data_adds_two_columns(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(priority=["a", "d"], n_rounds=3, random_state=0)
    everyone = model.fit(X, y, clients=clients, X_val=X, y_val=y)
    assert everyone.history_["val_score"].iloc[-1] == pytest.approx(model.score(X, y))
    loss = -np.log(model.predict_proba(X)[np.arange(len(y)), y]).mean()
    assert everyone.history_["val_loss"].iloc[-1] == pytest.approx(loss, rel=1e-5)
    model.fit(X, y, clients=clients, X_val=X, y_val=y, clients_val=clients)
    score = model.score(X, y, clients=clients)
    assert model.history_["val_score"].iloc[-1] == pytest.approx(score)
    assert "val_loss" not in model.fit(X, y, clients=clients).history_


@pytest.mark.parametrize(
    ("validation", "match"),
    [
        ({"X_val": "X"}, "X_val and y_val go together"),
        ({"X_val": "X", "y_val": [9]}, "y_val has the label.*9.*not among classes_"),
        ({"X_val": "X", "y_val": [0], "clients_val": ["f"]}, "clients_val has no row of a prior"),
        ({"X_val": "X", "y_val": [0], "clients_val": []}, "clients_val has 0 entries"),
    ],
)
def test_bad_validation_data(blobs, validation, match):
    X, y, clients = blobs
    validation = {k: X[:1] if isinstance(v, str) else v for k, v in validation.items()}
    with pytest.raises(ValueError, match=match):
        FederatedClassifier(priority=["a"]).fit(X, y, clients=clients, **validation)


def test_partial_fit_is_one_more_round_and_equals_fit(blobs, same_model):
    X, y, clients = blobs
    whole = FederatedClassifier(n_rounds=3, random_state=0).fit(X, y, clients=clients)
    steps = FederatedClassifier(n_rounds=3, random_state=0)
    for n in range(3):
        steps.partial_fit(X, y, clients=clients)
        assert steps.n_rounds_ == n + 1
    assert same_model(whole, steps)
    columns = ["cohort", "train_loss", "bytes_down"]
    pd.testing.assert_frame_equal(whole.history_[columns], steps.history_[columns])


def test_partial_fit_with_new_clients_and_all_classes_named_first(blobs):
    X, y, clients = blobs
    first = (clients == "a") & (y < 2)
    model = FederatedClassifier(random_state=0)
    model.partial_fit(X[first], y[first], classes=[0, 1, 2], clients=clients[first])
    model.partial_fit(X, y, clients=clients)
    assert model.clients_.tolist() == list("abcdef")
    assert model.classes_.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="y has the label 5.*name all classes in the first"):
        model.partial_fit(X, y + 5, clients=clients)


def test_warm_start_goes_on_to_n_rounds_in_total(blobs, same_model):
    X, y, clients = blobs
    whole = FederatedClassifier(n_rounds=5, random_state=0).fit(X, y, clients=clients)
    warm = FederatedClassifier(n_rounds=2, random_state=0, warm_start=True)
    warm.fit(X, y, clients=clients)
    warm.set_params(n_rounds=5).fit(X, y, clients=clients)
    assert same_model(whole, warm)
    assert len(warm.history_) == 5
    with pytest.warns(UserWarning, match="n_rounds=5 rounds are trained already"):
        warm.fit(X, y, clients=clients)
    with pytest.raises(ValueError, match="n_rounds=3 is less than the 5 rounds already trained"):
        warm.set_params(n_rounds=3).fit(X, y, clients=clients)


def test_a_failed_fit_leaves_the_fitted_model(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=2, random_state=0).fit(X, y, clients=clients)
    before = model.predict(X)
    others = np.array(["p", "q", "r"])[y]
    with pytest.raises(ValueError, match="clients has 1 entries"):
        model.fit(X[:, :3], others, clients=["a"])
    with pytest.raises(ValueError, match="eps"):
        model.set_params(selector=FedAlignSelector(eps=-1)).fit(X[:, :3], others, clients=clients)
    assert (model.predict(X) == before).all()
    assert model.n_features_in_ == 5


def test_a_warm_start_that_fails_keeps_the_rounds_that_it_finished(blobs):
    X, y, clients = blobs

    def breaks(t):
        if t == 4:
            raise ZeroDivisionError
        return 0.1

    model = FederatedClassifier(n_rounds=2, warm_start=True, lr_schedule=breaks, random_state=0)
    model.fit(X, y, clients=clients)
    with pytest.raises(ZeroDivisionError):
        model.set_params(n_rounds=9).fit(X, y, clients=clients)
    assert model.n_rounds_ == len(model.history_) == 4


def test_a_module_that_cannot_be_built_says_what_to_pass(blobs):
    X, y, clients = blobs
    with pytest.raises(TypeError, match="built without arguments: pass an instance, or a skorch"):
        FederatedClassifier(nn.Linear).fit(X, y, clients=clients)


def test_a_pipeline_transforms_validation_data_with_routing_on(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=2, random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = Pipeline(
            [("scale", StandardScaler()), ("model", model)], transform_input=["X_val"]
        )
        pipeline.fit(X, y, clients=clients, X_val=X, y_val=y, clients_val=clients)
    score = pipeline[-1].history_["val_score"].iloc[-1]
    assert score == pytest.approx(pipeline.score(X, y))


def test_pickle_keeps_the_model_and_can_go_on(blobs, same_model):
    X, y, clients = blobs
    model = FederatedClassifier(NETS["skorch"], n_rounds=2, random_state=0)
    loaded = pickle.loads(pickle.dumps(model.fit(X, y, clients=clients)))
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert same_model(
        loaded.partial_fit(X, y, clients=clients), model.partial_fit(X, y, clients=clients)
    )


class ZeroDataset(Dataset):
    def transform(self, X, y):
        return 0 * X, y


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"callbacks": [Freezer("layers.0*")]}, "Freezer.on_epoch_begin"),
        ({"dataset": ZeroDataset}, "dataset"),
        ({"iterator_train__drop_last": True}, "iterator_train__drop_last"),
    ],
)
def test_what_is_not_used_of_a_net_is_named_in_a_warning(blobs, settings, named):
    X, y, clients = blobs
    net = NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss, **settings)
    with pytest.warns(UserWarning, match=f"not used when it is federated: .*{named}") as record:
        FederatedClassifier(net, n_rounds=1).fit(X, y, clients=clients)
    assert record[0].filename == __file__


class ZeroLater(Callback):
    """Lets each client take one step, by a count that it resets itself."""

    def on_epoch_begin(self, net, **kwargs):
        self.n_ = 0

    def on_grad_computed(self, net, named_parameters, **kwargs):
        self.n_ += 1
        if self.n_ > 1:
            for _, parameter in named_parameters:
                parameter.grad.zero_()


def test_callbacks_that_act_on_batches_start_anew_with_each_client(blobs, same_model):
    X, y, clients = blobs
    settings = {"criterion": nn.CrossEntropyLoss, "lr": 0.1, "batch_size": -1}
    module = nn.Linear(5, 3)
    stopped = NeuralNetClassifier(module, callbacks=[ZeroLater], **settings)
    plain = NeuralNetClassifier(module, **settings)
    params = {"selector": RandomSelector(1.0, "uniform", replace=False), "n_rounds": 2}
    one_step = FederatedClassifier(plain, local_steps=1, random_state=0, **params)
    many = FederatedClassifier(stopped, local_steps=4, random_state=0, **params)
    one_step.fit(X, y, clients=clients)
    many.fit(X, y, clients=clients)
    for a, b in zip(
        one_step.net_.module_.parameters(), many.net_.module_.parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_an_error_in_training_names_the_client(blobs):
    X, y, clients = blobs
    net = NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss, batch_size=9)  # 10 = 9 + 1 rows
    with pytest.raises(ValueError, match="more than 1 value") as error:
        selector = PowerOfChoice(d=6, clients_per_round=1)
        FederatedClassifier(net, selector=selector, n_rounds=9, random_state=0).fit(
            X, y, clients=clients
        )
    assert "while training client 'a' in round" in error.value.__notes__[0]


def test_clients_of_one_row_or_one_class_train(blobs):
    X, y, _ = blobs
    clients = np.where(np.arange(len(y)) == 0, "single", np.array(["x", "y", "z"])[y])
    selector = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)
    model = FederatedClassifier(selector=selector, n_rounds=2).fit(X, y, clients=clients)
    assert (model.history_["n_aggregated"] == 4).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_net_on_a_gpu_learns_and_leaves_its_generator_alone(blobs):
    X, y, clients = blobs
    net = NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss, lr=0.1, device="cuda")
    before = torch.cuda.get_rng_state()
    model = FederatedClassifier(net, n_rounds=100, random_state=0).fit(X, y, clients=clients)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert model.score(X, y) > 0.75
