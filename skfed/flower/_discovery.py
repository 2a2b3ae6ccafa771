"""Asks nodes who they are; one that is slow, or hangs, keeps nobody waiting."""

import time
from collections import Counter
from collections.abc import Collection

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from skfed.flower._messages import HELLO, content_of

PAUSE = 1.0  # seconds between looks at what has come
_PATIENCE = 60.0  # seconds until a node that says nothing is asked again; then twice as many
_AGAIN = 10.0  # seconds until a node that has answered may be asked again


class ClientDiscovery:
    """Sends hellos, and keeps what each node has answered last.

    Parameters
    ----------
    grid : Grid
        Flower's way to the nodes.
    ask_classes : bool
        Whether clients are to name the classes in their data.
    timeout : float
        Seconds after which an answer is too late.

    Attributes
    ----------
    said : dict of int to RecordDict or Exception
        By each node that has answered, who it is.
    """

    def __init__(self, grid: Grid, ask_classes: bool, timeout: float):
        self.grid, self.timeout = grid, timeout
        self.said: dict[int, RecordDict | Exception] = {}
        self._asked = RecordDict({"asked": ConfigRecord({"classes": ask_classes})})
        self._waiting: dict[str, int] = {}  # the nodes of messages without an answer
        self._unanswered: Counter[int] = Counter()  # messages since a node's last answer
        self._due: dict[int, float] = {}  # when a node may be asked again

    def exchange(self, nodes: Collection[int], wait: bool) -> None:
        """Ask nodes that are due, and hear what has come; maybe wait for new nodes, for a while.

        An answer that comes later is heard at the next exchange.
        """
        now = time.monotonic()
        # Half of the time is left to nodes that come later.
        end = now + min(_PATIENCE, self.timeout / 2) if wait else now
        due = [node for node in nodes if self._due.get(node, now) <= now]
        new = {node for node in due if node not in self._due}
        self._ask(due, now)
        self._hear()
        while not new <= self.said.keys() and time.monotonic() < end:
            time.sleep(PAUSE)
            self._hear()

    def forget_others(self, online: Collection[int]) -> None:
        """Forget nodes that are gone: they may come back as they were not before."""
        known: dict
        for known in (self.said, self._unanswered, self._due):
            for node in known.keys() - set(online):
                del known[node]
        self._waiting = {text: node for text, node in self._waiting.items() if node in online}

    def _ask(self, nodes: list[int], now: float) -> None:
        messages = [Message(self._asked, node, HELLO, ttl=self.timeout) for node in nodes]
        if messages:
            self.grid.push_messages(messages)
        for node, message in zip(nodes, messages, strict=True):
            self._waiting[message.metadata.message_id] = node
            self._due[node] = now + _PATIENCE * 2 ** self._unanswered[node]
            self._unanswered[node] += 1

    def _hear(self) -> None:
        replies = self.grid.pull_messages(list(self._waiting)) if self._waiting else []
        for reply in replies:
            node = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:  # no answer to a hello
                continue
            self.said[node] = content_of(reply)
            self._due[node] = time.monotonic() + _AGAIN
            self._unanswered[node] = 0
