"""The interface of devices, and the checks of what they return."""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from skfed._federation import Federation
from skfed.utils._checks import check_params
from skfed.utils._sklearn import Interval

#: Yields a generator for each of some clients; each is valid until the next.
Streams = Callable[[np.ndarray], Iterator[np.random.Generator]]

POSITIVE = Interval(Real, 0, None, closed="neither")
POSITIVE_OR_INF = Interval(Real, 0, None, closed="right")
NON_NEGATIVE = Interval(Real, 0, None, closed="left")


class Speeds(NamedTuple):
    """How fast some clients are, one entry a client.

    Parameters
    ----------
    rows_per_second : ndarray of shape (n_clients,)
        Rows that a client trains on in a second, one pass forward and backward.
    bytes_down_per_second, bytes_up_per_second : ndarray of shape (n_clients,)
        Bytes that it receives and sends in a second; if infinite, they take no time.
    latency : ndarray of shape (n_clients,)
        Seconds that it takes in each exchange, whatever it computes and sends.
    """

    rows_per_second: np.ndarray
    bytes_down_per_second: np.ndarray
    bytes_up_per_second: np.ndarray
    latency: np.ndarray


class BaseDevices(BaseEstimator, metaclass=ABCMeta):
    """Base class of devices; a subclass implements ``_speeds`` and keeps no state.

    What a fit is to keep, such as numbers that are drawn once, is kept by a copy that ``_bound``
    returns, which no other fit uses.

    Devices whose attribute ``public`` is True tell selectors the seconds to expect
    (:meth:`skfed.selection.Round.expected_seconds`).
    """

    _parameter_constraints: dict = {}
    public = False

    def speeds(
        self,
        federation: Federation,
        clients: np.ndarray,
        round: int,
        streams: Streams,
        fixed_streams: Streams,
    ) -> Speeds:
        """Return how fast some clients are in a round.

        Parameters
        ----------
        federation : Federation
            The clients, in index order.
        clients : ndarray of int
            Indices of the distinct clients that are asked; nothing is drawn for others.
        round : int
            t, from 0.
        streams, fixed_streams : callable
            Take client indices, and yield a generator for each that is keyed by the client and the
            round, and by the client alone.

        Returns
        -------
        Speeds
            An entry for each of ``clients``.

        Raises
        ------
        ValueError
            If a parameter is out of range, a client is not known, a speed is not positive, or
            there is not one for each client.
        TypeError
            If ``_speeds`` returns something else than :class:`Speeds`.
        """
        check_params(self)
        speeds = self._speeds(federation, clients, round, streams, fixed_streams)
        return self._checked(speeds, "_speeds", federation.names(clients))

    def expected(
        self, federation: Federation, clients: np.ndarray, round: int, fixed_streams: Streams
    ) -> Speeds:
        """Return the speeds that are known before the round; parameters as in :meth:`speeds`."""
        check_params(self)
        speeds = self._expected(federation, clients, round, fixed_streams)
        return self._checked(speeds, "_expected", federation.names(clients))

    def bound(self, federation: Federation, deadline: float | None = None) -> "BaseDevices":
        """Return devices for a fit, checked against its clients and its deadline.

        Parameters
        ----------
        federation : Federation
            The clients, in index order.
        deadline : float, default=None
            Seconds after which a client is late.

        Returns
        -------
        BaseDevices
            Devices with the same speeds.

        Raises
        ------
        ValueError
            If a parameter is out of range, a client is not known, or ``deadline`` is below the
            latency of a client, which could then never answer.
        """
        check_params(self)
        return self._bound(federation, deadline)

    @abstractmethod
    def _speeds(self, federation, clients, round, streams, fixed_streams) -> Speeds:
        """Return the speeds of ``clients``; ``speeds`` has checked the parameters."""

    def _expected(self, federation, clients, round, fixed_streams) -> Speeds:
        """Return the speeds without what is drawn in each round."""
        return self._speeds(federation, clients, round, fixed_streams, fixed_streams)

    def _bound(self, federation: Federation, deadline: float | None) -> "BaseDevices":
        return self

    def _checked(self, speeds: Any, method: str, names: Sequence[Hashable]) -> Speeds:
        """Return the speeds that a method has returned, as arrays; raise if they are not valid."""
        name = type(self).__name__
        if not isinstance(speeds, Speeds):
            raise TypeError(
                f"{name}.{method} returned {type(speeds).__name__}: return "
                f"skfed.devices.Speeds({', '.join(Speeds._fields)})."
            )
        arrays = [
            as_numbers(values, f"{name}.{method}: {field}")
            for field, values in zip(Speeds._fields, speeds, strict=True)
        ]
        for field, array in zip(Speeds._fields, arrays, strict=True):
            if array.shape not in ((), (len(names),)):
                raise ValueError(
                    f"{name}.{method} returned {field} of shape {array.shape} for {len(names)} "
                    "clients: return one number for each of clients, in their order, or one for "
                    "all."
                )
        return checked(Speeds(*arrays), names, name)


def as_numbers(values: Any, name: str) -> np.ndarray:
    """Return an array of floats."""
    array = np.array(values, dtype=object) if isinstance(values, list) else np.asarray(values)
    if array.dtype.kind not in "iuf":
        wrong = next((value for value in array.tolist() if not isinstance(value, Real)), None)
        if wrong is not None:
            raise ValueError(f"{name} has {wrong!r}, which is not a number: give numbers.")
    return array.astype(float)


def checked(speeds: Speeds, names: Sequence[Hashable], of: str) -> Speeds:
    """Return the speeds as arrays; raise if one is out of range. ``of`` says whose they are."""
    arrays = [np.broadcast_to(np.asarray(values, float), len(names)) for values in speeds]
    for field, values in zip(Speeds._fields, arrays, strict=True):
        valid, bound = values > 0, "above 0"
        if field == "latency":
            valid, bound = values >= 0, "not negative"
        if not field.startswith("bytes"):
            valid, bound = valid & np.isfinite(values), f"finite and {bound}"
        if not valid.all():
            i = int(np.argmin(valid))
            raise ValueError(
                f"{field} of client {names[i]!r} is {values[i]} in {of}: it must be {bound}."
            )
    return Speeds(*arrays)


def check_deadline(
    deadline: float | None, latencies: np.ndarray, names: Sequence[Hashable]
) -> None:
    """Check that each client could answer in time if it had nothing to compute or send."""
    if deadline is None or not (latencies > deadline).any():
        return
    i = int(np.argmax(latencies > deadline))
    raise ValueError(
        f"deadline={deadline} is below the latency of client {names[i]!r}, {latencies[i]} seconds, "
        "so that it is always late: raise deadline, or lower latency."
    )
