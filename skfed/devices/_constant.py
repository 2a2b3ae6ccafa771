"""Devices of constant speeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skfed._federation import distinct_names
from skfed.devices._base import (
    NON_NEGATIVE,
    POSITIVE,
    POSITIVE_OR_INF,
    BaseDevices,
    Speeds,
    as_numbers,
    check_deadline,
    checked,
)
from skfed.utils._ids import missing_clients


class ConstantDevices(BaseDevices):
    """Each client is equally fast in every round.

    Parameters
    ----------
    rows_per_second : float or mapping of client id to float
        Rows that a client trains on in a second; a mapping has to name every client.
    bytes_down_per_second, bytes_up_per_second : float or mapping of client id to float
        Bytes that it receives and sends in a second; if infinite, they take no time.
    latency : float or mapping of client id to float, default=0.0
        Seconds that it takes in each exchange, whatever it computes and sends.
    public : bool, default=False
        Whether selectors are told the seconds to expect.

    See Also
    --------
    skfed.devices.LognormalDevices : Speeds drawn at random.
    skfed.devices.TraceDevices : Recorded speeds.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.devices import ConstantDevices
    >>> X, y = load_iris(return_X_y=True)
    >>> devices = ConstantDevices({"a": 100, "b": 50}, 1e6, 1e6, latency=0.5)
    >>> model = FederatedClassifier(
    ...     n_rounds=2, devices=devices, random_state=0
    ... )
    >>> history = model.fit(X, y, clients=["a", "b"] * 75).history_
    >>> history["slowest"].tolist()
    [('b',), ('b',)]
    """

    _parameter_constraints = {
        "rows_per_second": [POSITIVE, Mapping],
        "bytes_down_per_second": [POSITIVE_OR_INF, Mapping],
        "bytes_up_per_second": [POSITIVE_OR_INF, Mapping],
        "latency": [NON_NEGATIVE, Mapping],
        "public": ["boolean"],
    }

    def __init__(
        self,
        rows_per_second,
        bytes_down_per_second,
        bytes_up_per_second,
        latency=0.0,
        public=False,
    ):
        self.rows_per_second = rows_per_second
        self.bytes_down_per_second = bytes_down_per_second
        self.bytes_up_per_second = bytes_up_per_second
        self.latency = latency
        self.public = public

    def _speeds(self, federation, clients, round, streams, fixed_streams):
        names = federation.names(clients)
        return Speeds(*(_given(getattr(self, field), field, names) for field in Speeds._fields))

    def _bound(self, federation, deadline):
        given = {field: getattr(self, field) for field in Speeds._fields}
        if any(isinstance(value, Mapping) for value in given.values()):
            parameter = next(f for f, value in given.items() if isinstance(value, Mapping))
            names = distinct_names(federation, parameter)
        else:
            names = list(federation.names(range(1)))  # all are equal
        speeds = Speeds(*(_given(value, field, names) for field, value in given.items()))
        check_deadline(deadline, checked(speeds, names, type(self).__name__).latency, names)
        return self


def _given(value: Any, parameter: str, names: Sequence) -> np.ndarray:
    """Return the value of each client, from a number or a mapping."""
    if not isinstance(value, Mapping):
        return np.full(len(names), value, float)
    missing = [name for name in names if name not in value]
    if missing:
        raise ValueError(
            f"{parameter} lacks {missing_clients(missing, value)}: name all, or give one number "
            "for all."
        )
    return as_numbers([value[name] for name in names], parameter)
