"""Runs what is missing of a table of results, side by side, and says how long it will take."""

import json
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from benchmarks.papers.settings import Setting

_ticks: Any = None  # rounds finished by all workers


class Tables:
    """The tables of results in a folder: one CSV a setting, a row a round, strategy and seed.

    Beside each lies a JSON file that says what the results depend on.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self, setting: Setting) -> pd.DataFrame:
        """Return the complete runs of a setting; a run that was cut short does not count.

        Raises
        ------
        ValueError
            If the table is of another configuration.
        """
        path = self._path(setting)
        if not path.exists():
            return pd.DataFrame({"strategy": [], "seed": [], "round": []})
        self._check(setting)
        table = pd.read_csv(path)
        rounds = table.groupby(["strategy", "seed"])["round"].transform("size")
        return table[rounds == setting.n_rounds]

    def start(self, setting: Setting) -> set[tuple[str, int]]:
        """Write down what the results depend on; return the runs that are there already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        complete = self.read(setting)
        self._note(setting).write_text(json.dumps(setting.describe(), indent=1))
        if len(complete):
            complete.to_csv(self._path(setting), index=False)
        else:
            self._path(setting).unlink(missing_ok=True)
        return set(zip(complete["strategy"], complete["seed"].astype(int), strict=True))

    def append(self, setting: Setting, run: pd.DataFrame) -> None:
        """Add a finished run."""
        path = self._path(setting)
        if path.exists():  # runs need not have the same columns
            columns = pd.read_csv(path, nrows=0).columns
            if set(run.columns) <= set(columns):
                run.reindex(columns=columns).to_csv(path, mode="a", header=False, index=False)
                return
            run = pd.concat([pd.read_csv(path), run])
        run.to_csv(path, index=False)

    def _check(self, setting: Setting) -> None:
        old, new = json.loads(self._note(setting).read_text()), setting.describe()
        pairs = [(key, old[key], new[key]) for key in new if key != "strategies"]
        pairs += [
            (name, told, new["strategies"][name])
            for name, told in old["strategies"].items()
            if name in new["strategies"]
        ]
        for what, then, now in pairs:
            if then != now:
                raise ValueError(
                    f"{self._path(setting)} has results of another configuration: {what} was "
                    f"{then}, and is {now}. Move the file away, or give another --out."
                )

    def _path(self, setting: Setting) -> Path:
        return self.folder / f"{setting.name}.csv"

    def _note(self, setting: Setting) -> Path:
        return self.folder / f"{setting.name}.json"


Run = tuple[Setting, str, int]


def run_missing(
    tables: Tables, wanted: Iterable[Run], *, jobs: int | None = None, device: str = "cpu"
) -> None:
    """Run what the tables lack, ``jobs`` at a time; None is one a core, or one on a GPU."""
    by_setting: dict[str, tuple[Setting, list[tuple[str, int]]]] = {}
    for setting, strategy, seed in wanted:
        by_setting.setdefault(setting.name, (setting, []))[1].append((strategy, seed))
    missing: list[Run] = []
    for setting, runs in by_setting.values():
        there = tables.start(setting)
        missing += [(setting, *run) for run in dict.fromkeys(runs) if run not in there]
    if not missing:
        return
    if jobs is None:
        jobs = len(os.sched_getaffinity(0)) if device == "cpu" else 1
    context = get_context("spawn")
    counter = context.Value("q", 0)
    total = sum(setting.n_rounds for setting, _, _ in missing)
    with (
        _Progress(counter, total),
        ProcessPoolExecutor(
            min(jobs, len(missing)), mp_context=context, initializer=_begin, initargs=(counter,)
        ) as pool,
    ):
        futures = {pool.submit(_work, *run, device): run for run in missing}
        try:
            for future in as_completed(futures):
                tables.append(futures[future][0], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin(counter: Any) -> None:
    """Set up a worker: one thread a process, as many processes as cores."""
    global _ticks
    _ticks = counter
    torch.set_num_threads(1)


def _work(setting: Setting, strategy: str, seed: int, device: str) -> pd.DataFrame:
    return setting.run(strategy, seed, device, _tick)


def _tick() -> None:
    with _ticks.get_lock():
        _ticks.value += 1


class _Progress:
    """A bar over the rounds of all runs, and an estimate in words after the first ones."""

    def __init__(self, counter: Any, total: int):
        self.counter, self.total, self.stop, self.said = counter, total, Event(), False
        self.thread = Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()

    def _watch(self) -> None:
        first = None
        with tqdm(total=self.total, unit="round", smoothing=0.05, mininterval=1) as bar:
            while True:
                ended = self.stop.wait(0.5)
                done = self.counter.value
                bar.update(done - bar.n)
                if first is None and done:  # the start of the workers is behind us
                    first = (done, perf_counter())
                elif first and not self.said and done - first[0] >= max(20, self.total // 50):
                    seconds = (perf_counter() - first[1]) / (done - first[0]) * (self.total - done)
                    bar.write(f"{self.total - done} rounds to go: about {seconds / 60:.1f} minutes")
                    self.said = True
                if ended:
                    return
