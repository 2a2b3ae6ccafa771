"""Exchanges between the server and clients, one record a client.

Whatever the server asks of clients, before round 0 too, is an exchange; the ledger and the history
are computed from these records alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np

from skfed.devices import Speeds
from skfed.engines import ReplyTimes

SCALAR_BYTES = 8
NO_ANSWER = "no answer"  # the cause in the history where a client was away
TOO_LATE = "late"  # the cause where it would have answered after the end of the exchange
NOT_FINITE = "is not finite"


class Outcome(IntEnum):
    """How an exchange ended for a client."""

    OK = 0
    SILENT = 1  # its value is above the bound of the poll
    FAILED = 2  # it raised, or its reply is not finite
    LATE = 3  # it would have replied, or has, after the end of the exchange
    AWAY = 4  # it did not reply


@dataclass(kw_only=True)
class Exchange:
    """One request to some clients and their replies: arrays with one entry a client.

    In a training, a client that was drawn twice has two entries. Polls and trainings are recorded
    as they are planned, where each client answers, and changed by what happens.
    """

    kind: Literal["statistics", "poll", "training"]
    clients: np.ndarray  # indices
    outcomes: np.ndarray  # of Outcome
    rows: np.ndarray  # evaluated or trained on
    models_down: np.ndarray
    models_up: np.ndarray
    scalars_down: np.ndarray
    scalars_up: np.ndarray
    answers: np.ndarray  # polled values or training losses, NaN without
    seconds: np.ndarray | None = None  # until the reply, NaN without one; None: not measured
    computing: np.ndarray | None = None  # of them, those of the client's rows
    duration: float | None = None  # seconds until its end; None: not measured
    speeds: Speeds | None = None  # of the distinct clients, in index order
    causes: dict[int, Exception] = field(default_factory=dict)  # of failures, by position
    metric: str | None = None  # of a poll of w_t
    on_all_rows: bool = False  # whether a poll is on all rows of each client

    def n_bytes(self, model_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes sent to, and by, each client; ``model_bytes`` are those of a model."""
        down = self.models_down * model_bytes + self.scalars_down * SCALAR_BYTES
        return down, self.models_up * model_bytes + self.scalars_up * SCALAR_BYTES

    @property
    def is_measured(self) -> bool:
        """Whether the seconds are those of real clients."""
        return self.computing is not None

    def add_times(self, positions: np.ndarray, times: ReplyTimes | None) -> None:
        """Set the seconds of the clients at some positions, and of the exchange, if measured."""
        if times is None:
            return
        if self.seconds is None or self.computing is None:
            self.seconds, self.computing = np.full((2, len(self.clients)), np.nan)
        self.seconds[positions], self.computing[positions] = times.seconds, times.computing
        self.duration = times.duration


def statistics_exchange(
    clients: np.ndarray, replied: np.ndarray, n_up: int, n_down: int = 0
) -> Exchange:
    """Return an exchange before a fit's first round: each client gets and sends some numbers.

    ``replied`` is a mask of ``clients``: those that sent them.
    """
    n_clients = len(clients)
    none = np.broadcast_to(0, n_clients)  # a view, as there may be very many clients
    return Exchange(
        kind="statistics",
        clients=clients,
        outcomes=np.where(replied, np.int8(Outcome.OK), np.int8(Outcome.FAILED)),
        rows=none,
        models_down=none,
        models_up=none,
        scalars_down=np.broadcast_to(n_down, n_clients),
        scalars_up=replied * np.int32(n_up),
        answers=np.broadcast_to(np.nan, n_clients),
    )


def poll_exchange(
    clients: np.ndarray,
    rows: np.ndarray,
    holders: "ModelHolders",
    *,
    metric: str,
    bounded: bool,
    on_all_rows: bool,
) -> Exchange:
    """Return a poll in which each client evaluates ``rows`` and answers.

    ``holders`` are the clients that have the model already; with ``bounded``, a bound is sent too.
    """
    return Exchange(
        kind="poll",
        clients=clients,
        outcomes=np.full(len(clients), Outcome.OK),
        rows=rows,
        models_down=holders.send(clients),
        models_up=np.zeros(len(clients), dtype=int),
        scalars_down=np.full(len(clients), bounded, dtype=int),
        scalars_up=np.ones(len(clients), dtype=int),
        answers=np.full(len(clients), np.nan),
        metric=metric,
        on_all_rows=on_all_rows,
    )


def training_exchange(
    clients: np.ndarray,
    replies: np.ndarray,
    rows: np.ndarray,
    models_down: np.ndarray,
    with_variates: bool,
) -> Exchange:
    """Return a training in which the clients in a mask, ``replies``, train to the end."""
    models_up = replies.astype(int)
    if with_variates:  # one more model each way
        _, first = np.unique(clients, return_index=True)
        models_down[first] += 1
        models_up *= 2
    return Exchange(
        kind="training",
        clients=clients,
        outcomes=np.where(replies, Outcome.OK, Outcome.AWAY),
        rows=np.where(replies, rows, 0),
        models_down=models_down,
        models_up=models_up,
        scalars_down=np.zeros(len(clients), dtype=int),
        scalars_up=np.zeros(len(clients), dtype=int),
        answers=np.full(len(clients), np.nan),
    )


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
    """The clients that have received the model of a round; it is sent to each once."""

    def __init__(self, n_clients: int):
        self._holds = np.zeros(n_clients, dtype=bool)

    @classmethod
    def like(cls, other: "ModelHolders") -> "ModelHolders":
        """Return the holders of another model, among the same clients."""
        return cls(len(other._holds))

    def send(self, clients: np.ndarray) -> np.ndarray:
        """Return how many models are sent to each of ``clients``, which hold it from then on."""
        sent = self.lacking(clients)
        self._holds[clients] = True
        return sent

    def forget(self, clients: np.ndarray) -> None:
        """Note that some clients no longer have the model."""
        self._holds[clients] = False

    def lacking(self, clients: np.ndarray) -> np.ndarray:
        """Return how many models would be sent to each of ``clients``."""
        sent = np.zeros(len(clients), dtype=int)
        distinct, first = np.unique(clients, return_index=True)
        sent[first] = ~self._holds[distinct]
        return sent
