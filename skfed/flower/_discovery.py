"""Requests the names of nodes' clients, without waiting for a node that does not reply."""

import time
from collections import Counter
from collections.abc import Collection
from math import inf

from flwr.app import ConfigRecord, Message, RecordDict

from skfed.flower._client_info import claimed_name
from skfed.flower._messages import HELLO, PROTOCOL, content_of
from skfed.flower._replies import DESCRIPTION, FloodError, SafeGrid

PULL_INTERVAL = 1.0  # seconds
_RETRY_AFTER = 60.0  # seconds before a node without a reply gets a new request; then doubled
_REPEAT_AFTER = 10.0  # seconds before a node that has replied may get a new request


class ClientDiscovery:
    """Sends hellos, and keeps the last reply of each node."""

    def __init__(self, grid: SafeGrid, ask_classes: bool, has_steps: bool, timeout: float):
        self.grid, self.timeout = grid, timeout  # a message expires after the timeout
        self.replies: dict[int, RecordDict | Exception] = {}  # the last one of each node
        self.claimed: dict[int, str | None] = {}  # the names in them
        request = ConfigRecord(
            {"protocol": PROTOCOL, "classes": ask_classes, "pipeline": has_steps}
        )
        self._content = RecordDict({"request": request})
        self._pending: dict[str, int] = {}  # nodes by message without a reply
        self._n_attempts: Counter[int] = Counter()  # requests since a node's last reply
        self._due: dict[int, float] = {}  # when a node may get a new request

    def exchange(self, nodes: Collection[int], wait: bool) -> None:
        """Send requests to the nodes that are due, and receive replies.

        With ``wait`` it waits for the replies of new nodes, for a limited time. Later replies are
        received by the next exchange.
        """
        now = time.monotonic()
        # Half of the timeout remains for nodes that connect later.
        end = now + min(_RETRY_AFTER, self.timeout / 2) if wait else now
        due = [node for node in nodes if self._due.get(node, now) <= now]
        new = {node for node in due if node not in self._due}
        self._push(due, now)
        self._pull()
        while not new <= self.replies.keys() and time.monotonic() < end:
            time.sleep(PULL_INTERVAL)
            self._pull()

    def keep_only(self, online: Collection[int]) -> None:
        """Drop nodes that are offline: they may come back with another client."""
        by_node: dict
        for by_node in (self.replies, self.claimed, self._n_attempts, self._due):
            for node in by_node.keys() - set(online):
                del by_node[node]
        self._pending = {text: node for text, node in self._pending.items() if node in online}

    def _push(self, nodes: list[int], now: float) -> None:
        messages = [Message(self._content, node, HELLO, ttl=self.timeout) for node in nodes]
        if messages:
            self.grid.push_messages(messages)
        for node, message in zip(nodes, messages, strict=True):
            self._pending[message.metadata.message_id] = node
            self._due[node] = now + _RETRY_AFTER * 2 ** self._n_attempts[node]
            self._n_attempts[node] += 1

    def _pull(self) -> None:
        for message_id, reply in self.grid.pull(self._pending):
            node = self._pending.pop(message_id)
            self.replies[node] = content_of(reply, DESCRIPTION)
            self.claimed[node] = claimed_name(reply)
            # One that floods the server is asked again when it has connected again.
            is_flood = isinstance(self.replies[node], FloodError)
            self._due[node] = time.monotonic() + (inf if is_flood else _REPEAT_AFTER)
            self._n_attempts[node] = 0
