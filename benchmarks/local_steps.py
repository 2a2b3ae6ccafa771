"""A few local steps beside whole epochs, on a table with many rows.

``python -m benchmarks.local_steps`` (three minutes of a processor) fits the default classifier with
``local_epochs=1`` and with several ``local_steps``, and writes ``LOCAL_STEPS.md`` beside this file.
Seconds are those of a processor, so that other processes on the machine hardly change them.
"""

import platform
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import cpuinfo
import numpy as np
from tqdm import tqdm

from benchmarks.machine import cache_sizes
from benchmarks.results import processor, table
from skfed import FederatedClassifier

PAGE = Path(__file__).parent / "LOCAL_STEPS.md"
N_ROWS, N_TEST, N_CLIENTS, N_COLUMNS = 300_000, 50_000, 20, 30
SEEDS = range(3)
WHOLE = {"local_epochs": 1}
TRAININGS = [WHOLE, {"local_steps": 100}, {"local_steps": 20}, {"local_steps": 5}]
ROUNDS = [100, 10]


class Fit(NamedTuple):
    seconds: float
    rows: int  # trained on, over all rounds and clients
    accuracy: float  # on the test rows


def draw(n_rows: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield X, y and clients of ``n_rows``, then of other rows of the same clients.

    Clients differ in their numbers of rows, in the means of the columns, and in the coefficients
    of the logistic model of the labels.
    """
    shares = rng.dirichlet(np.full(N_CLIENTS, 2.0))
    means = rng.normal(size=(N_CLIENTS, N_COLUMNS))
    coef = rng.normal(size=N_COLUMNS) + 0.3 * rng.normal(size=means.shape)
    while True:
        clients = rng.choice(N_CLIENTS, n_rows, p=shares)
        X = rng.normal(size=(n_rows, N_COLUMNS)) + means[clients]
        logits = (coef[clients] * X).sum(axis=1) / 2
        yield X, (rng.random(n_rows) < 1 / (1 + np.exp(-logits))).astype(int), clients


def fit(training: dict, n_rounds: int, seed: int) -> Fit:
    rows = draw(N_ROWS, np.random.default_rng(seed))
    X, y, clients = next(rows)
    X_test, y_test, _ = (values[:N_TEST] for values in next(rows))
    model = FederatedClassifier(n_rounds=n_rounds, random_state=seed, **training)
    started = time.process_time()
    model.fit(X, y, clients=clients)
    seconds = time.process_time() - started
    n_trained = int(model.history_["samples_trained"].sum())
    return Fit(seconds, n_trained, model.score(X_test, y_test))


def lines(fits: dict[tuple[str, int], list[Fit]], machine: str) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# A few local steps beside whole epochs"
    yield ""
    yield (
        f"Made by `python -m benchmarks.local_steps` on {machine}. The default classifier on "
        f"{N_ROWS:,} rows of {N_CLIENTS} clients and {N_COLUMNS} columns, ten clients a round. "
        f"Seconds of a processor are the medians of {len(SEEDS)} fits, each of other rows, and the "
        f"ratio is that of the medians; accuracy is the mean, on {N_TEST:,} rows that were not "
        "trained on."
    )
    yield ""
    header = ["rounds", "training", "seconds", "ratio", "rows trained on", "accuracy"]
    yield from table(header, (_cells(name, n_rounds, fits) for name, n_rounds in fits))


def _cells(name: str, n_rounds: int, fits: dict[tuple[str, int], list[Fit]]) -> list[str]:
    whole, own = fits[_name(WHOLE), n_rounds], fits[name, n_rounds]
    seconds = median(one.seconds for one in own)
    ratio = median(one.seconds for one in whole) / seconds
    rows = median(one.rows for one in own)
    accuracy = mean(one.accuracy for one in own)
    return [
        *(str(n_rounds), f"`{name}`", f"{seconds:.1f}"),
        *(f"{ratio:.1f}", f"{rows:,}", f"{accuracy:.3f}"),
    ]


def _name(training: dict) -> str:
    return ", ".join(f"{name}={value}" for name, value in training.items())


def main() -> None:
    """Write the page."""
    cells = [(training, n_rounds) for n_rounds in ROUNDS for training in TRAININGS]
    fits: dict[tuple[str, int], list[Fit]] = {}
    for seed in tqdm(SEEDS):
        for training, n_rounds in cells:
            found = fit(training, n_rounds, seed)
            fits.setdefault((_name(training), n_rounds), []).append(found)
    machine = {"cpu": cpuinfo.get_cpu_info(), "machine": platform.machine()}
    machine["caches"] = cache_sizes()
    PAGE.write_text("\n".join(lines(fits, processor(machine))).rstrip() + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
