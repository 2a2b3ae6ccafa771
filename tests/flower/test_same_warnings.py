"""The warnings of a fit appear over Flower too."""

import numpy as np
import pytest
from mishaps import EVERYBODY, estimator
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier
from skfed.modules import SoftmaxRegression


def test_divergence_warns_and_keeps_the_last_model_with_a_finite_loss(federate, blobs):
    """A step this large gives finite weights, and outputs that are not finite."""
    net = NeuralNetClassifier(
        SoftmaxRegression,
        module__n_features=5,
        module__n_classes=3,
        criterion=nn.CrossEntropyLoss,
    )
    rates = lambda t: 0.01 if t == 0 else 3e38  # noqa: E731
    diverging = estimator(estimator=net, lr_schedule=rates, local_epochs=1)
    strategy, grid = federate(diverging)
    with pytest.warns(ConvergenceWarning, match="from round 2 to 3 no client succeeded"):
        strategy.start(grid)
    assert np.isfinite(strategy.model_.predict_proba(blobs[0])).all()


def test_priority_without_influence_warns(federate):
    strategy, grid = federate(estimator(selector=EVERYBODY, priority=["a"], n_rounds=1))
    with pytest.warns(UserWarning, match="priority has no influence on who trains"):
        strategy.start(grid)


def test_priority_without_a_selector_uses_fedalign(federate, blobs):
    X, y, clients = blobs
    strategy, grid = federate(FederatedClassifier(priority=["a", "b"], n_rounds=2, random_state=0))
    strategy.start(grid)
    here = FederatedClassifier(priority=["a", "b"], n_rounds=2, random_state=0)
    here.fit(X, y, clients=clients)
    cohorts = strategy.model_.history_["cohort"].tolist()
    assert cohorts == here.history_["cohort"].tolist()
    assert all({"a", "b"} <= set(cohort) for cohort in cohorts)


def test_an_eps_that_matches_no_client_warns(federate):
    selector = FedAlignSelector(eps=1e-9, warmup=1)
    strategy, grid = federate(estimator(selector=selector, priority=["a"], n_rounds=2))
    with pytest.warns(UserWarning, match="matched no free client in any of the 1 rounds"):
        strategy.start(grid)
    assert np.isfinite(strategy.model_.history_["objective"].iloc[-1])
