"""One round of each selector, the polls included, on WISDM and on Fashion-MNIST.

``python -m pytest benchmarks``. What is timed is the round alone, without fit's validation of X.
``extra_info`` of the JSON (``--benchmark-json``) has the rows that clients evaluated and trained
on in the last round.
"""

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
from skfed._federation import make_federation
from skfed._nets import Workbench, make_classifier_net
from skfed._rounds import Server, run_rounds
from skfed.engines import Draws, LoopEngine, batch_size

SELECTORS = {
    "random": RandomSelector(clients_per_round=3),
    "power-of-choice": PowerOfChoice(d=6, clients_per_round=3),
    "active": ActiveFLSelector(clients_per_round=3),
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
def test_round(benchmark, request, data, selector):
    X, y, clients = request.getfixturevalue(data)
    net = NeuralNetClassifier(
        nn.Sequential(*NETS[data]), criterion=nn.CrossEntropyLoss, lr=0.005, batch_size=64
    )
    labels, y = np.unique(y, return_inverse=True)
    federation = make_federation(clients, len(X), priority=np.unique(clients)[:4])
    server = Server(make_classifier_net(net, X, len(labels), seed=0), seed=0)
    draws = Draws(federation, 0, batch_size(server.net))
    engine = LoopEngine(Workbench(server.net, X[:1]), X, y, draws)
    rules = FederatedClassifier(selector=SELECTORS[selector], local_steps=30)._rules(server.net)

    def one_round():
        run_rounds(
            server,
            federation,
            engine,
            rules,
            until=server.round + 1,
            validate=lambda net: {},
            report=lambda row: None,
        )

    benchmark.group = data
    benchmark.pedantic(one_round, rounds=10, warmup_rounds=1)
    for column in ("samples_evaluated", "samples_trained"):
        benchmark.extra_info[column] = server.rows[-1][column]
