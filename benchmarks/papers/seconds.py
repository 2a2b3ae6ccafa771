"""Fits devices to power-of-choice's seconds a round of random selection; predicts the other rules'.

``python -m benchmarks.papers.seconds`` fits a rate of rows and its spread over the clients to two
numbers, the seconds of random selection in Table 1 at m=3 and at m=10, on seeds that no experiment
uses. Then it runs the experiment ``power-of-choice-seconds-a-round``, whose devices have the
numbers that it has found, and writes seconds.md.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.papers.catalogue import shortened
from benchmarks.papers.power_of_choice._time import computing
from benchmarks.papers.power_of_choice.seconds_a_round import EXPERIMENT, ROWS_PER_SECOND, SPREAD
from benchmarks.papers.report import section, tables_of
from benchmarks.papers.rows import findings
from benchmarks.results import table as markdown
from benchmarks.runs.problems import dirichlet
from benchmarks.runs.runner import run_missing
from benchmarks.runs.tables import Tables
from skfed import FederatedClassifier, RandomSelector
from skfed.metrics import client_exchanges
from skfed.modules import SoftmaxRegression

HERE = Path(__file__).parent
NAME = "power-of-choice-seconds-a-round"
WANTED = {3: 0.36, 10: 0.43}  # seconds by m


@dataclass(frozen=True)
class Search:
    """On what the devices are fitted: seeds of runs and their devices, and rounds of a run."""

    seeds: range = range(1000, 1020)  # experiments begin with 0
    n_rounds: int = 50


FULL, QUICK = Search(), Search(range(1000, 1002), 5)


def trainings(m: int, search: Search, clients: np.ndarray, replace: bool = False) -> pd.DataFrame:
    """Return what each client of each round trains, by seed, on devices with a spread of 1.

    Who is drawn does not depend on what is trained, so that one feature is enough.
    """
    net = NeuralNetClassifier(
        SoftmaxRegression,
        module__n_features=1,
        module__n_classes=2,
        criterion=nn.CrossEntropyLoss,
        batch_size=64,
    )
    X, y = np.zeros((len(clients), 1), np.float32), np.arange(len(clients)) % 2
    found = {}
    for seed in search.seeds:
        model = FederatedClassifier(
            net,
            selector=RandomSelector(m, replace=replace),
            n_rounds=search.n_rounds,
            local_steps=30,
            devices=computing(1.0, 1.0),
            random_state=seed,
        )
        found[seed] = client_exchanges(model.fit(X, y, clients=clients))
    return pd.concat(found, names=["seed"])


def mean_seconds(trained: pd.DataFrame, spread: float) -> np.ndarray:
    """Return each seed's mean seconds of a round at a median of one row a second.

    The logarithm of a client's seconds a row is proportional to the spread. A client drawn twice
    trains on the rows of both.
    """
    rows = trained.groupby(["seed", "round", "client"])["rows"].sum()
    a_row = trained.groupby(["seed", "round", "client"])["seconds"].first() / rows
    of_rounds = (rows * a_row**spread).groupby(["seed", "round"]).max()
    return of_rounds.groupby("seed").mean().to_numpy()


def fit(few: pd.DataFrame, many: pd.DataFrame) -> tuple[float, float]:
    """Return the rows a second, and the spread, at which rounds take the seconds wanted.

    Both are rounded to two digits.
    """
    wanted = WANTED[10] / WANTED[3]

    def excess(spread: float) -> float:
        ratio = mean_seconds(many, spread).mean() / mean_seconds(few, spread).mean()
        return float(ratio - wanted)

    spread = float(f"{brentq(excess, 0.0, 2.0, xtol=1e-4):.2g}")
    at_a_row_a_second = np.array([mean_seconds(few, spread), mean_seconds(many, spread)])
    rates = at_a_row_a_second.mean(axis=1) / [WANTED[3], WANTED[10]]
    return float(f"{np.exp(np.log(rates).mean()):.2g}"), spread


def log(search: Search) -> Iterator[str]:
    """Yield the lines of the fit."""
    clients = dirichlet(0, name="fashion-mnist", n_clients=100, alpha=0.3).clients
    few, many = (trainings(m, search, clients) for m in WANTED)
    rate, spread = fit(few, many)
    yield (
        f"Fitted: {rate:,.0f} rows a second, the median of the clients, with a standard deviation "
        f"of {spread:g} of the logarithm."
    )
    yield ""
    rows = []
    for m, trained in zip(WANTED, (few, many), strict=True):
        each = mean_seconds(trained, spread) / rate
        error = each.std(ddof=1) / len(each) ** 0.5
        rows.append([m, f"{WANTED[m]:.2f}", f"{each.mean():.3f} ± {error:.3f}"])
    yield from markdown(["m", "paper, s", "fitted, s"], rows)
    copies = mean_seconds(trainings(10, search, clients, replace=True), 0.0).mean()
    copies /= mean_seconds(trainings(3, search, clients, replace=True), 0.0).mean()
    yield (
        "Clients are drawn without replacement. With replacement, one that is drawn twice trains "
        "twice on its device, and rounds of ten take "
        f"{copies:.2f} times those of three even on equal devices, more than the paper's "
        f"{WANTED[10] / WANTED[3]:.2f}."
    )
    yield ""
    if (rate, spread) != (ROWS_PER_SECOND, SPREAD):
        yield (
            f"The experiment below has {ROWS_PER_SECOND:,.0f} rows a second and a spread of "
            f"{SPREAD:g}."
        )
        yield ""


def main(arguments: list[str] | None = None) -> int:
    """Write the log."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.seconds")
    parser.add_argument("--out", type=Path, help="folder for tables and seconds.md")
    parser.add_argument("--jobs", type=int, help="runs at the same time (default: one a core)")
    parser.add_argument("--quick", action="store_true", help="few rounds of few seeds")
    given = parser.parse_args(arguments)
    out = given.out or (HERE / "shortened" if given.quick else HERE)
    experiment = shortened(EXPERIMENT, *(1, 2, 10) if given.quick else (None, None))
    tables = Tables(out / "tables")
    lines = [
        "# Devices for the seconds of power-of-choice's tables",
        "",
        f"Made by `python -m benchmarks.papers.seconds{' --quick' * given.quick}`. The devices are "
        "fitted to random selection alone, at m=3 and m=10 (Table 1).",
        "",
        *log(QUICK if given.quick else FULL),
    ]
    run_missing(tables, experiment.runs, jobs=given.jobs)
    found = tables_of(experiment, tables)
    assert found is not None  # all have just been run
    lines += section(NAME, findings(experiment, found))
    (out / "seconds.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
