"""The clients of a data set: their ids, rows, sizes and priority."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property, lru_cache
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from skfed.utils._ids import canonical, digest, in_order, leaves, native, plain_digests
from skfed.utils._warnings import warn

# Ids that are all of one of these types are kept in an array of this dtype, others as objects.
_PLAIN_DTYPES = {bool: bool, int: np.int64, float: np.float64, str: np.str_}
_SHOWN = 3
_GIVE_CLIENTS = (
    'pass clients= to fit, one id a row of X, and params={"clients": ids} to cross_val_score'
)


@dataclass(frozen=True)
class Federation:
    """The clients of one data set, in the order of their index."""

    ids: np.ndarray  # sorted by type name and value
    priority_weights: np.ndarray  # s_k in [0, 1]: 1 for a priority client, 0 for a free one
    order: np.ndarray  # indices of rows grouped by client, each client's rows in the order of X
    offsets: np.ndarray  # n_clients + 1: client k holds the rows order[offsets[k]:offsets[k + 1]]
    absent: np.ndarray | None = None  # mask of those that have not joined yet; None: all have

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sizes(self) -> np.ndarray:
        """D_k, the number of samples of each client; 0 of one that is absent."""
        sizes = np.diff(self.offsets)
        return sizes if self.absent is None else np.where(self.absent, 0, sizes)

    @property
    def ends(self) -> np.ndarray:
        """Cumulative sums of the sizes."""
        return self.offsets[1:] if self.absent is None else np.cumsum(self.sizes)

    @cached_property
    def priority(self) -> np.ndarray:
        """Mask of the clients whose priority weight is positive."""
        return self.priority_weights > 0

    @cached_property
    def fractions(self) -> np.ndarray:
        """p_k = D_k / sum of s D: over the priority clients s p sums to 1 (FedALIGN, (5))."""
        total = (self.priority_weights * self.sizes).sum()
        return self.sizes / total if total else np.zeros(len(self))  # none of them has joined

    def size(self, k: int) -> int:
        """Return D_k of client ``k``."""
        return int(self.offsets[k + 1] - self.offsets[k])

    def rows(self, k: int) -> np.ndarray:
        """Return the rows of X that client ``k`` holds."""
        return self.order[self.offsets[k] : self.offsets[k + 1]]

    def joined(self, joined: np.ndarray) -> "Federation":
        """Return the same clients, of which those outside of a mask have no size and priority."""
        weights = np.where(joined, self.priority_weights, 0.0)
        return replace(self, priority_weights=weights, absent=~joined)

    @classmethod
    def without_rows(cls, ids: np.ndarray) -> "Federation":
        """Return the federation of some clients, of which no more than the ids is known."""
        nothing, none = np.zeros(len(ids)), np.zeros(0, dtype=np.intp)
        return cls(ids, nothing, none, np.zeros(len(ids) + 1, dtype=np.intp))

    def without(self, left_out: np.ndarray) -> "Federation":
        """Return the federation of the other clients, given a mask of those that are left out."""
        kept = np.flatnonzero(~left_out)
        return Federation(
            ids=self.ids[kept],
            priority_weights=self.priority_weights[kept],
            order=np.concatenate([self.rows(int(k)) for k in kept]),
            offsets=np.concatenate([[0], np.cumsum(np.diff(self.offsets)[kept])]),
        )

    @cached_property
    def digest(self) -> Callable[[int], bytes]:
        """The function that returns a client's key in random streams and in the server's state."""
        # A round needs a client's digest several times. The cache has room for a cohort.
        ids = self.ids  # a reference to self in the cache would be a cycle
        return lru_cache(maxsize=2**12)(lambda k: digest(native(ids[k])))

    def digests(self, clients: np.ndarray) -> list[bytes]:
        """Return the keys of many clients; ``digest`` returns them one by one."""
        if self.ids.dtype == object:
            return list(map(self.digest, clients.tolist()))
        return plain_digests(self.ids[clients].tolist())

    def names(self, clients: Iterable[int]) -> tuple[Hashable, ...]:
        """Return ids as plain Python objects, the same ones in each call, given indices."""
        index = np.fromiter(clients, dtype=int)
        objects, is_known = self._named
        new = index[~is_known[index]]
        if len(new):
            ids = self.ids[new]
            # Of numbers and strings numpy makes what ``native`` does, all at once.
            made = map(native, ids) if ids.dtype == object else ids.tolist()
            objects[new] = np.fromiter(made, dtype=object, count=len(new))
            is_known[new] = True
        return tuple(objects[index].tolist())

    @cached_property
    def _named(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids as Python objects, so far as they are made, and which are."""
        # The history refers to them in each round: other objects would take most of its memory.
        return np.empty(len(self), dtype=object), np.zeros(len(self), dtype=bool)


def distinct_names(federation: Federation, parameter: str) -> list:
    """Return the clients' ids; raise if some are equal, as 1, 1.0 and True are."""
    names = list(federation.names(range(len(federation))))
    first: dict[Any, Any] = {}
    for name in names:
        if first.setdefault(name, name) is not name:
            raise ValueError(
                f"{parameter} is ambiguous: the clients {first[name]!r} and {name!r} are equal but "
                "for their type: use ids of one type."
            )
    return names


def _as_narrow_integers(keys: np.ndarray) -> np.ndarray:
    """Return keys in the same order; of 16 bits if they fit, since numpy sorts these faster."""
    if keys.dtype.kind not in "iu" or keys.dtype.itemsize <= 2:
        return keys
    low, high = keys.min(), keys.max()
    return (keys - low).astype(np.uint16) if int(high) - int(low) < 2**16 else keys


def make_federation(clients: Any, n_samples: int, priority: Any = None) -> Federation:
    """Group the rows of X by client, given the id of each row's client.

    ``priority`` names the priority clients, or maps each client that is not free to its s_k in
    [0, 1]; None means all.
    """
    values = _check_ids(clients, n_samples, "clients")
    ids, keys = (None, values) if values.dtype != object else _encode_objects(values, "clients")
    order = np.argsort(_as_narrow_integers(keys), kind="stable")
    # np.unique's inverse would take three times the memory of the row indices.
    grouped = keys[order]
    starts = np.concatenate([[0], np.flatnonzero(grouped[1:] != grouped[:-1]) + 1])
    ids = grouped[starts] if ids is None else ids
    return Federation(
        ids=ids,
        priority_weights=_priority_weights(ids, priority),
        order=order,
        offsets=np.append(starts, n_samples),
    )


def one_client(n_samples: int, priority: Any) -> np.ndarray:
    """Return the id of the one client of all rows, for a fit without clients; warn of it."""
    if priority is not None:
        raise ValueError(
            f"priority names clients, but clients was not given: {_GIVE_CLIENTS} "
            "(step__clients to a Pipeline of scikit-learn's own)."
        )
    warn(f"clients was not given, so all rows belong to one client: {_GIVE_CLIENTS}.")
    return np.zeros(n_samples, dtype=int)


def federation_of(sizes: Mapping[str, int], priority: Any = None) -> Federation:
    """Return the federation of clients that hold their own data; it has no rows.

    ``sizes`` has D_k by client name; ``priority`` is as in :func:`make_federation`.
    """
    ids = np.array(sorted(sizes), dtype=np.str_)
    return Federation(
        ids=ids,
        priority_weights=_priority_weights(ids, priority),
        order=np.zeros(0, dtype=np.intp),
        offsets=np.concatenate([[0], np.cumsum([sizes[name] for name in ids.tolist()])]),
    )


def _check_ids(clients: Any, n_samples: int, name: str) -> np.ndarray:
    """Return an array of one id a row of X; none may be missing."""
    values = _as_vector(clients, name)
    if len(values) != n_samples:
        raise ValueError(
            f"{name} has {len(values)} entries, but X has {n_samples} rows: "
            f"pass one client id a row, in the order of X."
        )
    missing = np.flatnonzero(_is_missing(values))
    if len(missing):
        raise ValueError(
            f"{name} has {len(missing)} missing value(s), the first at row {missing[0]}: "
            "give these rows a client id or leave them out."
        )
    return values


def _is_missing(values: np.ndarray) -> np.ndarray:
    """Return a mask of ids that are missing, or have a member that is."""
    missing = pd.isna(values)
    if values.dtype == object:
        for k, one in enumerate(values):
            if isinstance(one, tuple | frozenset) or is_dataclass(one):
                missing[k] = any(pd.isna(leaf) for leaf in leaves(one))
    return missing


def owners_of(clients: Any, n_samples: int, ids: np.ndarray, name: str = "clients") -> np.ndarray:
    """Return the index in ``ids`` of each row's client; -1 if it is not there."""
    values = _check_ids(clients, n_samples, name)
    if values.dtype == object:
        present, codes = _encode_objects(values, name)
    else:
        present, codes = np.unique(values, return_inverse=True)
    return find_ids(ids, present)[codes]


def rows_of(clients: Any, n_samples: int, ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return a mask of the rows of clients that ``wanted``, a mask of ``ids``, selects."""
    owners = owners_of(clients, n_samples, ids)
    return (owners >= 0) & wanted[owners]


def _as_vector(clients: Any, name: str) -> np.ndarray:
    """Return a one-dimensional array of ids, in which a tuple is one id."""
    if isinstance(clients, str | bytes | Mapping) or not hasattr(clients, "__len__"):
        raise ValueError(f"{name} must be an array of client ids, one a row of X; got {clients!r}.")
    if hasattr(clients, "__array__"):
        values = np.asarray(clients)
        if values.dtype.kind in "mM":  # to Timestamps and Timedeltas, as native does
            values = pd.Series(values).astype(object).to_numpy()
    else:
        values = np.fromiter(clients, dtype=object, count=len(clients))
    if values.ndim != 1:
        raise ValueError(
            f"{name} must have one dimension, one client id a row of X; got shape {values.shape}."
        )
    return values


def _encode_objects(values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ids, sorted by type name and value, and each row's position in them."""
    keys = [canonical(client) for client in values]
    try:
        ids = {key: native(client) for key, client in zip(keys, values, strict=True)}
    except TypeError as error:
        raise TypeError(f"{name} holds an id that is not hashable: {error}.") from error
    position = {key: k for k, key in enumerate(in_order(list(ids)))}
    codes = np.fromiter((position[key] for key in keys), dtype=np.intp, count=len(keys))
    return array_of_ids([ids[key] for key in position]), codes


def array_of_ids(ids: Collection) -> np.ndarray:
    """Return an array of a plain dtype if all ids have the type of one, else of objects."""
    types = {type(client) for client in ids}
    dtype = _PLAIN_DTYPES.get(*types) if len(types) == 1 else None
    if dtype is not None:
        with suppress(OverflowError):  # integers beyond 64 bits stay objects
            return np.array(list(ids), dtype=dtype)
    return np.fromiter(ids, dtype=object, count=len(ids))


def _priority_weights(ids: np.ndarray, priority: Any) -> np.ndarray:
    """Return s_k of each client."""
    if priority is None:
        return np.ones(len(ids))
    clients, client_weights = parse_priority(priority)
    try:
        found = find_ids(ids, clients)
    except TypeError as error:
        raise TypeError(f"priority holds an id that is not hashable: {error}.") from error
    unknown = [client for client, k in zip(clients, found, strict=True) if k < 0]
    if unknown:
        raise ValueError(
            f"priority names {len(unknown)} client(s) that are not in clients: "
            f"{_some(unknown)}. Ids in clients are like {_some(list(ids))}: "
            "drop the unknown ones, or check their type and that these rows are in X. In a search "
            "each fold needs rows of them: WithinClientStratifiedKFold() of skfed.model_selection, "
            "given groups=clients, splits each client's rows (of a regressor WithinClientKFold())."
        )
    weights = np.zeros(len(ids))
    weights[found] = client_weights
    return weights


def parse_priority(priority: Any) -> tuple[list, list]:
    """Return the ids in ``priority`` and their weights, checked to be in [0, 1] and not all 0."""
    is_scalar = isinstance(priority, str | bytes) or getattr(priority, "ndim", 1) == 0
    if is_scalar or not isinstance(priority, Iterable):
        raise ValueError(
            "priority must be a collection of client ids, or a mapping of them to weights; got "
            f"{priority!r}."
        )
    if isinstance(priority, Iterator):
        raise ValueError(
            f"priority is a {type(priority).__name__}, which can be read only once, and each fit "
            "reads it: pass a list of its ids."
        )
    clients = [native(client) for client in priority]
    weights = list(priority.values()) if isinstance(priority, Mapping) else [1.0] * len(clients)
    for client, weight in zip(clients, weights, strict=True):
        if not (isinstance(weight, Real) and 0 <= float(weight) <= 1):
            raise ValueError(
                f"priority gives client {client!r} the weight {weight!r}: it must be in [0, 1]."
            )
    if not any(weights):
        raise ValueError(
            f"priority is empty ({priority!r}), so there is no objective: name at least one "
            "client, or pass None to give every client priority."
        )
    return clients, weights


def find_ids(ids: np.ndarray, clients: Iterable) -> np.ndarray:
    """Return each client's index in ``ids``, by type and value, else by equality; -1 if unknown.

    Equality is used only if it is unambiguous: not if ``ids`` or ``clients`` has both 1 and 1.0.
    """
    index = {canonical(client): k for k, client in enumerate(ids)}
    keys = [(canonical(client), native(client)) for client in clients]
    wanted = dict(keys)
    equal: dict[Hashable, int] = {}
    for key, k in index.items():
        if key not in wanted:
            client = native(ids[k])
            equal[client] = -1 if client in equal else k
    unmatched = Counter(client for key, client in wanted.items() if key not in index)
    found = (
        index[key] if key in index else equal.get(client, -1) if unmatched[client] == 1 else -1
        for key, client in keys
    )
    return np.fromiter(found, dtype=np.intp)


def _some(ids: list) -> str:
    """Return the first few ids as text."""
    text = ", ".join(repr(native(client)) for client in ids[:_SHOWN])
    return text + (", ..." if len(ids) > _SHOWN else "")
