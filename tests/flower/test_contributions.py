"""Contributions over Flower are those of the simulation, bit for bit."""

import pandas as pd
import pytest

from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.contribution import DataBanzhaf, GTGShapley


@pytest.mark.parametrize(
    ("selector", "method"),
    [
        (FedAlignSelector(eps=0.1, warmup=1), DataBanzhaf(every=2)),
        (RandomSelector(3, ignore_priority=True), DataBanzhaf(metric="accuracy")),
        (
            RandomSelector(3, ignore_priority=True),
            GTGShapley(min_permutations=6, max_permutations=6),
        ),
    ],
)
def test_a_run_has_the_contributions_of_the_simulation(
    selector, method, federate, blobs, same_model
):
    X, y, clients = blobs
    estimator = FederatedClassifier(
        selector=selector,
        priority=["a", "b"],
        contribution=method,
        n_rounds=4,
        engine="loop",
        random_state=3,
    )
    strategy, grid = federate(estimator)
    strategy.start(grid)
    model = estimator.fit(X, y, clients=clients)
    assert same_model(model, strategy.model_)
    pd.testing.assert_frame_equal(
        strategy.model_.contributions_, model.contributions_, check_exact=True
    )
    timeless = [name for name in model.history_ if not name.endswith("_seconds")]
    pd.testing.assert_frame_equal(strategy.model_.history_[timeless], model.history_[timeless])
    assert model.contributions_["value"].ne(0).sum() >= 2
