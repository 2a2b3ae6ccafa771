"""Files of data sets that were cut or changed: told by their name."""

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from generated import generated
from hypothesis import strategies as st
from strategies import REFUSED, outcome

from skfed.datasets import load_adult, load_cifar10, load_mnist, load_wisdm

IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(2 * 28 * 28)
LABELS = bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 2])
WISDM = b"""@relation activity

@attribute "UNIQUE_ID" numeric
@attribute "user"
@attribute "X0" numeric
@attribute "XPEAK" numeric
@attribute class

@data
1,33,0.04,?,Jogging
2,33,0.12,1525,Walking
3,7,0,293.94,Sitting
"""
PERSON = "39, State-gov, 77516, Bachelors, 13, Never-married, %s, Not-in-family, White, Male, "
PEOPLE = f"{PERSON}2174, 0, 40, Cuba, <=50K\n{PERSON}0, 0, 50, ?, >50K\n" % ("?", "Sales")
ADULT = PEOPLE.encode() + b"\n"
ADULT_TEST = b"|1x3 Cross validator\n" + PEOPLE.replace("K", "K.").encode() + b"\n"

WISDM_FILE = "wisdm-ar-v1.1/WISDM_ar_v1.1_transformed.arff.gz"
SETS = {
    partial(load_mnist, subset="test"): {
        "mnist/t10k-images-idx3-ubyte.gz": IMAGES,
        "mnist/t10k-labels-idx1-ubyte.gz": LABELS,
    },
    load_wisdm: {WISDM_FILE: WISDM},
    load_adult: {"adult/adult.data.gz": ADULT, "adult/adult.test.gz": ADULT_TEST},
}
SET_OF = {path: load for load, files in SETS.items() for path in files}


@st.composite
def cut_or_changed(draw, data):
    place = draw(st.integers(0, len(data) - 1))
    changed = bytes([data[place] ^ draw(st.integers(1, 255))])
    return data[:place] + draw(st.sampled_from([b"", changed + data[place + 1 :]]))


def packed(data):
    return gzip.compress(data, mtime=0)


def loaded(path):
    """Load the set of a file, which alone may be to blame."""
    return outcome(lambda: SET_OF[path](data_home="."), Path(path).name)


def written(path):
    """Write the set of a file; return the file as it was packed."""
    files = SETS[SET_OF[path]]
    Path(path).parent.mkdir(exist_ok=True)
    for good, data in files.items():
        Path(good).write_bytes(packed(data))
    return files[path]


@generated(200, st.sampled_from(sorted(SET_OF)), st.booleans(), st.data())
def test_cut_or_changed(path, before_packing, draw):
    data = written(path)
    whole = loaded(path)
    good = data if before_packing else packed(data)
    spoiled = draw.draw(cut_or_changed(good))
    Path(path).write_bytes(packed(spoiled) if before_packing else spoiled)
    if (rest := loaded(path)) is not REFUSED:
        assert rest.X.shape == whole.X.shape or len(spoiled) < len(good)
        assert len(rest.X) == len(rest.y)
        assert np.dtype(rest.y.dtype).kind == whole.y.dtype.kind
        assert set(rest.y) <= set(whole.y) or "mnist" in path


ANYWHERE = {
    "empty": lambda data: b"",
    "no text": lambda data: b"\0\xff" * 99,
    "Latin-1": lambda data: data.replace(b"33", b"\xe9").replace(b"White", b"\xe9"),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "a page": lambda data: b"<!DOCTYPE html>\n<html><body>404, not found</body></html>\n",
    "packed twice": packed,
}


@pytest.mark.parametrize("path", [path for path in SET_OF if "mnist" not in path])
@pytest.mark.parametrize("spoil", ANYWHERE.values(), ids=ANYWHERE)
def test_what_is_no_such_file(path, spoil):
    Path(path).write_bytes(packed(spoil(written(path))))
    assert loaded(path) is REFUSED
    Path(path).write_bytes(spoil(written(path)))  # not packed, or packed once
    assert loaded(path) is REFUSED or spoil is packed


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        *(("user", "usher"), ("class", "clasp"), ("UNIQUE_ID", "ID"), ('"X0" numeric', "")),
        *(('@attribute "X0" numeric\n', ""), ("XPEAK", "X0"), ("@data", "@date")),
        *(("7,0,", "37,0,"), ("7,0,", "7.5,0,"), ("7,0,", "?,0,"), ("7,0,", "9" * 30 + ",0,")),
        *(("0.12", "0.12x"), ("0.12", "0_12"), ("0.12", "?"), ("0.12", ""), ("0.12,", "")),
        *(("0.12", "inf"), ("0.12", "nan"), ("0.12", "1e999"), ("1525", "-inf"), ("1525", "")),
        *((",Walking", ""), ("Walking", "Walk"), ("Walking", "?"), ("Walking", "Walking,1")),
        *(("2,33", '"2,33'), ("2,33", "2\n33"), ("2,33", "2;33"), (WISDM[-68:].decode(), "")),
    ],
)
def test_wisdm(good, bad):
    assert good in WISDM.decode()
    written(WISDM_FILE)
    Path(WISDM_FILE).write_bytes(packed(WISDM.decode().replace(good, bad).encode()))
    assert loaded(WISDM_FILE) is REFUSED


@pytest.mark.parametrize("path", SETS[load_adult])
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        *(("77516, ", ""), ("77516", ""), ("77516", "?"), ("77516", "x"), ("77516", "77516.5")),
        *(("77516", "7_7516"), ("77516", "9" * 30), ("77516", "inf"), ("77516", "77516, 1")),
        *((", >50K", ""), (">50K", ">5"), (">50K", "?"), (">50K", "")),
        *(("White, Male", ""), ("Sales", ""), ("Bachelors", "")),
        *(("39", '"39'), ("39", "|39"), (", ", "; "), ("\n39", " 39"), ("39", "")),
    ],
)
def test_adult(path, good, bad):
    text = written(path).decode()
    assert good in text
    Path(path).write_bytes(packed(text.replace(good, bad).encode()))
    assert loaded(path) is REFUSED


@generated(20, st.integers(0, 9999).filter(lambda n: n % 3073))
def test_cifar10(n_bytes):
    folder = Path("cifar-10-batches-bin")
    folder.mkdir(exist_ok=True)
    (folder / "test_batch.bin").write_bytes(bytes(n_bytes))
    images = outcome(lambda: load_cifar10(subset="test", data_home="."), folder.name)
    assert images is REFUSED
