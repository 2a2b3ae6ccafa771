"""Finds the learning rates at which random selection takes as many rounds as in power-of-choice.

``python -m benchmarks.papers.calibration`` runs random selection alone (C=0.1, Tables 1 and 2), on
seeds and partitions that no experiment uses, and writes calibration.md.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np

from benchmarks.papers.claims import final_mean, rounds_to
from benchmarks.papers.power_of_choice._images import (
    LOWER_LR,
    LOWEST_LR,
    N_ROUNDS,
    RAND_10,
    fashion_mnist,
)
from benchmarks.results import table as markdown
from benchmarks.runs.runner import run_missing
from benchmarks.runs.settings import Setting
from benchmarks.runs.tables import Tables

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Search:
    """What is searched for, and how.

    Parameters
    ----------
    targets : mapping of float to float
        Rounds that random selection takes, by alpha.
    bracket : tuple of float
        Rates that take more rounds and fewer.
    level : float, default=0.6
        Test accuracy to reach.
    seeds : range, default=range(1000, 1005)
        Of runs and of their partitions; experiments begin with 0.
    n_rounds : int, default=400
        Rounds of a run.
    thin : int, default=1
        Keep one row of each client, and one local step, in ``thin``.
    """

    targets: Mapping[float, float]
    bracket: tuple[float, float]
    level: float = 0.6
    seeds: range = range(1000, 1005)
    n_rounds: int = N_ROUNDS
    thin: int = 1

    def setting(self, alpha: float, lr: float) -> Setting:
        """Return the setting of a trial, with the strategies that it may run."""
        whole = fashion_mnist(alpha, lr, redrawn=True)
        steps = -(-whole.training["local_steps"] // self.thin)
        return replace(
            whole,
            training={**whole.training, "local_steps": steps},
            strategies={RAND_10: whole.strategies[RAND_10]},
            n_rounds=self.n_rounds,
            thin=self.thin,
            loss_every=self.n_rounds,
        )


FULL = Search({0.3: 172, 2: 135}, (LOWEST_LR, LOWER_LR))  # Tables 1 and 2, C=0.1
QUICK = Search({0.3: 6}, (0.01, 0.1), 0.4, range(1000, 1002), n_rounds=12, thin=10)


@dataclass(frozen=True)
class Trial:
    """Random selection at one rate.

    Parameters
    ----------
    alpha, lr : float
        Parameter of the partition, and learning rate.
    rounds : ndarray of shape (n_seeds,)
        Rounds to the level; all rounds of a run that does not reach it.
    accuracies : ndarray of shape (n_seeds,)
        Mean test accuracy over the last rounds.
    """

    alpha: float
    lr: float
    rounds: np.ndarray
    accuracies: np.ndarray

    @property
    def error(self) -> float:
        """Standard error of the mean of ``rounds``."""
        return float(self.rounds.std(ddof=1) / sqrt(len(self.rounds)))


RunTrial = Callable[[float, float], Trial]


def find_rate(
    run: RunTrial, alpha: float, target: float, bracket: tuple[float, float]
) -> list[Trial]:
    """Return trials in the order in which they were made; the one closest to the target is best.

    The logarithm of the rounds is interpolated linearly in that of the rate, between the nearest
    trials on both sides of the target. Rates have two digits. It ends when the next rate has been
    tried.

    Parameters
    ----------
    run : callable
        Takes alpha and a rate; returns a trial.
    alpha : float
        Parameter of the partition.
    target : float
        Rounds to find the rate for.
    bracket : tuple of float
        Rates that take more rounds and fewer.

    Raises
    ------
    ValueError
        If the bracket's rounds are not on both sides of the target.
    """
    trials = [run(alpha, lr) for lr in bracket]
    slow, fast = trials
    if not fast.rounds.mean() < target < slow.rounds.mean():
        raise ValueError(
            f"alpha={alpha:g}: {slow.rounds.mean():.0f} and {fast.rounds.mean():.0f} rounds at "
            f"rates {slow.lr:g} and {fast.lr:g} are not on both sides of {target}."
        )
    while True:
        more, fewer = log(slow.rounds.mean()), log(fast.rounds.mean())
        share = (more - log(target)) / (more - fewer)
        lr = float(f"{exp(log(slow.lr) + share * log(fast.lr / slow.lr)):.2g}")
        if any(trial.lr == lr for trial in trials):
            return trials
        trials.append(run(alpha, lr))
        if trials[-1].rounds.mean() > target:
            slow = trials[-1]
        else:
            fast = trials[-1]


def closest(trials: list[Trial], target: float) -> Trial:
    """Return the trial whose mean is closest to the target."""
    return min(trials, key=lambda trial: abs(trial.rounds.mean() - target))


def calibrate(run: RunTrial, search: Search) -> Iterator[str]:
    """Yield the lines of the log: the trials for each alpha, then one rate for both."""
    best = {}
    for alpha, target in search.targets.items():
        trials = find_rate(run, alpha, target, search.bracket)
        best[alpha] = closest(trials, target)
        yield f"alpha={alpha:g}: {target} rounds are wanted."
        yield ""
        yield from table(trials)
        yield f"Closest: {best[alpha].lr:g}."
        yield ""
    common = float(f"{np.sqrt(np.prod([trial.lr for trial in best.values()])):.2g}")
    yield f"One rate for both: {common:g}"
    yield ""
    yield from table([run(alpha, common) for alpha in search.targets])


def table(trials: list[Trial]) -> Iterator[str]:
    """Yield the lines of a Markdown table of trials."""
    headings = ["alpha", "lr", "rounds of each seed", "mean ± standard error", "final accuracy, %"]
    lines = [
        [
            f"{trial.alpha:g}",
            f"{trial.lr:g}",
            " ".join(f"{n:.0f}" for n in trial.rounds),
            f"{trial.rounds.mean():.0f} ± {trial.error:.0f}",
            f"{100 * trial.accuracies.mean():.1f}",
        ]
        for trial in trials
    ]
    yield from markdown(headings, lines)


def make_trials(tables: Tables, jobs: int | None, search: Search) -> RunTrial:
    """Return a function that makes a trial, or reads it from the tables."""

    def run(alpha: float, lr: float) -> Trial:
        setting = search.setting(alpha, lr)
        run_missing(tables, [(setting, RAND_10, seed) for seed in search.seeds], jobs=jobs)
        trial = read_trial(tables, search, alpha, lr)
        assert trial is not None  # all its runs have just been made
        return trial

    return run


def read_trial(tables: Tables, search: Search, alpha: float, lr: float) -> Trial | None:
    """Return a trial from its table, or None while runs are missing."""
    found = tables.read(search.setting(alpha, lr))
    if not set(search.seeds) <= set(found["seed"]):
        return None
    rounds = rounds_to(found, RAND_10, "test_accuracy", search.level)
    rounds = np.where(np.isnan(rounds), search.n_rounds, rounds)
    return Trial(alpha, lr, rounds, final_mean(found, RAND_10, "test_accuracy"))


def main(arguments: list[str] | None = None) -> int:
    """Write the log."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.calibration")
    parser.add_argument("--out", type=Path, help="folder for tables and calibration.md")
    parser.add_argument("--jobs", type=int, help="runs at the same time (default: one a core)")
    parser.add_argument("--quick", action="store_true", help="a few short runs, to an easier goal")
    given = parser.parse_args(arguments)
    search = QUICK if given.quick else FULL
    out = given.out or (HERE / "shortened" if given.quick else HERE)
    run = make_trials(Tables(out / "tables" / "calibration"), given.jobs, search)
    selector = search.setting(0.3, LOWER_LR).strategies[RAND_10]["selector"]
    lines = [
        "# The learning rate of power-of-choice's tables",
        "",
        f"Made by `python -m benchmarks.papers.calibration{' --quick' * given.quick}`. Only "
        f"`{selector}` was run, on 100 clients, for seeds {search.seeds[0]} to {search.seeds[-1]}, "
        f"each with a partition of its own. Rounds are counted to {search.level:.0%} of test "
        "accuracy.",
        "",
        *calibrate(run, search),
    ]
    (out / "calibration.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
