"""Devices of recorded speeds."""

from collections.abc import Hashable

import numpy as np
import pandas as pd

from skfed._federation import distinct_names
from skfed.devices._base import BaseDevices, Speeds, as_numbers, check_deadline, checked
from skfed.utils._checks import column_names, numbers


class TraceDevices(BaseDevices):
    """Recorded speeds, a row for each client, or for each client and round.

    Parameters
    ----------
    frame : DataFrame
        Of pandas or another library, with the columns ``client`` (the id), ``rows_per_second``,
        ``bytes_down_per_second``, ``bytes_up_per_second`` and, if wanted, ``latency`` (else 0) and
        ``round``. With ``round``, the rows of a client in its order are those of the rounds, and
        after the last comes the first; without it, each client has one row. It may have other
        clients and columns too.
    public : bool, default=False
        Whether selectors are told the seconds to expect.
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
        rows = self._rows_of_clients(names, columns)
        values = np.column_stack([as_numbers(columns[field], field) for field in Speeds._fields])
        of_clients = [np.array(own) for own in rows]
        used = np.concatenate(of_clients)
        owners = [n for n, own in zip(names, of_clients, strict=True) for _ in own]
        checked(Speeds(*values[used].T), owners, "frame")
        least = np.array([values[own, -1].min() for own in of_clients])
        check_deadline(deadline, least, names)
        return _BoundTrace(values, of_clients, self.public)

    def _columns(self) -> dict[str, np.ndarray]:
        """Return the columns that are used."""
        names = column_names(self.frame)
        if names is None:
            raise ValueError(f"frame must be a DataFrame, got {type(self.frame).__name__}.")
        missing = [n for n in ("client", *Speeds._fields[:3]) if n not in names]
        if missing:
            raise ValueError(f"frame has no column {missing[0]!r}; it has {names}.")
        used = [n for n in ("client", "round", *Speeds._fields) if n in names]
        columns = {name: np.asarray(self.frame[name]) for name in used}
        return {"latency": np.zeros(len(columns["client"]))} | columns

    def _rows_of_clients(self, names: list, columns: dict[str, np.ndarray]) -> list[list[int]]:
        """Return the numbers of each client's rows, in the order of the rounds."""
        rows: dict[Hashable, list[int]] = {name: [] for name in names}
        rounds = numbers(columns["round"], "frame: round") if "round" in columns else None
        order = range(len(columns["client"])) if rounds is None else np.argsort(rounds)
        clients = pd.Series(columns["client"]).tolist()  # with Timestamps
        for i in map(int, order):
            if clients[i] in rows:
                rows[clients[i]].append(i)
        missing = [name for name, own in rows.items() if not own]
        if missing:
            raise ValueError(
                f"frame has no row for {len(missing)} client(s), such as {missing[0]!r}: add a "
                "row for each, with ids as in clients."
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
    """The speeds of a trace by client index: a row of ``values`` for each of ``rows[k]``."""

    _parameter_constraints = {"public": ["boolean"]}

    def __init__(self, values, rows, public):
        self.values = values
        self.rows = rows
        self.public = public

    def _speeds(self, federation, clients, round, streams, fixed_streams):
        own = [self.rows[k] for k in clients.tolist()]
        return Speeds(*self.values[[rows[round % len(rows)] for rows in own]].reshape(-1, 4).T)
