"""The HTML shown in notebooks: net, selector and the like as nested blocks."""

import re

import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.aggregation import TrimmedMean
from skfed.schedules import LinearDecay

BLOCK = r"<label[^>]*sk-toggleable__label[^>]*><div><div>([^<]+)</div>"


def blocks(html):
    """Return the headings of blocks, and of each what it shows."""
    parts = re.split(BLOCK, html)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def shows(block, parameter, value):
    """Tell whether a block's table has a parameter with that value."""
    words = " ".join(re.sub("<[^>]+>", " ", block).split())
    return f" {parameter} {value} " in f" {words} "


@pytest.fixture
def net():
    return NeuralNetClassifier(
        nn.Linear,
        module__in_features=5,
        module__out_features=3,
        criterion=nn.CrossEntropyLoss,
        lr=0.125,
        batch_size=17,
    )


@pytest.fixture(params=["before fit", "after fit"])
def ready(request, blobs):
    """Return a function that fits an estimator, or does not."""
    X, y, clients = blobs
    fits = request.param == "after fit"
    return lambda model, name="clients": model.fit(X, y, **{name: clients}) if fits else model


def test_net_and_selector_are_nested(ready, net):
    model = FederatedClassifier(net, selector=FedAlignSelector(eps=0.375), n_rounds=1)
    shown = blocks(ready(model)._repr_html_())
    assert next(iter(shown)) == "FederatedClassifier"
    assert "estimator: NeuralNetClassifier" in shown
    assert "selector: FedAlignSelector" in shown
    assert shows(shown["NeuralNetClassifier"], "lr", 0.125)
    assert shows(shown["NeuralNetClassifier"], "batch_size", 17)
    assert shows(shown["NeuralNetClassifier"], "module__out_features", 3)
    assert shows(shown["FedAlignSelector"], "eps", 0.375)
    assert shows(shown["FederatedClassifier"], "n_rounds", 1)


def test_the_fitted_model_shows_its_attributes(blobs, net):
    X, y, clients = blobs
    model = FederatedClassifier(net, n_rounds=1).fit(X, y, clients=clients)
    assert "history_" in blocks(model._repr_html_())["FederatedClassifier"]


def test_all_that_a_round_is_made_of_is_nested(ready):
    model = FederatedClassifier(
        nn.Linear(5, 3),
        selector=RandomSelector(2),
        lr_schedule=LinearDecay(0.25),
        aggregator=TrimmedMean(0.0625),
        n_rounds=1,
    )
    shown = blocks(estimator_html_repr(ready(model)))
    assert "in_features=5" in shown["Linear"]
    assert shows(shown["RandomSelector"], "clients_per_round", 2)
    assert shows(shown["LinearDecay"], "start", 0.25)
    assert shows(shown["TrimmedMean"], "trim", 0.0625)


def test_the_selector_is_shown_in_a_pipeline_in_a_search(ready, net):
    federated = FederatedClassifier(net, selector=FedAlignSelector(eps=0.375), n_rounds=1)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), federated), {"federatedclassifier__n_rounds": [1]}, cv=2
    )
    shown = blocks(estimator_html_repr(ready(search, "federatedclassifier__clients")))
    assert next(iter(shown)) == "GridSearchCV"
    assert shows(shown["FedAlignSelector"], "eps", 0.375)
    assert shows(shown["NeuralNetClassifier"], "lr", 0.125)


def test_defaults_need_no_blocks():
    for model in (FederatedClassifier(), FederatedRegressor()):
        assert [*blocks(model._repr_html_())] == [type(model).__name__]


def test_a_regressors_net():
    net = NeuralNetRegressor(nn.Linear, module__in_features=5, module__out_features=1, lr=0.125)
    shown = blocks(FederatedRegressor(net)._repr_html_())
    assert shows(shown["NeuralNetRegressor"], "lr", 0.125)
