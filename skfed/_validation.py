"""Held-out rows: which of them count, and what a net does on them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from skorch import NeuralNet

from skfed._federation import rows_of
from skfed._server import Server
from skfed.engines import evaluate
from skfed.utils._seeding import Purpose


def priority_rows(clients, n_samples, ids, priority, name="clients") -> np.ndarray:
    """Return the numbers of the rows that belong to priority clients; at least one."""
    rows = np.flatnonzero(rows_of(clients, n_samples, ids, priority, name))
    if not len(rows):
        raise ValueError(
            f"{name} has no row of a priority client: pass rows of at least one of them, or "
            f"leave {name} out to count every row."
        )
    return rows


def no_validation(net: NeuralNet) -> dict[str, float]:
    return {}


@dataclass(frozen=True)
class Validation:
    """Measures a net on validation data."""

    server: Server
    rows: tuple[np.ndarray, np.ndarray]  # X and y, as the net takes them
    score: Callable[[np.ndarray, np.ndarray], float]  # of outputs, on y

    def __call__(self, net: NeuralNet) -> dict[str, float]:
        """Return the columns that ``history_`` gets."""
        rng = self.server.stream(Purpose.EVALUATION_LAYERS)
        loss, outputs = evaluate(net, *self.rows, rng)
        return {"val_loss": loss, "val_score": self.score(outputs, self.rows[1])}
