"""The exchanges by which a transformer is fitted, and the table of them, ``exchange_``."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from skfed._federation import Federation
from skfed.exchanges import (
    STATISTICS,
    Answers,
    Exchange,
    Exchanges,
    Message,
    Messages,
    Outcome,
    bytes_of,
)

Statistics = dict[str, Any]  # arrays, or lists of arrays, by name


def ask_statistics(
    exchanges: Exchanges,
    clients: list[int],
    request: Statistics,
    collect: Callable[[Statistics], Iterable[Statistics | Exception]],
    asked_for: str | None = None,
) -> dict[int, Statistics]:
    """Ask clients for statistics, and return those of each that has sent some, in their order.

    ``collect`` takes the request, and returns what each client sends, or why it sends nothing.
    """
    found: dict[int, Statistics] = {}

    def send(asked: np.ndarray) -> Answers:
        raised = {}
        for i, (k, sent) in enumerate(zip(clients, collect(request), strict=True)):
            if isinstance(sent, Exception):
                raised[i] = sent
            else:
                found[k] = sent
        own = [found.get(k, {}) for k in clients]
        names = dict.fromkeys(name for one in own for name in one)
        tensors = {name: np.array([bytes_of(one.get(name, [])) for one in own]) for name in names}
        flags = np.array([np.any(one.get("suppressed", False)) for one in own])
        extras = {"suppressed": flags}
        return Answers.of_statistics(len(asked), raised, tensors=tensors, extras=extras)

    down = Message(tensors={name: bytes_of(value) for name, value in request.items()})
    exchanges.ask(STATISTICS, Messages(down), np.array(clients), send, asked_for=asked_for)
    return found


def exchange_table(
    exchanges: Sequence[Exchange], federation: Federation, server_suppressed: bool
) -> pd.DataFrame:
    """Return the table of settled exchanges, clients in index order within each."""
    tables = []
    for e, exchange in enumerate(exchanges):
        order, (down, up) = np.argsort(exchange.clients), exchange.n_bytes(model_bytes=0)
        told = {name: sent for name, sent in exchange.tensors.items() if name != "suppressed"}
        by_server = server_suppressed and e == len(exchanges) - 1
        result = np.where(exchange.extras["suppressed"] | by_server, "suppressed", "exact")
        result[exchange.outcomes != Outcome.OK] = "failed"
        columns = {
            "exchange": e,
            "client": list(federation.names(exchange.clients[order])),
            "bytes_down": down[order],
            "bytes_up": up[order],
            "held": [", ".join(name for name, sent in told.items() if sent[i]) for i in order],
            "result": result[order],
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)
