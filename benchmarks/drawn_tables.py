"""Tables that a stranger might bring, drawn at random, for tests of the default models."""

from dataclasses import dataclass

import numpy as np
from sklearn.preprocessing import StandardScaler

N_CLIENTS = 1, 2, 4, 5, 10, 20, 40
STARTS = "cold", "cold", "cold", "wider", "partial"  # of which a table has one


@dataclass(frozen=True)
class Table:
    """Rows of some clients, and how a model meets them."""

    X: np.ndarray
    y: np.ndarray
    clients: np.ndarray
    priority: list[int] | None
    start: str  # "wider": a fit on columns of a third before; "partial": a single round on a part
    kinds: tuple[str, ...]  # of the columns

    @property
    def preferred(self) -> np.ndarray:
        """A mask of the rows of priority clients."""
        return np.isin(self.clients, self.clients if self.priority is None else self.priority)

    @property
    def condition(self) -> float:
        """The condition number of the second moment of the scaled columns and an intercept."""
        X = np.column_stack([StandardScaler().fit_transform(self.X), np.ones(len(self.X))])
        values = np.linalg.eigvalsh(X.T @ X)
        return values[-1] / values[values > 1e-9 * values[-1]][0]

    def n_steps(self, n_rounds: int, batch_size: int = 16) -> int:
        """Return the local steps of the mean priority client in a fit."""
        sizes = np.unique(self.clients[self.preferred], return_counts=True)[1]
        return int(n_rounds * np.mean(-(-sizes // batch_size)))


def draw_table(seed: int, odd: str | None = None, n_classes: int | None = None) -> Table:
    """Draw a table of numbers, or with ``n_classes`` of labels.

    ``odd`` is what the first of several clients is: "wide", its columns times 10, or "shifted", by
    20 deviations. Targets do not follow, as where a unit was mistaken.
    """
    rng = np.random.default_rng([seed, 57])
    n_clients = int(rng.choice(N_CLIENTS[2:] if odd else N_CLIENTS))
    sizes = np.exp(rng.uniform(np.log(20), np.log(300), n_clients)).astype(int)
    clients = rng.permutation(np.repeat(np.arange(n_clients), sizes))
    n_columns = int(rng.integers(1, 21))
    kinds = tuple(rng.choice(list(COLUMNS), n_columns))
    signals = np.column_stack([COLUMNS[kind](rng, len(clients)) for kind in kinds])
    unit = np.where(signals.std(axis=0) > 0, signals.std(axis=0), 1.0)
    score = (signals / unit) @ rng.normal(size=n_columns) * rng.choice([0.5, 1.0, 2.0])
    X = signals * _units(rng, kinds) + _offsets(rng, kinds)
    if odd:
        X = _with_odd_client(rng, X, clients == 0, odd)
    y = _targets(rng, score, n_classes)
    if n_classes is not None:  # each has a row of the first client, which has priority
        y[np.flatnonzero(clients == 0)[:n_classes]] = np.arange(n_classes)
    priority = _priority(clients) if rng.random() < 0.5 else None
    return Table(X, y, clients, priority, str(rng.choice(STARTS)), kinds)


#: Draws a column without unit and offset.
COLUMNS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "far": lambda rng, n: rng.normal(size=n),
    "lognormal": lambda rng, n: rng.lognormal(sigma=rng.uniform(0.2, 1.5), size=n),
    "heavy": lambda rng, n: rng.standard_t(2, size=n),
    "flag": lambda rng, n: (rng.random(n) < rng.choice([0.003, 0.02, 0.3])).astype(float),
    "count": lambda rng, n: rng.poisson(3, size=n).astype(float),
    "constant": lambda rng, n: np.ones(n),
}


def _units(rng: np.random.Generator, kinds: tuple[str, ...]) -> np.ndarray:
    units = 10 ** rng.uniform(-6, 6, len(kinds))
    return np.where(np.array(kinds) == "far", np.maximum(units, 1.0), units)


def _offsets(rng: np.random.Generator, kinds: tuple[str, ...]) -> np.ndarray:
    """Return what is added to each column: up to 1e12 to far ones, which keep three digits."""
    far = np.sign(rng.normal(size=len(kinds))) * 10 ** rng.uniform(6, 12, len(kinds))
    return np.where(np.array(kinds) == "far", far, 0.0)


def _with_odd_client(
    rng: np.random.Generator, X: np.ndarray, own: np.ndarray, odd: str
) -> np.ndarray:
    X = X.copy()
    X[own] = 10 * X[own] if odd == "wide" else X[own] + 20 * X.std(axis=0)
    return X


def _targets(rng: np.random.Generator, score: np.ndarray, n_classes: int | None) -> np.ndarray:
    if n_classes is None:
        y = score + rng.choice([0.1, 0.5, 2.0]) * rng.normal(size=len(score))
        return y * 10 ** rng.uniform(-3, 5) + rng.choice([0.0, 1e3])
    logits = np.outer(score, np.linspace(-1, 1, n_classes)) + rng.normal(size=n_classes)
    noisy = logits + rng.gumbel(size=logits.shape)
    return noisy.argmax(axis=1)


def _priority(clients: np.ndarray) -> list[int]:
    """Return the first third of the clients, at least one: each has 20 rows or more."""
    return list(range(max(1, len(np.unique(clients)) // 3)))
