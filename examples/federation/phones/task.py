"""The estimator and the format of rows, which the server and the sites share."""

from pathlib import Path

import numpy as np
import pandas as pd

from skfed import FedAlignSelector, FederatedClassifier

ACTIVITIES = ["Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking"]
SITES = ["site 1", "site 2", "site 3", "site 4", "site 5"]


def make_estimator(rounds: int, checkpoint: str | None = None) -> FederatedClassifier:
    """Return FedALIGN with priority for the first two sites; the others train when they match."""
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
    # The sites share no means, so they scale by fixed units: milliseconds become seconds.
    large = [name for name in X.columns if "PEAK" in name]
    return X.assign(**(X[large] / 1000)), rows["activity"].to_numpy()
