"""Nets with one logit for two classes, or one a label, are the same over messages."""

import numpy as np
import pandas as pd
import pytest
from logits import ALL_NETS, LABELS, ONE_LOGIT, federated, targets
from scipy import sparse

from skfed import FederatedClassifier
from skfed.privacy import GaussianMechanism


@pytest.fixture
def loading(blobs):
    """Return a function that makes the load_data of clients for a net's targets."""
    X, y, clients = blobs

    def make(name, kind=np.asarray):
        own = kind(targets(name, X, y))

        def load_data(context):
            rows = clients == context.node_config["client-name"]
            return X[rows], own[rows]

        return load_data, own

    return make


@pytest.mark.parametrize("name", ALL_NETS)
def test_rounds_are_the_same(name, blobs, loading, federate, same_model):
    X, _, clients = blobs
    load, y = loading(name)
    estimator = federated(name, engine="loop")
    simulated = estimator.fit(X, y, clients=clients)
    strategy, grid = federate(estimator, load=load)
    strategy.start(grid)
    model = strategy.model_
    timeless = [c for c in simulated.history_ if not c.endswith("_seconds")]
    pd.testing.assert_frame_equal(model.history_[timeless], simulated.history_[timeless])
    assert same_model(model, simulated)
    np.testing.assert_array_equal(model.classes_, simulated.classes_)
    np.testing.assert_array_equal(model.predict(X), simulated.predict(X))
    assert model.score(X, y) == simulated.score(X, y)


def test_a_sparse_indicator_is_one_of_labels(loading, federate):
    load, _ = loading("module of labels", sparse.csr_array)
    strategy, grid = federate(FederatedClassifier(n_rounds=1), load=load)
    strategy.start(grid)
    assert strategy.model_.classes_.tolist() == [0, 1, 2]


def test_clients_with_privacy_tell_the_number_of_labels(loading, federate):
    load, _ = loading("module of labels")
    privacy = GaussianMechanism(clip=1.0, noise_multiplier=0.1)
    strategy, grid = federate(
        FederatedClassifier(LABELS["module of labels"], n_rounds=1),
        FederatedClassifier(LABELS["module of labels"], update_privacy=privacy),
        load=load,
    )
    strategy.start(grid)
    assert strategy.model_.classes_.tolist() == [0, 1, 2]


def test_clients_with_other_numbers_of_labels_are_refused(loading, federate):
    load, _ = loading("module of labels")

    def load_fewer(context):
        X, own = load(context)
        return X, own[:, : 2 if context.node_config["client-name"] == "b" else 3]

    strategy, grid = federate(FederatedClassifier(n_rounds=1), load=load_fewer)
    with pytest.raises(ValueError, match=r"'b' has target_shape \(2,\)"):
        strategy.start(grid)


def test_wrong_nets_are_refused_before_the_rounds(blobs, federate):
    estimator = FederatedClassifier(ONE_LOGIT["binary net"], n_rounds=1)
    X, y, clients = blobs

    def load_three(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows]

    strategy, grid = federate(estimator, load=load_three)
    with pytest.raises(ValueError, match="y has 3 classes"):
        strategy.start(grid)
