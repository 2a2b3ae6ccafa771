"""What travels between the server and a client. All bytes of an exchange are those of messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

SCALAR_BYTES = 8


@dataclass(frozen=True)
class Message:
    """What travels in one direction."""

    model: bool = False
    models: tuple[str, ...] = ()  # names of what else has the tensors of a model
    scalars: Mapping[str, int] = field(default_factory=dict)  # how many numbers under each name

    @property
    def n_scalars(self) -> int:
        """The number of scalars."""
        return sum(self.scalars.values())


@dataclass(frozen=True)
class Messages:
    """What each client of an exchange is sent, and what each sends back."""

    down: Message = Message()
    up: Message = Message()
