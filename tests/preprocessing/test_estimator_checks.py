"""Federated transformers as scikit-learn's checks see them."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfed.preprocessing import (
    FederatedMinMaxScaler,
    FederatedOneHotEncoder,
    FederatedOrdinalEncoder,
    FederatedPCA,
    FederatedRobustScaler,
    FederatedSimpleImputer,
    FederatedStandardScaler,
)


@pytest.mark.filterwarnings("ignore:clients was not given")
@parametrize_with_checks(
    [
        FederatedStandardScaler(),
        FederatedMinMaxScaler(),
        FederatedRobustScaler(),
        FederatedSimpleImputer(),
        FederatedSimpleImputer(strategy="median"),
        FederatedSimpleImputer(strategy="most_frequent"),
        FederatedOneHotEncoder(),
        FederatedOrdinalEncoder(),
        FederatedPCA(),
    ]
)
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)
