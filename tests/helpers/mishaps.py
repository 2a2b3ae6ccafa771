"""Failures of nodes, and the estimator that they are tested with."""

from flwr.app import Message, RecordDict
from local_grid import requests

from skfed import FederatedClassifier, RandomSelector
from skfed.modules import SoftmaxRegression

EVERYBODY = RandomSelector(1.0, probability="uniform", replace=False)


def estimator(**params):
    params = {"estimator": SoftmaxRegression(5, 3), "selector": EVERYBODY, "n_rounds": 4} | params
    params = {"random_state": 0} | params
    return FederatedClassifier(**params)


def at_round(t, do):
    """Return a function by which a grid calls ``do`` before it sends the trainings of a round."""

    def watch(grid):
        original = grid.push_messages

        def push_messages(messages):
            for request in requests(messages, "train")[:1]:
                if request["round"] == t:
                    do(grid)
            return original(messages)

        grid.push_messages = push_messages

    return watch


def node_of(grid, name):
    return next(n for n in grid.nodes.values() if n.config["client-name"] == name)


def reply(message, **records):
    return Message(RecordDict(records), reply_to=message)


class PowerCut(Exception):
    pass
