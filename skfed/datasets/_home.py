"""Where data sets lie on disk, and how those of OpenML get there."""

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sklearn.datasets import fetch_openml, get_data_home
from sklearn.utils import Bunch


def find_home(data_home: str | os.PathLike | None) -> Path:
    """Return ``data_home``, else $SKFED_DATA, else scikit-learn's data home."""
    chosen = data_home or os.environ.get("SKFED_DATA") or get_data_home()
    return Path(chosen).expanduser()


def find_file(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the first of ``names`` that lies in ``folder``."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Let what a damaged file raises name it."""
    damages = ValueError, TypeError, LookupError, EOFError, zlib.error, gzip.BadGzipFile
    try:
        yield
    except damages as error:
        raise ValueError(f"{path} is damaged, get it anew: {error}") from error


def fetch(home: Path, folder: Path, files: Sequence[str], name: str, version: int) -> Bunch:
    """Download a set from OpenML into scikit-learn's cache below ``home``.

    Raises
    ------
    OSError
        If it cannot be downloaded; the message says which files to put where instead.
    """
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
