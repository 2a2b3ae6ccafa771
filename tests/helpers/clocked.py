"""Four clients of 4 rows whose seconds are worked out by hand, as test_clock.py says."""

import numpy as np
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.devices import ConstantDevices, LognormalDevices
from skfed.modules import SoftmaxRegression
from skfed.selection import BaseSelector, Cohort

RATES = {"a": 6, "b": 3, "c": 2, "d": 1}
DEVICES = ConstantDevices(RATES, 16, 32, latency=0.25)
ALL = RandomSelector(1.0, probability="uniform", replace=False, ignore_priority=True)
POW = {"d": 4, "clients_per_round": 2, "ignore_priority": True}
X = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 4, dtype=np.float32)
Y = np.array([0, 0, 1, 1] * 2 + [1, 1, 0, 0] * 2)
CLIENTS = np.repeat(list("abcd"), 4)
DRAWN = {
    "selector": PowerOfChoice(**POW),
    "devices": LognormalDevices(3, 16, 32, 0.25, bytes_up_sigma=0.5, jitter=0.5, correlation=0.3),
    "deadline": 6.0,
    "report_goal": 0.5,
    "n_rounds": 6,
}


def estimator(**params):
    net = NeuralNetClassifier(
        SoftmaxRegression,
        module__n_features=1,
        module__n_classes=2,
        criterion=nn.CrossEntropyLoss,
        lr=0.1,
        batch_size=2,
    )
    given = {"selector": ALL, "n_rounds": 3, "local_steps": 3, "devices": DEVICES}
    return FederatedClassifier(net, **given | {"random_state": 0} | params)


def fit(**params):
    return estimator(**params).fit(X, Y, clients=CLIENTS)


class Twice(BaseSelector):
    """Client 0 twice, client 1 once."""

    def _select(self, round):
        return Cohort.mean(np.array([0, 0, 1]))
