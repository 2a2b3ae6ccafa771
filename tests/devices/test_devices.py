"""How fast devices are, against values worked out by hand and against distributions."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from skfed._federation import make_federation
from skfed.devices import (
    BaseDevices,
    ConstantDevices,
    LognormalDevices,
    Speeds,
    TraceDevices,
)
from skfed.engines import Batching
from skfed.utils._seeding import Purpose

ABC = make_federation(["a", "b", "c"], 3)
MANY = make_federation(np.arange(4000), 4000)


def speeds(devices, clients=(0, 1, 2), t=0, federation=ABC, seed=0):
    batching = Batching(federation, seed, 1)
    return devices.speeds(
        federation,
        np.array(clients),
        t,
        lambda asked: batching.streams(Purpose.DEVICE_JITTER, t, asked),
        lambda asked: batching.streams(Purpose.DEVICES, 0, asked),
    )


def test_numbers_are_of_all_clients_and_mappings_of_each():
    devices = ConstantDevices(
        {"c": 30, "a": 10, "b": 20, "z": 1}, 100, 50.0, {"a": 1, "b": 0, "c": 2}
    )
    found = speeds(devices, [2, 0])
    assert [values.tolist() for values in found] == [[30, 10], [100, 100], [50, 50], [2, 1]]


def test_a_trace_with_a_row_a_client_holds_in_every_round():
    frame = pd.DataFrame(
        {
            "client": ["c", "z", "a", "b"],
            "rows_per_second": [30, -1, 10, 20],  # of z nothing is asked
            "bytes_down_per_second": [3, np.nan, 1, 2],
            "bytes_up_per_second": [0.3, 0, 0.1, 0.2],
        }
    )
    for t in (0, 5):
        found = speeds(TraceDevices(frame), [0, 2], t)
        assert [v.tolist() for v in found] == [[10, 30], [1, 3], [0.1, 0.3], [0, 0]]


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_a_row_of_a_trace_holds_from_its_round_and_the_trace_starts_again_at_its_end(library):
    """Client a has three rounds, b two, in no order; the last round of all is 5."""
    frame = library(
        {
            "round": [2, 0, 1, 5, 3],
            "client": ["a", "a", "a", "b", "b"],
            "rows_per_second": [3.0, 1.0, 2.0, 20.0, 10.0],
            "bytes_down_per_second": [1.0] * 5,
            "bytes_up_per_second": [1.0] * 5,
            "latency": [0.3, 0.1, 0.2, 2.0, 1.0],
        }
    )
    federation = make_federation(["a", "b"], 2)
    found = [speeds(TraceDevices(frame), [0, 1], t, federation) for t in range(8)]
    of_a, of_b = zip(*(s.rows_per_second.tolist() for s in found), strict=True)
    assert of_a == (1, 2, 3, 3, 3, 3, 1, 2)
    assert of_b == (10, 10, 10, 10, 10, 20, 10, 10)
    assert [s.latency.tolist() for s in found[4:7]] == [[0.3, 1], [0.3, 2], [0.1, 1]]


def test_rows_of_a_trace_are_those_that_a_search_by_hand_finds():
    rng = np.random.default_rng(0)
    rounds = {k: sorted(rng.choice(12, 1 + k, replace=False).tolist()) for k in range(6)}
    rows = rng.permutation(
        [(k, t) for k, own in rounds.items() for t in own]
    )  # 5 is not in the fit
    frame = pd.DataFrame(rows, columns=["client", "round"]).assign(
        rows_per_second=1 + 100 * rows[:, 0] + rows[:, 1],
        bytes_down_per_second=1.0,
        bytes_up_per_second=1.0,
    )
    federation = make_federation(np.arange(5), 5)  # without client 5 of the trace
    bound = TraceDevices(frame).bound(federation)
    period = max(map(max, rounds.values())) + 1
    for t in range(2 * period):
        asked = np.flatnonzero(rng.random(5) < 0.7)
        begun = [[r for r in rounds[k] if r <= t % period] or rounds[k][:1] for k in asked]
        expected = [1 + 100 * k + own[-1] for k, own in zip(asked, begun, strict=True)]
        assert speeds(bound, asked, t, federation).rows_per_second.tolist() == expected


LOGNORMAL = LognormalDevices(
    100.0, 2000.0, 300.0, 0.5, rows_sigma=1.0, bytes_down_sigma=0.2, latency_sigma=0.3
)


def test_lognormal_medians_spreads_and_no_correlation():
    logs = np.log(speeds(LOGNORMAL, np.arange(4000), federation=MANY))
    sigmas = np.array([1.0, 0.2, 0.7, 0.3])
    np.testing.assert_allclose(
        np.median(logs, axis=1), np.log([100, 2000, 300, 0.5]), atol=5 * 1.25 / np.sqrt(4000)
    )
    np.testing.assert_allclose(logs.std(axis=1) / sigmas, 1, atol=5 / np.sqrt(8000))
    np.testing.assert_allclose(np.corrcoef(logs), np.eye(4), atol=5 / np.sqrt(4000))


def test_default_devices_train_as_fast_as_the_phones_of_flash():
    seconds, users = np.array([1.642, 0.588, 0.179]), [18820, 16428, 159]  # of a batch of 10
    mean = np.average(np.log(10 / seconds), weights=users)
    spread = np.sqrt(np.average((np.log(10 / seconds) - mean) ** 2, weights=users))
    devices = LognormalDevices()
    assert devices.rows_per_second == pytest.approx(np.exp(mean), rel=0.02)
    assert devices.rows_sigma == pytest.approx(spread, rel=0.05)
    logs = np.log(speeds(devices, np.arange(4000), federation=MANY)[:3])
    np.testing.assert_allclose(np.exp(np.median(logs, axis=1)), [10, 4.3e6, 3.3e6], rtol=0.06)
    np.testing.assert_allclose(logs.std(axis=1), [0.5, 0.5, 0.7], rtol=0.06)


def test_speeds_are_correlated_and_the_latency_in_the_other_direction():
    devices = clone(LOGNORMAL).set_params(correlation=0.6)
    logs = np.log(speeds(devices, np.arange(4000), federation=MANY))
    expected = np.full((4, 4), 0.6)
    expected[3], expected[:, 3] = -0.6, -0.6
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(np.corrcoef(logs), expected, atol=5 / np.sqrt(4000))
    devices.set_params(correlation=1.0)
    logs = np.log(speeds(devices, np.arange(10), federation=MANY))
    np.testing.assert_allclose(logs[0] - np.log(100), 5 * (logs[1] - np.log(2000)), rtol=1e-9)


def test_without_spread_each_device_is_the_median():
    devices = LognormalDevices(
        100, 200, 300, 0.5, rows_sigma=0, bytes_down_sigma=0, bytes_up_sigma=0
    )
    assert [v.tolist() for v in speeds(devices)] == [[100] * 3, [200] * 3, [300] * 3, [0.5] * 3]


@pytest.mark.parametrize("kind", [ConstantDevices, LognormalDevices])
def test_bytes_may_take_no_time(kind):
    devices = kind(100, np.inf, np.inf, 0.5)
    found = speeds(devices.bound(ABC, 1.0))
    assert np.isinf(found.bytes_down_per_second).all() and np.isinf(found.bytes_up_per_second).all()
    assert np.isfinite(found.rows_per_second).all()


def test_a_device_is_drawn_once_from_its_own_stream_and_jitter_in_each_round():
    first, later = (speeds(LOGNORMAL, t=t) for t in (0, 9))
    alone = speeds(LOGNORMAL, [1], t=3)
    for one, other, own in zip(first, later, alone, strict=True):
        assert one.tolist() == other.tolist()
        assert own.tolist() == [one[1]]
    assert len(set(first.rows_per_second)) == 3
    assert speeds(LOGNORMAL, seed=1).rows_per_second[0] != first.rows_per_second[0]
    jittered = clone(LOGNORMAL).set_params(jitter=0.1)
    factors = [first.rows_per_second / speeds(jittered, t=t).rows_per_second for t in range(2)]
    assert len(set(np.concatenate(factors))) == 6
    for t in range(2):
        np.testing.assert_allclose(speeds(jittered, t=t).latency, first.latency * factors[t])


def test_jitter_has_median_1_and_its_spread():
    jittered = clone(LOGNORMAL).set_params(jitter=0.4)
    asked = np.arange(4000)
    fixed, moved = (speeds(d, asked, federation=MANY) for d in (LOGNORMAL, jittered))
    logs = np.log(fixed.bytes_up_per_second / moved.bytes_up_per_second)
    assert abs(np.median(logs)) < 5 * 1.25 * 0.4 / np.sqrt(4000)
    assert abs(logs.std() / 0.4 - 1) < 5 / np.sqrt(8000)


def test_what_is_expected_is_without_jitter():
    batching = Batching(ABC, 0, 1)
    jittered = clone(LOGNORMAL).set_params(jitter=1.0)
    expected = jittered.expected(
        ABC, np.arange(3), 4, lambda asked: batching.streams(Purpose.DEVICES, 0, asked)
    )
    assert [v.tolist() for v in expected] == [v.tolist() for v in speeds(LOGNORMAL)]


def test_nobody_is_asked_nothing_is_drawn():
    for devices in (LOGNORMAL, ConstantDevices(1, 1, 1)):
        assert [len(v) for v in speeds(devices, np.array([], dtype=int))] == [0] * 4


class Halves(BaseDevices):
    """Devices of a user's own."""

    def __init__(self, slow=1.0):
        self.slow = slow

    def _speeds(self, federation, clients, round, streams, fixed_streams):
        return Speeds(np.where(clients % 2, self.slow, 10.0), 100.0, 100.0, 0.0)


def test_devices_of_ones_own_are_one_method():
    found = speeds(Halves())
    assert [v.tolist() for v in found] == [[10, 1, 10], [100] * 3, [100] * 3, [0] * 3]
    with pytest.raises(
        ValueError, match=r"rows_per_second of client 'b' is nan in Halves: it must be"
    ):
        speeds(Halves(slow=np.nan))


class Returns(BaseDevices):
    """Devices whose method returns what is given."""

    def __init__(self, speeds):
        self.speeds_ = speeds

    def _speeds(self, federation, clients, round, streams, fixed_streams):
        return self.speeds_


@pytest.mark.parametrize(
    ("returned", "error", "match"),
    [
        (
            Speeds(np.ones(2), 1.0, 1.0, 0.0),
            ValueError,
            r"Returns._speeds returned rows_per_second of shape \(2,\) for 3 clients: return one",
        ),
        (
            Speeds(1.0, np.ones((3, 1)), 1.0, 0.0),
            ValueError,
            r"Returns._speeds returned bytes_down_per_second of shape \(3, 1\) for 3 clients",
        ),
        (
            Speeds(1.0, 1.0, ["fast", 1.0, 1.0], 0.0),
            ValueError,
            "Returns._speeds: bytes_up_per_second has 'fast', which is not a number",
        ),
        (
            Speeds(1.0, 1.0, 1.0, [[1.0], [1.0, 2.0], [3.0]]),
            ValueError,
            "Returns._speeds: latency has .*, which is not a number",
        ),
        ((1.0, 1.0, 1.0), TypeError, r"Returns._speeds returned tuple: return skfed.*Speeds\(rows"),
        (None, TypeError, "Returns._speeds returned NoneType"),
    ],
    ids=str,
)
def test_what_devices_of_ones_own_return_is_checked(returned, error, match):
    with pytest.raises(error, match=match):
        speeds(Returns(returned))
    with pytest.raises(error, match=match.replace("_speeds", "_expected", 1)):
        Returns(returned).expected(ABC, np.arange(3), 0, None)


def frame(**columns):
    given = {
        "client": list("abc"),
        "rows_per_second": [1.0, 2, 3],
        "bytes_down_per_second": [1.0, 2, 3],
        "bytes_up_per_second": [1.0, 2, 3],
    } | columns
    return pd.DataFrame({name: column for name, column in given.items() if column is not None})


@pytest.mark.parametrize(
    ("devices", "match"),
    [
        (ConstantDevices(0, 1, 1), "'rows_per_second' parameter.*0"),
        (ConstantDevices(1, -1, 1), "'bytes_down_per_second' parameter.*-1"),
        (ConstantDevices(1, 1, float("nan")), "'bytes_up_per_second' parameter.*nan"),
        (ConstantDevices(1, 1, 1, -0.5), "'latency' parameter.*-0.5"),
        (ConstantDevices({"a": 1}, 1, 1), r"rows_per_second lacks 2 client.*'b': name all"),
        (
            ConstantDevices(1, {"a": 1, "b": 0, "c": 1}, 1),
            r"bytes_down_per_second of client 'b' is 0.0 .* above 0",
        ),
        (
            ConstantDevices(1, 1, {"a": 1, "b": 1, "c": np.nan}),
            r"bytes_up_per_second of client 'c' is nan .* above 0",
        ),
        (
            ConstantDevices(1, 1, 1, {"a": 1, "b": np.inf, "c": -1}),
            r"latency of client 'b' is inf .* not negative",
        ),
        (ConstantDevices({"a": 1, "b": "x", "c": 1}, 1, 1), "rows_per_second has 'x'.*not a num"),
        (LognormalDevices(0, 1, 1), "'rows_per_second' parameter.*0"),
        (LognormalDevices(1, 1, 1, rows_sigma=-1), "'rows_sigma' parameter.*-1"),
        (LognormalDevices(1, 1, 1, correlation=1.5), "'correlation' parameter.*1.5"),
        (LognormalDevices(1, 1, 1, jitter=np.nan), "'jitter' parameter.*nan"),
        (TraceDevices([[1, 2]]), "frame must be a DataFrame, got list"),
        (TraceDevices(frame(client=None)), "frame has no column 'client'"),
        (TraceDevices(frame(rows_per_second=None)), "frame has no column 'rows_per_second'"),
        (TraceDevices(frame(client=list("axc"))), "frame has no row for 1 client.*'b': add"),
        (TraceDevices(frame(client=list("abb"))), "frame has no row for 1 client.*'c'"),
        (
            TraceDevices(pd.concat([frame(), frame().iloc[1:2]])),
            "frame has more than one row for client 'b': ",
        ),
        (
            TraceDevices(pd.concat([frame(round=[0, 0, 0])] * 2)),
            "frame has more than one row for client 'a' in one round",
        ),
        (
            TraceDevices(frame(round=[0, -2, 0])),
            "frame: round has -2: rounds are 0, 1, 2 and so on",
        ),
        (TraceDevices(frame(round=[0, 1.5, 0])), "frame: round has 1.5: rounds are 0, 1, 2 and so"),
        (
            TraceDevices(frame(round=pd.date_range("2026-01-01", periods=3))),
            "frame: round has 2026-01-01.*, a time: rounds are 0, 1, 2 and so on",
        ),
        (
            TraceDevices(pd.concat([frame(), frame()[["client"]]], axis=1)),
            "frame has more than one column 'client': keep one",
        ),
        (
            TraceDevices(pd.concat([frame(), frame()[["rows_per_second"]]], axis=1)),
            "frame has more than one column 'rows_per_second': keep one",
        ),
        (TraceDevices(frame(round=[0, np.nan, 0])), "frame: round has values that are not finite"),
        (
            TraceDevices(frame(bytes_up_per_second=[1, 0, 1])),
            "bytes_up_per_second of client 'b' is 0.0 in frame: it must be above 0",
        ),
        (
            TraceDevices(frame(latency=[0.1, 0.1, -1])),
            "latency of client 'c' is -1.0 in frame: it must be finite and not negative",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_values_name_parameter_client_and_way_out(devices, match):
    with pytest.raises(ValueError, match=match):
        devices.bound(ABC)
    with pytest.raises(ValueError, match=match):
        speeds(devices)


@pytest.mark.parametrize(
    "devices",
    [ConstantDevices({1: 1, "x": 1}, 1, 1), TraceDevices(frame(client=[1, 1, "x"]))],
)
def test_an_id_that_differs_only_by_its_type_is_named(devices):
    match = r"2 client\(s\), such as '1' \(there is 1, which differs .* its type: int, not str\): "
    with pytest.raises(ValueError, match=match):
        devices.bound(make_federation(["1", "y"], 2))


@pytest.mark.parametrize(
    "devices",
    [ConstantDevices({1: 1, "a": 1}, 1, 1), TraceDevices(frame(client=[1, "a", 2]))],
)
def test_ids_that_are_equal_but_for_their_type_are_ambiguous(devices):
    with pytest.raises(ValueError, match="ambiguous"):
        devices.bound(make_federation([1, True, "a"], 3))


@pytest.mark.parametrize(
    ("devices", "match"),
    [
        (ConstantDevices(1, 1, 1, latency=2), "deadline=1.5 is below the latency of client 'a', 2"),
        (
            ConstantDevices(1, 1, 1, latency={"a": 0, "b": 1, "c": 2}),
            r"deadline=1.5 is below the latency of client 'c', 2.0 seconds.*raise deadline",
        ),
        (
            TraceDevices(
                pd.concat(
                    [
                        frame(round=[0, 0, 0], latency=[1, 3, 3]),
                        frame(round=[1, 1, 1], latency=[3, 2, 1]),
                    ]
                )
            ),
            "deadline=1.5 is below the latency of client 'b', 2",
        ),
        (LognormalDevices(1, 1, 1, 2), "deadline=1.5 is below latency=2, the median"),
    ],
)
def test_a_deadline_below_the_latency_is_refused(devices, match):
    with pytest.raises(ValueError, match=match):
        devices.bound(ABC, 1.5)
    assert devices.bound(ABC, 2.0).public is False
