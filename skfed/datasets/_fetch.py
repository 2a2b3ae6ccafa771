"""Folders and files of data sets, and downloads from OpenML."""

import csv
import gzip
import os
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd
from sklearn.datasets import fetch_openml, get_data_home
from sklearn.utils import Bunch

_PACKED = zlib.error, gzip.BadGzipFile, zipfile.BadZipFile
_DAMAGED = ValueError, TypeError, LookupError, OverflowError, EOFError, *_PACKED


def find_home(data_home: str | os.PathLike | None) -> Path:
    """Return ``data_home``, else $SKFED_DATA, else scikit-learn's data home."""
    chosen = data_home or os.environ.get("SKFED_DATA") or get_data_home()
    return Path(chosen).expanduser()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors that a damaged file causes into a ValueError that names the file."""
    try:
        yield
    except _DAMAGED as error:
        raise ValueError(f"{path} is damaged, get it again: {error}") from error


def read_rows(lines: TextIO, dtypes: Mapping[str, type], labels: Collection[str]) -> pd.DataFrame:
    """Read comma-separated rows, whose last cell is one of ``labels``; "?" is a missing value.

    Raises ValueError if a row has a cell too few or too many, an empty cell, or one that is not of
    its dtype.
    """
    # With names=, pandas would take the first cell of a row that is too long for an index. With
    # quotes, a damaged quote would join rows.
    frame = pd.read_csv(
        lines,
        header=None,
        dtype=dict(enumerate(dtypes.values())),
        na_values="?",
        keep_default_na=False,
        skipinitialspace=True,
        quoting=csv.QUOTE_NONE,
    )
    frame.columns = pd.Index(dtypes)
    wrong = ~frame.iloc[:, -1].isin(labels) | (frame == "").any(axis=1)
    if wrong.any():
        raise ValueError(
            f"row {np.argmax(wrong) + 1} of {len(frame)} has an empty cell, or does not end in one "
            f"of {list(labels)}."
        )
    return frame


def fetch(home: Path, folder: Path, files: Sequence[str], name: str, version: int) -> Bunch:
    """Download a data set from OpenML into scikit-learn's cache in ``home``."""
    try:
        return fetch_openml(
            name=name, version=version, data_home=str(home), as_frame=True, parser="auto"
        )
    except OSError as error:
        raise OSError(
            f"{name} is not on disk and cannot be downloaded from OpenML ({error}). Put "
            f"{', '.join(files)} into {folder}, or name another folder with data_home= or "
            "the environment variable SKFED_DATA."
        ) from error
