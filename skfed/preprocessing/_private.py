"""Transformers whose sums clients may clip and add noise to before they send them.

With ``privacy`` a client scales its values to [-1, 1] by ``bounds``, and averages them, their
squares or products, and what is missing, over its D_k rows. The vector of these averages is clipped
to a norm of at most C and gets noise N(0, sigma^2 C^2) in each coordinate, as updates do
(:class:`skfed.privacy.GaussianMechanism`). So it is private with respect to all of the client's
data; D_k is sent as it is, as by the estimators. The server averages the vectors by D_k.

The noise is keyed by the seed, the exchange, the client, the class, the mechanism and the vector,
bit for bit. So it is the same for the same seed and data, and steps that send different vectors
never share noise, whatever their ``random_state``: two messages with the same noise would tell
both vectors.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed._mechanism import GaussianMechanism
from skfed.preprocessing._base import BaseFederatedTransformer, Statistics, fitted_elsewhere
from skfed.preprocessing._blocks import ClientRows, blocks
from skfed.utils._checks import numbers
from skfed.utils._seeding import Purpose, draw_seed, stream


class PrivateTransformer(BaseFederatedTransformer):
    """Base class of transformers with ``privacy``, ``bounds`` and ``random_state``.

    A subclass sends ``private_statistics`` of vectors that it makes from scaled values.
    """

    _privacy_constraints: dict = {
        "privacy": [GaussianMechanism, None],
        "bounds": ["array-like", None],
        "random_state": ["random_state"],
    }

    def privatize(self, statistics: Statistics, exchange: int, client: bytes) -> Statistics:
        """Clip what a client sends, and add noise that no other vector gets."""
        if self.privacy is None:
            return statistics
        averages = statistics["averages"]
        mechanism = float(self.privacy.clip), float(self.privacy.noise_multiplier)
        what = sha256(repr((type(self).__qualname__, *mechanism)).encode())
        what.update(client + averages.tobytes())
        rng = stream(self._seed, Purpose.STATISTICS_NOISE, exchange, what.digest()[:16])
        return {**statistics, "averages": self.privacy.of_statistics(averages, rng)}

    def scaled_blocks(self, rows: np.ndarray | ClientRows) -> Iterator[np.ndarray]:
        """Yield blocks of rows, clipped to the bounds and scaled to [-1, 1]."""
        middle, half = self.scale_of_bounds()
        for block in blocks(rows):
            yield np.clip((block - middle) / half, -1.0, 1.0)

    def scale_of_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the middle of each column's bounds, and half of their distance."""
        low, high = bounds_of(self)
        return low / 2 + high / 2, high / 2 - low / 2

    def _checked(self, X: Any, clients: Any) -> Any:
        rows = super()._checked(X, clients)
        if (self.privacy is None) != (self.bounds is None):
            raise ValueError(
                "privacy needs bounds=(lowest, highest) of the columns, known without a look at "
                "the data."
                if self.bounds is None
                else "bounds are used with privacy only: pass privacy=, or leave bounds out."
            )
        if self.privacy is not None:
            self.privacy._validate_params()
            bounds_of(self)
            if fitted_elsewhere():
                raise ValueError(
                    f"{type(self).__name__}: the noise of privacy is that of a simulation, and "
                    "protects no data: leave privacy out."
                )
        return rows

    def _fit_here(self, rows: Any, federation: Federation) -> None:
        self.__dict__.pop("_noise_multiplier", None)  # of an earlier fit
        if self.privacy is not None:
            self._seed = draw_seed(self.random_state)
        super()._fit_here(rows, federation)
        if self.privacy is not None:  # the parameter may be set anew after the fit
            self._noise_multiplier = float(self.privacy.noise_multiplier)
            self.exchange_["result"] = "noisy" if self._noise_multiplier else "clipped"


def bounds_of(transformer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of each column, checked to be finite and in order."""
    if len(transformer.bounds) != 2:
        raise ValueError(
            f"bounds={transformer.bounds!r}: pass (lowest, highest), each a number or one a column."
        )
    shape = (transformer.n_features_in_,)
    ends = [numbers(end, "bounds") for end in transformer.bounds]
    for end in ends:
        if end.shape not in ((), shape):
            raise ValueError(f"bounds has an end of shape {end.shape}: pass a number or {shape}.")
    low, high = (np.broadcast_to(end, shape) for end in ends)
    if not (low < high).all():
        j = int(np.flatnonzero(~(low < high))[0])
        raise ValueError(
            f"bounds of column {transformer.column_name(j)!r} are {low[j]} and {high[j]}: the "
            "first must be lower."
        )
    return low, high


def average_rows(sums: list[np.ndarray], n: int) -> Statistics:
    """Return the vector of averages over ``n`` rows, given sums of each block."""
    return {"n": np.array([n]), "averages": np.sum(sums, axis=0) / n}


def merge_averages(statistics: list[Statistics]) -> Statistics:
    """Return the averages over all clients' rows."""
    n = np.array([s["n"][0] for s in statistics])
    averages = np.stack([s["averages"] for s in statistics])
    return {"n": n.sum(), "averages": n @ averages / n.sum()}


def sums_of_powers(block: np.ndarray, most: int) -> np.ndarray:
    """Return each column's number of missing values, and its sums of powers up to ``most``."""
    missing = np.isnan(block)
    block = np.where(missing, 0.0, block)
    powers = [(block**p).sum(axis=0) for p in range(1, most + 1)]
    return np.concatenate([missing.sum(axis=0), *powers])


def moments_of_averages(merged: Statistics, n_features: int) -> list[np.ndarray]:
    """Return averages of powers over the values that are there, in [-1, 1], from noisy ones."""
    missing, *powers = merged["averages"].reshape(-1, n_features)
    present = np.clip(1 - missing, 1 / merged["n"], 1.0)
    return [np.clip(power / present, -1.0, 1.0) for power in powers]
