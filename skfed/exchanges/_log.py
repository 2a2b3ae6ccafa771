"""What finished rounds keep of clients in little memory, and tables of it.

A round of thousands may poll hundreds of clients, and before round 0 a million may send numbers.
Each exchange is kept as bytes of the narrowest integers, and equal values once; what is kept is
written to files as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skfed._federation import Federation, array_of_ids, find_ids
from skfed.exchanges._exchange import Exchange, Outcome
from skfed.utils._ids import client_index

OUTCOMES = {
    Outcome.OK: "answered",
    Outcome.SILENT: "silent",
    Outcome.FAILED: "failed",
    Outcome.LATE: "late",
    Outcome.AWAY: "no answer",
}
COLUMNS = (
    *("round", "exchange", "kind", "client", "outcome", "start", "seconds", "duration"),
    *("computing", "rows", "bytes_down", "bytes_up"),
)
_OF_CLIENTS = "outcome", "seconds", "computing", "rows", "bytes_down", "bytes_up"
_CONTRIBUTED = "value", "error"
_NONE = np.zeros(0)

Packed = dict[str, Any]


def pack_exchanges(
    exchanges: Iterable[Exchange], model_bytes: int, federation: Federation, elapsed: float
) -> tuple[Packed, ...]:
    """Return those exchanges of a round whose seconds are known, for its row.

    ``elapsed`` are the seconds before the round.
    """
    packed, start = [], elapsed
    for exchange in exchanges:
        if exchange.duration is None or exchange.seconds is None:
            continue
        down, up = exchange.n_bytes(model_bytes)
        computing = np.full(1, np.nan) if exchange.computing is None else exchange.computing
        values = exchange.outcomes, exchange.seconds, computing, exchange.rows, down, up
        packed.append(
            {
                "kind": exchange.kind.name,
                "start": start,
                "duration": exchange.duration,
                "client": _pack_ids(federation, exchange.clients),
                **{name: _pack(v) for name, v in zip(_OF_CLIENTS, values, strict=True)},
            }
        )
        start += exchange.duration
    return tuple(packed)


def pack_losses(federation: Federation, clients: np.ndarray, losses: np.ndarray) -> Packed:
    """Return the training losses that clients reported in a round, for its row."""
    return {"client": _pack_ids(federation, clients), "loss": _pack(losses)}


def reported_losses(row: Mapping[str, Any]) -> dict[Any, float]:
    """Return the training loss of each client that reported one in a round."""
    if "losses" not in row:
        return {}
    ids = _unpack_ids(row["losses"]["client"])
    losses = np.broadcast_to(_unpack(row["losses"]["loss"]), len(ids))
    return dict(zip(ids.tolist(), losses.tolist(), strict=True))


def pack_contributions(
    federation: Federation, clients: np.ndarray, values: np.ndarray, errors: np.ndarray
) -> Packed:
    """Return what clients have contributed in a round, for its row."""
    packed = {"value": _pack(values), "error": _pack(errors)}
    return {"client": _pack_ids(federation, clients)} | packed


def pack_evaluations(
    federation: Federation, clients: np.ndarray, columns: Mapping[str, np.ndarray]
) -> Packed:
    """Return what clients have told of the new model in a round, for its row."""
    packed = {name: _pack(values) for name, values in columns.items()}
    return {"client": _pack_ids(federation, clients)} | packed


def evaluation_table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table with a row for each client that has evaluated the model after some rounds."""
    parts = []
    for row in rows:
        if packed := row.get("evaluations"):
            clients = _unpack_ids(packed["client"])
            columns = {n: _unpack(values) for n, values in packed.items() if n != "client"}
            spread = {n: np.broadcast_to(values, len(clients)) for n, values in columns.items()}
            parts.append(pd.DataFrame({"round": row["round"], "client": clients, **spread}))
    return pd.concat(parts, ignore_index=True)


class Contributions(NamedTuple):
    """What clients have contributed in some rounds: an entry for each client and round."""

    rounds: np.ndarray
    clients: np.ndarray  # positions in the ids that were asked for
    values: np.ndarray
    errors: np.ndarray


def contributions_of(rows: Iterable[Mapping[str, Any]], ids: np.ndarray) -> Contributions:
    """Return what clients have contributed, of those with some ids.

    Ids are looked up by type and value, since 1, 1.0 and True are three clients.
    """
    parts = []
    for row in rows:
        if packed := row.get("contributions"):
            clients = _unpack_ids(packed["client"])
            numbers = [np.broadcast_to(_unpack(packed[n]), len(clients)) for n in _CONTRIBUTED]
            parts.append((np.full(len(clients), row["round"]), clients.astype(object), *numbers))
    rounds, clients, values, errors = (
        map(_joined, zip(*parts, strict=True)) if parts else [_NONE] * 4
    )
    positions = find_ids(ids, clients)
    known = positions >= 0
    return Contributions(rounds[known], positions[known], values[known], errors[known])


def sum_contributions(rows: Iterable[Mapping[str, Any]], ids: np.ndarray) -> pd.DataFrame:
    """Return the value of each client, summed over rounds, and its standard error.

    Errors of rounds are independent, so that their squares are summed. A client that was in no
    cohort that was valued has 0.
    """
    found, (value, square) = contributions_of(rows, ids), np.zeros((2, len(ids)))
    np.add.at(value, found.clients, found.values)
    np.add.at(square, found.clients, found.errors**2)
    return pd.DataFrame({"value": value, "error": square**0.5}, index=client_index(ids))


def exchange_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table with a row for each client of each exchange that some rounds have kept."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    for row in rows:
        for i, packed in enumerate(row.get("exchanges", ())):
            clients = _unpack_ids(packed["client"])
            given = {"round": row["round"], "exchange": i, **packed, "client": clients}
            for name in COLUMNS:
                value = _unpack(given[name]) if name in _OF_CLIENTS else given[name]
                parts[name].append(np.broadcast_to(value, len(clients)))
    columns = {name: _joined(arrays) for name, arrays in parts.items()}
    texts = np.array([OUTCOMES[outcome] for outcome in Outcome], dtype=object)
    columns["outcome"] = texts[columns["outcome"].astype(int)]
    return pd.DataFrame(columns)


def _pack(values: np.ndarray) -> tuple[str, bytes]:
    """Return a dtype and bytes of numbers, of one if all are equal."""
    if values.dtype.kind in "iu":
        values = values.astype(np.min_scalar_type(values.max(initial=0)))
    if len(values) and np.array_equal(values, values[:1].repeat(len(values)), equal_nan=True):
        values = values[:1]
    return values.dtype.str, values.tobytes()


def _unpack(packed: tuple[str, bytes]) -> np.ndarray:
    dtype, data = packed
    values = np.frombuffer(data, dtype)
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


def _pack_ids(federation: Federation, clients: np.ndarray) -> tuple:
    """Return a dtype and bytes of integers, or other ids alone: the same objects in each round."""
    ids = federation.ids
    if ids.dtype.kind in "iu":
        return ids.dtype.str, ids[clients].tobytes()
    return None, federation.names(clients)


def _unpack_ids(packed: tuple) -> np.ndarray:
    dtype, data = packed
    if dtype is not None:
        return np.frombuffer(data, dtype)
    return array_of_ids(data)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """Concatenate arrays; values of several types, as ids of several fits, stay as they are."""
    if len({array.dtype.kind for array in arrays}) > 1:
        arrays = [array.astype(object) for array in arrays]
    return np.concatenate(arrays) if arrays else np.zeros(0)
