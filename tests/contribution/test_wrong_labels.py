"""A federation in which a third of the free clients have random labels."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.contribution import DataBanzhaf, ExactShapley, GTGShapley, LeaveOneOut

X, Y = load_digits(return_X_y=True)
X = X / 16
N_PRIORITY, N_FREE, N_WRONG = 3, 6, 2
METHODS = {
    "leave one out": LeaveOneOut(),
    "Banzhaf": DataBanzhaf(),
    "Shapley": ExactShapley(),
    "GTG-Shapley": GTGShapley(max_permutations=36),
}
SELECTORS = {
    "random": RandomSelector(6, "uniform", replace=False, ignore_priority=True),
    "large eps": FedAlignSelector(eps=100.0, warmup=0),
}


def fit(seed, **params):
    """Clients 0 to 2 have priority; of the free ones, 7 and 8 have random labels."""
    rng = np.random.default_rng(seed)
    clients = rng.permutation(np.arange(len(X)) % (N_PRIORITY + N_FREE))
    wrong = clients >= N_PRIORITY + N_FREE - N_WRONG
    y = np.where(wrong, rng.permutation(Y), Y)
    model = FederatedClassifier(priority=range(N_PRIORITY), n_rounds=4, random_state=seed, **params)
    return model.fit(X, y, clients=clients)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("method", METHODS)
def test_clients_with_random_labels_are_worth_less(method, selector, seed):
    model = fit(seed, selector=SELECTORS[selector], contribution=METHODS[method])
    values = model.contributions_["value"]
    right, wrong = values.loc[N_PRIORITY:6], values.loc[7:]
    assert len(right) == N_FREE - N_WRONG and len(wrong) == N_WRONG
    assert wrong.mean() < right.mean()


@pytest.mark.parametrize("seed", range(5))
def test_under_a_good_eps_they_are_silent(seed):
    model = fit(seed, selector=FedAlignSelector(eps=0.3, warmup=0.3), contribution=LeaveOneOut())
    chosen = {client for cohort in model.history_["cohort"][2:] for client in cohort}
    assert not chosen & {7, 8} and chosen > {0, 1, 2}
    assert (model.contributions_.loc[7:] == 0).all(axis=None)
    assert model.contributions_.loc[:6, "value"].gt(0).any()
