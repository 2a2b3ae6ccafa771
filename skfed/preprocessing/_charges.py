"""What the exchanges of a fit cost, and the table of them, ``exchange_``."""

from typing import Any

import numpy as np
import pandas as pd

from skfed._federation import Federation

Statistics = dict[str, Any]  # arrays, or lists of arrays, by name
Charges = dict[int, dict[str, Any]]  # of one exchange, by client

_BYTES_PER_SCALAR = 8


def n_bytes(value: Any) -> int:
    """Return the bytes of a statistic: text as UTF-8, other objects as scalars."""
    if isinstance(value, dict | list):
        return sum(map(n_bytes, value.values() if isinstance(value, dict) else value))
    array = np.asarray(value)
    if array.dtype.kind not in "OUS":
        return array.nbytes
    return sum(map(_object_bytes, array.ravel().tolist()))


def _is_told(name: str, statistic: Any) -> bool:
    return name != "suppressed" and n_bytes(statistic) > 0


def _object_bytes(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    return len(value.encode()) if isinstance(value, str) else _BYTES_PER_SCALAR


def charge(request: Statistics, sent: Statistics | None) -> dict[str, Any]:
    """Return the charge of a client in an exchange; None stands for a client that failed."""
    return {
        "bytes_down": n_bytes(request),
        "bytes_up": 0 if sent is None else n_bytes(sent),
        "held": ", ".join(name for name, of in (sent or {}).items() if _is_told(name, of)),
        "suppressed": bool(np.any((sent or {}).get("suppressed", False))),
        "failed": sent is None,
    }


def exchange_table(
    ledger: list[Charges], federation: Federation, server_suppressed: bool
) -> pd.DataFrame:
    """Return the table of exchanges, clients in index order within each."""
    table = [
        {"exchange": e, "client": federation.names([k])[0], **charges[k]}
        for e, charges in enumerate(ledger)
        for k in sorted(charges)
    ]
    frame = pd.DataFrame(table)
    suppressed = frame.pop("suppressed") | (
        server_suppressed & (frame["exchange"] == len(ledger) - 1)
    )
    result = np.where(suppressed, "suppressed", "exact")
    return frame.assign(result=np.where(frame.pop("failed"), "failed", result))
