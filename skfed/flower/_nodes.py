"""Maps clients, whose names are stable, to Flower's nodes, which come and go."""

import logging
import time
from collections.abc import Collection, Iterable
from typing import Any

from flwr.app import RecordDict
from flwr.serverapp import Grid

from skfed.flower._client_info import ClientInfo
from skfed.flower._discovery import PULL_INTERVAL, ClientDiscovery
from skfed.flower._messages import abbreviated
from skfed.flower._replies import FEW, FloodError, SafeGrid, Size
from skfed.flower._waiting import End, Replies, never, send_and_wait

logger = logging.getLogger(__name__)


class Nodes:
    """Finds clients by name, and exchanges messages with them."""

    def __init__(self, grid: Grid, ask_classes: bool, timeout: float, has_steps: bool = False):
        self.grid, self.ask_classes, self.timeout = SafeGrid(grid), ask_classes, timeout
        self.has_steps = has_steps  # clients have a Pipeline
        self.clients: dict[str, ClientInfo] = {}  # those that have connected
        self.node_of: dict[str, int] = {}  # the last node of each client
        self._discovery = ClientDiscovery(self.grid, ask_classes, has_steps, timeout)
        self._registered: set[str] = set()  # names that nodes are registered by
        self._allowed: Collection[str] | None = None  # names of clients; None: all
        self._kinds: dict[Any, ClientInfo] = {}  # clients with different contents of columns
        self._rejected: dict[int, str] = {}  # why, by node
        self._unfit: set[int] = set()  # of these, those whose data or estimator is why
        self.lost: set[str] = set()  # clients that did not reply to their last message
        self._flooding: set[int] = set()  # nodes that have sent far too much
        self._closed = False  # to new clients

    def wait_for_clients(
        self,
        wanted: int | Collection[str] | None,
        needed: Collection[str] = (),
        least: int | None = None,
    ) -> dict[str, ClientInfo]:
        """Wait for some number of clients, or for those named, and admit no others afterwards.

        None stands for all clients that are connected, at least one. Unless ``wanted`` has names,
        ``needed`` are waited for too. With ``least`` that many of those named are enough, one
        of ``needed`` among them, and ``admit_new`` admits the others. If they do not connect in
        time, ValueError if the data or the estimator of a connected client does not fit, else
        TimeoutError.
        """
        end = time.monotonic() + self.timeout
        n = least or (wanted if isinstance(wanted, int) else 1)
        any_of: Collection[str] = ()
        if isinstance(wanted, Collection):
            self._allowed, any_of = wanted, needed if least is not None else ()
            needed = wanted if least is None else ()
        # Nodes that are connected now have priority over later ones, unless there are names.
        self._discover(online := self._online(), wait=not isinstance(wanted, Collection))
        slow = self._without_reply(online) if wanted is None else set()
        while (
            (missing := self._missing(n, needed, any_of))
            or self._without_reply(slow & online.keys())
        ) and time.monotonic() < end:
            time.sleep(PULL_INTERVAL)
            self._discover(online := self._online())
        if missing:
            reasons = self._rejected | dict.fromkeys(self._without_reply(online), "no answer")
            details = "".join(f"; node {node}: {reason}" for node, reason in reasons.items())
            message = f"clients={wanted!r}: after {self.timeout:g} s, {missing}{details}."
            if self._unfit & online.keys():
                raise ValueError(f"{message} Mend what these clients load, or leave them out.")
            raise TimeoutError(f"{message} Start their SuperNodes, or raise timeout.")
        if least is not None:  # in an order that does not depend on that of their answers
            self.clients = dict(sorted(self.clients.items()))
            return self.clients
        names = [*needed, *sorted(self.clients.keys() - set(needed))]
        if wanted is not None:
            names = names[: max(n, len(needed))]
        self.clients = {name: self.clients[name] for name in names}
        self._closed = True
        return self.clients

    def admit_new(self) -> None:
        """Ask those named that have connected since, and admit those that have answered."""
        if self._allowed is not None and len(self.clients) < len(self._allowed):
            self._discover(self._online())

    def exchange(
        self,
        contents: dict[str, RecordDict],
        message_type: str,
        end: End = never,
        asked: Size = FEW,
    ) -> Replies:
        """Send each client its content; return the replies, with exceptions where there is none.

        ``end`` says when it ends before the timeout, and ``asked`` is the size of what each is
        asked for. A node that sends far more is not asked again until it has connected again.
        """
        self._find_returned()
        nodes = {name: node for name, node in self.node_of.items() if node not in self._flooding}
        replies = send_and_wait(self.grid, contents, nodes, message_type, self.timeout, end, asked)
        for name, content in replies.contents.items():
            is_lost = isinstance(content, TimeoutError | ConnectionError)
            (self.lost.add if is_lost else self.lost.discard)(name)
            if isinstance(content, FloodError):
                self._flooding.add(self.node_of[name])
        return replies

    def _find_returned(self) -> None:
        """Find clients that have come back as another node, and nodes that have left."""
        online = self._online()
        self._flooding &= online.keys()
        if self.lost or any(self.node_of[name] not in online for name in self.clients):
            self._discover(online, wait=True)

    def _online(self) -> dict[int, str]:
        """Return the connected nodes, and the name that each is registered by, if any."""
        return {node.node_id: node.name for node in self.grid.get_nodes()}

    def _discover(self, online: dict[int, str], wait: bool = False) -> None:
        """Request the names of nodes without a client, and admit those that are valid."""
        self._registered |= set(filter(None, online.values()))
        self._discovery.keep_only(online)
        unknown = sorted(online.keys() - set(self.node_of.values()))
        self._discovery.exchange(unknown, wait)
        for node in unknown:
            if node not in self._discovery.replies:
                continue
            reason = self._admit(node, online, self._discovery.replies[node])
            if reason is None:
                self._rejected.pop(node, None)
                self._unfit.discard(node)
            elif self._rejected.get(node) != reason:
                logger.warning("node %d is left out: %s", node, reason)
                self._rejected[node] = reason

    def _without_reply(self, nodes: Iterable[int]) -> set[int]:
        """Return the nodes that have not replied to a hello."""
        return set(nodes) - self._discovery.replies.keys() - set(self.node_of.values())

    def _admit(
        self, node: int, online: dict[int, str], reply: RecordDict | Exception
    ) -> str | None:
        """Admit a node as the client that it reports to be; else return why not."""
        try:
            if isinstance(reply, Exception):
                raise reply
            info = ClientInfo.of(reply)
        except Exception as error:
            if not isinstance(error, ConnectionError):
                self._unfit.add(node)
            name = online[node] or self._discovery.claimed[node]
            whose = f"{name!r}: " if name else ""
            return f"{whose}{type(error).__name__}: {error}".removesuffix(".")
        reason = self._wrong_name(info.name, online[node], online)
        if reason is None and (reason := self._wrong_data(info)) is not None:
            self._unfit.add(node)
        if reason is None:
            self.clients.setdefault(info.name, info)
            self._kinds.setdefault(info.raw and info.raw.contents, info)
            self.node_of[info.name] = node
            self.lost.discard(info.name)  # this node has just replied
        return reason

    def _wrong_name(self, name: str, registered: str, online: dict[int, str]) -> str | None:
        """Return why a node is not admitted by this name; None if it is."""
        if registered and registered != name:
            return f"it reports the name {name!r}, but is registered as {registered!r}"
        if not registered and name in self._registered:
            return f"it reports the name {name!r}, as which another node is registered"
        if name in self.clients:
            is_connected = self.node_of[name] in online and name not in self.lost
            return f"{name!r} is already connected" if is_connected else None
        if self._closed or (self._allowed is not None and name not in self._allowed):
            return f"{name!r} is not one of the clients of this run"
        return None

    def _wrong_data(self, info: ClientInfo) -> str | None:
        """Return why the data of a client do not fit; None if they do."""
        if self.ask_classes and info.classes is None:
            return f"{info.name!r} does not report its classes"
        if (info.raw is not None) != self.has_steps:
            return f"{info.name!r} does not report the columns of its rows as the server asks"
        known = self.clients.get(info.name)
        if known is None:
            return next(filter(None, map(info.mismatch, self._kinds.values())), None)
        sizes = [(one.n_samples, one.n_held_out) for one in (known, info)]
        if sizes[0] != sizes[1] or known.mismatch(info):
            return f"{info.name!r} has come back with other data: it has {info.n_samples} rows now"
        return None

    def _missing(self, n: int, needed: Collection[str], any_of: Collection[str]) -> str:
        """Describe which clients have not connected yet; empty if enough have."""
        if any_of and not self.clients.keys() & set(any_of):
            return f"none of these with priority is connected: {abbreviated(sorted(any_of))}"
        missing = sorted(set(needed) - self.clients.keys())
        if missing:
            return f"not connected: {abbreviated(missing)}"
        connected = sorted(self.clients)
        return (
            "" if len(connected) >= n else f"{len(connected)} connected: {abbreviated(connected)}"
        )
