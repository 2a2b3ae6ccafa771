"""Checks of the statistics that a client sends, which may be anything."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict

from skfed.flower._messages import abbreviated, from_records
from skfed.flower._replies import Size, limited_json
from skfed.preprocessing import BaseFederatedTransformer
from skfed.preprocessing._base import Statistics

# Of the texts of values, and of the counts of these, that a client may send of all columns.
_CHARACTERS, _COUNT_BYTES = 2**23, 2**23


def size_of_statistics(example: Statistics) -> Size:
    """Return the size of a reply with statistics like these, whose lists may have any length."""
    n_bytes = sum(np.asarray(one).nbytes for one in example.values() if not isinstance(one, list))
    return Size(array_bytes=n_bytes + _COUNT_BYTES, characters=_CHARACTERS)


def read_statistics(
    reply: RecordDict | Exception,
    transformer: BaseFederatedTransformer,
    example: Statistics,
    n_samples: int,
    exchanges: Sequence[tuple[Statistics, Statistics]],
    request: Statistics,
) -> Statistics | Exception:
    """Return the statistics of a reply, or the exception that says why there are none.

    ``example`` is what a client of one made-up row sends, ``n_samples`` the client's rows, and
    ``exchanges`` has the earlier requests of the fit and what it has sent.
    """
    if isinstance(reply, Exception):
        return reply
    example = {name: value for name, value in example.items() if name != "suppressed"}
    try:
        sent = from_records(reply, "statistics", limited_json)
        _check_names(sent, example)
        for name, like in example.items():
            _check_value(name, sent[name], like)
        _check_suppressed(sent, transformer.n_features_in_)
        transformer.check_statistics(sent, example, n_samples)
        transformer.check_exchanges([*exchanges, (request, sent)])
        transformer.merge([sent])
        return sent
    except Exception as error:  # a reply may be anything
        return error


def _check_names(sent: Any, example: Statistics) -> None:
    names = sent.keys() - {"suppressed"} if isinstance(sent, dict) else None
    if names != example.keys():
        found = sorted(map(str, sent)) if isinstance(sent, dict) else sent
        raise ValueError(f"it sends {abbreviated(found)} instead of {sorted(example)}.")


def _check_value(name: str, sent: Any, like: Any) -> None:
    """Check a statistic, or a list of one for each column, which may have any length."""
    if isinstance(sent, list) != isinstance(like, list):
        raise ValueError(f"its {name} is not valid.")
    if not isinstance(like, list):
        _check_array(name, sent, like, np.shape(like))
        return
    if len(sent) != len(like):
        raise ValueError(f"its {name} is not of {len(like)} columns.")
    for one, other in zip(sent, like, strict=True):
        _check_array(name, one, other, getattr(one, "shape", ())[:1] + np.shape(other)[1:])


def _check_array(name: str, sent: Any, like: Any, shape: tuple[int, ...]) -> None:
    """Check shape and dtype, that of text of any length, and that no number is infinite."""
    if not isinstance(sent, np.ndarray | bool | int | float | str | bytes | type(like)):
        # Of other things NumPy may make an array that takes much more memory.
        raise ValueError(f"its {name} is not valid.")
    found, expected = np.asarray(sent), np.asarray(like)
    is_text = expected.dtype.kind in "OUS" and found.dtype.kind == expected.dtype.kind
    valid = (
        isinstance(sent, np.ndarray) == isinstance(like, np.ndarray)
        and found.shape == shape
        and (is_text or found.dtype == expected.dtype)
        and not (found.dtype.kind == "f" and np.isinf(found).any())
    )
    if not valid:
        raise ValueError(f"its {name} is not valid.")


def _check_suppressed(sent: Statistics, n_columns: int) -> None:
    flags = sent.get("suppressed", False)
    is_array = isinstance(flags, np.ndarray) and flags.dtype == bool
    if not (isinstance(flags, bool) or (is_array and flags.shape in [(), (n_columns,)])):
        raise ValueError(f"its suppressed is not a flag, or one for each of {n_columns} columns.")
