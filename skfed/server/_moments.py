"""What clients send of their columns and targets before the first round of a fit, and its pooling.

All of it is computed in float64, from X as it was given: the dtype of a module would lose the
digits of columns that are far from 0.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh

_CHUNK = 2**24  # bytes of rows that are read at once
_LEAST_SCALE = 0.1  # of the largest deviation
_DIGITS = 8 * np.finfo(np.float64).eps  # a deviation below, as a part of the mean, is of rounding
_TINY = float(np.finfo(np.float32).tiny)
FAR = 2.0**12  # scales from 0 at which float32 has 12 bits left for a scale
_EXACT = 1024  # rows or columns up to which all eigenvalues take less time than the largest


class Moments(NamedTuple):
    """A client's mean and variance of each column or target, and the largest distance from it.

    Of classes the mean is their share of the rows.
    """

    mean: np.ndarray
    variance: np.ndarray
    largest: np.ndarray


#: What a client sends of each.
SENT = {"columns": Moments._fields, "targets": ("mean", "variance"), "classes": ("mean",)}


class Norms(NamedTuple):
    """Of a client's rows as the linear layer takes them, with a 1 for the intercept."""

    largest: float  # squared norm of a row
    eigenvalue: float  # the largest of the mean of x x'


class Pooled(NamedTuple):
    """The moments of the rows of several clients, and bounds of their values."""

    n_rows: float  # by the clients' priority weights
    mean: np.ndarray
    variance: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def scale(self) -> np.ndarray:
        """By what columns are divided: the deviation, with a floor; 1 for constant columns."""
        deviation = self.deviation
        largest = np.maximum(self.high - self.mean, self.mean - self.low)
        floored = np.maximum(deviation, _LEAST_SCALE * largest)
        return np.where(self._is_constant, 1.0, floored)

    @property
    def deviation(self) -> np.ndarray:
        """The standard deviation; 1 for constant columns."""
        return np.where(self._is_constant, 1.0, np.sqrt(self.variance))

    @property
    def is_far(self) -> np.ndarray:
        """A mask of the columns for which float32 has too few digits."""
        return np.abs(self.mean) > FAR * self.scale

    @np.errstate(over="ignore", invalid="ignore")  # values that are too large are refused later
    def with_later(self, later: "Pooled") -> "Pooled":
        """Return the moments of these rows and later ones together."""
        n_rows = self.n_rows + later.n_rows
        # In this form equal moments stay as they are, bit for bit.
        share, shift = later.n_rows / n_rows, later.mean - self.mean
        variance = self.variance + share * (later.variance - self.variance)
        return Pooled(
            n_rows,
            self.mean + share * shift,
            variance + share * (1 - share) * np.square(shift),
            np.minimum(self.low, later.low),
            np.maximum(self.high, later.high),
        )

    def equals(self, other: "Pooled | None") -> bool:
        """Tell whether moments and bounds are the same, whatever the number of rows."""
        return other is not None and all(map(np.array_equal, self[1:], other[1:]))

    @property
    def _is_constant(self) -> np.ndarray:
        deviation = np.sqrt(self.variance)
        # Of a scale below TINY float32 has no digits left.
        return (deviation <= _DIGITS * np.abs(self.mean)) | (deviation < _TINY)


class MomentsPool:
    """Pools moments, client by client, which needs no memory for a million clients."""

    def __init__(self) -> None:
        self.pooled: Pooled | None = None

    def add(self, moments: Moments, n_rows: float) -> None:
        """Add the moments of a client."""
        mean, variance, largest = moments
        one = Pooled(n_rows, mean, variance, mean - largest, mean + largest)
        self.pooled = one if self.pooled is None else self.pooled.with_later(one)


@np.errstate(over="ignore", invalid="ignore")  # values that are too large are refused later
def client_moments(X: np.ndarray, rows: np.ndarray, weights: np.ndarray | None = None) -> Moments:
    """Return the moments of each column over some rows of X, by the weights of rows if any."""
    # Around a row, so that columns far from 0 lose no digits and constant ones are exact.
    (pivot,) = _flat(X[rows[:1]])
    own = np.ones(len(rows)) if weights is None else weights[rows]
    sums, squares, largest = np.zeros((3, len(pivot)))
    for deviations, part in _chunks(X, rows, own):
        deviations -= pivot
        sums += np.einsum("i,ij->j", part, deviations)
    del deviations  # before the next are read
    mean = pivot + sums / own.sum()
    for deviations, part in _chunks(X, rows, own):
        deviations -= mean
        squares += np.einsum("i,ij,ij->j", part, deviations, deviations)
        np.abs(deviations, out=deviations)
        np.maximum(largest, deviations.max(axis=0), out=largest)
    return Moments(mean, squares / own.sum(), largest)


def class_shares(
    y: np.ndarray, n_classes: int, rows: np.ndarray, weights: np.ndarray | None = None
) -> Moments:
    """Return the share of each class in some rows of y, positions of classes."""
    own = None if weights is None else weights[rows]
    counts = np.bincount(y[rows], own, minlength=n_classes)
    nothing = np.zeros(n_classes)
    return Moments(counts / counts.sum(), nothing, nothing)


@np.errstate(over="ignore")
def client_norms(
    X: np.ndarray,
    rows: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
    weights: np.ndarray | None = None,
) -> Norms:
    """Return the norms of some rows of X.

    Parameters
    ----------
    X : ndarray of shape (n_samples, ...)
        As the module takes it.
    rows : ndarray of int
        The client's.
    mean, scale : ndarray of shape (n_features,)
        What is subtracted from columns, and by what they are divided.
    weights : ndarray of shape (n_samples,), default=None
        Of the rows in the loss.
    """
    own = np.ones(len(rows)) if weights is None else weights[rows]
    shares = own / own.sum()
    # A batch counts as so many times fewer rows (Kish's effective sample size).
    unequal = 1.0 if weights is None else float(len(rows) * np.square(shares).sum())

    def inputs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for chunk, share in _chunks(X, rows, shares):
            yield np.hstack([(chunk - mean) / scale, np.ones((len(chunk), 1))]), share[:, None]

    largest = max(float(np.square(x[s[:, 0] > 0]).sum(axis=1).max(initial=0)) for x, s in inputs())
    if not np.isfinite(largest):
        return Norms(np.inf, np.inf)
    eigenvalue = _largest_eigenvalue(inputs, len(rows), X[0].size + 1)
    return Norms(_rounded(unequal * largest), _rounded(eigenvalue))


def safe_rate(norms: Norms, n_rows: int) -> float:
    """Return a learning rate at which steps of ``n_rows`` rows of a client do not diverge.

    With squared error, the mean of |w - w*|^2 over random batches of b rows falls at any rate below
    b / (max |x|^2 + (b - 1) lambda): this is half of it.
    """
    if np.isinf(norms.largest):
        return 0.0
    return n_rows / (2 * (norms.largest + (n_rows - 1) * norms.eigenvalue))


def _rounded(value: float) -> float:
    """Return a value with the digits of float32: the last ones depend on the number of threads."""
    digits, exponent = np.frexp(value)
    return float(np.ldexp(float(np.float32(digits)), exponent))


def _largest_eigenvalue(inputs, n_rows: int, n_columns: int) -> float:
    """Return the largest eigenvalue of the sum of s x x' over rows x and their shares s."""
    if n_columns <= min(n_rows, _EXACT):
        return float(np.linalg.eigvalsh(sum((x * s).T @ x for x, s in inputs()))[-1])
    if n_rows <= _EXACT:
        rows = np.concatenate([x * np.sqrt(s) for x, s in inputs()])
        return float(np.linalg.eigvalsh(rows @ rows.T)[-1])

    def product(vector: np.ndarray) -> np.ndarray:
        return sum((x * s).T @ (x @ vector.ravel()) for x, s in inputs())

    operator = LinearOperator((n_columns, n_columns), matvec=product, dtype=np.float64)
    return float(eigsh(operator, k=1, tol=1e-3, v0=np.ones(n_columns))[0][0])


def _chunks(
    X: np.ndarray, rows: np.ndarray, weights: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows of X, flattened, as float64, and their weights; the rows may be changed.

    In chunks: X may be a map larger than memory.
    """
    size = max(1, _CHUNK // (8 * int(np.prod(X.shape[1:]))))
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        yield _flat(X[rows[part]]), weights[part]


def _flat(X: np.ndarray) -> np.ndarray:
    return X.reshape(len(X), -1).astype(np.float64)
