"""Checks of the statistics that a client sends, which may be anything."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict

from skfed.flower._messages import abbreviated, from_records
from skfed.preprocessing import BaseFederatedTransformer
from skfed.preprocessing._base import Statistics


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
        sent = from_records(reply, "statistics")
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
        _check_array(name, one, other, np.shape(one)[:1] + np.shape(other)[1:])


def _check_array(name: str, sent: Any, like: Any, shape: tuple[int, ...]) -> None:
    """Check shape and dtype, that of text of any length, and that no number is infinite."""
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
    flags = np.asarray(sent.get("suppressed", False))
    if flags.dtype != bool or flags.shape not in [(), (n_columns,)]:
        raise ValueError(f"its suppressed is not a flag, or one for each of {n_columns} columns.")
