import numpy as np

from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.modules import SoftmaxRegression

SELECTORS = {
    "FedALIGN": FedAlignSelector(eps=6e-4, warmup=1),
    "everybody": RandomSelector(1.0, probability="uniform", replace=False, ignore_priority=True),
}


def make_estimator(rounds, selector="FedALIGN", checkpoint=None):
    return FederatedClassifier(
        SoftmaxRegression(5, 3),
        selector=SELECTORS[selector],
        priority=["a"],
        n_rounds=rounds,
        local_epochs=2,
        engine="loop",
        checkpoint=checkpoint,
        random_state=0,
    )


def make_site(name):
    rng = np.random.default_rng(ord(name))
    y = rng.integers(0, 3, 30)
    y[:3] = [0, 1, 2]
    return (rng.normal(size=(30, 5)) + np.eye(5)[y]).astype(np.float32), y
