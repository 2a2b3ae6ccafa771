"""MNIST and Fashion-MNIST: 70,000 grey images of 28 x 28 pixels in ten classes.

LeCun, Cortes, Burges: The MNIST database of handwritten digits. Xiao, Rasul, Vollgraf:
Fashion-MNIST, 2017 (arXiv:1708.07747).
"""

import gzip
import os
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from skfed.datasets._fetch import fetch, find_home, reading
from skfed.utils._sklearn import StrOptions

_N_TRAIN = 60_000
_FILES = {
    part: [f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"]
    for part, prefix in (("train", "train"), ("test", "t10k"))
}
_SUBSETS = StrOptions({"train", "test", "all"})


def load_fashion_mnist(
    *, subset: str = "train", data_home: str | os.PathLike | None = None
) -> Bunch:
    """Load Fashion-MNIST from disk, or from OpenML when it is not there.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 60,000 training images, the 10,000 test images, or both in this order.
    data_home : path, default=None
        Folder that holds ``fashion-mnist/`` with the four original idx files (.gz); None means
        $SKFED_DATA, else scikit-learn's data home, where a download is stored.

    Returns
    -------
    Bunch
        ``X``, uint8 of shape (n_samples, 28, 28), and ``y``, uint8 labels 0 to 9. It has no
        clients of its own: see :func:`partition_by_shards` and :func:`partition_dirichlet`.

    Raises
    ------
    OSError
        If it is neither on disk nor available from OpenML.
    """
    return _load("fashion-mnist", "Fashion-MNIST", subset, data_home)


def load_mnist(*, subset: str = "train", data_home: str | os.PathLike | None = None) -> Bunch:
    """Load MNIST from disk, or from OpenML when it is not there.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 60,000 training images, the 10,000 test images, or both in this order.
    data_home : path, default=None
        Folder that holds ``mnist/`` with the four original idx files (.gz); None means
        $SKFED_DATA, else scikit-learn's data home, where a download is stored.

    Returns
    -------
    Bunch
        ``X``, uint8 of shape (n_samples, 28, 28), and ``y``, uint8 labels 0 to 9. It has no
        clients of its own: see :func:`partition_by_shards` and :func:`partition_dirichlet`.

    Raises
    ------
    OSError
        If it is neither on disk nor available from OpenML.
    """
    return _load("mnist", "mnist_784", subset, data_home)


def _load(folder_name: str, openml_name: str, subset: str, data_home) -> Bunch:
    if not _SUBSETS.is_satisfied_by(subset):
        raise ValueError(f"subset must be {_SUBSETS}, got {subset!r}.")
    home = find_home(data_home)
    folder = home / folder_name
    parts = ["train", "test"] if subset == "all" else [subset]
    files = [folder / name for part in parts for name in _FILES[part]]
    if all(path.is_file() for path in files):
        arrays = [_read_idx(path) for path in files]
        X, y = np.concatenate(arrays[0::2]), np.concatenate(arrays[1::2])
    else:
        wanted = [*_FILES["train"], *_FILES["test"]]
        fetched = fetch(home, folder, wanted, openml_name, version=1)
        X = fetched.data.to_numpy(np.uint8).reshape(-1, 28, 28)
        y = fetched.target.to_numpy().astype(np.uint8)
        rows = {"train": slice(_N_TRAIN), "test": slice(_N_TRAIN, None), "all": slice(None)}
        X, y = X[rows[subset]], y[rows[subset]]
    return Bunch(X=X, y=y)


def _read_idx(path: Path) -> np.ndarray:
    """Read an idx file: byte 4 is the number of dimensions, then come their sizes and the data."""
    with reading(path), gzip.open(path) as file:
        data = file.read()
        n_dimensions = data[3]
        shape = np.frombuffer(data, ">u4", count=n_dimensions, offset=4)
        # A copy, since an array on a bytes object is read-only.
        return np.frombuffer(data, np.uint8, offset=4 + 4 * n_dimensions).reshape(shape).copy()
