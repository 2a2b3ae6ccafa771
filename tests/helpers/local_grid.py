"""Flower's grid and nodes in one process: real messages and client apps, without a network."""

from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # as in a process of Flower


class Time:
    """A time that moves on when somebody sleeps; in place of the module ``time``."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


class Node:
    """A SuperNode: a client app, its configuration, and how it fails."""

    def __init__(self, app, config, registered=""):
        self.app, self.registered, self.config = app, registered, config
        self.online, self.answer = True, None  # a function that replies instead of the app
        self.delays = {}  # seconds until a reply, by kind of message
        self.start()

    def start(self):
        """Start again, with an empty state."""
        self.context = Context(1, 1, self.config, RecordDict(), {})


class LocalGrid(Grid):
    """Sends messages to nodes by calling them, and stores all of them."""

    def __init__(self, time, *nodes):
        self.time, self.nodes = time, dict(enumerate(nodes, start=10))
        self.sent, self.received, self._replies = [], [], {}
        self._numbers = count(1)

    def add(self, node):
        self.nodes[max(self.nodes) + 1] = node

    def set_run(self, run): ...

    @property
    def run(self): ...

    def create_message(self, *args, **kwargs): ...

    def get_node_ids(self):
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self):
        return [
            NodeInfo(node_id=i, name=node.registered)
            for i, node in self.nodes.items()
            if node.online
        ]

    def push_messages(self, messages):
        assert isinstance(messages, list)
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._numbers))
            self.sent.append(message)
            node = self.nodes[message.metadata.dst_node_id]
            reply = self._reply(message, node)
            if reply is not None:
                kind = message.metadata.message_type.rpartition("_")[2]
                due = self.time.monotonic() + node.delays.get(kind, 0.0)
                self._replies[message.metadata.message_id] = due, reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        there = [i for i in message_ids if i in self._replies and self._is_due(i)]
        replies = [self._replies.pop(one)[1] for one in there]
        self.received += replies
        return replies[::-1]  # in no order

    def send_and_receive(self, messages, *, timeout=None): ...

    def _is_due(self, message_id):
        return self._replies[message_id][0] <= self.time.monotonic() + 1e-9

    def _reply(self, message, node):
        if not node.online:
            return Message(Error(5, "node"), reply_to=message)
        if node.answer is not None:
            return node.answer(message)
        return node.app(message, node.context)


def late(message):
    """Send no reply in time."""


def is_kind(message, kind):
    """Return whether a message is a "hello", "moments", "poll" or "train"."""
    return message.metadata.message_type.endswith(kind)


def requests(messages, kind):
    """Return the requests of the messages of a kind."""
    return [m.content["request"] for m in messages if is_kind(m, kind)]


def contents(messages, record):
    """Return the named records of messages that have them."""
    return [m.content[record] for m in messages if m.has_content() and record in m.content]
