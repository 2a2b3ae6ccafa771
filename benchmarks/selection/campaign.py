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
    """Make all runs that the tables lack, in three stages, each of which needs the one before.

    When a run fails, the others are still made; then the first exception is raised.
    """
    stages = {"rates": _first, "further trials": _further}
    failures = []
    for title, stage in {**stages, "reported runs": partial(_reported, seeds=seeds)}.items():
        print(f"{title}:", flush=True)
        runs = [run for cell in cells for run in stage(tables, cell)]
        try:
            run_missing(tables, runs, jobs=jobs)
        except Exception as error:  # a rule fails in a cell, and the others go on
            failures.append(error)
    if failures:
        raise failures[0]


def _first(tables: Tables, cell: Cell) -> Iterator[Run]:
    for rule in cell.suitable:
        yield from ((cell, one.name, SEED) for one in first_trials(rule, cell.model))


def _further(tables: Tables, cell: Cell) -> Iterator[Run]:
    found = scores(tables.read(cell), cell)
    for rule in cell.suitable:
        yield from ((cell, one.name, SEED) for one in trials(cell, rule, found) or ())


def _reported(tables: Tables, cell: Cell, seeds: Iterable[int]) -> Iterator[Run]:
    found = scores(tables.read(cell), cell)
    for seed in seeds:  # outermost, so that runs of the same rows follow each other
        for rule in cell.suitable:
            one = chosen(cell, rule, found)
            if one is not None:
                yield cell, one.name, seed


def scores(table: pd.DataFrame, cell: Cell) -> dict[str, float]:
    """Return the figure of each finished trial by which candidates are chosen."""
    tried = table[table["seed"] == SEED]
    column = f"val_{cell.of_condition.counts}"
    return {} if tried.empty else tried.groupby("strategy")[column].last().to_dict()


def trials(cell: Cell, rule: str, found: dict[str, float]) -> list[Candidate] | None:
    """Return all trials of a rule, or None while those of its grid are not finished."""
    first = first_trials(rule, cell.model)
    if any(one.name not in found for one in first):
        return None
    lr = best(first, found).lr
    return [*first, *further_trials(rule, cell.rules[rule], cell.model, lr)]


def chosen(cell: Cell, rule: str, found: dict[str, float]) -> Candidate | None:
    """Return the best trial of a rule, or None while not all are finished."""
    tried = trials(cell, rule, found)
    if tried is None or any(one.name not in found for one in tried):
        return None
    return best(tried, found)


def n_runs(cell: Cell, n_seeds: int) -> int:
    """Return how many runs a cell has: trials, and those that are reported."""
    return len(cell.suitable) * (N_TRIALS + n_seeds)
