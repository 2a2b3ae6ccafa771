"""What a fit shows while it runs."""

from typing import Any

import numpy as np
from tqdm.auto import tqdm


class Progress:
    """A bar over the rounds of a fit, with what the last one came to.

    Parameters
    ----------
    done, total : int
        Rounds finished before, and rounds planned.
    shown : bool
        Whether to show anything.
    """

    def __init__(self, done: int, total: int, shown: bool):
        self.megabytes = 0.0
        self.scored: dict[str, str] = {}  # in the last round that was validated
        self.bar = tqdm(initial=done, total=total, unit="round", disable=not shown)

    def begin_round(self) -> None:
        """Wait."""

    def end_round(self, row: dict[str, Any]) -> bool:
        """Show a finished round; it is no reason to stop."""
        self.megabytes += (row["bytes_down"] + row["bytes_up"]) / 1e6
        objective = row["objective"]
        name, loss = "objective", objective
        if not np.isfinite(objective):
            name, loss = "train loss", row["train_loss"]
        told = {name: f"{loss:.4f}", "cohort": row["n_aggregated"], "MB": f"{self.megabytes:.1f}"}
        if np.isfinite(row.get("val_score", np.nan)):
            self.scored = {"val score": f"{row['val_score']:.3f}"}
        self.bar.set_postfix(told | self.scored, refresh=False)
        self.bar.update()
        return False

    def close(self) -> None:
        """Leave the bar as it stands."""
        self.bar.close()
