"""Three rounds of each strategy, their cost worked out by hand.

Four clients of 4 rows, one feature, two classes: softmax regression has 2 + 2 float32, so a model
is 16 bytes, a scalar 8. Batches of 2 rows, 3 local steps: 6 rows a training. Clients a and b have
priority; c and d have their labels turned around.
"""

import numpy as np
import pandas as pd
import pytest
from skorch import NeuralNetClassifier
from torch import nn

from skfed import (
    ActiveFLSelector,
    DivFLSelector,
    FedAlignSelector,
    FedCorSelector,
    FederatedClassifier,
    HicsFLSelector,
    KVibSelector,
    OortSelector,
    OptimalSelector,
    PowerOfChoice,
    RandomSelector,
    TiflSelector,
    UcbSelector,
)
from skfed.aggregation import Scaffold
from skfed.availability import Dropout, TraceAvailability
from skfed.devices import ConstantDevices
from skfed.modules import SoftmaxRegression
from skfed.schedules import StepDecay

COLUMNS = [
    "models_down",
    "models_up",
    "scalars_down",
    "scalars_up",
    "samples_evaluated",
    "samples_trained",
    "n_polled",
    "n_trained",
]
ALL = RandomSelector(1.0, probability="uniform", replace=False, ignore_priority=True)
POW = {"d": 4, "clients_per_round": 2, "ignore_priority": True}
# Each strategy: three rows of the columns above, or one row that holds for all rounds.
LEDGERS = {
    "random": (
        {"selector": RandomSelector(3, "uniform", replace=False, ignore_priority=True)},
        [(3, 3, 0, 0, 0, 18, 0, 3)],
    ),
    "pow-d": ({"selector": PowerOfChoice(**POW)}, [(4, 2, 0, 4, 16, 12, 4, 2)]),
    "cpow-d": ({"selector": PowerOfChoice(**POW, loss="batch")}, [(4, 2, 0, 4, 8, 12, 4, 2)]),
    "rpow-d": ({"selector": PowerOfChoice(**POW, loss="reported")}, [(2, 2, 0, 0, 0, 12, 0, 2)]),
    "adapow-d": (
        {"selector": PowerOfChoice(**POW | {"d": StepDecay(4, 0.75, [1, 2])})},
        # 4, 3 and 2.25 candidates
        [(4, 2, 0, 4, 16, 12, 4, 2), (3, 2, 0, 3, 12, 12, 3, 2), (2, 2, 0, 2, 8, 12, 2, 2)],
    ),
    # The spread of losses: two scalars from each that trains.
    "ucb": ({"selector": UcbSelector(2, ignore_priority=True)}, [(2, 2, 0, 4, 0, 12, 0, 2)]),
    # All train and send a norm; as many as m are admitted for certain.
    "optimal": (
        {"selector": OptimalSelector(4, ignore_priority=True)},
        [(4, 4, 0, 4, 0, 24, 0, 4)],
    ),
    # The spread of losses, as for ucb.
    "oort": ({"selector": OortSelector(2, ignore_priority=True)}, [(2, 2, 0, 4, 0, 12, 0, 2)]),
    # A seed down, and 64 numbers up after a gradient on 4 rows: of all at first, then of the two
    # that train.
    "divfl": (
        {"selector": DivFLSelector(2, ignore_priority=True)},
        [(4, 2, 4, 256, 0, 28, 0, 2), (2, 2, 2, 128, 0, 20, 0, 2), (2, 2, 2, 128, 0, 20, 0, 2)],
    ),
    "fedcor": (
        {"selector": FedCorSelector(2, warmup=1, interval=1)},
        # In the warm-up, and after it, a poll of all. Then two polls: of the model, and of that of
        # a trial, in which two clients train once more.
        [(4, 2, 0, 4, 16, 12, 4, 2), (4, 2, 0, 4, 16, 12, 4, 2), (8, 4, 0, 8, 32, 24, 8, 4)],
    ),
    "tifl": (
        {
            "selector": TiflSelector(2, interval=1, ignore_priority=True),
            "devices": ConstantDevices(6, 16, 32),
        },
        # Each client is timed once; then there are two tiers, and a poll of errors.
        [(2, 2, 0, 0, 0, 12, 0, 2), (2, 2, 0, 0, 0, 12, 0, 2), (4, 2, 0, 4, 16, 12, 4, 2)],
    ),
    # These two look at updates alone.
    "hics-fl": (
        {"selector": HicsFLSelector(2, ignore_priority=True)},
        [(2, 2, 0, 0, 0, 12, 0, 2)],
    ),
    "k-vib": ({"selector": KVibSelector(4, ignore_priority=True)}, [(4, 4, 0, 0, 0, 24, 0, 4)]),
    "afl": ({"selector": ActiveFLSelector(2, ignore_priority=True)}, [(2, 2, 0, 0, 0, 12, 0, 2)]),
    "fedalign, all match after a warm-up": (
        {"selector": FedAlignSelector(eps=np.inf, warmup=1)},
        # The bound goes to c and d; all four say their loss and train.
        [(2, 2, 0, 0, 0, 12, 0, 2), (4, 4, 2, 4, 16, 24, 4, 4), (4, 4, 2, 4, 16, 24, 4, 4)],
    ),
    "fedalign, none match": (
        {"selector": FedAlignSelector(eps=0, warmup=0)},
        # At the zero model all losses are log 2, on the bound: c and d answer, and fail the
        # strict test. Later they are above the bound and silent.
        [(4, 2, 2, 4, 16, 12, 4, 2), (4, 2, 2, 2, 16, 12, 4, 2), (4, 2, 2, 2, 16, 12, 4, 2)],
    ),
    "fedalign, half take part": (
        {"selector": FedAlignSelector(eps=np.inf, warmup=0, participation=0.5)},
        [(2, 2, 1, 2, 8, 12, 2, 2)],
    ),
    "fedalign by accuracy": (
        {"selector": FedAlignSelector(eps=1.5, warmup=0, match="accuracy")},
        [(4, 4, 2, 4, 16, 24, 4, 4)],
    ),
    "scaffold": ({"selector": ALL, "aggregator": Scaffold()}, [(8, 8, 0, 0, 0, 24, 0, 4)]),
    "scaffold after polls": (
        {"selector": PowerOfChoice(**POW), "aggregator": Scaffold()},
        # 4 models for the poll, 2 variates to those who train; 2 models and 2 variates back.
        [(6, 4, 0, 4, 16, 12, 4, 2)],
    ),
    "dropouts": (
        {"selector": ALL, "availability": Dropout(1.0)},
        [(4, 0, 0, 0, 0, 0, 0, 0)],
    ),
    "nobody in reach at first": (
        {
            "selector": PowerOfChoice(**POW),
            "availability": TraceAvailability([[0] * 4, [1] * 4, [1, 0, 1, 1]]),
        },
        [(0, 0, 0, 0, 0, 0, 0, 0), (4, 2, 0, 4, 16, 12, 4, 2), (3, 2, 0, 3, 12, 12, 3, 2)],
    ),
}


@pytest.mark.parametrize("strategy", LEDGERS)
def test_three_rounds_by_hand(strategy):
    params, rows = LEDGERS[strategy]
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 4, dtype=np.float32)
    y = np.array([0, 0, 1, 1] * 2 + [1, 1, 0, 0] * 2)
    net = NeuralNetClassifier(
        SoftmaxRegression,
        module__n_features=1,
        module__n_classes=2,
        criterion=nn.CrossEntropyLoss,
        lr=0.1,
        batch_size=2,
    )
    model = FederatedClassifier(
        net, priority=["a", "b"], n_rounds=3, local_steps=3, random_state=0, **params
    ).fit(X, y, clients=np.repeat(list("abcd"), 4))
    expected = pd.DataFrame(rows * (4 - len(rows)) if len(rows) == 1 else rows, columns=COLUMNS)
    pd.testing.assert_frame_equal(model.history_[COLUMNS], expected)
    bytes_down = 16 * expected["models_down"] + 8 * expected["scalars_down"]
    bytes_up = 16 * expected["models_up"] + 8 * expected["scalars_up"]
    assert model.history_["bytes_down"].tolist() == bytes_down.tolist()
    assert model.history_["bytes_up"].tolist() == bytes_up.tolist()
