"""How many runs are left, and about how long they take."""

import os

from benchmarks.runs.runner import Run, run_missing
from benchmarks.runs.tables import Tables
from benchmarks.selection.campaign import n_runs
from benchmarks.selection.cells import Cell
from benchmarks.selection.rules import RANDOM
from benchmarks.selection.tuning import SEED, first_trials

OTHERS = 1.5  # how much longer runs of all rules take than random selection's, about
N_FIRST = 2  # runs of random selection in a cell without any; a process is slow in its first


def announce(tables: Tables, cells: list[Cell], n_seeds: int, jobs: int | None) -> str:
    """Return how many runs the tables lack and about how long they take, in words.

    A cell without any run is given its first ones.
    """
    new = [cell for cell in cells if not n_finished(tables, cell)]
    run_missing(tables, [run for cell in new for run in _first(cell)], jobs=jobs)
    n_left = seconds = 0.0
    for cell in cells:
        left = max(0, n_runs(cell, n_seeds) - n_finished(tables, cell))
        n_left += left
        seconds += left * seconds_a_run(tables, cell)
    jobs = jobs or len(os.sched_getaffinity(0))
    return f"{n_left:.0f} runs to make: about {seconds / jobs / 60:.1f} minutes, {jobs} at a time"


def _first(cell: Cell) -> list[Run]:
    return [(cell, one.name, SEED) for one in first_trials(RANDOM, cell.model)[:N_FIRST]]


def n_finished(tables: Tables, cell: Cell) -> int:
    """Return how many runs of a cell are in the tables."""
    return len(tables.read(cell)[["strategy", "seed"]].drop_duplicates())


def seconds_a_run(tables: Tables, cell: Cell) -> float:
    """Return the seconds of a run of a cell, by those that are in the tables."""
    clock = tables.read(cell).groupby(["strategy", "seed"])["wall_run"].last()
    return float(clock.mean() if len(clock) > N_FIRST else OTHERS * clock.min())
