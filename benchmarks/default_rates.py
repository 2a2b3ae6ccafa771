"""R^2 of rules for the learning rate of the default FederatedRegressor, in numpy.

``python -m benchmarks.default_rates`` (half a minute) prints a table of R^2 by rule and data set,
and two of the rounds that tables without hard columns need.

A rule says by what each column is divided, and each client's rate. Training is FedAvg: squared
error, minibatches of 16 by permutation, one local epoch, all clients in every round.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes, make_regression
from sklearn.linear_model import Ridge

from benchmarks.results import table

B, N_ROUNDS = 16, 100


class Table(NamedTuple):
    """Rows of clients 0, 1, ..., of which the priority ones set scale, intercept and rate."""

    X: np.ndarray
    y: np.ndarray
    clients: np.ndarray
    priority: np.ndarray  # a mask of clients

    @property
    def preferred(self) -> np.ndarray:
        return self.priority[self.clients]


@dataclass(frozen=True)
class Rule:
    name: str
    bound: str | None = None  # key of BOUNDS; None: 0.5 / (n_features + 1)
    share: str = "all"  # "own" rates; the smallest for "all"; free clients at their "safe" ones
    cap: float = 1.0  # in multiples of 0.5 / (n_features + 1)
    floor: float = 0.0  # of a column's scale, in its largest deviations from the mean
    centred: bool = False  # whether the intercept begins at the mean target
    fall: float = 0.0  # share of rounds, the last, over which rates fall linearly to a tenth


FULL_BATCHES = Rule("0.5 / (p + 1)")  # safe for batches of all rows of all clients
DEFAULT = Rule("the default", "batch", "safe", cap=2.0, floor=0.1, centred=True, fall=1.0)
RULES = [
    FULL_BATCHES,
    Rule("own rates", "batch", "own"),
    Rule("one for all", "batch"),
    DEFAULT,
    replace(DEFAULT, name="default, at most 0.5 / (p + 1)", cap=1.0),
    replace(DEFAULT, name="default, without a cap", cap=np.inf),
    replace(DEFAULT, name="default, own rates", share="own"),
    replace(DEFAULT, name="default, free clients at the shared rate", share="all"),
    replace(DEFAULT, name="default, without replacement", bound="without replacement"),
    replace(DEFAULT, name="default, mean over the epoch's batches", bound="epoch"),
    replace(DEFAULT, name="default, mean-square bound", bound="mean square"),
    replace(DEFAULT, name="default, no fall", fall=0.0),
    replace(DEFAULT, name="default, fall in the last half", fall=0.5),
    replace(DEFAULT, name="default, no floor", floor=0.0),
    replace(DEFAULT, name="default, floor 1/5", floor=0.2),
    replace(DEFAULT, name="default, floor 1/20", floor=0.05),
    replace(DEFAULT, name="default, intercept from 0", centred=False),
]


def by_batch(rows: np.ndarray) -> float:
    """Return the rate at which steps on batches drawn with replacement contract, halved."""
    largest, eigenvalue = _two_numbers(rows)
    return B / (2 * (largest + (B - 1) * eigenvalue))


def without_replacement(rows: np.ndarray) -> float:
    largest, eigenvalue = _two_numbers(rows)
    n = len(rows)
    b = min(B, n)
    single = (n - b) / (b * max(n - 1, 1))
    return 1 / (2 * (single * largest + (1 - single) * eigenvalue))


def by_epoch(rows: np.ndarray) -> float:
    """As ``by_batch``, where the epoch's last batch may be smaller."""
    largest, eigenvalue = _two_numbers(rows)
    sizes = _batch_sizes(np.array([len(rows)]))[:, 0]
    return 1 / (2 * np.mean((largest + (sizes - 1) * eigenvalue) / sizes))


def mean_square(rows: np.ndarray) -> float:
    """As ``by_batch``, with the mean of |x|^2 x x' itself in place of its bound."""
    norms, n = np.square(rows).sum(axis=1), len(rows)
    second = rows.T @ rows / n
    values, vectors = np.linalg.eigh(second)
    kept = values > 1e-12 * values[-1]
    root = vectors[:, kept] / np.sqrt(values[kept])
    fourth = rows.T @ (norms[:, None] * rows) / n
    squared = (fourth + (B - 1) * second @ second) / B
    return 1 / (2 * np.linalg.eigvalsh(root.T @ squared @ root)[-1])


def _two_numbers(rows: np.ndarray) -> tuple[float, float]:
    """Return the largest |x|^2, and the largest eigenvalue of the mean of x x'."""
    return np.square(rows).sum(axis=1).max(), np.linalg.norm(rows, 2) ** 2 / len(rows)


BOUNDS = {
    "batch": by_batch,
    "without replacement": without_replacement,
    "epoch": by_epoch,
    "mean square": mean_square,
}


def _batch_sizes(n_rows: np.ndarray) -> np.ndarray:
    """Return the size of each batch of an epoch by client, 1 where there is none."""
    starts = np.arange(0, n_rows.max(), B)
    return np.clip(n_rows - starts[:, None], 1, B)


class Scale(NamedTuple):
    """Columns as rules see them: divided by their deviations, then by the rule's ``stretch``."""

    mean: np.ndarray
    deviation: np.ndarray
    stretch: np.ndarray  # of shape (n_rules, n_features + 1); the last is the intercept's, 1

    def rows(self, X: np.ndarray) -> np.ndarray:
        return np.column_stack([(X - self.mean) / self.deviation, np.ones(len(X))])

    def weights(self, coef: np.ndarray) -> np.ndarray:
        """Return weights of ``rows`` from those of X and 1, of each rule."""
        slopes = coef[:, :-1]
        return np.column_stack([slopes * self.deviation, coef[:, -1] + slopes @ self.mean])

    def coef(self, weights: np.ndarray) -> np.ndarray:
        slopes = weights[:, :-1] / self.deviation
        return np.column_stack([slopes, weights[:, -1] - slopes @ self.mean])


def scale_of(data: Table, rules: list[Rule]) -> Scale:
    X = data.X[data.preferred]
    mean = X.mean(axis=0)
    mean = mean + (X - mean).mean(axis=0)  # columns far from zero lose digits in one pass
    deviation = np.sqrt(np.square(X - mean).mean(axis=0))
    deviation[deviation <= 1e-13 * np.abs(mean)] = 1.0  # of constant columns
    largest = np.abs((X - mean) / deviation).max(axis=0)
    floors = np.array([[rule.floor] for rule in rules])
    stretch = np.column_stack([np.maximum(1.0, floors * largest), np.ones(len(rules))])
    return Scale(mean, deviation, stretch)


def client_rates(data: Table, rows: np.ndarray, rule: Rule, stretch: np.ndarray) -> np.ndarray:
    """Return the rate of each client."""
    full_batches = 0.5 / rows.shape[1]
    if rule.bound is None:
        return np.full(len(data.priority), full_batches)
    bound = BOUNDS[rule.bound]
    own = [bound(rows[data.clients == k] / stretch) for k in range(len(data.priority))]
    own = np.minimum(own, rule.cap * full_batches)
    if rule.share == "own":
        return own
    shared = own[data.priority].min()
    if rule.share == "all":
        return np.full_like(own, shared)
    return np.where(data.priority, shared, np.minimum(own, shared))


def by_client(values: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Return values of shape (n_clients, the most rows, ...), zero behind a client's rows."""
    n_rows = np.bincount(clients)
    padded = np.zeros((len(n_rows), n_rows.max(), *values.shape[1:]))
    for k, n in enumerate(n_rows):
        padded[k, :n] = values[clients == k]
    return padded


def epoch(
    rows: np.ndarray,
    y: np.ndarray,
    n_rows: np.ndarray,
    weights: np.ndarray,
    rates: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the weights of each client and rule after an epoch, of shape of ``rates``."""
    keys = rng.random(y.shape)
    keys[np.arange(y.shape[1]) >= n_rows[:, None]] = 2.0  # rows of zeros come last
    order = np.argsort(keys, axis=1)
    rows = np.take_along_axis(rows, order[..., None], axis=1)
    y = np.take_along_axis(y, order, axis=1)
    local = np.repeat(weights[None], len(rows), axis=0)
    for i, sizes in enumerate(_batch_sizes(n_rows)):
        batch, targets = rows[:, i * B : (i + 1) * B], y[:, i * B : (i + 1) * B]
        errors = local @ batch.transpose(0, 2, 1) - targets[:, None]
        local = local - rates * (errors @ batch) * (2 / sizes[:, None, None])
    return local


def train(
    data: Table,
    rules: list[Rule],
    scale: Scale,
    coef: np.ndarray | None = None,
    n_rounds: int = N_ROUNDS,
) -> tuple[np.ndarray, np.ndarray]:
    """Return R^2 after each round by rule, and coefficients of X and 1.

    A rule's scale is a rate by column: the weights are those of ``Scale.rows`` for all rules.
    """
    Z, rng = scale.rows(data.X), np.random.default_rng(0)
    n_rows = np.bincount(data.clients)
    padded = by_client(Z, data.clients), by_client(data.y, data.clients)
    rates = [client_rates(data, Z, *pair) for pair in zip(rules, scale.stretch, strict=True)]
    rates = np.array(rates).T[..., None] / np.square(scale.stretch)
    weights = np.zeros(scale.stretch.shape) if coef is None else scale.weights(coef)
    if coef is None:
        weights[:, -1] = [rule.centred * data.y[data.preferred].mean() for rule in rules]
    scores = []
    for share in np.linspace(0, 1, n_rounds):
        falls = np.array([[factor(rule.fall, share)] for rule in rules])
        local = epoch(*padded, n_rows, weights, rates * falls, rng)
        weights = np.average(local, axis=0, weights=n_rows)
        scores.append(r2(Z @ weights.T, data.y))
    return np.array(scores), scale.coef(weights)


def factor(last: float, share: float) -> float:
    """Return the factor of rates after a share of the rounds."""
    return 1 - 0.9 * max(0.0, share - (1 - last)) / last if last else 1.0


def r2(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return R^2 of each column of predictions; it may not be finite."""
    return 1 - np.square(predicted - y[:, None]).mean(axis=0) / y.var()


def final(data: Table, rules: list[Rule]) -> np.ndarray:
    return train(data, rules, scale_of(data, rules))[0][-1]


def warm_start(data: Table, rules: list[Rule], renewed: bool) -> np.ndarray:
    """Return R^2 of 30 rounds on a third of X, then 70 on X."""
    before = data._replace(X=data.X / 3)
    scale = scale_of(before, rules)
    # The function of X is the same, so the targets of the first rounds are a third as well.
    _, coef = train(before._replace(y=data.y / 3), rules, scale, n_rounds=30)
    scale = scale_of(data, rules) if renewed else scale
    return train(data, rules, scale, coef, n_rounds=70)[0][-1]


def ridge(data: Table) -> float:
    rows = scale_of(data, RULES[:1]).rows(data.X)[:, :-1]
    rows = rows / np.maximum(rows.std(axis=0), 1e-12)
    return Ridge(alpha=1.0).fit(rows, data.y).score(rows, data.y)


def spread(X: np.ndarray, y: np.ndarray, n_clients: int) -> Table:
    """Return a table whose rows are dealt to clients in turns, all with priority."""
    return Table(X, y, np.arange(len(y)) % n_clients, np.ones(n_clients, dtype=bool))


def lognormal() -> Table:
    rng = np.random.default_rng(0)
    X = rng.lognormal(0, 1.5, (1000, 5))
    return spread(X, (X**0.25).sum(axis=1) + 0.35 * rng.normal(size=1000), 10)


def large_rows() -> Table:
    X, y = make_regression(2000, 5, noise=10, random_state=0)
    X[np.random.default_rng(0).choice(2000, 20, replace=False)] *= 30
    return spread(X, y, 10)


def flag(n_rows: int, n_clients: int) -> Table:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 5))
    X[:, -1] = np.arange(n_rows) == 17
    y = X[:, :-1].sum(axis=1) + 3 * X[:, -1] + 0.3 * rng.normal(size=n_rows)
    return spread(X, y, n_clients)


def odd_client(factor: float, shift: float) -> Table:
    data = spread(*make_regression(2000, 10, noise=10, random_state=0), 20)
    data.X[data.clients == 0] = factor * data.X[data.clients == 0] + shift
    return data


def small_clients() -> Table:
    data = spread(*make_regression(200, 1, n_informative=1, noise=5, random_state=0), 10)
    data.X[data.clients == 0] *= 5
    return data


def rare_flag(n_priority: int) -> Table:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 5))
    data = spread(X, X[:, 0], 4)._replace(priority=np.arange(4) < n_priority)
    X[:, -1] = rng.random(1200) < 0.5
    for k in range(n_priority):
        X[data.clients == k, -1] = np.arange(300) == 0
    y = X[:, :-1].sum(axis=1) + 3 * X[:, -1] + 0.3 * rng.normal(size=1200)
    return data._replace(y=y)


def one_hot() -> Table:
    rng = np.random.default_rng(0)
    parts = []
    for n_levels in (2, 3, 5, 10, 15, 20, 40, 60):
        shares = rng.dirichlet(np.full(n_levels, 2.0))
        parts.append(np.eye(n_levels)[rng.choice(n_levels, 2000, p=shares)])
    X = np.hstack(parts)
    signal = X @ rng.normal(size=X.shape[1])
    return spread(X, signal + 0.35 * signal.std() * rng.normal(size=2000), 10)


def normal(n_rows: int, n_columns: int) -> Table:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_columns))
    y = X @ rng.normal(size=n_columns)
    return spread(X, y + 0.5 * y.std() * rng.normal(size=n_rows), 10)


def diabetes() -> Table:
    return spread(*load_diabetes(return_X_y=True), 6)


def tables() -> dict[str, Table]:
    return {
        "lognormal": lognormal(),
        "rows x30": large_rows(),
        "flag": flag(1000, 1),
        "flag, 100 clients": flag(2000, 100),
        "client x10": odd_client(10, 0),
        "client +20": odd_client(1, 20),
        "small": small_clients(),
        "rare at 1 priority": rare_flag(1),
        "rare at 2 priority": rare_flag(2),
        "diabetes": diabetes(),
        "one-hot": one_hot(),
    }


def tame_tables() -> dict[str, Table]:
    return {
        "diabetes": diabetes(),
        "one-hot": one_hot(),
        "make_regression(1000, 10)": spread(*make_regression(1000, 10, random_state=0), 10),
        "normal, 1000 x 60": normal(1000, 60),
    }


def show(score: float) -> str:
    if not np.isfinite(score):
        return "diverged"
    return f"{score:.3f}" if score > -100 else f"{score:.0e}"


def scores_by_rule() -> Iterator[str]:
    columns = {name: [*final(data, RULES), ridge(data)] for name, data in tables().items()}
    warm = normal(1000, 2)
    for name, renewed in (("warm, scale kept", False), ("warm, renewed", True)):
        columns[name] = [*warm_start(warm, RULES, renewed), ridge(warm)]
    names = [*(rule.name for rule in RULES), "Ridge"]
    for some in (list(columns)[:7], list(columns)[7:]):  # which fit a page
        cells = zip(names, *(columns[name] for name in some), strict=True)
        yield from table(["rule", *some], ([name, *map(show, found)] for name, *found in cells))


def rounds_by_rule() -> Iterator[str]:
    """Yield tables of the rounds until R^2 is within 0.02 of that of 0.5 / (p + 1) at the end.

    Rates that fall fall faster in a fit of fewer rounds: the second table is of such fits.
    """
    during, fits = {}, {}
    for name, data in tame_tables().items():
        scale = scale_of(data, RULES)
        scores, _ = train(data, RULES, scale)
        during[name] = first(scores >= scores[-1, 0] - 0.02) + 1
        ends = [train(data, RULES, scale, n_rounds=n)[0][-1] for n in range(2, 61, 2)]
        fits[name] = 2 * first(np.array(ends) >= scores[-1, 0] - 0.02) + 2
    for what, columns in (("round of 100", during), ("n_rounds", fits)):
        cells = zip((rule.name for rule in RULES), *columns.values(), strict=True)
        yield from table([what, *columns], ([n, *(f"{c:.0f}" for c in cs)] for n, *cs in cells))


def first(reached: np.ndarray) -> np.ndarray:
    """Return the index of the first True of each column, infinity if there is none."""
    return np.where(reached.any(axis=0), reached.argmax(axis=0), np.inf)


def lines() -> Iterator[str]:
    """Yield the lines of all tables."""
    with np.errstate(over="ignore", invalid="ignore"):
        yield from scores_by_rule()
        yield from rounds_by_rule()


if __name__ == "__main__":
    print("\n".join(lines()))
