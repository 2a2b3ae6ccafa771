"""The tables of results, in the compact form in which they are committed."""

import json
import lzma
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout
from pandas.api.types import is_float_dtype

from benchmarks.runs.settings import Runs

DECIMALS = 5  # of an accuracy: a test row in 50,000
DIGITS = 5  # significant ones, of other values


class Tables:
    """The tables of results in a folder: a row a round, strategy and seed.

    Each setting has a folder, with a CSV for each strategy, compressed by xz, and the configuration
    that the results depend on, as JSON. Values are rounded when they are written, so that all that
    is computed from a table can be computed again. Rows are sorted: the same runs are the same
    bytes, in whatever order they ended. A file is replaced as a whole, so that it holds complete
    runs at any moment.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self, setting: Runs) -> pd.DataFrame:
        """Return the runs of a setting.

        Raises
        ------
        ValueError
            If the table has results of another configuration.
        """
        paths = [self.path(setting, strategy) for strategy in setting.strategies]
        found = [_read(path) for path in paths if path.exists()]
        if not found:
            return pd.DataFrame({"strategy": [], "seed": [], "round": []})
        self._check(setting)
        return pd.concat(found, ignore_index=True)

    def append(self, setting: Runs, run: pd.DataFrame) -> None:
        """Add a finished run."""
        path = self.path(setting, run["strategy"].iloc[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        table = run
        if path.exists():
            self._check(setting)
            table = pd.concat([_read(path), run])
        table = table.sort_values(["seed", "round"]).apply(_rounded)
        described = json.dumps(setting.describe(), indent=1) + "\n"
        _replace(self._configuration(setting), described.encode())
        text = table.to_csv(index=False, lineterminator="\n")
        _replace(path, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process alone; the lock of a killed process is free.

        Raises
        ------
        ValueError
            If another process holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / "lock", timeout=0):
                yield
        except Timeout:
            raise ValueError(
                f"another process is filling the tables in {self.folder}: wait for it, or give "
                "another --out."
            ) from None

    def path(self, setting: Runs, strategy: str) -> Path:
        """Return the file of a strategy's runs."""
        plain = re.sub(r"[^\w.]+", "-", strategy)
        return self.folder / setting.name / f"{plain}.csv.xz"

    def _check(self, setting: Runs) -> None:
        configuration = self._configuration(setting)
        if not configuration.exists():
            raise ValueError(
                f"{configuration} is missing, so the configuration of its tables is unknown: put "
                "it back, or move the folder away."
            )
        old, new = json.loads(configuration.read_text(encoding="utf-8")), setting.describe()
        pairs = [(key, old.get(key), new[key]) for key in new if key != "strategies"]
        pairs += [
            (name, params, new["strategies"][name])
            for name, params in old["strategies"].items()
            if name in new["strategies"]
        ]
        for name, before, now in pairs:
            if before != now:
                raise ValueError(
                    f"{configuration.parent} has results of another configuration: {name} was "
                    f"{before}, and is {now}. Move the folder away, or give another --out."
                )

    def _configuration(self, setting: Runs) -> Path:
        return self.folder / setting.name / "configuration.json"


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path)


def _rounded(column: pd.Series) -> pd.Series:
    """Round accuracies to decimals, other fractions to significant digits."""
    if not is_float_dtype(column):
        return column
    if str(column.name).endswith("accuracy"):
        return column.round(DECIMALS)
    return column.map(lambda value: float(f"{value:.{DIGITS}g}"))


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)
