"""Sends messages, and waits for their replies until an exchange ends."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, nan
from typing import TypeVar

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from skfed.engines import Late, ReplyTimes
from skfed.flower._messages import TIMES, content_of
from skfed.flower._replies import FEW, SafeGrid, Size

End = Callable[[np.ndarray], float]
T = TypeVar("T")

# Seconds from one look for replies to the next: a share of those since the messages were sent.
_SHARE, _LEAST, _MOST = 0.05, 0.1, 3.0
_NOT_ASKED = "no answer: it has sent far too much, and is not asked until it connects again"
_GRACE = 5.0  # seconds by which messages outlive an exchange: an expired one is an error of Flower


def never(seconds: np.ndarray) -> float:
    """Return that an exchange ends with the last answer."""
    return inf


@dataclass
class Replies:
    """What clients reply to messages, and after how many seconds."""

    contents: dict[str, RecordDict | Exception] = field(default_factory=dict)  # by client
    seconds: dict[str, float] = field(default_factory=dict)  # NaN without a reply of the client
    duration: float = 0.0  # until the end of the exchange

    def times(self, clients: list[str]) -> ReplyTimes:
        """Return the seconds of some clients."""
        seconds = np.array([self.seconds[name] for name in clients])
        computing = np.array([self._computing(name) for name in clients])
        return ReplyTimes(seconds, computing, self.duration)

    def followed_by(self, again: "Replies") -> "Replies":
        """Return the replies with those of some clients to a message that was sent again."""
        seconds = {name: self.duration + one for name, one in again.seconds.items()}
        return Replies(
            contents={**self.contents, **again.contents},
            seconds={**self.seconds, **seconds},
            duration=self.duration + again.duration,
        )

    def _computing(self, client: str) -> float:
        """Return the seconds in which a client says to have computed; NaN if they are not valid."""
        content = self.contents[client]
        times = None if isinstance(content, Exception) else content.get(TIMES)
        computing = times.get("computing") if isinstance(times, MetricRecord) else None
        # A reply may be anything.
        if not isinstance(computing, float) or not 0 <= computing <= self.seconds[client]:
            return nan
        return computing


def read_reply(reply: RecordDict | Exception, read: Callable[[RecordDict], T]) -> T | Exception:
    """Return what ``read`` returns for a reply, or the exception that says why there is nothing."""
    if isinstance(reply, Exception):
        return reply
    try:
        return read(reply)
    except Exception as error:  # a reply may be anything
        return error


def send_and_wait(
    grid: SafeGrid,
    contents: dict[str, RecordDict],
    nodes: dict[str, int],
    message_type: str,
    timeout: float,
    end: End = never,
    asked: Size = FEW,
) -> Replies:
    """Send each client its content; return the replies that arrive before the exchange ends.

    ``asked`` is the size of what each is asked for. A client without a node is not asked.

    It ends with the last answer, after ``timeout`` seconds, or earlier: ``end`` takes the seconds
    of the answers so far, NaN without one, and returns after how many seconds an answer is late.
    """
    began = time.monotonic()
    longest = min(timeout, end(np.full(len(contents), nan)))
    messages = {
        name: Message(content, nodes[name], message_type, ttl=longest + _GRACE)
        for name, content in contents.items()
        if name in nodes
    }
    accepted = set(grid.push_messages([*messages.values()])) if messages else set()
    pending = {message.metadata.message_id: name for name, message in messages.items()}
    replies = Replies(seconds=dict.fromkeys(contents, nan))
    for name in contents.keys() - messages.keys():
        replies.contents[name] = ConnectionError(_NOT_ASKED)
    for message_id in pending.keys() - accepted:
        refused = ConnectionError("no answer: Flower has not accepted the message")
        replies.contents[pending.pop(message_id)] = refused
    while True:
        # Replies were there when the look for them began; the last look is at the end.
        now = min(time.monotonic() - began, longest)
        for message_id, reply in grid.pull(pending):
            name = pending.pop(message_id)
            replies.contents[name] = content_of(reply, asked)
            is_lost = isinstance(replies.contents[name], ConnectionError)
            replies.seconds[name] = nan if is_lost else now
        ends = min(timeout, end(np.array([*replies.seconds.values()])))
        replies.duration = now
        if not pending or now >= ends:
            break
        pause = min(max(_LEAST, _SHARE * now), _MOST, ends - now)
        time.sleep(max(pause, 0.001))  # a smaller one may not move the time on
    is_late = end(np.array([*replies.seconds.values()])) <= replies.duration
    for name in pending.values():
        replies.contents[name] = Late("late") if is_late else TimeoutError("no answer")
    return replies
