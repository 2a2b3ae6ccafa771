"""Devices of recorded speeds."""

from collections.abc import Hashable

import numpy as np
import pandas as pd

from skfed._federation import distinct_names
from skfed.devices._base import BaseDevices, Speeds, as_numbers, check_deadline, checked
from skfed.devices._measured import MEASURED, measured_speeds
from skfed.utils._checks import column_names, numbers
from skfed.utils._ids import missing_clients


class TraceDevices(BaseDevices):
    """Recorded speeds, a row for each client, or for each client and round.

    Parameters
    ----------
    frame : DataFrame
        Of pandas or another library, with the columns ``client`` (the id), ``rows_per_second``,
        ``bytes_down_per_second``, ``bytes_up_per_second`` and, if wanted, ``latency`` (else 0) and
        ``round``. With ``round``, whose numbers count from 0, a row holds from its round until the
        client's next one, and the first also before; after the last round in ``frame`` all begin
        again. Without it, each client has one row. It may have other clients and columns too.
        Or what :func:`~skfed.metrics.client_exchanges` returns for a model that was trained over
        Flower: in each round a client's rows per second are those that it has computed, and its
        latency all other seconds, the mean of its exchanges; bytes take no time. A client that has
        said nothing of its computing is as fast in it as the median of the others.
    public : bool, default=False
        Whether selectors are told the seconds to expect.

    See Also
    --------
    skfed.devices.ConstantDevices : The same speeds in every round.
    skfed.devices.LognormalDevices : Speeds drawn at random.
    """

    _parameter_constraints = {"frame": "no_validation", "public": ["boolean"]}

    def __init__(self, frame, public=False):
        self.frame = frame
        self.public = public

    def _speeds(self, federation, clients, round, streams, fixed_streams):
        known = self._bound(federation, None)
        return known._speeds(federation, clients, round, streams, fixed_streams)

    def _bound(self, federation, deadline):
        names = distinct_names(federation, "frame")
        columns = self._columns()
        if "computing" in columns:
            speeds = measured_speeds(pd.DataFrame(columns))
            columns = {str(name): column.to_numpy() for name, column in speeds.items()}
        rounds = None if "round" not in columns else _checked_rounds(columns["round"])
        rows = _rows_of_clients(names, columns["client"], rounds)
        values = np.column_stack([as_numbers(columns[field], field) for field in Speeds._fields])
        of_clients = [np.array(own) for own in rows]
        used = np.concatenate(of_clients)
        owners = [n for n, own in zip(names, of_clients, strict=True) for _ in own]
        checked(Speeds(*values[used].T), owners, "frame")
        least = np.array([values[own, -1].min() for own in of_clients])
        check_deadline(deadline, least, names)
        if rounds is None:
            rounds = np.zeros(len(values))
        distinct, ranks = np.unique(rounds, return_inverse=True)
        n_rows = [len(own) for own in of_clients]
        keys = np.repeat(np.arange(len(names)), n_rows) * (len(distinct) + 1) + ranks[used] + 1
        first = np.cumsum([0, *n_rows[:-1]])
        return _BoundTrace(values[used], distinct, keys, first, self.public)

    def _columns(self) -> dict[str, np.ndarray]:
        """Return the columns that are used."""
        names = column_names(self.frame)
        if names is None:
            raise ValueError(f"frame must be a DataFrame, got {type(self.frame).__name__}.")
        known = ("client", "round", *Speeds._fields, *MEASURED)
        twice = [name for name in known if names.count(name) > 1]
        if twice:
            raise ValueError(f"frame has more than one column {twice[0]!r}: keep one.")
        if set(MEASURED) <= set(names):
            return {name: np.asarray(self.frame[name]) for name in MEASURED}
        missing = [n for n in ("client", *Speeds._fields[:3]) if n not in names]
        if missing:
            raise ValueError(f"frame has no column {missing[0]!r}; it has {names}.")
        used = [n for n in ("client", "round", *Speeds._fields) if n in names]
        columns = {name: np.asarray(self.frame[name]) for name in used}
        return {"latency": np.zeros(len(columns["client"]))} | columns


def _checked_rounds(column: np.ndarray) -> np.ndarray:
    """Return the round of each row; raise if one is not a whole number from 0."""
    if column.dtype.kind in "mM":  # numpy would take them for numbers
        raise ValueError(f"frame: round has {column[0]}, a time: rounds are 0, 1, 2 and so on.")
    rounds = numbers(column, "frame: round")
    wrong = (rounds < 0) | (rounds % 1 > 0)
    if wrong.any():
        raise ValueError(
            f"frame: round has {rounds[np.argmax(wrong)]:g}: rounds are 0, 1, 2 and so on."
        )
    return rounds


def _rows_of_clients(names: list, column: np.ndarray, rounds: np.ndarray | None) -> list[list[int]]:
    """Return the numbers of each client's rows, in the order of the rounds."""
    rows: dict[Hashable, list[int]] = {name: [] for name in names}
    order = range(len(column)) if rounds is None else np.argsort(rounds)
    clients = pd.Series(column).tolist()  # with Timestamps
    for i in map(int, order):
        if clients[i] in rows:
            rows[clients[i]].append(i)
    missing = [name for name, own in rows.items() if not own]
    if missing:
        raise ValueError(
            f"frame has no row for {missing_clients(missing, clients)}: add a row for each, with "
            "ids as in clients. Of measured times, those of replies count."
        )
    for name, own in rows.items():
        if len(own) > (1 if rounds is None else len(set(rounds[own].tolist()))):
            where = "" if rounds is None else " in one round"
            raise ValueError(
                f"frame has more than one row for client {name!r}{where}: give one, or add a "
                "column 'round' that tells them apart."
            )
    return list(rows.values())


class _BoundTrace(BaseDevices):
    """The speeds of a trace, whose rows are in the order of clients and their rounds.

    Parameters
    ----------
    values : ndarray of shape (n_rows, 4)
        The speeds.
    rounds : ndarray
        The distinct rounds in ascending order, those of clients outside the fit too.
    keys : ndarray of shape (n_rows,)
        Ascending: the client of each row times (len(rounds) + 1), plus how many of the rounds have
        begun when it holds.
    first : ndarray of shape (n_clients,)
        The first row of each client.
    public : bool
        Whether selectors are told the seconds to expect.
    """

    _parameter_constraints = {"public": ["boolean"]}

    def __init__(self, values, rounds, keys, first, public):
        self.values = values
        self.rounds = rounds
        self.keys = keys
        self.first = first
        self.public = public

    def _speeds(self, federation, clients, round, streams, fixed_streams):
        n_begun = np.searchsorted(self.rounds, round % (self.rounds[-1] + 1), "right")
        # The last row whose round has begun, and the first row before.
        last = np.searchsorted(self.keys, clients * (len(self.rounds) + 1) + n_begun, "right") - 1
        return Speeds(*self.values[np.maximum(last, self.first[clients])].T)
