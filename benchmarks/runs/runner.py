"""Runs that a table of results lacks, several at a time, with an estimate of the time left."""

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from threading import Event, Thread
from time import perf_counter
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from benchmarks.runs.settings import Runs
from benchmarks.runs.tables import Tables

_n_finished: Any = None  # rounds of all workers; shared memory


Run = tuple[Runs, str, int]


def run_missing(
    tables: Tables, wanted: Iterable[Run], *, jobs: int | None = None, device: str = "cpu"
) -> None:
    """Make the runs that the tables lack, ``jobs`` at a time; None is one a core, or one on a GPU.

    When a run fails, the others are still made and written; then the first exception is raised.
    """
    if jobs is None:
        jobs = len(os.sched_getaffinity(0)) if device == "cpu" else 1
    with tables.locked():
        missing = _missing(tables, wanted)
        if not missing:
            return
        context = get_context("spawn")
        counter = context.Value("q", 0)
        total = sum(setting.n_rounds for setting, _, _ in missing)
        failures = []
        with (
            _Progress(counter, total),
            ProcessPoolExecutor(
                min(jobs, len(missing)),
                mp_context=context,
                initializer=_init_worker,
                initargs=(counter,),
            ) as pool,
        ):
            futures = {pool.submit(_run, *run, device): run for run in missing}
            for future in as_completed(futures):
                setting, strategy, seed = futures[future]
                if error := future.exception():
                    error.add_note(f"in {setting.name}: {strategy}, seed {seed}")
                    failures.append(error)
                else:
                    tables.append(setting, future.result())
        if failures:
            raise failures[0]


def _missing(tables: Tables, wanted: Iterable[Run]) -> list[Run]:
    """Return the runs that are not in the tables, each once."""
    by_setting: dict[str, list[Run]] = {}
    for run in wanted:
        by_setting.setdefault(run[0].name, []).append(run)
    missing = []
    for runs in by_setting.values():
        table = tables.read(runs[0][0])
        finished = set(zip(table["strategy"], table["seed"], strict=True))
        by_key = {run[1:]: run for run in runs}
        missing += [run for key, run in by_key.items() if key not in finished]
    return missing


def _init_worker(counter: Any) -> None:
    """Set up a worker process, which uses one thread."""
    global _n_finished
    _n_finished = counter
    torch.set_num_threads(1)


def _run(setting: Runs, strategy: str, seed: int, device: str) -> pd.DataFrame:
    return setting.run(strategy, seed, device, _count_round)


def _count_round() -> None:
    with _n_finished.get_lock():
        _n_finished.value += 1


class _Progress:
    """A progress bar over the rounds of all runs; the first rounds give an estimate in minutes."""

    def __init__(self, counter: Any, total: int):
        self.counter, self.total, self.stop = counter, total, Event()
        self.thread = Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()

    def _watch(self) -> None:
        first, is_estimated = None, False
        with tqdm(total=self.total, unit="round", smoothing=0.05, mininterval=1) as bar:
            while True:
                ended = self.stop.wait(0.5)
                done = self.counter.value
                bar.update(done - bar.n)
                if first is None and done:  # after the start of the workers, which takes seconds
                    first = (done, perf_counter())
                elif first and not is_estimated and done - first[0] >= max(20, self.total // 50):
                    seconds = (perf_counter() - first[1]) / (done - first[0]) * (self.total - done)
                    bar.write(f"{self.total - done} rounds to go: about {seconds / 60:.1f} minutes")
                    is_estimated = True
                if ended:
                    return
