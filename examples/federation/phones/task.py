"""The Pipeline and the format of rows, which server and sites share."""

from pathlib import Path

import numpy as np
import pandas as pd

from skfed import FedAlignSelector, FederatedClassifier, make_pipeline
from skfed.pipeline import FederatedPipeline
from skfed.preprocessing import FederatedSimpleImputer, FederatedStandardScaler

ACTIVITIES = [
    "Downstairs",
    "Jogging",
    "Sitting",
    "Standing",
    "Upstairs",
    "Walking",
]
SITES = ["site 1", "site 2", "site 3", "site 4", "site 5"]


def make_estimator(
    rounds: int, checkpoint: str | None = None
) -> FederatedPipeline:
    """Return a Pipeline that is fitted on raw rows, none of which is sent.

    Missing values become means, and columns are scaled, over all sites. In
    FedALIGN the first two sites have priority; others train when they match.
    """
    model = FederatedClassifier(
        selector=FedAlignSelector(eps=0.2, warmup=1),
        priority=SITES[:2],
        n_rounds=rounds,
        local_epochs=5,
        checkpoint=checkpoint,
        random_state=0,
    )
    return make_pipeline(
        FederatedSimpleImputer(), FederatedStandardScaler(), model
    )


def read_site(folder: str | Path) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the raw rows and labels of all files in a site's folder."""
    frames = [pd.read_csv(path) for path in sorted(Path(folder).glob("*.csv"))]
    if not frames:
        raise FileNotFoundError(f"there are no files *.csv in {folder}.")
    rows = pd.concat(frames, ignore_index=True)
    return rows.drop(columns="activity"), rows["activity"].to_numpy()
