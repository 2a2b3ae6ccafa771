"""FedCor: whom it polls and when, what it remembers, and whom it picks."""

import numpy as np
import pytest

from skfed import FedCorSelector, FederatedClassifier
from skfed.availability import Dropout, IndependentAvailability
from skfed.devices import ConstantDevices
from skfed.selection._gaussian_process import DIMENSION, NOISE

NAN = np.nan
WORKED = np.array([[1, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 4]])


def learned(covariance, n_rounds=16, **memory):
    """Return the memory of a rule that has fitted a covariance of a few clients."""
    n_clients = len(covariance)
    embeddings = np.zeros((n_clients, DIMENSION))
    factor = np.linalg.cholesky(covariance - NOISE**2 * np.eye(n_clients))
    embeddings[:, :n_clients] = factor
    return {"n_rounds": n_rounds, "embeddings": embeddings} | memory


def rounds(make_round, selector, losses, trial_losses=None, **view):
    """Select in one round after the other; return the views, the cohorts and the memory."""
    memory, views, cohorts = {}, [], []
    for t, answers in enumerate(losses):
        trial = None if trial_losses is None else trial_losses[t]
        round, _ = make_round(answers, trial_losses=trial, index=t, memory=memory, seed=t, **view)
        cohort = selector.select(round)
        memory = cohort.memory
        views.append(round)
        cohorts.append(cohort)
    return views, cohorts, memory


def falling(n_rounds, n_clients, seed=0):
    """Return losses of which each round takes another part away."""
    rng = np.random.default_rng(seed)
    return np.exp(-0.1 * rng.random((n_rounds, n_clients)).cumsum(axis=0))


def test_the_worked_decision(make_round):
    """p = (.5, .3, .2): (.65, .59, .43): 0; then (.3060, .43): 2."""
    view, polls = make_round(np.ones(3), sizes=[50, 30, 20], memory=learned(WORKED))
    cohort = FedCorSelector(2).select(view)
    assert cohort.clients.tolist() == [0, 2]
    assert cohort.weights.tolist() == [0.5, 0.5]
    assert not polls and not view.trials
    np.testing.assert_allclose(cohort.memory["discounts"], [0.95, 1, 0.95])
    assert cohort.memory["n_rounds"] == 17
    assert "discounts" not in view.memory


def test_the_worked_decision_with_a_discount(make_round):
    """Alpha = (.9, 1, 1): (.585, .590, .43): 1; then (.3689, .3729): 2."""
    memory = learned(WORKED, discounts=np.array([0.9, 1, 1]))
    view, _ = make_round(np.ones(3), sizes=[50, 30, 20], memory=memory)
    cohort = FedCorSelector(2, discount=0.5).select(view)
    assert cohort.clients.tolist() == [1, 2]
    assert cohort.memory["discounts"].tolist() == [0.9, 0.5, 0.5]
    assert view.memory["discounts"].tolist() == [0.9, 1, 1]


def test_the_objective_is_that_of_the_priority_clients(make_round):
    """Sizes by priority are (0, 30, 4): p = (0, .882, .118): (.441, .906, .324): client 1.

    By sizes alone, p = (.417, .25, .333): (.542, .525, .692): client 2.
    """
    view, _ = make_round(
        np.ones(3), sizes=[50, 30, 40], priority=[0, 1, 0.1], memory=learned(WORKED)
    )
    assert FedCorSelector(1).select(view).clients.tolist() == [1]
    view, _ = make_round(np.ones(3), sizes=[50, 30, 40], memory=learned(WORKED))
    assert FedCorSelector(1).select(view).clients.tolist() == [2]
    view, _ = make_round(np.ones(3), priority=[0, 0, 1], memory=learned(WORKED))
    assert FedCorSelector(1).select(view).clients.tolist() == [2]


def test_who_is_polled_when(make_round):
    """A warm-up of 3 is polled 4 times; then there are trials in rounds 5, 7, 9."""
    selector = FedCorSelector(2, warmup=3, interval=2)
    views, _, memory = rounds(make_round, selector, falling(10, 6), falling(10, 6, 1))
    everybody = list(range(6))
    polled = [[clients for clients, *_ in view.polls] for view in views]
    once, twice = [everybody], [everybody] * 2
    assert polled == [once] * 4 + [[], twice] * 3
    assert [len(view.trials) for view in views] == [0] * 4 + [0, 1] * 3
    for view in views[5::2]:
        assert len(set(view.trials[0].clients.tolist())) == 2
        assert view.trials[0].weights.tolist() == [0.5, 0.5]
    assert memory["rounds"].tolist() == [1, 2, 3, 5, 7, 9]


def test_samples_are_changes_by_a_round_and_by_a_trial(make_round):
    losses, trial_losses = falling(5, 4), falling(5, 4, 1)
    losses[1, 2] = NAN
    trial_losses[4, 0] = NAN
    selector = FedCorSelector(2, warmup=3, interval=1)
    memory = rounds(make_round, selector, losses, trial_losses)[2]
    expected = np.array([*np.diff(losses[:4], axis=0), trial_losses[4] - losses[4]])
    np.testing.assert_array_equal(memory["changes"], expected.T)
    assert np.isnan(memory["changes"][:, :2]).sum() == 2
    assert np.isnan(memory["losses"]).all()


def test_only_samples_that_are_kept_are_asked_for(make_round):
    """The fit after 5 rounds has those of age 0, 1 and 2: polls in rounds 2 to 5."""
    selector = FedCorSelector(2, warmup=5, interval=1, kept_rounds=2)
    views, cohorts, _ = rounds(make_round, selector, falling(20, 4), falling(20, 4, 1))
    assert [len(view.polls) for view in views] == [0, 0, 1, 1, 1, 1] + [2] * 14
    assert cohorts[5].memory["rounds"].tolist() == [3, 4, 5]
    for t in range(6, 20):
        assert cohorts[t].memory["rounds"].tolist() == [t - 2, t - 1, t]
        assert cohorts[t].memory["changes"].shape == (4, 3)


def test_a_fit_forgets_discounts(make_round):
    selector = FedCorSelector(2, warmup=1, interval=3)
    _, cohorts, _ = rounds(make_round, selector, falling(8, 5), falling(8, 5, 1))
    sums = [cohort.memory["discounts"].sum() for cohort in cohorts]
    np.testing.assert_allclose(np.array(sums)[[0, 1, 4, 7]], [5, 4.9, 4.9, 4.9])
    assert 4.79 < sums[2] < 4.81


def test_a_client_that_is_away_counts_in_the_sum(make_round):
    """Client 1 has .59 with the part of client 0, .34 without; client 2 has .43."""
    view, _ = make_round(
        np.ones(3), sizes=[50, 30, 20], available=[False, True, True], memory=learned(WORKED)
    )
    assert FedCorSelector(1).select(view).clients.tolist() == [1]


def test_equal_losses_and_nobody_who_answers_leave_it_uniform(make_round):
    for losses in (np.ones((6, 6)), np.full((6, 6), NAN)):
        counts = np.zeros(6)
        selector = FedCorSelector(2, warmup=2, interval=2)
        for seed in range(300):
            memory = {}
            for t, answers in enumerate(losses):
                view, _ = make_round(answers, index=t, memory=memory, seed=(seed, t))
                cohort = selector.select(view)
                memory = cohort.memory
                counts[cohort.clients] += 1
            assert memory["changes"].shape == (6, 0)
            assert memory["discounts"].tolist() == [1] * 6
        np.testing.assert_allclose(counts / counts.sum(), 1 / 6, atol=0.02)


def test_changes_that_are_small_beside_sigma_leave_it_uniform(make_round):
    """Though client 0 has most of p, which would decide if Sigma were sigma^2 I."""
    losses, counts = 1e-3 * falling(4, 6), np.zeros(6)
    for seed in range(300):
        memory = {}
        for t, answers in enumerate(losses):
            sizes = [95, 1, 1, 1, 1, 1]
            view, _ = make_round(answers, index=t, memory=memory, seed=(seed, t), sizes=sizes)
            cohort = FedCorSelector(2, warmup=3).select(view)
            memory = cohort.memory
        counts[cohort.clients] += 1
    assert memory["changes"].shape == (6, 3)
    np.testing.assert_allclose(counts / 600, 1 / 6, atol=0.05)


def test_infinite_and_huge_losses_are_as_no_answers(make_round):
    losses = falling(4, 5)
    losses[1, :3] = np.inf, -np.inf, 1e60
    _, cohorts, memory = rounds(make_round, FedCorSelector(2, warmup=3), losses)
    expected = np.diff(losses, axis=0).T
    expected[:3, :2] = NAN
    np.testing.assert_array_equal(memory["changes"], expected)
    assert len(cohorts[3].clients) == 2


def test_few_are_all_taken(make_round):
    memory = learned(WORKED)
    view, _ = make_round(np.ones(3), available=[False, True, True], memory=memory)
    cohort = FedCorSelector(3).select(view)
    assert (cohort.clients.tolist(), cohort.weights.tolist()) == ([1, 2], [0.5, 0.5])
    alone, _ = make_round(np.ones(3), available=[False, False, True], memory=memory)
    assert FedCorSelector(3).select(alone).clients.tolist() == [2]
    nobody, _ = make_round(np.ones(3), available=[False] * 3, memory=memory)
    assert FedCorSelector(3).select(nobody).clients.tolist() == []


@pytest.mark.parametrize(("n_clients", "m"), [(1, 1), (3, 1), (4, 2), (40, 10), (4000, 400)])
def test_the_default_is_good_for_few_and_many(make_round, n_clients, m):
    selector = FedCorSelector(warmup=2, interval=2)
    losses, trial_losses = falling(5, n_clients), falling(5, n_clients, 1)
    _, cohorts, _ = rounds(make_round, selector, losses, trial_losses)
    for cohort in cohorts:
        assert len(np.unique(cohort.clients)) == len(cohort.clients) == m


def test_a_thousand_clients_of_whom_a_tenth_does_not_answer(make_round):
    selector = FedCorSelector(100, warmup=20, interval=2)
    losses = falling(22, 1000)
    losses[np.random.default_rng(0).random(losses.shape) < 0.1] = NAN
    memory = rounds(make_round, selector, losses[:20])[2]
    for t in (20, 21):  # a fit and picks, then picks alone
        view, _ = make_round(losses[t], index=t, memory=memory)
        cohort = selector.select(view)
        assert len(np.unique(cohort.clients)) == 100
        memory = cohort.memory


def test_marginals_are_those_of_the_warmup(make_round):
    view, _ = make_round(np.ones(10))
    stated = FedCorSelector(3).marginals(view)
    assert stated["polled"].tolist() == [1] * 10
    np.testing.assert_allclose(stated["chosen"], 0.3)
    stated = FedCorSelector(3, kept_rounds=5).marginals(view)
    assert stated["polled"].tolist() == [0] * 10
    later, _ = make_round(np.ones(3), memory=learned(WORKED))
    assert FedCorSelector(1).marginals(later) == {}


def make(selector=None, **params):
    selector = FedCorSelector(2, warmup=3, interval=2) if selector is None else selector
    return FederatedClassifier(selector=selector, n_rounds=9, random_state=0).set_params(**params)


def test_a_fit_polls_and_tries_as_planned(blobs):
    X, y, clients = blobs
    history = make().fit(X, y, clients=clients).history_
    assert history["n_polled"].tolist() == [6, 6, 6, 6, 0, 12, 0, 12, 0]
    assert history["cohort"].map(len).tolist() == [2] * 9
    trained = [2] * 5 + [4, 2, 4, 2]
    assert history["models_up"].tolist() == trained


def test_fits_with_who_is_away_who_drops_out_and_slow_devices(blobs):
    X, y, clients = blobs
    latency = dict(zip("abcdef", [9, 1, 8, 2, 7, 3], strict=True))
    model = make(
        availability=Dropout(0.2, IndependentAvailability(0.7)),
        devices=ConstantDevices(1e9, 1e9, 1e9, latency),
        priority=["a", "b", "c"],
        n_rounds=20,
    )
    first = model.fit(X, y, clients=clients).history_
    assert first["n_failed"].sum() > 0
    assert model.fit(X, y, clients=clients).history_["cohort"].tolist() == first["cohort"].tolist()
    assert model.score(X, y) > 0.5


def test_a_fit_that_is_all_warmup_says_so(blobs):
    X, y, clients = blobs
    model = make(FedCorSelector(2), n_rounds=3)
    with pytest.warns(UserWarning, match=r"warmup=15\) drew the cohorts of all 3 rounds uniformly"):
        model.fit(X, y, clients=clients)


def test_a_bad_parameter_is_named(make_round):
    view, _ = make_round(np.ones(4))
    for name in ("warmup", "interval", "kept_rounds", "discount", "gamma"):
        with pytest.raises(ValueError, match=f"The '{name}' parameter of FedCorSelector"):
            FedCorSelector(**{name: 0}).select(view)
