"""The progress bar of a fit."""

from typing import Any

import numpy as np
from tqdm.auto import tqdm


class Progress:
    """Progress bar over the rounds of a fit, with the values of the last round."""

    def __init__(self, done: int, total: int, shown: bool):
        self.megabytes = 0.0
        self.score: dict[str, str] = {}  # of the last validated round
        self.bar = tqdm(initial=done, total=total, unit="round", disable=not shown)

    def update(self, row: dict[str, Any]) -> None:
        """Update the bar by a finished round's row of history_."""
        self.megabytes += (row["bytes_down"] + row["bytes_up"]) / 1e6
        has_objective = np.isfinite(row["objective"])
        name, column = ("objective",) * 2 if has_objective else ("train loss", "train_loss")
        if np.isfinite(row.get("val_score", np.nan)):
            self.score = {"val score": f"{row['val_score']:.3f}"}
        values = {name: f"{row[column]:.4f}", "cohort": row["n_aggregated"]}
        values |= {"MB": f"{self.megabytes:.1f}", **self.score}
        self.bar.set_postfix(values, refresh=False)
        self.bar.update()

    def close(self) -> None:
        """Close the bar, which stays on the screen."""
        self.bar.close()
