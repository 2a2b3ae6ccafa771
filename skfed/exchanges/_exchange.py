"""An exchange between the server and clients: its messages, and what came of them.

Whatever the server asks of clients, before round 0 too, is an exchange; the ledger and the history
are computed from these records alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

import numpy as np

from skfed.exchanges._kinds import Kind
from skfed.exchanges._messages import Messages
from skfed.utils._arrays import freeze_arrays, read_only

NO_ANSWER = "no answer"  # the cause in the history where a client was away
TOO_LATE = "late"  # the cause where it would have answered after the end of the exchange


class Outcome(IntEnum):
    """How an exchange ended for a client."""

    OK = 0
    SILENT = 1  # its value is above the bound of the poll
    FAILED = 2  # it raised, or its reply is not finite
    LATE = 3  # it would have replied, or has, after the end of the exchange
    AWAY = 4  # it did not reply


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request to some clients and their replies: arrays with one entry a client.

    In a training, a client that was drawn twice has two entries. Before clients are asked, an
    exchange says what is planned, where each that is not away answers.
    """

    kind: Kind
    messages: Messages
    clients: np.ndarray  # indices
    outcomes: np.ndarray  # of Outcome
    rows: np.ndarray  # evaluated or trained on
    lacked: np.ndarray  # of the model that the messages have, how many each was sent: 0 or 1
    replied: np.ndarray  # whether its message has left it
    answers: np.ndarray  # polled values or training losses, NaN without
    # Bytes that each was sent of what training leaves alone, with a model; None: nothing is.
    fixed: np.ndarray | None = None
    # Bytes of tensors that each has sent, by name, where the messages do not say them.
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)  # what else is known, by name
    seconds: np.ndarray | None = None  # until the reply, NaN without one; None: not measured
    computing: np.ndarray | None = None  # of them, those of the client's rows
    duration: float | None = None  # seconds until its end; None: not measured
    causes: Mapping[int, Exception] = field(default_factory=dict)  # of failures, by position
    metric: str | None = None  # of a poll of w_t
    on_all_rows: bool = False  # whether a poll is on all rows of each client

    def __post_init__(self) -> None:
        freeze_arrays(self)
        for name in ("tensors", "extras"):
            frozen = {n: read_only(v) for n, v in getattr(self, name).items()}
            object.__setattr__(self, name, MappingProxyType(frozen))
        object.__setattr__(self, "causes", MappingProxyType(dict(self.causes)))

    @property
    def models_down(self) -> np.ndarray:
        """The models sent to each; what else has a model's tensors is sent to a client once."""
        if not self.messages.down.models:
            return self.lacked
        first = np.zeros(len(self.clients), dtype=int)
        first[np.unique(self.clients, return_index=True)[1]] = len(self.messages.down.models)
        return self.lacked + first

    @property
    def models_up(self) -> np.ndarray:
        """The models sent by each."""
        up = self.messages.up
        return self._sent_up(up.model + len(up.models))

    @property
    def scalars_down(self) -> np.ndarray:
        """The scalars sent to each."""
        return np.broadcast_to(self.messages.down.n_scalars, len(self.clients))

    @property
    def scalars_up(self) -> np.ndarray:
        """The scalars sent by each."""
        return self._sent_up(self.messages.up.n_scalars)

    def _sent_up(self, n: int) -> np.ndarray:
        """Return n for each that has replied, else 0; a view where it can be, of many clients."""
        if n == 0 or self.replied.all():
            return np.broadcast_to(n, len(self.clients))
        return self.replied * np.int64(n)

    def n_bytes(self, model_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes sent to, and by, each client; ``model_bytes`` are those of a model."""
        message = self.messages.down
        # A view where no models are sent, as there may be very many clients.
        down = np.broadcast_to(message.n_bytes(0), len(self.clients))
        if message.model or message.models:  # which not each client lacks
            down = down + self.models_down * np.int64(model_bytes)
        if self.fixed is not None:
            down = down + self.fixed
        up = self._sent_up(self.messages.up.n_bytes(model_bytes))
        return down, sum(self.tensors.values(), start=up)

    @property
    def is_measured(self) -> bool:
        """Whether the seconds are those of real clients."""
        return self.computing is not None

    @property
    def was_sent(self) -> np.ndarray:
        """A mask of the clients that have sent what they were asked for.

        Late ones have where seconds are measured: the reply is discarded, but it has left them.
        """
        late = (self.outcomes == Outcome.LATE) & self.is_measured
        return late | ((self.rows > 0) if self.kind.trains else self.outcomes != Outcome.LATE)


def late_clients(exchanges: Iterable[Exchange]) -> list[int]:
    """Return the clients that were late in some exchange, each once, in that order."""
    late = (k for e in exchanges for k in e.clients[e.outcomes == Outcome.LATE].tolist())
    return list(dict.fromkeys(late))


def failed_clients(exchanges: Iterable[Exchange]) -> dict[int, Exception]:
    """Return the first cause of each client that failed, in the order of the failures."""
    causes: dict[int, Exception] = {}
    for exchange in exchanges:
        for i, cause in exchange.causes.items():
            causes.setdefault(int(exchange.clients[i]), cause)
    return causes


def in_one_line(cause: Exception) -> str:
    """Return the type of an exception and the first line of its text."""
    lines = str(cause).splitlines() or [""]
    return f"{type(cause).__name__}: {lines[0]}"


class ModelHolders:
    """The clients that have received a model; it is sent to each once a round."""

    def __init__(self, n_clients: int = 0):
        self._holds = np.zeros(n_clients, dtype=bool)

    @classmethod
    def like(cls, other: "ModelHolders") -> "ModelHolders":
        """Return the holders of another model, among the same clients."""
        return cls(len(other._holds))

    def note(self, clients: np.ndarray) -> None:
        """Note that some clients have the model from now on."""
        self._holds[clients] = True

    def forget(self, clients: np.ndarray) -> None:
        """Note that some clients no longer have the model."""
        self._holds[clients] = False

    def lacking(self, clients: np.ndarray) -> np.ndarray:
        """Return how many models would be sent to each of ``clients``."""
        sent = np.zeros(len(clients), dtype=int)
        distinct, first = np.unique(clients, return_index=True)
        sent[first] = ~self._holds[distinct]
        return sent
