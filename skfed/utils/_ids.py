"""Client ids: equality, order and digests.

Ids differ if their types or values differ: 1, "1" and 1.0 are three clients. A numpy scalar equals
the Python object of its value.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd


def native(client: Any) -> Any:
    """Return the Python object of a numpy scalar, also inside a tuple; other ids as they are."""
    if isinstance(client, np.datetime64):
        return pd.Timestamp(client)
    if isinstance(client, np.timedelta64):
        return pd.Timedelta(client)
    if isinstance(client, np.generic):
        return client.item()
    if type(client) is tuple:
        return tuple(map(native, client))
    return type(client)(*map(native, client)) if _is_namedtuple(client) else client


def _is_namedtuple(client: Any) -> bool:
    return isinstance(client, tuple) and hasattr(client, "_fields")


def canonical(client: Any) -> tuple[str, Any]:
    """Return type name and value, also of members of tuples, frozensets and dataclasses."""
    client = native(client)
    if type(client) is tuple or _is_namedtuple(client):
        return type(client).__name__, tuple(map(canonical, client))
    if is_dataclass(client) and not isinstance(client, type):
        values = (getattr(client, field.name) for field in fields(client))
        return type(client).__name__, tuple(map(canonical, values))
    if isinstance(client, frozenset):
        return "frozenset", tuple(in_order([canonical(member) for member in client]))
    return type(client).__name__, client


def in_order(canonicals: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Sort canonical ids by type name and value, or by their text if values have no order."""
    try:
        return sorted(canonicals)
    except TypeError:
        return sorted(canonicals, key=repr)


def digest(client: Hashable) -> bytes:
    """Return 16 bytes from a client id's type and value.

    ``hash()`` differs from process to process for strings, and a client's index depends on the
    other clients.
    """
    client = native(client)
    if type(client).__repr__ is object.__repr__:
        raise ValueError(
            f"clients has an id of type {type(client).__name__}, whose text shows a memory address "
            "and so changes from run to run: use strings, numbers or tuples of them as ids."
        )
    for leaf in leaves(client):
        if not isinstance(leaf, str | bytes) and "{" in repr(leaf):
            raise ValueError(
                f"clients has an id of type {type(leaf).__name__}, whose text shows a set or dict, "
                "the order of which changes from run to run: use strings, numbers, tuples or "
                "frozensets as ids."
            )
    return blake2b(repr(canonical(client)).encode(), digest_size=16).digest()


def plain_digests(clients: list) -> list[bytes]:
    """Return the digests of ids that are all bools, all ints, all floats or all strings, fast."""
    kinds = {type(client).__name__ for client in clients[:1]}
    texts = (repr((name, client)) for name in kinds for client in clients)
    return [blake2b(text.encode(), digest_size=16).digest() for text in texts]


def leaves(client: Any) -> Iterator[Any]:
    """Yield the members of an id that ``canonical`` leaves as they are."""
    if isinstance(client, tuple | frozenset):
        members: Iterable[Any] = client
    elif is_dataclass(client) and not isinstance(client, type):
        members = (getattr(client, field.name) for field in fields(client))
    else:
        yield client
        return
    for member in members:
        yield from leaves(member)


def missing_clients(missing: Sequence[Hashable], given: Iterable[Hashable]) -> str:
    """Return how many clients are missing among the given ids, and one of them, for a message.

    It is one of which the text is given, if there is one: then only the type of the id is wrong.
    """
    by_text = {str(other): other for other in map(native, given)}
    for client in map(native, missing):
        other = by_text.get(str(client), client)
        if type(other) is not type(client):
            types = f"{type(other).__name__}, not {type(client).__name__}"
            return (
                f"{len(missing)} client(s), such as {client!r} (there is {other!r}, which differs "
                f"from it only by its type: {types})"
            )
    return f"{len(missing)} client(s), such as {native(missing[0])!r}"


def client_index(ids: np.ndarray) -> pd.Index:
    """Return a pandas index of client ids, in which 1, 1.0 and True remain distinct."""
    dtype = object if ids.dtype == object else None
    return pd.Index(ids.tolist(), dtype=dtype, name="client", tupleize_cols=False)
