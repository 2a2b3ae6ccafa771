import datetime
import json
import pickle
import zoneinfo
from pathlib import Path

import dateutil.tz
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save

from skfed.utils import _files

EVERYTHING = {
    "plain": [None, True, 3, 0.1, float("inf"), "text", -0.0],
    ("tuple", 1): {1: (1, "1", 1.0), frozenset({"a", 2}): {b"bytes"}},
    "tensors": [
        torch.arange(3.0),
        torch.tensor(True),
        torch.zeros(0, 2),
        torch.zeros(2).bfloat16(),
    ],
    "arrays": [np.arange(4, dtype=np.uint32).reshape(2, 2), np.array(["a", "bc"])],
    "arrays of times": [
        np.array(["2026-03-01T12:00", "NaT"], dtype="datetime64[us]"),
        np.array([[90], [-1]], dtype="timedelta64[m]"),
    ],
    "objects": np.array([1, "1", None, ("x", 2)], dtype=object),
    "times": (pd.Timestamp("2026-03-01", tz="Europe/Berlin"), pd.Timedelta("90min")),
}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "all.safetensors"
    _files.write(path, EVERYTHING)
    read = _files.read(path)
    assert repr(read) == repr(EVERYTHING)
    assert [type(one) for one in read["plain"]] == [type(one) for one in EVERYTHING["plain"]]
    assert read["tensors"][3].dtype == torch.bfloat16
    assert read["arrays"][0].dtype == np.uint32
    assert list(tmp_path.iterdir()) == [path]


MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="needs Linux's /proc")
def test_tensors_that_were_read_are_no_part_of_the_file(tmp_path):
    """Else Windows would not replace it while they are in use."""
    path = tmp_path / "x.safetensors"
    _files.write(path, torch.ones(10_000))
    tensor = _files.read(path)
    assert str(path) not in MAPS.read_text(encoding="utf-8")
    assert tensor.sum() == 10_000


def test_numpy_scalars_become_python_ones(tmp_path):
    _files.write(tmp_path / "x", [np.float64(0.1), np.int8(3), np.datetime64("2026-01-01")])
    assert _files.read(tmp_path / "x") == [0.1, 3, pd.Timestamp("2026-01-01")]


PANDAS_2 = pd.__version__.startswith("2.")
ZONES = [
    *("Europe/Berlin", zoneinfo.ZoneInfo("Asia/Tokyo"), dateutil.tz.tzlocal(), "UTC"),
    datetime.timezone(datetime.timedelta(hours=2)),
    pytest.param(
        dateutil.tz.gettz("Europe/Berlin"),
        marks=pytest.mark.skipif(PANDAS_2, reason="pandas 2 has no name for zones of dateutil"),
    ),
]


@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_timestamps_of_every_named_zone_are_read(tmp_path, zone):
    stamp = pd.Timestamp("2026-07-01 12:00:00.123456789", tz=zone)
    _files.write(tmp_path / "x", stamp)
    read = _files.read(tmp_path / "x")
    assert repr(read) == repr(stamp)
    assert PANDAS_2 or type(read.tz) is type(stamp.tz)  # which finds names as zones of pytz


@pytest.mark.parametrize("zone", [dateutil.tz.tzoffset("x", 7200), dateutil.tz.tzutc()], ids=str)
def test_timestamps_of_other_zones_are_refused_before_they_are_written(tmp_path, zone):
    with pytest.raises(TypeError, match="time zone that cannot be found by its name, .tz"):
        _files.write(tmp_path / "x", [pd.Timestamp("2026-07-01", tz=zone)])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("array", [[b"a", b"\xff\0b"], [[b"a"], [b"bc"]], []], ids=str)
def test_arrays_of_bytes_are_read(tmp_path, array):
    array = np.array(array, dtype=np.bytes_)
    _files.write(tmp_path / "x", array)
    read = _files.read(tmp_path / "x")
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype


def test_other_objects_are_refused_and_the_file_stays(tmp_path):
    path = tmp_path / "x"
    _files.write(path, "before")
    for value in (object(), [len], np.array([1j]), 1j):
        with pytest.raises(TypeError, match="not written to files"):
            _files.write(path, value)
    assert _files.read(path) == "before"


def test_any_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "x"
    _files.write(path, {"weights": torch.linspace(0, 1, 5), "round": 3})
    data = path.read_bytes()
    for i in range(len(data)):
        for bits in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[i] ^= bits
            path.write_bytes(bytes(damaged))
            with pytest.raises(ValueError, match=r"x is no file of skfed's, or damaged"):
                _files.read(path)


def test_cut_and_foreign_files_are_refused_by_name(tmp_path):
    path = tmp_path / "x"
    _files.write(path, torch.ones(10))
    whole = path.read_bytes()
    foreign = [whole[:n] for n in range(0, len(whole), 7)]
    foreign += [b"", pickle.dumps({"a": 1}), save({"w": torch.ones(2)}), b"PK\3\4" + bytes(100)]
    for data in foreign:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"x is no file of skfed's, or damaged"):
            _files.read(path)
    with pytest.raises(FileNotFoundError):
        _files.read(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        _files.read(tmp_path)


NONSENSE = [
    *("nonsense", "[1]", "3", "[1, {}]", "[" * 10**5),
    *('[1, {"call": "os.system"}]', '[1, {"tensor": "9"}]', '[1, {"dict": 3}]'),
    *('[1, {"timestamp": ["x", "s", null]}]', '[1, {"set": [[]]}]'),
]


@pytest.mark.parametrize("text", NONSENSE, ids=lambda text: text[:30])
def test_what_fits_its_checksum_but_makes_no_sense_is_refused(tmp_path, text):
    path = tmp_path / "x"
    path.write_bytes(save({}, metadata={"skfed": text, "sha256": _files.checksum(text, {})}))
    with pytest.raises(ValueError, match="x is damaged"):
        _files.read(path)


def test_a_later_format_is_named(tmp_path):
    text = json.dumps([99, "value"])
    data = save({}, metadata={"skfed": text, "sha256": _files.checksum(text, {})})
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match="version 99"):
        _files.read(tmp_path / "x")


def test_a_full_disk_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "x"
    _files.write(path, "before")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            _files.write(path, "after")
    assert _files.read(path) == "before"
    assert list(tmp_path.iterdir()) == [path]
