"""What server and sites agree on before the first message: the estimator, and what a row is."""

from pathlib import Path

import numpy as np
import pandas as pd

from skfed import FedAlignSelector, FederatedClassifier

ACTIVITIES = ["Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking"]
SITES = ["site 1", "site 2", "site 3", "site 4", "site 5"]


def make_estimator(rounds: int, checkpoint: str | None = None) -> FederatedClassifier:
    """Return FedALIGN for the first two sites; the others are taken where they match."""
    return FederatedClassifier(
        selector=FedAlignSelector(eps=0.2, warmup=1),
        priority=SITES[:2],
        n_rounds=rounds,
        local_epochs=5,
        checkpoint=checkpoint,
        random_state=0,
    )


def read_site(folder: str | Path) -> tuple[pd.DataFrame, np.ndarray]:
    """Return X and y of a site: the rows of all users' files in its folder."""
    frames = [pd.read_csv(path) for path in sorted(Path(folder).glob("*.csv"))]
    rows = pd.concat(frames, ignore_index=True)
    X = rows.drop(columns="activity").fillna(0.0)
    # No site knows the others' means, so the units are agreed on: seconds for milliseconds, and
    # a tenth for what is in m/s^2.
    large = [name for name in X.columns if "PEAK" in name]
    return X.assign(**(X[large] / 1000)), rows["activity"].to_numpy()
