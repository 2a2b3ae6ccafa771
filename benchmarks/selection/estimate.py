"""How many runs are left, and about how long they take."""

import os

from benchmarks.runs.runner import run_missing
from benchmarks.runs.tables import Tables
from benchmarks.selection.campaign import n_runs
from benchmarks.selection.cells import Cell
from benchmarks.selection.rules import RANDOM
from benchmarks.selection.tuning import SEED, first_trials

OTHERS = 0.5  # on the four data sets of the small tier


def announce(tables: Tables, cells: list[Cell], n_seeds: int, jobs: int | None) -> str:
    """Return how many runs the tables lack and about how long they take, in words.

    A cell without any run is given its first one.
    """
    run_missing(tables, [_first(cell) for cell in cells if not n_finished(tables, cell)], jobs=jobs)
    n_left = seconds = 0.0
    for cell in cells:
        left = max(0, n_runs(cell, n_seeds) - n_finished(tables, cell))
        n_left += left
        seconds += left * seconds_a_run(tables, cell)
    jobs = jobs or len(os.sched_getaffinity(0))
    return f"{n_left:.0f} runs to make: about {seconds / jobs / 60:.1f} minutes, {jobs} at a time"


def _first(cell: Cell):
    return cell, first_trials(RANDOM, cell.model)[0].name, SEED


def n_finished(tables: Tables, cell: Cell) -> int:
    """Return how many runs of a cell are in the tables."""
    return len(tables.read(cell)[["strategy", "seed"]].drop_duplicates())


def seconds_a_run(tables: Tables, cell: Cell) -> float:
    """Return the seconds of a run of a cell, by those that are in the tables.

    Of random selection alone, whose first run is slow, it is those of its later rounds, and as much
    again times OTHERS for what other rules ask of clients, and for the start of a run.
    """
    table = tables.read(cell)
    last = table.groupby(["strategy", "seed"]).last()
    if len(last) > 1:
        return float(last["wall_run"].mean())
    clock = table.set_index("round")["wall_rounds"]
    later = (clock.iloc[-1] - clock.iloc[0]) / max(1, clock.index[-1] - clock.index[0])
    return float((1 + OTHERS) * later * cell.n_rounds)
