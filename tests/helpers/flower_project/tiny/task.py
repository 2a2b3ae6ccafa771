import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer

from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.modules import SoftmaxRegression
from skfed.pipeline import FederatedPipeline
from skfed.preprocessing import (
    FederatedOneHotEncoder,
    FederatedSimpleImputer,
    FederatedStandardScaler,
)

SELECTORS = {
    "FedALIGN": FedAlignSelector(eps=6e-4, warmup=1),
    "everybody": RandomSelector(1.0, probability="uniform", replace=False, ignore_priority=True),
}


def make_estimator(rounds, selector="FedALIGN", checkpoint=None, with_steps=False):
    model = FederatedClassifier(
        SoftmaxRegression(5, 3),
        selector=SELECTORS[selector],
        priority=["a"],
        n_rounds=rounds,
        local_epochs=2,
        engine="loop",
        checkpoint=checkpoint,
        random_state=0,
    )
    return (
        FederatedPipeline([("columns", make_columns()), ("model", model)]) if with_steps else model
    )


def make_columns():
    numbers = FederatedPipeline(
        [("impute", FederatedSimpleImputer()), ("scale", FederatedStandardScaler())]
    )
    text = FederatedOneHotEncoder(sparse_output=False)
    return ColumnTransformer([("numbers", numbers, ["u", "v"]), ("text", text, ["w"])])


def make_site(name):
    rng = np.random.default_rng(ord(name))
    y = rng.integers(0, 3, 30)
    y[:3] = [0, 1, 2]
    return (rng.normal(size=(30, 5)) + np.eye(5)[y]).astype(np.float32), y


def make_table(name):
    """Return numbers with missing values, and text of three categories."""
    X, y = make_site(name)
    table = pd.DataFrame(X[:, :2].astype(float), columns=["u", "v"])
    table.loc[:: ord(name) % 5 + 2, "u"] = np.nan
    return table.assign(w=np.array(["red", "green", "blue"])[np.arange(len(y)) % 3]), y
