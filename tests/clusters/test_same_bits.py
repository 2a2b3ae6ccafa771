"""Wherever clients train, the result is that of one process, to the last bit."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice

POW_D = PowerOfChoice(d=5, clients_per_round=3, ignore_priority=True)
CPOW_D = PowerOfChoice(d=5, clients_per_round=3, loss="batch", ignore_priority=True)
FEDALIGN = FedAlignSelector(eps=0.5, warmup=0.4)


class Dropout(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def classifier(engine, selector):
    return FederatedClassifier(
        NeuralNetClassifier(Dropout, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=8),
        selector=selector,
        priority=["a", "c"],
        n_rounds=3,
        engine=engine,
        memory_budget=2**14,  # so that there are several chunks
        random_state=0,
    )


@pytest.mark.parametrize(
    ("backend", "engine", "selector"),
    [
        ("dask", "loop", FEDALIGN),
        ("dask", "stacked", POW_D),
        ("dask", "stacked", CPOW_D),
        ("ray", "stacked", FEDALIGN),  # the loop on Ray is in the gallery
    ],
    ids=str,
)
def test_a_fit(blobs, same_model, on, backend, engine, selector):
    X, y, clients = blobs
    serial = classifier(engine, selector).fit(X, y, clients=clients)
    with on(backend):
        spread = classifier(engine, selector).fit(X, y, clients=clients)
    assert same_model(serial, spread)
    for column in ("cohort", "polled", "objective", "train_loss"):
        assert serial.history_[column].equals(spread.history_[column])


@pytest.mark.parametrize("backend", ["loky", "dask", "ray"])
def test_a_search(blobs, same_model, on, backend):
    X, y, clients = blobs
    grid = [
        {"selector": [FedAlignSelector()], "selector__eps": [0.0, 0.5]},
        {
            "selector": [PowerOfChoice(clients_per_round=2, ignore_priority=True)],
            "selector__d": [2, 6],
        },
    ]
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    serial = GridSearchCV(classifier("stacked", None), grid, cv=folds)
    serial.fit(X, y, clients=clients)
    with on(backend):
        spread = GridSearchCV(classifier("stacked", None), grid, cv=folds, refit=False)
        spread.fit(X, y, clients=clients)
    for split in ("split0_test_score", "split1_test_score"):
        np.testing.assert_array_equal(serial.cv_results_[split], spread.cv_results_[split])
    assert len(np.unique(serial.cv_results_["mean_test_score"])) > 1
