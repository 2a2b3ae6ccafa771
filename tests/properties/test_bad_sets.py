"""Files of data sets that were cut or changed: told by their name."""

import gzip
from pathlib import Path

import numpy as np
from generated import generated
from hypothesis import strategies as st
from strategies import REFUSED, outcome

from skfed.datasets import load_cifar10, load_mnist

IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(2 * 28 * 28)
LABELS = bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 2])
MNIST = {"t10k-images-idx3-ubyte.gz": IMAGES, "t10k-labels-idx1-ubyte.gz": LABELS}


@st.composite
def cut_or_changed(draw, data):
    place = draw(st.integers(0, len(data) - 1))
    changed = bytes([data[place] ^ draw(st.integers(1, 255))])
    return data[:place] + draw(st.sampled_from([b"", changed + data[place + 1 :]]))


def packed(data):
    return gzip.compress(data, mtime=0)


@generated(60, st.sampled_from(sorted(MNIST)), st.booleans(), st.data())
def test_mnist(name, before_packing, draw):
    folder = Path("mnist")
    folder.mkdir(exist_ok=True)
    for good, data in MNIST.items():
        (folder / good).write_bytes(packed(data))
    data = MNIST[name] if before_packing else packed(MNIST[name])
    spoiled = draw.draw(cut_or_changed(data))
    (folder / name).write_bytes(packed(spoiled) if before_packing else spoiled)
    images = outcome(lambda: load_mnist(subset="test", data_home="."), name)
    assert images is REFUSED or images.X.dtype == images.y.dtype == np.uint8


@generated(20, st.integers(0, 9999).filter(lambda n: n % 3073))
def test_cifar10(n_bytes):
    folder = Path("cifar-10-batches-bin")
    folder.mkdir(exist_ok=True)
    (folder / "test_batch.bin").write_bytes(bytes(n_bytes))
    images = outcome(lambda: load_cifar10(subset="test", data_home="."), folder.name)
    assert images is REFUSED
