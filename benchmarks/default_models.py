"""The default models on drawn tables, beside regressions on the pooled rows.

``python -m benchmarks.default_models`` (a quarter of an hour on two cores) fits the default
regressor and classifier on 200 tables of each kind, and prints how many are close; ``--tables 20``
takes fewer, ``--jobs`` more cores. Each table that is not close is listed with what explains it.

R^2 and log loss are over all rows, with an odd client over those of the priority clients; the
pooled model has the rows of the priority clients, since the default rule is theirs.
"""

import argparse
import warnings
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

from benchmarks.drawn_tables import Table, draw_table
from benchmarks.results import table as markdown
from skfed import FederatedClassifier, FederatedRegressor

N_ROUNDS = 100
ODD = "wide", "shifted"


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


def far_exchangeable(results: list[Result]) -> list[Result]:
    """Return the regressions that are not within .1 of Ridge."""
    return [r for r in results if not r.score > r.pooled - 0.1]


def far_classified(results: list[Result]) -> list[Result]:
    """Return the classifications that are not within .1 of logistic regression."""
    return [r for r in results if not r.score < r.pooled + 0.1]


def above_prior(results: list[Result]) -> list[Result]:
    """Return the classifications with a log loss above 1.2 times the prior's + .02."""
    return [r for r in results if not r.score <= 1.2 * r.prior + 0.02]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.tables)
    even = run(regression, seeds, options.jobs)
    odd = [r for kind in ODD for r in run(regression, seeds[: len(seeds) // 2], options.jobs, kind)]
    classified = run(classification, seeds, options.jobs)
    low = [r for r in odd if r.score < 0]
    gaps = [abs(r.pooled - r.score) for r in even]
    rows = [
        ["regressor: not finite", sum(not np.isfinite(r.score) for r in even + odd)],
        ["exchangeable clients: within .1 of Ridge", len(even) - len(far_exchangeable(even))],
        ["exchangeable clients: median distance", f"{np.median(gaps):.4f}"],
        ["one wide or shifted client: R^2 >= -.2", sum(r.score >= -0.2 for r in odd)],
        ["of those below 0, with a warning", f"{sum(r.warned for r in low)} of {len(low)}"],
        ["classifier: within .1 of regression", len(classified) - len(far_classified(classified))],
        ["classifier: above 1.2 prior + .02", len(above_prior(classified))],
    ]
    print("\n".join(markdown([f"of {options.tables} tables each", ""], rows)))
    listed = {"regressor": far_exchangeable(even), "odd client": low}
    listed |= {"classifier": far_classified(classified), "above prior": above_prior(classified)}
    for name, results in listed.items():
        for r in results:
            print(
                f"- {name}, table {r.seed}: {r.score:.3f}, pooled {r.pooled:.3f}; "
                f"start {r.table.start}; {r.reason}{'; warned' if r.warned else ''}"
            )


if __name__ == "__main__":
    main()
