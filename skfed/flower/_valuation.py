"""Valuations: the models that clients are sent to evaluate, and what they answer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict

from skfed.engines import CombinationsRequest, Evaluation, Late, ReplyTimes, combine
from skfed.exchanges import VALUATION, Limits
from skfed.flower._messages import to_arrays
from skfed.flower._waiting import Replies, read_reply
from skfed.nets import State

# Bytes of models in a message: what a node has to hold in memory, and far below what gRPC sends.
_MOST_BYTES = 2**28


def messages_of_models(request: CombinationsRequest) -> Iterator[list[ArrayRecord]]:
    """Yield the combinations of each message, in their order; tensors as in w are left out."""
    n_models = len(request.coefficients)
    n_bytes = sum(stack[0].nbytes for stack in request.models.values())
    size = max(1, _MOST_BYTES // max(1, n_bytes))
    for start in range(0, n_models, size):
        numbers = range(start, min(start + size, n_models))
        yield [to_arrays(_written(request, j)) for j in numbers]


def _written(request: CombinationsRequest, j: int) -> State:
    """Return the tensors of a combination that differ from those of w."""
    own = request.coefficients[j : j + 1]
    written = ((name, combine(stack, own)[0]) for name, stack in request.models.items())
    return {name: w for name, w in written if not torch.equal(w, request.state[name])}


@dataclass
class Valuation:
    """What clients have answered so far, to the messages that each is sent in turn.

    A client takes the sum of its own seconds. Who fails in one message is sent no other.
    """

    clients: list[str]
    limits: Limits
    values: dict[str, list[float]] = field(init=False)
    raised: dict[str, Exception] = field(default_factory=dict, init=False)
    # Of each client, those until its replies and those of computing.
    seconds: dict[str, np.ndarray] = field(init=False)
    duration: float = field(default=0.0, init=False)

    def __post_init__(self):
        self.values = {name: [] for name in self.clients}
        self.seconds = {name: np.zeros(2) for name in self.values}

    @property
    def answering(self) -> list[str]:
        """The clients that have answered all messages."""
        return [name for name in self.values if name not in self.raised]

    def end(self, seconds: np.ndarray) -> float:
        """Return the seconds of a message after which all that are still to answer are late."""
        return self._limit - min(self.seconds[name][0] for name in self.answering)

    def add(self, replies: Replies, read: Callable[[RecordDict], list[float]]) -> None:
        """Read the replies to a message."""
        names = self.answering
        self.duration += replies.duration
        times = replies.times(names)
        for i, name in enumerate(names):
            self.seconds[name] += times.seconds[i], times.computing[i]
            values = read_reply(replies.contents[name], read)
            if self.seconds[name][0] > self._limit:
                self.seconds[name][:], values = np.nan, Late("late")
            if isinstance(values, Exception):
                self.raised[name] = values
            else:
                self.values[name] += values

    @property
    def _limit(self) -> float:
        """The seconds after which a client is late; infinity if it never is."""
        return self.limits.end(VALUATION, np.full(len(self.values), np.nan))

    def evaluation(self, names: list[str], n_models: int, n_samples: np.ndarray) -> Evaluation:
        """Return the values of clients, in the order of their names."""
        nothing = [np.nan] * n_models
        values = [nothing if name in self.raised else self.values[name] for name in names]
        raised = {i: self.raised[name] for i, name in enumerate(names) if name in self.raised}
        seconds, computing = np.array([self.seconds[name] for name in names]).reshape(-1, 2).T
        return Evaluation(
            np.array(values).reshape(len(names), n_models),
            n_samples,
            raised,
            times=ReplyTimes(seconds, computing, self.duration),
        )
