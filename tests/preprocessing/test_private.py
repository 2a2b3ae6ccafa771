"""Clipped and noisy sums: privacy=GaussianMechanism(...) with bounds."""

from hashlib import sha256

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

from skfed import FederatedClassifier, load, make_pipeline, save
from skfed.preprocessing import (
    FederatedMinMaxScaler,
    FederatedOneHotEncoder,
    FederatedPCA,
    FederatedRobustScaler,
    FederatedSimpleImputer,
    FederatedStandardScaler,
    pooled,
)
from skfed.preprocessing._base import fitting_elsewhere
from skfed.privacy import GaussianMechanism, privacy_spent
from skfed.utils._ids import digest
from skfed.utils._seeding import Purpose, draw_seed, stream

CLIPS = GaussianMechanism(clip=100, noise_multiplier=0)
NOISY = GaussianMechanism(clip=1.0, noise_multiplier=0.5)
ALL = [FederatedStandardScaler(), FederatedSimpleImputer(), FederatedPCA()]


@pytest.fixture(scope="module")
def table():
    """Rows of twelve clients within [-10, 30] and [0, 1]."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-10, 30, 240), rng.beta(2, 5, 240)])
    return X, np.arange(240) % 12


def private(transformer, privacy=NOISY, bounds=((-10, 0), (30, 1)), **params):
    return type(transformer)(privacy=privacy, bounds=bounds, random_state=0, **params)


@pytest.mark.parametrize("transformer", ALL, ids=str)
def test_without_noise_and_within_bounds_statistics_are_those_of_the_rows(table, transformer):
    X, ids = table
    own = private(transformer, CLIPS).fit(X, clients=ids)
    exact = type(transformer)().fit(X, clients=ids)
    for name in ("mean_", "var_", "statistics_", "explained_variance_"):
        if hasattr(exact, name):
            # PCA's sums are divided by n, and by n - 1 again.
            np.testing.assert_allclose(getattr(own, name), getattr(exact, name), rtol=1e-2 / 2)
    np.testing.assert_allclose(own.transform(X), exact.transform(X), rtol=1e-2, atol=1e-6)
    assert set(own.exchange_["result"]) == {"clipped"}


def test_missing_values_do_not_count(table):
    X, ids = table
    X = np.where(np.random.default_rng(1).random(X.shape) < 0.3, np.nan, X)
    scaler = private(ALL[0], CLIPS).fit(X, clients=ids)
    np.testing.assert_allclose(scaler.mean_, np.nanmean(X, axis=0))
    np.testing.assert_allclose(scaler.var_, np.nanvar(X, axis=0))
    imputer = private(ALL[1], CLIPS).fit(X, clients=ids)
    np.testing.assert_allclose(imputer.statistics_, np.nanmean(X, axis=0))


def test_noise_by_hand():
    """Two clients of 3 and 1 rows; (0, u, u^2) of [3, 3, 3] in [1, 3] is (0, 1, 1)."""
    X, ids = np.array([[3.0], [3.0], [3.0], [1.0]]), ["a", "a", "a", "b"]
    mechanism = GaussianMechanism(clip=1.0, noise_multiplier=0.01)
    params = {"privacy": mechanism, "bounds": (1, 3), "random_state": 7}
    scaler = FederatedStandardScaler(**params).fit(X, clients=ids)
    sent = {"a": np.array([0, 1, 1]) / np.sqrt(2), "b": np.array([0, -1, 1]) / np.sqrt(2)}
    seed = draw_seed(7)
    what = repr(("FederatedStandardScaler", 1.0, 0.01)).encode()
    for client, averages in sent.items():
        before_clipping = np.sign(averages)
        key = sha256(what + digest(client) + before_clipping.tobytes()).digest()[:16]
        rng = stream(seed, Purpose.STATISTICS_NOISE, 0, key)
        sent[client] = averages + rng.normal(0, 0.01, 3)
    missing, mean, square = (3 * sent["a"] + sent["b"]) / 4
    present = min(1 - missing, 1)
    np.testing.assert_allclose(scaler.mean_, 2 + mean / present)
    np.testing.assert_allclose(scaler.var_, square / present - (mean / present) ** 2)


@pytest.mark.parametrize("transformer", ALL, ids=str)
def test_noise_is_keyed_by_seed_and_client(table, transformer):
    X, ids = table
    first = private(transformer).fit(X, clients=ids)
    mixed = np.argsort(ids, kind="stable")
    again = private(transformer).fit(X[mixed], clients=ids[mixed])
    other = private(transformer).set_params(random_state=1).fit(X, clients=ids)
    exact = type(transformer)().fit(X, clients=ids)
    rows = np.full((1, 2), np.nan if isinstance(transformer, FederatedSimpleImputer) else 0.0)
    found = first.transform(rows)
    np.testing.assert_allclose(again.transform(rows), found, rtol=1e-10)
    assert not np.allclose(other.transform(rows), found)
    assert not np.allclose(exact.transform(rows), found)
    assert np.isfinite(found).all()
    assert set(first.exchange_["result"]) == {"noisy"}
    assert set(first.exchange_["held"]) == {"n, averages"}


def noise_of(transformer, X, **params):
    """The noise of each client of one row, of one seed."""
    found = type(transformer)(privacy=NOISY, bounds=(-3, 3), random_state=0, **params)
    noise = []

    def of_statistics(self, values, rng):
        noise.append(rng.normal(size=2))
        return values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianMechanism, "of_statistics", of_statistics)
        found.fit(X, clients=np.arange(len(X)))
    return np.ravel(noise)


def test_steps_of_one_seed_share_no_noise():
    X = np.random.default_rng(0).uniform(-3, 3, (4, 2))
    found = np.concatenate([noise_of(one, X) for one in ALL] + [noise_of(ALL[0], X[:, ::-1])])
    assert len(set(found)) == len(found)
    assert (noise_of(ALL[0], X) == noise_of(ALL[0], X)).all()


def test_mechanisms_share_no_noise():
    """Two messages that differ in the multiple of the noise only would tell the values."""
    X, ids = np.array([[1.0], [2.0], [-1.0], [0.5]]), [0, 0, 1, 1]
    few, many = (
        private(ALL[0], GaussianMechanism(5.0, s), (-3, 3)).fit(X, clients=ids).mean_
        for s in (1e-9, 2e-9)
    )
    exact = X.mean()
    assert 0 < abs(few - exact) < 1e-6 and not np.isclose(many - exact, 2 * (few - exact))


def test_more_clients_bring_it_closer():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 4, size=(4000, 2))
    errors = [
        np.abs(private(ALL[0], bounds=(0, 4)).fit(X, clients=np.arange(4000) % k).mean_ - 2).max()
        for k in (4, 2000)
    ]
    assert errors[1] < 0.1 < errors[0]


def test_a_variance_that_noise_makes_negative_is_that_of_evenly_spread_values():
    X, ids = np.full((6, 3), 5.0), np.arange(6) % 2
    scaler = private(ALL[0], bounds=(0, 12)).fit(X, clients=ids)
    assert (scaler.var_ > 0).all() and 12.0 in scaler.var_.round(9)  # 6^2 / 3


def test_a_minimum_and_maximum_that_are_bounds_need_no_exchange(table):
    X, ids = table
    scaler = FederatedMinMaxScaler(bounds=([-10, 0], 30), clip=True).fit(X, clients=ids)
    assert scaler.data_min_.tolist() == [-10, 0] and scaler.data_max_.tolist() == [30, 30]
    np.testing.assert_allclose(scaler.transform(X)[:, 0], (X[:, 0] + 10) / 40)
    assert set(scaler.exchange_["bytes_up"]) == {0} and set(scaler.exchange_["held"]) == {""}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"privacy": NOISY}, "privacy needs bounds=.lowest, highest."),
        ({"bounds": (0, 1)}, "bounds are used with privacy only"),
        ({"privacy": NOISY, "bounds": (0, 1, 2)}, "pass .lowest, highest."),
        ({"privacy": NOISY, "bounds": ([0, 0, 0], 1)}, "bounds has an end of shape"),
        ({"privacy": NOISY, "bounds": (0, np.inf)}, "bounds has values that are not finite"),
        ({"privacy": NOISY, "bounds": ([0, 2], 2)}, "bounds of column 1 are 2.0 and 2.0"),
        ({"privacy": GaussianMechanism(clip=-1), "bounds": (0, 1)}, "clip"),
        ({"privacy": 3, "bounds": (0, 1)}, "privacy"),
    ],
    ids=str,
)
@pytest.mark.parametrize("transformer", ALL, ids=str)
def test_bad_parameters_are_named(table, transformer, params, message):
    with pytest.raises(ValueError, match=message):
        type(transformer)(**params).fit(table[0], clients=table[1])


def test_what_is_refused(table):
    X, ids = table
    given = {"privacy": NOISY, "bounds": (-10, 30)}
    for params in ({"strategy": "median"}, {"strategy": "constant"}, {"add_indicator": True}):
        with pytest.raises(ValueError, match="privacy covers the sums of strategy='mean' only"):
            FederatedSimpleImputer(**given, **params).fit(X, clients=ids)
    for transformer in (FederatedRobustScaler, FederatedMinMaxScaler, FederatedOneHotEncoder):
        with pytest.raises(TypeError, match="privacy"):
            transformer(privacy=NOISY)
    with (
        fitting_elsewhere(lambda transformer, rows: None, made_up=False),
        pytest.raises(ValueError, match="noise of privacy is that of a simulation"),
    ):
        FederatedStandardScaler(**given).fit(X)


def test_privacy_spent_by_a_pipeline(table):
    pytest.importorskip("opacus")
    X, ids = table
    y = (X[:, 0] > 10).astype(int)
    scaler = private(ALL[0])
    model = FederatedClassifier(
        update_privacy=NOISY, loss_privacy=NOISY, n_rounds=2, random_state=0
    )
    pipe = make_pipeline(scaler, model).fit(X, y, clients=ids)
    spent, of_scaler = privacy_spent(pipe), privacy_spent(pipe[0])
    assert list(spent) == ["n_statistics", "n_updates", "n_losses", "epsilon"]
    assert spent["n_statistics"].tolist() == [1] * 12
    alone = privacy_spent(pipe[-1])
    pd.testing.assert_series_equal(spent["n_updates"], alone["n_updates"], check_index=False)
    assert (spent["epsilon"].to_numpy() >= alone["epsilon"].to_numpy()).all()
    assert (spent["epsilon"].to_numpy() >= of_scaler["epsilon"].to_numpy()).all()
    assert of_scaler["epsilon"].nunique() == 1 and np.isfinite(of_scaler["epsilon"]).all()
    exact = make_pipeline(FederatedStandardScaler(), model).fit(X, y, clients=ids)
    assert np.isinf(privacy_spent(exact)["epsilon"]).all()
    public = FederatedMinMaxScaler(bounds=(-10, 30)).fit(X, clients=ids)
    assert privacy_spent(public)["epsilon"].tolist() == [0] * 12
    with pytest.raises(TypeError, match="nothing exchanges messages"):
        privacy_spent(StandardScaler().fit(X))


def test_epsilon_is_that_of_the_fit_whatever_parameters_say_later(table, tmp_path):
    X, ids = table
    scaler = private(FederatedStandardScaler()).fit(X, clients=ids)
    epsilon = privacy_spent(scaler)["epsilon"]
    save(scaler, tmp_path / "scaler")
    assert privacy_spent(load(scaler, tmp_path / "scaler"))["epsilon"].equals(epsilon)
    scaler.set_params(privacy__noise_multiplier=1000.0)
    assert privacy_spent(scaler)["epsilon"].equals(epsilon)
    scaler.set_params(privacy=None, bounds=None).fit(X, clients=ids)
    assert np.isinf(privacy_spent(scaler)["epsilon"]).all()


@pytest.mark.parametrize("step", [StandardScaler(), pooled(StandardScaler())], ids=str)
@pytest.mark.filterwarnings("ignore:StandardScaler. fitted on the rows")
def test_rows_that_were_pooled_have_no_privacy(table, step):
    X, ids = table
    noisy = private(FederatedStandardScaler())
    spent = privacy_spent(make_pipeline(step, noisy).fit(X, clients=ids))
    assert np.isinf(spent["epsilon"]).all() and (spent["n_statistics"] == 1).all()
