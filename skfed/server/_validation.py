"""Held-out rows: which of them count, and what a net does on them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import validate_data
from skorch import NeuralNet

from skfed._federation import Federation, rows_of
from skfed.engines import evaluate
from skfed.nets import cast
from skfed.server._columns import warn_of_far_columns
from skfed.server._state import ServerState
from skfed.utils._checks import naming
from skfed.utils._seeding import Purpose, stream

if TYPE_CHECKING:
    from skfed._estimator import BaseFederated


def priority_rows(clients, n_samples, ids, priority, name="clients") -> np.ndarray:
    """Return the numbers of the rows that belong to priority clients; at least one."""
    rows = np.flatnonzero(rows_of(clients, n_samples, ids, priority, name))
    if not len(rows):
        raise ValueError(
            f"{name} has no row of a priority client: pass rows of at least one of them, or "
            f"leave {name} out to count every row."
        )
    return rows


def is_due(t: int, every: int, n_rounds: int) -> bool:
    """Tell whether the model is validated after round t, whether or not a callback stops there."""
    return (t + 1) % every == 0 or t + 1 == n_rounds


@dataclass(frozen=True)
class Validation:
    """Measures a net on validation data.

    Parameters
    ----------
    server : ServerState
        Whose seed the random layers have.
    rows : tuple of ndarray
        X and y, as the net takes them.
    score : callable
        Scores outputs on y.
    every : int
        Rounds from one validation to the next.
    n_rounds : int
        Rounds that the server is to have finished in the end.
    """

    server: ServerState
    rows: tuple[np.ndarray, np.ndarray]
    score: Callable[[np.ndarray, np.ndarray], float]
    every: int
    n_rounds: int

    def is_due(self, t: int) -> bool:
        """Tell whether the model is validated after round t, wherever the rounds stop."""
        return is_due(t, self.every, self.n_rounds)

    def after_round(self, net: NeuralNet, t: int) -> dict[str, float]:
        """Return the columns that ``history_`` gets; NaN between two validations."""
        if not self.is_due(t):
            return {"val_loss": float("nan"), "val_score": float("nan")}
        rng = stream(self.server.seed, Purpose.EVALUATION_LAYERS, t)
        loss, outputs = evaluate(net, *self.rows, rng)
        return {"val_loss": loss, "val_score": self.score(outputs, self.rows[1])}

    def after_stop(self, net: NeuralNet, t: int) -> dict[str, float]:
        """Return the columns that are lacking if round t turns out to be the last."""
        return {} if self.is_due(t) else replace(self, n_rounds=t + 1).after_round(net, t)


def make_validation(
    model: "BaseFederated",
    X: np.ndarray,
    X_val,
    y_val,
    clients_val,
    federation: Federation,
    server: ServerState,
) -> Validation | None:
    """Check validation data; return what measures a net on the rows that count."""
    if X_val is None and y_val is None and clients_val is None:
        return None
    if X_val is None or y_val is None:
        raise ValueError("X_val and y_val go together: pass both or neither.")
    with naming("X_val", "y_val"):
        y_val = model._check_targets(y_val, "y_val")
        X_val, y_val = validate_data(
            model, X_val, y_val, reset=False, dtype="numeric", allow_nd=True, multi_output=True
        )
        model._check_sample_shape(X_val, "X_val")
        y_val = model._encode(y_val, "y_val")
    if cast(server.net, X_val[:1]).dtype.kind == "f":  # the integers of an embedding have no scale
        warn_of_far_columns(X, X_val, getattr(model, "feature_names_in_", None))
    if clients_val is not None:
        rows = priority_rows(
            clients_val, len(X_val), federation.ids, federation.priority, "clients_val"
        )
        X_val, y_val = X_val[rows], y_val[rows]
    with naming("X_val", "y_val"):
        X_val = cast(server.net, X_val)
        y_val = model._targets(server.net, X_val, y_val)
    return Validation(
        server, (X_val, y_val), model._val_score, model.validate_every, model.n_rounds
    )
