"""What a reply may hold: checked before anything of it is read, since a site may send anything."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

_ITEM_BYTES = 300  # of an array or a name, with its header
# In a JSON text: a value takes some 100 bytes when it is read, and a character up to four, in
# several copies.
_MOST_VALUES, _MOST_CHARACTERS = 2**20, 2**23
_MOST_BYTES = 2**27  # of texts in an array, where each takes as much as the longest
# What Flower raises where it cannot read a reply.
_UNREADABLE: tuple[type[Exception], ...] = (
    *(ArithmeticError, AttributeError, DecodeError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
)


class FloodError(ValueError):
    """A reply is much larger than what was asked for."""


class Size(NamedTuple):
    """How much there is in records."""

    array_bytes: int = 0
    characters: int = 0  # of texts, and of names
    values: int = 0  # numbers and texts


_MARGIN = Size(array_bytes=2**20, characters=2**20, values=2**16)
FEW = Size()  # what the replies to most questions have
#: To a hello: the names and dtypes of the columns, and the labels.
DESCRIPTION = Size(characters=2**22, values=2**19)


def size_of_states(states: Mapping[str, torch.Tensor], n_times: int) -> Size:
    """Return the size of a reply with so many states of these names, shapes and dtypes."""
    n_bytes = sum(tensor.nbytes + _ITEM_BYTES for tensor in states.values())
    n_characters = sum(len(name) + _ITEM_BYTES for name in states)
    return Size(n_times * n_bytes, n_times * n_characters, n_times * _ITEM_BYTES * len(states))


def check_size(content: RecordDict, asked: Size) -> None:
    """Raise a FloodError if a reply has more than twice what was asked for, and a margin."""
    for unit, sent, expected, margin in zip(
        ("bytes of arrays", "characters", "values"), _size_of(content), asked, _MARGIN, strict=True
    ):
        if sent > (most := 2 * expected + margin):
            raise FloodError(f"its reply has {sent:,} {unit}, where at most {most:,} are taken.")


def _size_of(content: RecordDict) -> Size:
    """Return the size of records, without reading what they have."""
    n_bytes, n_values, n_characters = 0, 0, sum(map(len, content))
    for record in content.values():
        n_characters += sum(map(len, record))
        if isinstance(record, ArrayRecord):
            for array in record.values():
                n_bytes += len(array.data)
                n_values += len(array.shape)
                n_characters += len(array.dtype) + len(array.stype)
            continue
        for value in record.values():
            values = value if isinstance(value, list) else [value]
            n_values += len(values)
            if values and isinstance(values[0], str | bytes):  # a list has one type
                n_characters += sum(map(len, values))
    return Size(n_bytes, n_characters, n_values)


class SafeGrid:
    """A grid of Flower, of which a reply that cannot be read does not end the run.

    Flower reads replies where they are pulled. It raises at one that it cannot read, and all that
    are pulled with it are lost: so from the first one on, each is pulled alone, which takes longer.
    """

    def __init__(self, grid: Grid):
        self._grid, self._alone = grid, False

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes that are connected."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return the ids of those that are accepted."""
        return self._grid.push_messages(messages)

    def pull(self, message_ids: Iterable[str]) -> list[tuple[str, Message | Exception]]:
        """Return the replies that are there, with the messages that they are to."""
        asked = list(message_ids)
        if asked and not self._alone:
            try:
                return self._read(asked)
            except _UNREADABLE as error:
                logger.warning("a reply cannot be read, and is lost with others: %r", error)
                self._alone = True  # Flower answers for those that are lost
        found: list[tuple[str, Message | Exception]] = []
        for message_id in asked:
            try:
                found += self._read([message_id])
            except _UNREADABLE as error:
                cause = ValueError(f"Flower cannot read its reply: {type(error).__name__}")
                found.append((message_id, cause))
        return found

    def _read(self, asked: list[str]) -> list[tuple[str, Message | Exception]]:
        replies = self._grid.pull_messages(asked)
        with_asked = {reply.metadata.reply_to_message_id: reply for reply in replies}
        return [(one, with_asked[one]) for one in asked if one in with_asked]


def limited_json(text: Any) -> Any:
    """Read the JSON of a client; a ValueError if it would take much more memory than the text."""
    if not isinstance(text, str):
        raise TypeError(f"a text is needed, not a {type(text).__name__}.")
    counts = {
        "characters": (len(text), _MOST_CHARACTERS),
        "values": (sum(map(text.count, ",[{")), _MOST_VALUES),
    }
    for what, (n, most) in counts.items():
        if n > most:
            raise ValueError(f"its text has {n:,} {what}, and at most {most:,} are read")
    return json.loads(text, object_hook=_with_short_texts)


def check_texts(texts: Sequence[str]) -> None:
    """Raise a ValueError if an array of texts would take much memory."""
    n_bytes = 4 * len(texts) * max(map(len, texts), default=0)
    if n_bytes > _MOST_BYTES:
        raise ValueError(f"an array of its {len(texts):,} texts would take {n_bytes:,} bytes.")


def _with_short_texts(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object of JSON; a ValueError if it is an array of texts that takes much memory."""
    for kind in ("strings", "bytestrings"):
        check_texts(value.get(kind, ()))
    return value
