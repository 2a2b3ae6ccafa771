"""The runs of cells: trials first, then those that are reported, each made once."""

from collections.abc import Iterable, Iterator
from functools import partial

import pandas as pd

from benchmarks.runs.runner import Run, run_missing
from benchmarks.runs.tables import Tables
from benchmarks.selection.cells import Cell
from benchmarks.selection.tuning import (
    N_TRIALS,
    SEED,
    Candidate,
    best,
    first_trials,
    further_trials,
)


def run_cells(tables: Tables, cells: list[Cell], seeds: range, jobs: int | None) -> None:
    """Make all runs that the tables lack, in three stages, each of which needs the one before."""
    stages = {"rates": _first, "further trials": _further}
    for title, stage in {**stages, "reported runs": partial(_reported, seeds=seeds)}.items():
        print(f"{title}:", flush=True)
        run_missing(tables, [run for cell in cells for run in stage(tables, cell)], jobs=jobs)


def _first(tables: Tables, cell: Cell) -> Iterator[Run]:
    for rule in cell.suitable:
        yield from ((cell, one.name, SEED) for one in first_trials(rule, cell.model))


def _further(tables: Tables, cell: Cell) -> Iterator[Run]:
    found = scores(tables.read(cell), cell)
    for rule in cell.suitable:
        yield from ((cell, one.name, SEED) for one in trials(cell, rule, found))


def _reported(tables: Tables, cell: Cell, seeds: Iterable[int]) -> Iterator[Run]:
    found = scores(tables.read(cell), cell)
    for seed in seeds:  # outermost, so that runs of the same rows follow each other
        for rule in cell.suitable:
            yield cell, best(trials(cell, rule, found), found).name, seed


def scores(table: pd.DataFrame, cell: Cell) -> dict[str, float]:
    """Return the figure of each finished trial by which candidates are chosen."""
    tried = table[table["seed"] == SEED]
    column = f"val_{cell.of_condition.counts}"
    return {} if tried.empty else tried.groupby("strategy")[column].last().to_dict()


def trials(cell: Cell, rule: str, found: dict[str, float]) -> list[Candidate]:
    """Return all trials of a rule, which those of its grid have decided about.

    Raises
    ------
    KeyError
        If one of the grid is not finished.
    """
    first = first_trials(rule, cell.model)
    lr = best(first, found).lr
    return [*first, *further_trials(rule, cell.rules[rule], cell.model, lr)]


def n_runs(cell: Cell, n_seeds: int) -> int:
    """Return how many runs a cell has: trials, and those that are reported."""
    return len(cell.suitable) * (N_TRIALS + n_seeds)
