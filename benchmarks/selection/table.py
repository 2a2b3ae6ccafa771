"""The two tables from which all else is made: what runs have reached, and what trials have."""

import io
import lzma
from pathlib import Path

import pandas as pd

from benchmarks.runs.tables import Tables
from benchmarks.selection.campaign import chosen, scores, trials
from benchmarks.selection.cells import Cell
from benchmarks.selection.conditions import CONDITIONS
from benchmarks.selection.data import DATA
from benchmarks.selection.models import MODELS
from benchmarks.selection.tuning import SEED

RESULTS, TRIALS = "results.csv.xz", "trials.csv.xz"
CELL = ["data", "model", "condition"]
RUN = [*CELL, "rule", "seed"]
FIGURES = ["mean_accuracy", "worst_accuracy", "pooled_accuracy", "priority_accuracy"]
COSTS = ["round", "bytes", "polls", "seconds"]
WALL = ["wall_rounds", "wall_run"]
RESULT_COLUMNS = [*RUN, *COSTS, *FIGURES, *WALL]
TRIAL_COLUMNS = [*CELL, "rule", "trial", "lr", "parameter", "value", "score", "chosen", "wall_run"]


def collect(tables: Tables, cells: list[Cell]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the results and the trials of the rules whose runs are finished."""
    results, tried = [], []
    for cell in cells:
        found = tables.read(cell)
        known = scores(found, cell)
        for rule in cell.suitable:
            one = chosen(cell, rule, known)
            if one is None:
                continue
            tried.append(_trials(cell, rule, found, known))
            runs = found[(found["strategy"] == one.name) & (found["seed"] != SEED)]
            results.append(_results(cell, rule, runs))
    return _joined(results, RESULT_COLUMNS), _joined(tried, TRIAL_COLUMNS)


def _joined(frames: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames, ignore_index=True).reindex(columns=columns)


def _named(frame: pd.DataFrame, cell: Cell, rule: str) -> pd.DataFrame:
    names = {"data": cell.data, "model": cell.model, "condition": cell.condition, "rule": rule}
    return frame.assign(**names)


def _results(cell: Cell, rule: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the runs that are reported."""
    plain = runs.rename(columns=lambda name: name.removeprefix("test_"))
    return _named(plain.sort_values(["seed", "round"]), cell, rule)


def _trials(cell: Cell, rule: str, found: pd.DataFrame, known: dict) -> pd.DataFrame:
    """Return a row for each trial of a rule, in the order in which they were made."""
    candidates = trials(cell, rule, known) or []
    winner = chosen(cell, rule, known)
    last = found[found["seed"] == SEED].groupby("strategy").last()
    rows = [
        {
            "trial": i,
            "lr": one.lr,
            "parameter": cell.rules[rule].parameter if one.value is not None else "",
            "value": "" if one.value is None else str(one.value),
            "score": known[one.name],
            "chosen": one == winner,
            "wall_run": last["wall_run"][one.name],
        }
        for i, one in enumerate(candidates, 1)
    ]
    return _named(pd.DataFrame(rows), cell, rule)


def with_others(
    folder: Path, results: pd.DataFrame, tried: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables with the cells of a folder's tables that have no results here.

    So the tables remember what other machines have run. Cells are in the order of ``DATA``,
    ``MODELS`` and ``CONDITIONS``.
    """
    try:
        old_results, old_tried = read(folder)
    except FileNotFoundError:
        return results, tried
    new = set(_cells(results))
    order = {name: i for i, name in enumerate([*DATA, *MODELS, *CONDITIONS])}

    def joined(frame: pd.DataFrame, old: pd.DataFrame) -> pd.DataFrame:
        kept = [frame[_cells(frame).isin(new)], old[~_cells(old).isin(new)]]
        both = _joined(kept, list(old.columns))
        return both.sort_values(
            CELL, key=lambda names: names.map(order), kind="stable", ignore_index=True
        )

    return joined(results, old_results), joined(tried, old_tried)


def _cells(frame: pd.DataFrame) -> pd.Series:
    """Return the name of each row's cell."""
    return frame["data"] + "/" + frame["model"] + "/" + frame["condition"]


def write(folder: Path, results: pd.DataFrame, tried: pd.DataFrame) -> None:
    """Write both tables; the same values are the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in ((RESULTS, results), (TRIALS, tried)):
        text = frame.to_csv(index=False, lineterminator="\n")
        packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
        (folder / name).write_bytes(packed)


def read(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables.

    Raises
    ------
    FileNotFoundError
        If they are not there.
    """
    found = [_read(folder / name) for name in (RESULTS, TRIALS)]
    return found[0], found[1]


def _read(path: Path) -> pd.DataFrame:
    text = lzma.decompress(path.read_bytes()).decode()
    texts = {name: "" for name in ("parameter", "value")}
    return pd.read_csv(io.StringIO(text), dtype=dict.fromkeys(texts, str)).fillna(texts)
