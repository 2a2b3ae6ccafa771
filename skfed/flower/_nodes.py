"""Which node is which client: names are stable, nodes come and go."""

import logging
import time
from collections.abc import Collection, Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from skfed.flower._client_info import ClientInfo
from skfed.flower._discovery import PAUSE, ClientDiscovery
from skfed.flower._messages import content_of, shortened

logger = logging.getLogger(__name__)


class Nodes:
    """Finds clients by name, and carries messages to them.

    Parameters
    ----------
    grid : Grid
        Flower's way to the nodes.
    ask_classes : bool
        Whether clients are to name the classes in their data.
    timeout : float
        Seconds to wait for clients, and for answers.
    """

    def __init__(self, grid: Grid, ask_classes: bool, timeout: float):
        self.grid, self.ask_classes, self.timeout = grid, ask_classes, timeout
        self.cards: dict[str, ClientInfo] = {}
        self.node_of: dict[str, int] = {}  # where each client was last
        self._greetings = ClientDiscovery(grid, ask_classes, timeout)
        self._registered: set[str] = set()  # names that nodes are registered by
        self._named: Collection[str] | None = None  # the only ones to be met
        self._refused: dict[int, str] = {}
        self._lost: set[str] = set()  # clients that did not answer when they were last asked
        self._closed = False  # no new clients

    def gather(
        self, wanted: int | Collection[str] | None, needed: Collection[str] = ()
    ) -> dict[str, ClientInfo]:
        """Wait until so many clients, or these, have connected; others are left alone from then on.

        None means all that there are, at least one; unless names are given, ``needed`` are among
        them.

        Raises
        ------
        TimeoutError
            If they do not connect in time.
        """
        end = time.monotonic() + self.timeout
        n = wanted if isinstance(wanted, int) else 1
        if isinstance(wanted, Collection):
            self._named = needed = wanted
        # Who is there now comes before who comes later; names say themselves who is waited for.
        self._meet(online := self._online(), wait=not isinstance(wanted, Collection))
        slow = self._silent(online) if wanted is None else set()
        while (
            (lacking := self._lacking(n, needed)) or self._silent(slow & online.keys())
        ) and time.monotonic() < end:
            time.sleep(PAUSE)
            self._meet(online := self._online())
        if lacking:
            refused = self._refused | dict.fromkeys(self._silent(online), "no answer")
            told = "".join(f"; node {node}: {why}" for node, why in refused.items())
            raise TimeoutError(
                f"clients={wanted!r}: after {self.timeout:g} s, {lacking}{told}. Start their "
                "SuperNodes, or raise timeout."
            )
        names = [*needed, *sorted(self.cards.keys() - set(needed))]
        if wanted is not None:
            names = names[: max(n, len(needed))]
        self.cards = {name: self.cards[name] for name in names}
        self._closed = True
        return self.cards

    def exchange(
        self, contents: dict[str, RecordDict], kind: str
    ) -> dict[str, RecordDict | Exception]:
        """Send each client its content; return the content of each reply, or an exception."""
        self._find_returned()
        messages = {
            name: Message(content, self.node_of[name], kind, ttl=self.timeout)
            for name, content in contents.items()
        }
        replies = self.grid.send_and_receive([*messages.values()], timeout=self.timeout)
        reply_to = {reply.metadata.reply_to_message_id: reply for reply in replies}
        answers = {}
        for name, message in messages.items():
            answers[name] = content_of(reply_to.get(message.metadata.message_id))
            (self._lost.add if _is_lost(answers[name]) else self._lost.discard)(name)
        return answers

    def _find_returned(self) -> None:
        """Find clients that have come back as another node."""
        online = self._online()
        if self._lost or any(self.node_of[name] not in online for name in self.cards):
            self._meet(online, wait=True)

    def _online(self) -> dict[int, str]:
        """Return the nodes that are connected, and the name that each is registered by, if any."""
        return {node.node_id: node.name for node in self.grid.get_nodes()}

    def _meet(self, online: dict[int, str], wait: bool = False) -> None:
        """Ask new nodes, and those that were left out, who they are; take those that are clients.

        New nodes may be waited for, for a while.
        """
        self._registered |= set(filter(None, online.values()))
        self._greetings.forget_others(online)
        strangers = sorted(online.keys() - set(self.node_of.values()))
        self._greetings.exchange(strangers, wait)
        for node in strangers:
            if node not in self._greetings.said:
                continue
            why = self._accept(node, online, self._greetings.said[node])
            if why is None:
                self._refused.pop(node, None)
            elif self._refused.get(node) != why:
                logger.warning("node %d is left out: %s", node, why)
                self._refused[node] = why

    def _silent(self, nodes: Iterable[int]) -> set[int]:
        """Return the nodes that have not said who they are."""
        return set(nodes) - self._greetings.said.keys() - set(self.node_of.values())

    def _accept(self, node: int, online: dict[int, str], answer: Any) -> str | None:
        """Take a node for the client that it says it is; else return why not."""
        try:
            if isinstance(answer, Exception):
                raise answer
            card = ClientInfo.of(answer)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if online[node] and online[node] != card.name:
            return f"it says that it is {card.name!r}, but is registered as {online[node]!r}"
        if not online[node] and card.name in self._registered:
            return f"it says that it is {card.name!r}, as which another node is registered"
        if self.ask_classes and card.classes is None:
            return f"{card.name!r} does not say which classes it has"
        known = self.cards.get(card.name)
        if known is None:
            if self._closed or (self._named is not None and card.name not in self._named):
                return f"{card.name!r} is none of the clients of this run"
            other = next(iter(self.cards.values()), card)
            if (misfit := card.misfit(other)) is not None:
                return misfit
        elif self.node_of[card.name] in online and card.name not in self._lost:
            return f"{card.name!r} is connected already"
        elif (known.n_samples, known.misfit(card)) != (card.n_samples, None):
            return f"{card.name!r} is back with other data: it has {card.n_samples} rows now"
        self.cards.setdefault(card.name, card)
        self.node_of[card.name] = node
        return None

    def _lacking(self, n: int, needed: Collection[str]) -> str:
        """Say who has not connected yet; nothing if all have that are waited for."""
        missing = sorted(set(needed) - self.cards.keys())
        if missing:
            return f"not connected: {shortened(missing)}"
        there = sorted(self.cards)
        return "" if len(there) >= n else f"{len(there)} connected: {shortened(there)}"


def _is_lost(answer: RecordDict | Exception) -> bool:
    """Tell whether an answer has not come, rather than that it is wrong."""
    return isinstance(answer, TimeoutError | ConnectionError)
