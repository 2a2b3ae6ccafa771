"""Checks of what a strategy is given, and rows like those that clients describe."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

from skfed._estimator import BaseFederated
from skfed.availability import BackOff, BaseAvailability, LateJoin
from skfed.flower._client_info import ClientInfo
from skfed.nets import row_of_shape


def without_simulation(estimator: BaseFederated) -> BaseFederated:
    """Check that an estimator simulates neither dropouts nor devices."""
    if estimator.devices is not None:
        raise ValueError(
            f"devices={estimator.devices} are of a simulation, but real clients take their own "
            "time, which is measured: leave them out. To simulate this federation afterwards, give "
            "TraceDevices what client_exchanges(model_) returns."
        )
    availability = estimator.availability
    if availability is not None and _drops(availability):
        raise ValueError(
            f"availability={availability} simulates clients that do not reply, which real clients "
            "do by themselves: leave it out, or use one that only says who can be reached."
        )
    return estimator


def _drops(availability: BaseAvailability) -> bool:
    """Tell whether an availability simulates clients that do not reply."""
    if isinstance(availability, BackOff | LateJoin):
        inner = availability.availability
        return inner is not None and _drops(inner)
    return type(availability)._answers is not BaseAvailability._answers


def checked_clients(clients: Any) -> int | list[str] | None:
    """Return the number of clients to wait for, or their names, sorted."""
    if clients is None:
        return None
    if isinstance(clients, int) and not isinstance(clients, bool) and clients > 0:
        return clients
    if isinstance(clients, Collection) and not isinstance(clients, str | bytes) and len(clients):
        names = sorted({str(name) for name in clients})
        if len(names) == len(clients):
            return names
    raise ValueError(
        f"clients={clients!r} must be the number of clients to wait for, or their names, each once."
    )


def row_of_zeros(info: ClientInfo) -> Any:
    """Return a row like those of clients."""
    if isinstance(info.shape, dict):
        return row_of_shape(info.shape)
    X = np.zeros((1, *info.shape), dtype=info.dtype)
    return X if info.columns is None else pd.DataFrame(X, columns=list(info.columns))


def data_description(info: ClientInfo) -> dict[str, Any]:
    """Return the shapes of X and y, for a checkpoint's fingerprint; their values are unknown."""
    columns = [] if info.columns is None else list(info.columns)
    X = np.array([str(info.shape), info.dtype, *columns])
    return {"X": X, "y": np.array(str(info.target_shape))}
