"""CIFAR-10: 60,000 colour images of 32 x 32 pixels in ten classes.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import os

import numpy as np
from sklearn.utils import Bunch

from skfed.datasets._fetch import find_home, reading
from skfed.utils._sklearn import StrOptions

_FOLDER = "cifar-10-batches-bin"
_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
_SHAPE = (3, 32, 32)
_SUBSETS = StrOptions({"train", "test"})


def load_cifar10(*, subset: str = "train", data_home: str | os.PathLike | None = None) -> Bunch:
    """Load CIFAR-10, binary version, from disk.

    Parameters
    ----------
    subset : {"train", "test"}, default="train"
        The 50,000 training images or the 10,000 test images.
    data_home : path, default=None
        Folder that holds ``cifar-10-batches-bin/`` as its authors distribute it; None means
        $SKFED_DATA, else scikit-learn's data home.

    Returns
    -------
    Bunch
        ``X``, uint8 of shape (n_samples, 3, 32, 32), and ``y``, uint8 labels 0 to 9. It has no
        clients of its own: see :func:`partition_by_shards` and :func:`partition_dirichlet`.

    Raises
    ------
    FileNotFoundError
        If a file is missing; the message names its folder.
    """
    if not _SUBSETS.is_satisfied_by(subset):
        raise ValueError(f"subset must be {_SUBSETS}, got {subset!r}.")
    folder = find_home(data_home) / _FOLDER
    missing = [name for name in _FILES[subset] if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{', '.join(missing)} not in {folder}: put the binary version of CIFAR-10 there, or "
            "name another folder with data_home= or the environment variable SKFED_DATA."
        )
    # A record is the label, one byte, and the image, channel by channel.
    records = np.concatenate([np.fromfile(folder / name, np.uint8) for name in _FILES[subset]])
    with reading(folder):
        records = records.reshape(-1, 1 + np.prod(_SHAPE))
    return Bunch(X=records[:, 1:].reshape(-1, *_SHAPE).copy(), y=records[:, 0].copy())
