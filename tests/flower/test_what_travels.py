"""Flower's messages have what trains, and once for each client what does not."""

from collections import Counter

import numpy as np
import pytest
import torch
from local_grid import is_kind
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.aggregation import Scaffold
from skfed.contribution import LeaveOneOut
from skfed.flower._messages import LostTensors

TWO = RandomSelector(clients_per_round=2, probability="uniform", replace=False)
NEWS = "state", "fixed", "correction", "variate", "model-"


class Tuned(nn.Sequential):
    """A frozen layer of 35 numbers, a head of 24, and statistics that travel."""

    def __init__(self):
        super().__init__(nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.Linear(7, 3))
        self[0].requires_grad_(False)


def estimator(**params):
    net = NeuralNetClassifier(Tuned(), criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=8)
    params = {"selector": TWO, "n_rounds": 4, "local_steps": 3, "random_state": 0, **params}
    return FederatedClassifier(net, engine="loop", **params)


def array_bytes(messages):
    """Return the bytes of the tensors that messages have."""
    return sum(
        array.numpy().nbytes
        for message in messages
        for name, record in message.content.items()
        if name.startswith(NEWS) and not name.endswith("request")
        for array in record.values()
    )


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"selector": PowerOfChoice(d=4, clients_per_round=2)},
        {"selector": FedAlignSelector(eps=0.3, warmup=0.3), "priority": ["a", "b"]},
        {"aggregator": Scaffold()},
        {"selector": RandomSelector(3, "uniform", True)},
        {
            "contribution": LeaveOneOut(),
            "priority": ["a", "b"],
            "selector": RandomSelector(3, ignore_priority=True),
        },
    ],
    ids=lambda params: ", ".join(map(str, params)) or "plain",
)
def test_the_ledger_is_that_of_the_messages_and_of_the_simulation(blobs, federate, params):
    X, y, clients = blobs
    given = estimator(**params)
    simulated = given.fit(X, y, clients=clients)
    strategy, grid = federate(given)
    strategy.start(grid)
    history = strategy.model_.history_
    for column in ("cohort", "polled", "bytes_down", "bytes_up", "objective"):
        assert history[column].equals(simulated.history_[column]), column
    states = (one.net_.module_.state_dict() for one in (simulated, strategy.model_))
    for mine, expected in zip(*(state.values() for state in states), strict=True):
        assert torch.equal(mine, expected)
    scalars = 8 * history["scalars_down"].sum()
    if "aggregator" not in params:  # the first variates are 0, and no message has them
        assert array_bytes(grid.sent) + scalars == history["bytes_down"].sum()
        up = history["bytes_up"].sum() - 8 * history["scalars_up"].sum()
        assert array_bytes(grid.received) == up
    assert Counter(fixed_sent(grid)) == Counter(dict.fromkeys(fixed_sent(grid), 1))


def fixed_sent(grid):
    """Return the clients of the messages that have what does not train."""
    sent = (message for message in grid.sent if "fixed" in message.content)
    return [message.content["request"]["client"] for message in sent]


def test_a_client_that_was_started_again_is_sent_it_again_and_charged(federate):
    strategy, grid = federate(estimator(selector=RandomSelector(1.0, "uniform", False)))

    def restart(message):
        """Start node f again before its training of round 2."""
        request = message.content["request"]
        is_due = is_kind(message, "train") and request["round"] == 2 and request["client"] == "f"
        if is_due and not restarted:
            restarted.append(grid.nodes[message.metadata.dst_node_id])
            restarted[0].start()

    restarted = []
    push = grid.push_messages
    grid.push_messages = lambda messages: [restart(one) for one in messages] and push(messages)
    strategy.start(grid)
    history = strategy.model_.history_
    assert restarted and history["n_failed"].tolist() == [0] * 4
    backbone, rest = 4 * 35, 4 * (24 + 4 * 7) + 8
    news = np.array([6, 0, 0, 0]) * backbone
    # The message with the rest of the model was in vain.
    news[2] += backbone + rest
    assert history["bytes_down"].tolist() == (6 * rest + news).tolist()
    assert sorted(fixed_sent(grid)) == ["a", "b", "c", "d", "e", "f", "f"]


def test_a_client_says_that_it_has_lost_tensors_without_their_names(federate, caplog):
    strategy, grid = federate(estimator(n_rounds=1))
    strategy.start(grid)
    (message, *_) = (one for one in grid.sent if "fixed" in one.content)
    node = grid.nodes[message.metadata.dst_node_id]
    node.start()
    del message.content["fixed"]
    reply = node.app(message, node.context)
    assert dict(reply.content["failure"]) == {"type": LostTensors.__name__}
