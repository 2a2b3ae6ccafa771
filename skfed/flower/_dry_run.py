"""A server for one site, in the site's own process: what it asks, and what the site would send."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from sklearn.base import clone

from skfed._classifier import FederatedClassifier
from skfed.engines import EvaluateRequest
from skfed.flower import _client
from skfed.flower._client_info import ClientInfo
from skfed.flower._messages import HELLO, content_of
from skfed.flower._pipeline import federated_parts, split
from skfed.flower._strategy import FederatedStrategy
from skfed.nets import get_state

_NODE = 1
#: What is for other clients, or for a server that goes on for longer.
_ALONE: dict[str, Any] = {
    **dict.fromkeys(("selector", "priority", "availability", "devices", "contribution")),
    **dict.fromkeys(("checkpoint", "deadline", "report_goal")),
    **{"n_rounds": 1, "min_clients": 1, "on_client_error": "raise", "verbose": False},
}


class SiteError(Exception):
    """A site cannot answer a message; ``kind`` is that of the message, the cause why."""

    def __init__(self, kind: str):
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True)
class Exchanged:
    """A message to the site, its reply, and the seconds that the site took."""

    kind: str
    request: RecordDict
    reply: RecordDict
    seconds: float


@dataclass
class DryRun:
    """What a site was asked, and what it would have sent."""

    exchanged: list[Exchanged] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # before and after training

    @property
    def info(self) -> ClientInfo:
        """What the site reports of its data."""
        return ClientInfo.of(self.exchanged[0].reply)


def run(app: ClientApp, node_config: dict[str, Any], classes: list | None = None) -> DryRun:
    """Ask a site what a round asks of a priority client; nothing leaves the process.

    ``classes`` are the labels that the server names. Raises a SiteError if the site cannot answer,
    and what ``FederatedStrategy`` raises if its answers are not valid.
    """
    done = DryRun()
    grid = _OneSite(app, node_config, done)
    server = _server(app, classes, grid.context)

    def poll(n_finished: int, arrays: ArrayRecord) -> None:
        engine = server._engine
        state = get_state(engine.server.net)
        evaluation = engine.evaluate(EvaluateRequest(n_finished, state, np.array([0])))
        done.losses.append(float(evaluation.values[0]))

    server.start(grid, evaluate_fn=poll)
    return done


def _server(app: ClientApp, classes: list | None, context: Context) -> FederatedStrategy:
    """Return a server with the site's estimator, which trains it in one round."""
    estimator = clone(app.estimator)
    steps, model = split(estimator)
    model.set_params(**_ALONE)
    if model.evaluation is not None and len(app.load_data(context)) == 2:
        model.set_params(evaluation=None)  # it is asked of those that keep rows aside
    for part in federated_parts(steps):
        part.set_params(priority=None)
    if classes is None and isinstance(model, FederatedClassifier) and _client.has_privacy(model):
        classes = np.unique(app.load_data(context)[1]).tolist()  # they are not to be sent
    return FederatedStrategy(estimator, clients=1, classes=classes)


class _OneSite(Grid):
    """Gives each message to a ClientApp in this process, and keeps it with the reply."""

    def __init__(self, app: ClientApp, node_config: dict[str, Any], done: DryRun):
        # Flower sets them in the processes that it starts, and a message has them.
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = _NODE
        self.app, self.done = app, done
        self.context = Context(_NODE, _NODE, node_config, RecordDict(), {})
        self._replies: dict[str, Message] = {}
        self._ids = count(1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._answer(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in message_ids if one in self._replies]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=_NODE)]

    def get_node_ids(self) -> list[int]:
        return [_NODE]

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Any: ...

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any: ...

    def _answer(self, message: Message) -> str:
        message_id = message.metadata.__dict__["_message_id"] = str(next(self._ids))
        kind, began = message.metadata.message_type, perf_counter()
        with _last_error() as errors:
            reply = self.app(message, self.context)
        failure = content_of(reply)
        if isinstance(failure, Exception):
            raise SiteError(kind) from (errors[-1] if errors else failure)
        seconds = perf_counter() - began
        self.done.exchanged.append(Exchanged(kind, message.content, reply.content, seconds))
        if kind == HELLO:
            ClientInfo.of(reply.content)  # a server would leave out an invalid one, and wait
        self._replies[message_id] = reply
        return message_id


@contextmanager
def _last_error() -> Iterator[list[BaseException]]:
    """Context manager for the exceptions that a site logs: its replies say their types alone."""
    errors: list[BaseException] = []

    class _Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1]:
                errors.append(record.exc_info[1])

    keep, before = _Keep(), _client.logger.propagate
    _client.logger.addHandler(keep)
    _client.logger.propagate = False
    try:
        yield errors
    finally:
        _client.logger.removeHandler(keep)
        _client.logger.propagate = before
