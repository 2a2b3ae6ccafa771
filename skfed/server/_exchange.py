"""Exchanges between the server and clients, one record a client.

Whatever the server asks of clients, before round 0 too, is an exchange; the ledger and the history
are computed from these records alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np

NO_ANSWER = "no answer"  # the cause in the history where a client was away
NOT_FINITE = "is not finite"


class Outcome(IntEnum):
    """How an exchange ended for a client."""

    OK = 0
    SILENT = 1  # its value is above the bound of the poll
    FAILED = 2  # it raised, or its reply is not finite
    LATE = 3  # it replied after the deadline
    AWAY = 4  # it did not reply


@dataclass(kw_only=True)
class Exchange:
    """One request to some clients and their replies: arrays with one entry a client.

    In a training, a client that was drawn twice has two entries.
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
    seconds: np.ndarray | None = None  # until the reply; None: not measured
    causes: dict[int, Exception] = field(default_factory=dict)  # of failures, by position
    metric: str | None = None  # of a poll
    on_all_rows: bool = False  # whether a poll is on all rows of each client


def statistics_exchange(clients: np.ndarray, replied: np.ndarray, n_scalars: int) -> Exchange:
    """Return an exchange before round 0, in which each client sends ``n_scalars`` numbers.

    ``replied`` is a mask of ``clients``: those that did.
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
        scalars_down=none,
        scalars_up=replied * np.int32(n_scalars),
        answers=np.broadcast_to(np.nan, n_clients),
    )


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

    def send(self, clients: np.ndarray) -> np.ndarray:
        """Return how many models are sent to each of ``clients``, which hold it from then on."""
        sent = np.zeros(len(clients), dtype=int)
        distinct, first = np.unique(clients, return_index=True)
        sent[first] = ~self._holds[distinct]
        self._holds[distinct] = True
        return sent
