"""The default models on drawn tables, beside regressions on the pooled rows.

``python -m benchmarks.default_models`` (ten minutes on two cores) fits the default regressor and
classifier on 200 tables of each kind, and writes ``DEFAULT_MODELS.md`` beside this file; ``--tables
20`` takes fewer, ``--jobs`` more cores.

R^2 and log loss are over all rows, with an odd client over those of the priority clients; the
pooled model has the rows of the priority clients, since the default rule is theirs.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from benchmarks import default_rates
from benchmarks.drawn_tables import Table, draw_table
from benchmarks.results import table as markdown
from skfed import FederatedClassifier, FederatedRegressor

N_ROUNDS = 100
ODD = "wide", "shifted"
PAGE = Path(__file__).parent / "DEFAULT_MODELS.md"
TEXT = """# The default models on drawn tables

Made by `python -m benchmarks.default_models`. A table (`benchmarks/drawn_tables.py`) has 1 to 40
clients of 20 to 300 rows, and 1 to 20 columns: normal ones, also with offsets of 1e6 to 1e12,
lognormal, heavy-tailed (Student's t with 2 degrees of freedom), rare flags, counts, constants, in
units from 1e-6 to 1e6. Half of the tables have priority clients, a fifth each begin with a fit on a
third of X or a single round on a third of the rows. An odd client has columns that were multiplied
by 10 or shifted by 20 deviations after the targets were made.

The score is R^2, or log loss, beside that of Ridge, or logistic regression, on the pooled rows of
the priority clients.
"""
RATES = """## Rules of the regressor's learning rate

R^2 after 100 rounds of federated averaging in numpy (`benchmarks/default_rates.py`), p columns.
Rates are those of batches of 16: 16 / (2 (n + 15 e)), n the largest squared norm of a client's
scaled row, e the largest eigenvalue of its second moment.
"""


class Result(NamedTuple):
    """A fit on a drawn table."""

    seed: int
    score: float  # R^2, or log loss
    pooled: float
    prior: float  # the log loss of the shares of classes
    warned: bool
    n_steps: int
    condition: float
    table: Table

    @property
    def reason(self) -> str:
        """What explains a score that is far from that of the pooled rows."""
        reasons = {
            f"condition {self.condition:.0f}": self.condition > 1e3,
            f"{self.n_steps} local steps": self.n_steps < 500,
            f"priority has {int(self.table.preferred.sum())} rows": self.table.priority is not None,
        }
        return ", ".join(text for text, holds in reasons.items() if holds) or "none known"


def fit(model, table: Table) -> tuple[object, bool]:
    """Return a copy of a model, fitted as the table says, and whether it warned."""
    model = clone(model).set_params(priority=table.priority, n_rounds=N_ROUNDS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if table.start == "wider":
            model.set_params(warm_start=True, n_rounds=30)
            model.fit(table.X / 3, table.y, clients=table.clients)
            model.set_params(n_rounds=30 + N_ROUNDS)
        elif table.start == "partial":
            part = _part(table)
            model.partial_fit(table.X[part], table.y[part], clients=table.clients[part])
            model.set_params(warm_start=True, n_rounds=1 + N_ROUNDS)
        model.fit(table.X, table.y, clients=table.clients)
    return model, any(w.category is ConvergenceWarning for w in caught)


def _part(table: Table) -> np.ndarray:
    """Return a mask of a third of the rows, with each class and client."""
    part = np.arange(len(table.y)) % 3 == 0
    for values in (table.clients, table.y if table.y.dtype.kind == "i" else table.clients):
        part[np.unique(values, return_index=True)[1]] = True
    return part


def regression(seed: int, odd: str | None = None) -> Result:
    """Fit the default regressor on a drawn table."""
    table = draw_table(seed, odd)
    model, warned = fit(FederatedRegressor(random_state=seed), table)
    own, X, y = table.preferred, table.X, table.y
    pooled = make_pipeline(StandardScaler(), Ridge()).fit(X[own], y[own])
    scored = own if odd else np.ones(len(y), dtype=bool)  # nobody could tell free clients' rows
    scores = (one.score(X[scored], y[scored]) for one in (model, pooled))
    return _result(seed, *scores, np.nan, warned, table)


def classification(seed: int) -> Result:
    """Fit the default classifier on a drawn table."""
    n_classes = 2 + seed % 3
    table = draw_table(seed, n_classes=n_classes)
    model, warned = fit(FederatedClassifier(random_state=seed), table)
    own, X, y = table.preferred, table.X, table.y
    pooled = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probabilities = _probabilities(pooled.fit(X[own], y[own]), X, n_classes)
    shares = np.bincount(y, minlength=n_classes) / len(y)
    prior = -(shares * np.log(shares)).sum()
    losses = (log_loss(y, p) for p in (model.predict_proba(X), probabilities))
    return _result(seed, *losses, prior, warned, table)


def _probabilities(pooled, X: np.ndarray, n_classes: int) -> np.ndarray:
    """Return probabilities of all classes, of which the pooled rows may lack some."""
    found = np.full((len(X), n_classes), 1e-9)
    found[:, pooled.classes_] = pooled.predict_proba(X)
    return found / found.sum(axis=1, keepdims=True)


def _result(seed, score, pooled, prior, warned, table: Table) -> Result:
    steps, condition = table.n_steps(N_ROUNDS), table.condition
    return Result(seed, score, pooled, prior, warned, steps, condition, table)


def run(function, seeds: range, n_jobs: int, *args) -> list[Result]:
    """Return the results of all seeds."""
    jobs = Parallel(n_jobs, return_as="generator")(delayed(function)(s, *args) for s in seeds)
    return list(tqdm(jobs, total=len(seeds), desc=" ".join([function.__name__, *args])))


def is_near(result: Result) -> bool:
    """Tell whether an R^2 is within .1 of Ridge's."""
    return result.score > result.pooled - 0.1


def is_near_loss(result: Result) -> bool:
    """Tell whether a log loss is within .1 of that of logistic regression."""
    return result.score < result.pooled + 0.1


def is_below_prior(result: Result) -> bool:
    """Tell whether a log loss is at most 1.2 times that of the shares of classes, and .02."""
    return result.score <= 1.2 * result.prior + 0.02


def is_told(result: Result) -> bool:
    """Tell whether an R^2 is at least 0, or the fit has warned."""
    return result.score >= 0 or result.warned


CHECKS: dict[str, tuple[str, Callable[[Result], bool]]] = {
    "regressor, R^2 within .1 of Ridge": ("even", is_near),
    "regressor, one odd client: R^2 of -.2 or more": ("odd", lambda r: r.score >= -0.2),
    "regressor, one odd client: R^2 of 0 or more, or a warning": ("odd", is_told),
    "classifier, log loss within .1 of logistic regression": ("classes", is_near_loss),
    "classifier, log loss at most 1.2 of the prior's + .02": ("classes", is_below_prior),
}


def drawn_lines(results: dict[str, list[Result]]) -> Iterator[str]:
    """Yield the lines on drawn tables: how many pass each check, and those that do not."""
    counts, others = [], []
    for name, (kind, check) in CHECKS.items():
        failed = [r for r in results[kind] if not check(r)]
        n = len(results[kind])
        counts.append([name, f"{n - len(failed)} of {n}"])
        others += [
            [name, r.seed, f"{r.score:.3f}", f"{r.pooled:.3f}", r.table.start, r.reason]
            for r in failed
        ]
    finite = [np.isfinite(r.score) for r in results["even"] + results["odd"]]
    gaps = [abs(r.pooled - r.score) for r in results["even"]]
    counts.append(["regressor, finite R^2", f"{sum(finite)} of {len(finite)}"])
    counts.append(["regressor, median distance from Ridge", f"{np.median(gaps):.4f}"])
    yield from markdown(["drawn tables", "that pass"], counts)
    header = ["which do not pass", "table", "score", "pooled rows", "start", "what explains it"]
    yield from markdown(header, others)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    seeds, n_jobs = range(options.tables), options.jobs
    odd = [run(regression, seeds[: len(seeds) // 2], n_jobs, kind) for kind in ODD]
    results = {
        "even": run(regression, seeds, n_jobs),
        "odd": [*chain.from_iterable(odd)],
        "classes": run(classification, seeds, n_jobs),
    }
    lines = [TEXT, *drawn_lines(results), RATES, *default_rates.lines()]
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"written: {PAGE.name}")


if __name__ == "__main__":
    main()
