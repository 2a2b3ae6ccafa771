"""Devices of speeds that are drawn."""

from copy import copy
from numbers import Real

import numpy as np

from skfed.devices._base import (
    NON_NEGATIVE,
    POSITIVE,
    POSITIVE_OR_INF,
    BaseDevices,
    Speeds,
    Streams,
)
from skfed.utils._sklearn import Interval

N_NORMAL = 5  # numbers that are drawn for a client: one shared by its speeds, and one for each


class LognormalDevices(BaseDevices):
    """Speeds drawn once for each client, from lognormal distributions.

    Parameters
    ----------
    rows_per_second : float, default=10.0
        Median over the clients of the rows that one trains on in a second.
    bytes_down_per_second, bytes_up_per_second : float, default=4.3e6 and 3.3e6
        Medians of the bytes that a client receives and sends in a second; if infinite, they take
        no time.
    latency : float, default=0.0
        Median of the seconds that a client takes in each exchange.
    rows_sigma, bytes_down_sigma, bytes_up_sigma : float, default=0.5, 0.5 and 0.7
        Standard deviations of the logarithms of the speeds.
    latency_sigma : float, default=0.0
        That of the logarithm of the latency.
    correlation : float, default=0.0
        Correlation of the logarithms of any two speeds of a client, in [0, 1]; that of a speed and
        the latency is minus this.
    jitter : float, default=0.0
        Standard deviation of the logarithm of a factor, of median 1, by which a client is slower in
        a round in all that it does; drawn for each client and round.
    public : bool, default=False
        Whether selectors are told the seconds to expect, those without jitter.

    See Also
    --------
    skfed.devices.ConstantDevices : The same speeds in every round.
    skfed.devices.TraceDevices : Recorded speeds.

    Notes
    -----
    The default speeds are those of phones that were measured for FLASH (Yang et al., Characterizing
    Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data, WWW 2021;
    repository PKU-Chengxu/FLASH).

    - ``models/utils/device_util/device_util.py`` has the milliseconds of a batch of a small
      convolutional net on FEMNIST on three kinds of phones, 1642, 588 and 179, and how many of its
      users have each: 18820, 16428 and 159. Their geometric mean is 1.0 second, the standard
      deviation of their logarithms 0.5; with its default batch of 10 images that is 10 rows a
      second.
    - ``models/speed_distri.json`` (in its first commit, 70e47eb) has mean WiFi speeds of 19 users.
      Their medians are 4.3 and 3.3 MB a second down and up, and the standard deviations of their
      logarithms 0.5 and 0.7.

    A larger net, or a smaller one, trains on other numbers of rows: set ``rows_per_second``.
    """

    _parameter_constraints = {
        "rows_per_second": [POSITIVE],
        "bytes_down_per_second": [POSITIVE_OR_INF],
        "bytes_up_per_second": [POSITIVE_OR_INF],
        "latency": [NON_NEGATIVE],
        "rows_sigma": [NON_NEGATIVE],
        "bytes_down_sigma": [NON_NEGATIVE],
        "bytes_up_sigma": [NON_NEGATIVE],
        "latency_sigma": [NON_NEGATIVE],
        "correlation": [Interval(Real, 0, 1, closed="both")],
        "jitter": [NON_NEGATIVE],
        "public": ["boolean"],
    }
    _drawn: "_DrawnOnce | None" = None  # of a copy for a fit, whose fixed streams have one seed

    def __init__(
        self,
        rows_per_second=10.0,
        bytes_down_per_second=4.3e6,
        bytes_up_per_second=3.3e6,
        latency=0.0,
        *,
        rows_sigma=0.5,
        bytes_down_sigma=0.5,
        bytes_up_sigma=0.7,
        latency_sigma=0.0,
        correlation=0.0,
        jitter=0.0,
        public=False,
    ):
        self.rows_per_second = rows_per_second
        self.bytes_down_per_second = bytes_down_per_second
        self.bytes_up_per_second = bytes_up_per_second
        self.latency = latency
        self.rows_sigma = rows_sigma
        self.bytes_down_sigma = bytes_down_sigma
        self.bytes_up_sigma = bytes_up_sigma
        self.latency_sigma = latency_sigma
        self.correlation = correlation
        self.jitter = jitter
        self.public = public

    def _speeds(self, federation, clients, round, streams, fixed_streams):
        speeds = self._expected(federation, clients, round, fixed_streams)
        if not self.jitter:
            return speeds
        slower = np.exp([self.jitter * rng.standard_normal() for rng in streams(clients)])
        *rates, latency = speeds
        return Speeds._make([*(rate / slower for rate in rates), latency * slower])

    def _expected(self, federation, clients, round, fixed_streams):
        draw = _draw if self._drawn is None else self._drawn.of
        normal = draw(clients, fixed_streams)
        shared, own = np.sqrt(self.correlation), np.sqrt(1 - self.correlation)
        mixed = shared * normal[:, :1] + own * normal[:, 1:]
        medians = [getattr(self, field) for field in Speeds._fields]
        sigmas = self.rows_sigma, self.bytes_down_sigma, self.bytes_up_sigma, -self.latency_sigma
        return Speeds(*(np.array(medians) * np.exp(mixed * sigmas)).T)

    def _bound(self, federation, deadline):
        if deadline is not None and deadline < self.latency:
            raise ValueError(
                f"deadline={deadline} is below latency={self.latency}, the median over the "
                "clients: raise deadline, or lower latency."
            )
        bound = copy(self)
        bound._drawn = _DrawnOnce(len(federation))
        return bound


def _draw(clients: np.ndarray, fixed_streams: Streams) -> np.ndarray:
    """Draw the normal numbers of clients, a row for each."""
    # All are drawn whatever the parameters, so that no speed depends on those of others.
    drawn = [rng.standard_normal(N_NORMAL) for rng in fixed_streams(clients)]
    return np.array(drawn).reshape(-1, N_NORMAL)


class _DrawnOnce:
    """The normal numbers of the clients of a fit that were asked before.

    To draw those of 10,000 clients takes a tenth of a second, and public devices may be asked about
    all of them in each round.
    """

    def __init__(self, n_clients: int):
        self._slot = np.full(n_clients, -1, dtype=np.int32)  # of each client; -1: not asked before
        self._n_drawn = 0
        self._rows = np.empty((0, N_NORMAL))  # of each slot, and room for more

    def of(self, clients: np.ndarray, fixed_streams: Streams) -> np.ndarray:
        """Return the rows of clients; those of new ones are drawn."""
        new = clients[self._slot[clients] < 0]
        if len(new):
            rows = _draw(new, fixed_streams)
            start, stop = self._n_drawn, self._n_drawn + len(new)
            if stop > len(self._rows):  # with room for as many again
                self._rows = np.concatenate([self._rows[:start], np.empty((stop, N_NORMAL))])
            self._rows[start:stop] = rows
            self._slot[new] = np.arange(start, stop)
            self._n_drawn = stop
        return self._rows[self._slot[clients]]
