"""WISDM activity recognition: 36 phone users, each a client.

Kwapisz, Weiss, Moore: Activity Recognition using Cell Phone Accelerometers, SensorKDD 2010.
"""

import gzip
import os
from typing import TextIO

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from skfed.datasets._fetch import find_home, read_rows, reading

_FILES = ["WISDM_ar_v1.1_transformed.arff.gz", "WISDM_ar_v1.1_transformed.arff"]
_ACTIVITIES = ["Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking"]
_USERS = range(1, 37)
_DTYPES = {"user": int, "class": object}  # the others are float


def load_wisdm(*, data_home: str | os.PathLike | None = None) -> Bunch:
    """Load WISDM v1.1, transformed: a data set whose clients are real people.

    Each row summarises 10 seconds of a phone's accelerometer; the class is what its user did.

    Parameters
    ----------
    data_home : path, default=None
        Folder that holds ``wisdm-ar-v1.1/WISDM_ar_v1.1_transformed.arff`` (or ``.arff.gz``); None
        means $SKFED_DATA, else scikit-learn's data home.

    Returns
    -------
    Bunch
        ``X``, a DataFrame of shape (5418, 43), NaN in 615 cells where a peak could not be found;
        ``y``, the activity, one of six strings; ``clients``, the user of each row, 1 to 36.

    Raises
    ------
    FileNotFoundError
        If the file is not there. It has to be obtained from the WISDM lab, under its terms.
    ValueError
        If the file is damaged; the message names it.
    """
    folder = find_home(data_home) / "wisdm-ar-v1.1"
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{_FILES[1]} is not in {folder}. Get it from the WISDM lab (activity prediction "
            "v1.1) and put it there, plain or as .gz, or name another folder with data_home= or "
            "the environment variable SKFED_DATA."
        )
    opener = gzip.open if path.suffix == ".gz" else open
    with reading(path), opener(path, "rt", encoding="utf-8") as lines:
        frame = read_rows(lines, _read_header(lines), _ACTIVITIES)
        X = frame.drop(columns=["UNIQUE_ID", "user", "class"])
        _check(X, frame["user"])
    return Bunch(
        X=X, y=frame["class"].to_numpy(dtype=object).astype(str), clients=frame["user"].to_numpy()
    )


def _read_header(lines: TextIO) -> dict[str, type]:
    """Read the header; return the dtype of each attribute."""
    # scipy's ARFF reader fails here, since the attribute "user" has no type.
    names = []
    for line in lines:
        if line.lower().startswith("@attribute"):
            names.append(line.split()[1].strip('"'))
        elif line.lower().startswith("@data"):
            break
    return {name: _DTYPES.get(name, float) for name in names}


def _check(X: pd.DataFrame, users: pd.Series) -> None:
    """Check that users are in 1 to 36, and that only peaks are missing."""
    if unknown := set(users) - set(_USERS):
        raise ValueError(f"there is no user {min(unknown)}: they are 1 to {_USERS[-1]}.")
    for name, column in X.items():
        known = column.dropna() if str(name).endswith("PEAK") else column
        if not np.isfinite(known).all():
            raise ValueError(f"{name} has a value that is missing or infinite.")
