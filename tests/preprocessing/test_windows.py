"""FederatedStandardScaler takes windows of a time series, column by column over their steps."""

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

import skfed
from skfed import FederatedClassifier
from skfed.preprocessing import FederatedStandardScaler

WINDOWS = np.random.default_rng(0).normal(size=(8, 5, 3)) * [1, 10, 100] + [0, 5, 7]
IDS = ["a", "b", "b", "a", "c", "c", "c", "c"]


@pytest.mark.parametrize("clients", [IDS, np.array(IDS), pd.Series(IDS), pd.Categorical(IDS)])
def test_each_column_is_scaled_over_all_steps(clients):
    scaler = FederatedStandardScaler()
    scaled = scaler.fit_transform(WINDOWS, clients=clients)
    expected = StandardScaler().fit(WINDOWS.reshape(-1, 3))
    np.testing.assert_allclose(scaler.mean_, expected.mean_)
    np.testing.assert_allclose(scaler.scale_, expected.scale_)
    assert scaler.n_samples_seen_ == 40 and scaler.n_features_in_ == 3
    np.testing.assert_allclose(scaled, (WINDOWS - expected.mean_) / expected.scale_)
    np.testing.assert_allclose(scaler.inverse_transform(scaled), WINDOWS)
    assert scaler.exchange_["client"].tolist() == ["a", "b", "c"]


def test_missing_steps_do_not_count():
    holes = WINDOWS.copy()
    holes[0, :2, 1] = np.nan
    scaler = FederatedStandardScaler().fit(holes, clients=IDS)
    np.testing.assert_allclose(scaler.mean_, np.nanmean(holes, axis=(0, 1)))
    assert scaler.n_samples_seen_.tolist() == [40, 38, 40]


def test_each_client_s_own_scale():
    scaler = FederatedStandardScaler(scope="client")
    scaled = scaler.fit_transform(WINDOWS, clients=IDS)
    assert scaled.shape == WINDOWS.shape
    for name in "abc":
        own = scaled[np.array(IDS) == name]
        np.testing.assert_allclose(own.mean(axis=(0, 1)), 0, atol=1e-12)
        np.testing.assert_allclose(own.std(axis=(0, 1)), 1)


def test_what_does_not_fit_is_named():
    scaler = FederatedStandardScaler().fit(WINDOWS, clients=IDS)
    with pytest.raises(
        ValueError, match="X has 2 features, but FederatedStandardScaler is expecting 3"
    ):
        scaler.transform(WINDOWS[:, :, :2])
    with pytest.raises(ValueError, match="clients has 7 entries, but X has 8 rows"):
        scaler.fit(WINDOWS, clients=IDS[:-1])


def test_in_a_pipeline_a_net_gets_windows():
    y = np.arange(8) % 2
    model = skfed.make_pipeline(FederatedStandardScaler(), FederatedClassifier(n_rounds=2))
    model.fit(WINDOWS, y, clients=IDS, X_val=WINDOWS, y_val=y)
    expected = FederatedClassifier(n_rounds=2)
    scaled = (WINDOWS - WINDOWS.mean(axis=(0, 1))) / WINDOWS.std(axis=(0, 1))
    expected.fit(scaled, y, clients=IDS)
    np.testing.assert_allclose(
        model.predict_proba(WINDOWS), expected.predict_proba(scaled), rtol=1e-4
    )
    assert model[-1].history_["val_score"].notna().all()
