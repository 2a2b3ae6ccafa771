"""Clipping and noise of updates and losses, and the privacy that they spend."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from rules import Admitting
from sklearn.base import clone
from torch import nn

from skfed import (
    FedAlignSelector,
    FederatedClassifier,
    FederatedRegressor,
    PowerOfChoice,
    RandomSelector,
)
from skfed.aggregation import BaseAggregator, CoordinateMedian, NormClipping, Scaffold
from skfed.modules import SoftmaxRegression
from skfed.privacy import GaussianMechanism, privacy_spent
from skfed.selection import BaseSelector, Cohort

EVERYBODY = RandomSelector(1.0, probability="uniform", replace=False)


def fit(blobs, **params):
    X, y, clients = blobs
    given = {"selector": EVERYBODY, "n_rounds": 3, "lr_schedule": 0.5, "random_state": 0} | params
    return FederatedClassifier(**given).fit(X, y, clients=clients)


def test_an_update_by_hand():
    """A step (3, 4) of length 5 is cut to length 2.5; one of length 1 stays."""
    model = {"w": torch.tensor([1.0, 1.0]), "counter": torch.tensor(3)}
    stack = {"w": torch.tensor([[4.0, 5.0], [1.0, 2.0]]), "counter": torch.tensor([4, 5])}
    rngs = [np.random.default_rng(i) for i in range(2)]
    quiet = GaussianMechanism(clip=2.5, noise_multiplier=0).of_updates(model, stack, ["w"], rngs)
    assert quiet["w"].tolist() == [[2.5, 3.0], [1.0, 2.0]]
    assert quiet["counter"].tolist() == [4, 5]
    noisy = GaussianMechanism(clip=2.5, noise_multiplier=2.0).of_updates(model, stack, ["w"], rngs)
    noise = np.stack([np.random.default_rng(i).normal(0, 5.0, 2) for i in range(2)])
    np.testing.assert_allclose(noisy["w"].numpy(), quiet["w"].numpy() + noise, rtol=1e-6)
    assert stack["w"].tolist() == [[4.0, 5.0], [1.0, 2.0]]  # the stack is not changed


def test_a_loss_by_hand():
    quiet = GaussianMechanism(clip=2.0, noise_multiplier=0)
    rng = np.random.default_rng(0)
    assert [quiet.of_loss(v, rng) for v in (0.5, 7.0, -1.0)] == [0.5, 2.0, 0.0]
    assert math.isnan(quiet.of_loss(math.nan, rng))
    assert GaussianMechanism(clip=2.0, noise_multiplier=-0.0).of_loss(0.5, rng) == 0.5
    noisy = [GaussianMechanism(2.0, 1.5).of_loss(1.0, rng) for _ in range(4000)]
    assert np.mean(noisy) == pytest.approx(1.0, abs=0.2)
    assert np.std(noisy) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_without_noise_it_is_norm_clipping(blobs, engine, same_model):
    mechanism = GaussianMechanism(clip=0.05, noise_multiplier=0)
    net = SoftmaxRegression(5, 3)  # the default net does not standardise X with privacy
    one = fit(blobs, estimator=net, update_privacy=mechanism, engine=engine)
    two = fit(blobs, estimator=net, aggregator=NormClipping(0.05), engine=engine)
    assert same_model(one, two)
    assert not same_model(one, fit(blobs, estimator=net, engine=engine))


def test_noise_is_the_same_whatever_the_engine_and_the_jobs(blobs, same_model):
    mechanism = GaussianMechanism(clip=0.5, noise_multiplier=0.1)
    stacked = fit(blobs, update_privacy=mechanism, engine="stacked")
    loop = fit(blobs, update_privacy=mechanism, engine="loop")
    for a, b in zip(stacked.net_.module_.parameters(), loop.net_.module_.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    jobs = fit(blobs, update_privacy=mechanism, engine="stacked", n_jobs=2, memory_budget=2**16)
    again = fit(blobs, update_privacy=mechanism, engine="stacked", memory_budget=2**16)
    assert same_model(jobs, again)
    assert not same_model(stacked, fit(blobs, update_privacy=mechanism, random_state=1))


def test_noise_has_its_deviation_and_is_new_each_round(blobs):
    """Without training the weights change by noise: the mean of 6 times N(0, (2 x 0.5)^2)."""
    silent = {"lr_schedule": 0.0, "selector": EVERYBODY, "n_rounds": 1}
    mechanism = GaussianMechanism(clip=0.5, noise_multiplier=2.0)
    moved = []
    for seed in range(60):
        model = fit(blobs, update_privacy=mechanism, random_state=seed, **silent)
        moved.append(model.net_.module_.linear.weight.detach().numpy().ravel())
    share = np.array([10, 20, 15, 30, 25, 40]) / 140
    assert np.std(moved) == pytest.approx(np.sqrt((share**2).sum()), rel=0.06)
    two = fit(blobs, update_privacy=mechanism, **(silent | {"n_rounds": 2}))
    one = fit(blobs, update_privacy=mechanism, **silent)
    step = two.net_.module_.linear.weight - one.net_.module_.linear.weight
    assert not torch.allclose(step, one.net_.module_.linear.weight)


class Again(BaseSelector):
    """Draws the first client 50 times."""

    def _select(self, round):
        return Cohort(np.zeros(50, dtype=int), np.full(50, 1 / 50))


def test_copies_of_a_client_have_different_noise(blobs):
    """The mean of 50 noises is smaller than one of them."""
    mechanism = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
    model = fit(blobs, selector=Again(), lr_schedule=0.0, n_rounds=1, update_privacy=mechanism)
    weight = model.net_.module_.linear.weight
    assert weight.std().item() == pytest.approx(1 / math.sqrt(50), rel=0.5)


def test_polled_reported_and_training_losses_are_noisy(blobs):
    mechanism = GaussianMechanism(clip=5.0, noise_multiplier=0.2)
    plain, noisy = fit(blobs, n_rounds=1), fit(blobs, n_rounds=1, loss_privacy=mechanism)
    assert plain.history_["train_loss"][0] != noisy.history_["train_loss"][0]
    for loss in ("full", "reported"):
        chosen = PowerOfChoice(d=6, clients_per_round=2, loss=loss)
        fits = [fit(blobs, selector=chosen, n_rounds=8, loss_privacy=p) for p in (None, mechanism)]
        assert list(fits[0].history_["cohort"]) != list(fits[1].history_["cohort"])
    aligned = fit(
        blobs,
        selector=FedAlignSelector(warmup=0),
        priority=["a", "b"],
        loss_privacy=GaussianMechanism(clip=1.0, noise_multiplier=0),
    )
    assert (aligned.history_["objective"] <= 1.0).all()  # ln 3 at first, but for the clipping


class InEvaluation(nn.BatchNorm1d):
    """Keeps its statistics."""

    def train(self, mode=True):
        return super().train(False)


class Taught(nn.Linear):
    """Lets a frozen teacher follow it in training."""

    def __init__(self):
        super().__init__(5, 3)
        self.teacher = nn.Linear(5, 3).requires_grad_(False)

    def forward(self, X):
        if self.training:
            self.teacher.weight.data.lerp_(self.weight.data, 0.1)
        return super().forward(X)


def test_settings_without_protection_are_refused(blobs):
    mechanism = GaussianMechanism()
    with pytest.raises(ValueError, match=r"update_privacy does not cover.*Scaffold"):
        fit(blobs, update_privacy=mechanism, aggregator=Scaffold())
    norm = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))
    with pytest.raises(ValueError, match=r"update_privacy does not cover.*running_mean.*GroupNorm"):
        fit(blobs, update_privacy=mechanism, estimator=norm)
    frozen = nn.Sequential(InEvaluation(5), nn.Linear(5, 3))
    assert np.isfinite(
        fit(blobs, update_privacy=mechanism, estimator=frozen).predict_proba(blobs[0])
    ).all()
    with pytest.raises(ValueError, match=r"does not cover what changes .*teacher\.weight may"):
        fit(blobs, update_privacy=mechanism, estimator=Taught())
    for wrong in ({"clip": 0}, {"noise_multiplier": -1.0}, {"clip": "much"}):
        with pytest.raises(ValueError, match=f"'{next(iter(wrong))}' parameter"):
            fit(blobs, update_privacy=GaussianMechanism(**wrong))
        with pytest.raises(ValueError, match=f"'{next(iter(wrong))}' parameter"):
            fit(blobs, loss_privacy=GaussianMechanism(**wrong))


def test_it_goes_with_robust_rules_regressors_and_searches(blobs):
    X, y, clients = blobs
    model = FederatedRegressor(
        update_privacy=GaussianMechanism(0.1, 0.1), aggregator=CoordinateMedian(), n_rounds=3
    )
    model = clone(model).set_params(update_privacy__clip=0.2).fit(X, y, clients=clients)
    assert np.isfinite(model.predict(X)).all()


class TestPrivacySpent:
    opacus = pytest.importorskip("opacus")

    def test_messages_are_counted(self, blobs):
        model = fit(
            blobs,
            selector=PowerOfChoice(d=6, clients_per_round=2),
            n_rounds=4,
            update_privacy=GaussianMechanism(1.0, 20.0),
            loss_privacy=GaussianMechanism(1.0, 20.0),
        )
        spent = privacy_spent(model)
        cohorts = [client for cohort in model.history_["cohort"] for client in cohort]
        for client in "abcdef":
            assert spent.loc[client, "n_updates"] == cohorts.count(client)
            assert spent.loc[client, "n_losses"] == cohorts.count(client) + 4
        by_messages = spent.sort_values("n_updates")
        assert by_messages["epsilon"].is_monotonic_increasing
        assert by_messages["epsilon"].nunique() == spent["n_updates"].nunique()

    def test_a_report_has_a_loss_and_an_upload_has_none(self, blobs):
        """All train and report in each round, two upload; the norms in reports have no noise."""
        mechanism = GaussianMechanism(1.0, 20.0)
        model = fit(blobs, selector=Admitting(), loss_privacy=mechanism)
        assert model.history_["n_trained"].tolist() == [6, 6, 6]
        assert model.history_["n_aggregated"].tolist() == [2, 2, 2]
        spent = privacy_spent(model)
        assert spent["n_losses"].tolist() == spent["n_updates"].tolist() == [3] * 6
        assert np.isinf(spent["epsilon"]).all()

    def test_epsilon_by_hand(self, blobs):
        """Two Gaussian messages of effective multipliers s/2 and s cost rho = 2/s^2 + 1/(2 s^2) in
        zero-concentrated privacy; epsilon is at most rho + 2 sqrt(rho ln(1/delta))."""
        mechanism = GaussianMechanism(1.0, 10.0)
        model = fit(blobs, n_rounds=1, update_privacy=mechanism, loss_privacy=mechanism)
        rho = 2 / 100 + 1 / 200
        bound = rho + 2 * math.sqrt(rho * math.log(1e5))
        epsilon = privacy_spent(model, delta=1e-5)["epsilon"]
        assert (epsilon < bound).all()
        assert (epsilon > 0.75 * bound).all()

    @pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.3, 0.99])
    def test_epsilon_of_heavy_noise_is_not_negative(self, blobs, delta):
        """Balle et al.'s conversion gives about log(1 - delta) for heavy noise."""
        spent = []
        for multiplier in (20.0, 1e3, 1e5, 1e9):
            mechanism = GaussianMechanism(1.0, multiplier)
            model = fit(blobs, n_rounds=1, update_privacy=mechanism, loss_privacy=mechanism)
            spent.append(privacy_spent(model, delta=delta)["epsilon"].max())
        assert spent == sorted(spent, reverse=True)
        assert spent[0] > spent[-1] or delta > 0.2
        assert min(spent) >= 0
        assert delta < 0.01 or spent[1:] == [0.0, 0.0, 0.0]

    def test_epsilon_is_the_least_over_all_orders(self, blobs):
        """Against Opacus at many orders, for noise whose best order is extreme."""
        from opacus.accountants.analysis import rdp

        orders = 1 + np.geomspace(1e-6, 1e12, 100_000)
        for multiplier in (1e-3, 1.0, 1e6):
            mechanism = GaussianMechanism(1.0, multiplier)
            model = fit(blobs, n_rounds=1, update_privacy=mechanism, loss_privacy=mechanism)
            cost = sum(rdp.compute_rdp(q=1.0, noise_multiplier=multiplier / reach, steps=1,
                                       orders=orders) for reach in (1.0, 2.0))  # fmt: skip
            least, _ = rdp.get_privacy_spent(orders=orders, rdp=cost, delta=1e-6)
            assert privacy_spent(model, delta=1e-6)["epsilon"].max() == pytest.approx(least, 1e-6)

    def test_clients_are_told_apart_by_type_and_value(self, blobs):
        X, y, _ = blobs
        model = fit((X, y, [1, 1.0, True, (2, 3)] * 35), selector=RandomSelector(1), n_rounds=3)
        spent = privacy_spent(model)
        assert [*map(repr, spent.index)] == ["True", "1.0", "1", "(2, 3)"]
        assert spent["n_updates"].sum() == 3

    def test_unprotected_messages_have_no_bound(self, blobs):
        mechanism = GaussianMechanism()
        for params in ({}, {"update_privacy": mechanism}, {"loss_privacy": mechanism}):
            assert np.isinf(privacy_spent(fit(blobs, **params))["epsilon"]).all()
        few = fit(blobs, selector=RandomSelector(1), n_rounds=1)
        assert sorted(privacy_spent(few)["epsilon"])[:5] == [0.0] * 5  # no messages

    def test_discarded_updates_count(self, blobs):
        mechanism = GaussianMechanism()
        private = {"update_privacy": mechanism, "loss_privacy": mechanism}
        model = fit(blobs, n_rounds=2, min_clients=9, **private)
        assert privacy_spent(model)["n_updates"].tolist() == [2] * 6
        copies = fit(blobs, n_rounds=1, selector=Again(), min_clients=51, **private)
        assert privacy_spent(copies)["n_updates"].tolist() == [50, 0, 0, 0, 0, 0]

    def test_discarded_updates_without_noise_have_no_bound(self, blobs):
        thrown_away = privacy_spent(fit(blobs, n_rounds=1, min_clients=9))
        assert np.isinf(thrown_away["epsilon"]).all()

    def test_messages_of_earlier_rounds_count_with_their_noise(self, blobs, tmp_path):
        """The noise of each round counts, not that of the present parameters."""
        X, y, clients = blobs
        quiet = fit(blobs, n_rounds=2, warm_start=True)
        mechanism = GaussianMechanism(1.0, 20.0)
        private = {"update_privacy": mechanism, "loss_privacy": mechanism}
        quiet.set_params(n_rounds=3, **private).fit(X, y, clients=clients)
        assert np.isinf(privacy_spent(quiet)["epsilon"]).all()
        assert privacy_spent(quiet)["n_updates"].tolist() == [3] * 6
        loud = fit(blobs, n_rounds=2, **private)
        before = privacy_spent(loud)
        loud.save(tmp_path / "m")
        loud.set_params(update_privacy__noise_multiplier=99.0)
        pd.testing.assert_frame_equal(privacy_spent(loud), before)
        loaded = FederatedClassifier(lr_schedule=0.5).load(tmp_path / "m")
        pd.testing.assert_frame_equal(privacy_spent(loaded), before)

    def test_delta_is_checked(self, blobs):
        for delta in (1, 0, "x", None):
            with pytest.raises(ValueError, match=f"delta={delta!r}"):
                privacy_spent(fit(blobs), delta=delta)


class First(BaseAggregator):
    """Uses the first part only."""

    def combine(self, model, parts, cohort, parameters):
        next(iter(parts))
        return model

    def _aggregate(self, model, updates, cohort, parameters):
        return model


def test_every_reported_loss_has_noise(blobs):
    loud = GaussianMechanism(clip=1.0, noise_multiplier=1e6)
    model = fit(blobs, aggregator=First(), loss_privacy=loud, engine="loop", n_rounds=1)
    reported = model._server.past.column("reported").tolist()
    assert reported and min(np.abs(reported)) > 100
    with pytest.raises(ValueError, match=r"update is not finite: lower"):
        fit(blobs, loss_privacy=loud, lr_schedule=3e38, n_rounds=1, local_epochs=9)
