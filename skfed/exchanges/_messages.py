"""What travels between the server and a client. All bytes of an exchange are those of messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SCALAR_BYTES = 8


@dataclass(frozen=True)
class Message:
    """What travels in one direction."""

    model: bool = False  # what training changes of it; ``Exchange.fixed`` has what is sent once
    models: tuple[str, ...] = ()  # names of what else has the tensors of a model
    scalars: Mapping[str, int] = field(default_factory=dict)  # how many numbers under each name
    tensors: Mapping[str, int] = field(default_factory=dict)  # how many bytes under each name

    @property
    def n_scalars(self) -> int:
        """The number of scalars."""
        return sum(self.scalars.values())

    def n_bytes(self, model_bytes: int) -> int:
        """Return the bytes of the message, given those of a model."""
        models = model_bytes * (self.model + len(self.models))
        return models + _SCALAR_BYTES * self.n_scalars + sum(self.tensors.values())


@dataclass(frozen=True)
class Messages:
    """What each client of an exchange is sent, and what each sends back."""

    down: Message = Message()
    up: Message = Message()


def bytes_of(value: Any) -> int:
    """Return the bytes of an array, or a list of them: text as UTF-8, other objects as scalars."""
    if isinstance(value, list):
        return sum(map(bytes_of, value))
    array = np.asarray(value)
    if array.dtype.kind not in "OUS":
        return array.nbytes
    return sum(map(_object_bytes, array.ravel().tolist()))


def _object_bytes(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    return len(value.encode()) if isinstance(value, str) else _SCALAR_BYTES
