"""Times a round of each selector, polls included, on WISDM and on Fashion-MNIST."""

from functools import partial

import numpy as np
import pytest
from skorch import NeuralNetClassifier
from torch import nn

from skfed import (
    ActiveFLSelector,
    FedAlignSelector,
    FederatedClassifier,
    PowerOfChoice,
    RandomSelector,
)

SELECTORS = {
    "random": RandomSelector(clients_per_round=3, ignore_priority=True),
    "power-of-choice": PowerOfChoice(d=6, clients_per_round=3, ignore_priority=True),
    "active": ActiveFLSelector(clients_per_round=3, ignore_priority=True),
    "fedalign": FedAlignSelector(eps=0.2, warmup=0),
}
NETS = {
    "wisdm": (nn.Linear(43, 64), nn.ReLU(), nn.Linear(64, 6)),
    "fashion_mnist": (
        nn.Linear(784, 64),
        nn.ReLU(),
        nn.Linear(64, 30),
        nn.ReLU(),
        nn.Linear(30, 10),
    ),
}


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("data", NETS)
def test_round(benchmark, compare, one_core, request, data, selector):
    X, y, clients = request.getfixturevalue(data)
    net = NeuralNetClassifier(
        nn.Sequential(*NETS[data]), criterion=nn.CrossEntropyLoss, lr=0.005, batch_size=64
    )

    def time_rounds(engine: str) -> list[float]:
        model = FederatedClassifier(
            net,
            selector=SELECTORS[selector],
            priority=np.unique(clients)[:4],
            local_steps=30,
            n_rounds=4,
            engine=engine,
            random_state=0,
        ).fit(X, y, clients=clients)
        return model.history_["round_seconds"][2:].tolist()

    contestants = {engine: partial(time_rounds, engine) for engine in ("stacked", "loop")}
    found = compare("rounds", contestants, base="stacked", n_turns=6)
    benchmark.extra_info |= {"data": data, "selector": selector}
    print(f"\n{data}, {selector}:", *found.lines(), sep="\n")
