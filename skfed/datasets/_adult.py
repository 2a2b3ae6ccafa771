"""Adult, or Census Income: 48,842 people, 14 attributes, and whether they earn over 50,000 dollars.

Becker, Kohavi: Adult, UCI Machine Learning Repository, 1996.
"""

import gzip
import os
from pathlib import Path

import pandas as pd
from sklearn.utils import Bunch

from skfed.datasets._fetch import fetch, find_home, read_rows, reading

_FILES = ["adult.data.gz", "adult.test.gz"]
_NUMERIC = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
_COLUMNS = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    "native-country",
]
_DTYPES = {name: int if name in _NUMERIC else object for name in [*_COLUMNS, "income"]}
_INCOMES = ["<=50K", ">50K", "<=50K.", ">50K."]


def load_adult(*, data_home: str | os.PathLike | None = None) -> Bunch:
    """Load Adult from disk, or from OpenML when it is not there.

    It has no clients of its own; a column such as ``native-country`` or ``occupation`` can be used
    as ``clients``.

    Parameters
    ----------
    data_home : path, default=None
        Folder that holds ``adult/adult.data.gz`` and ``adult/adult.test.gz``; None means
        $SKFED_DATA, else scikit-learn's data home, where a download is stored.

    Returns
    -------
    Bunch
        ``X``, a DataFrame of 48,842 rows (UCI's training rows first, when read from disk) and 14
        columns, six of them numbers and the others strings, NaN where a value is missing; ``y``,
        "<=50K" or ">50K".

    Raises
    ------
    OSError
        If it is neither on disk nor available from OpenML.
    ValueError
        If a file on disk is damaged; the message names it.
    """
    home = find_home(data_home)
    folder = home / "adult"
    if all((folder / name).is_file() for name in _FILES):
        frame = pd.concat([_read(folder / name) for name in _FILES], ignore_index=True)
        X, y = frame[_COLUMNS], frame["income"]
    else:
        fetched = fetch(home, folder, _FILES, "adult", version=2)
        X, y = fetched.data[_COLUMNS], fetched.target
    others = {name: object for name in _COLUMNS if name not in _NUMERIC}
    X = X.astype({**dict.fromkeys(_NUMERIC, "int64"), **others})
    return Bunch(X=X, y=y.astype(str).str.rstrip(".").to_numpy(dtype=object).astype(str))


def _read(path: Path) -> pd.DataFrame:
    with reading(path), gzip.open(path, "rt", encoding="utf-8") as lines:
        # Only adult.test begins with a comment; elsewhere a line with "|" is damaged.
        if not (path.name == _FILES[1] and lines.readline().startswith("|")):
            lines.seek(0)
        return read_rows(lines, _DTYPES, _INCOMES)
