import numpy as np
import pytest

from skfed import FedAlignSelector

PRIORITY = [True, True, False, False, False]
SIZES = [10, 30, 20, 20, 20]
# F = (10 * 1.0 + 30 * 2.0) / 40 = 1.75
LOSSES = [1.0, 2.0, 1.5, 2.0, 3.0]


def test_by_hand(make_round):
    view, polls = make_round(LOSSES, sizes=SIZES, priority=PRIORITY)
    cohort = FedAlignSelector(eps=0.5, warmup=0).select(view)
    assert cohort.clients.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(cohort.weights, np.array([10, 30, 20, 20]) / 80)
    assert polls == [([0, 1], "loss", None, None), ([2, 3, 4], "loss", None, 2.25)]


def test_inclusion_is_strict_on_both_sides(make_round):
    losses = [1.75, 1.75, 1.25, 2.25, 1.26]  # F = 1.75, two free clients at exactly eps
    view, _ = make_round(losses, sizes=SIZES, priority=PRIORITY)
    assert FedAlignSelector(eps=0.5, warmup=0).select(view).clients.tolist() == [0, 1, 4]


def test_eps_zero_and_infinity(make_round):
    view, _ = make_round([1.0] * 5, sizes=SIZES, priority=PRIORITY)
    assert FedAlignSelector(eps=0, warmup=0).select(view).clients.tolist() == [0, 1]
    view, _ = make_round(LOSSES, sizes=SIZES, priority=PRIORITY)
    cohort = FedAlignSelector(eps=np.inf, warmup=0).select(view)
    assert cohort.clients.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("warmup", "n_rounds", "n_warm"), [(0.1, 100, 10), (0.29, 100, 29), (3, 100, 3), (0.1, 3, 0)]
)
def test_in_the_warm_up_only_priority_clients_train_without_a_poll(
    make_round, warmup, n_rounds, n_warm
):
    selector = FedAlignSelector(eps=np.inf, warmup=warmup)
    for index in range(n_rounds):
        view, polls = make_round(LOSSES, priority=PRIORITY, index=index, n_rounds=n_rounds)
        warm = index < n_warm
        assert len(selector.select(view).clients) == (2 if warm else 5)
        assert len(polls) == (0 if warm else 2)


def test_matching_by_accuracy_polls_the_error(make_round):
    view, polls = make_round([0.2, 0.2, 0.3, 0.5, 0.1], priority=PRIORITY)
    cohort = FedAlignSelector(eps=0.2, warmup=0, match="accuracy").select(view)
    assert cohort.clients.tolist() == [0, 1, 2, 4]
    assert [poll[1] for poll in polls] == ["error", "error"]


def test_without_free_clients_nobody_is_polled(make_round):
    view, polls = make_round(LOSSES)
    assert len(FedAlignSelector(warmup=0).select(view).clients) == 5
    assert polls == []


def test_without_an_available_priority_client_nobody_trains(make_round):
    view, polls = make_round(LOSSES, priority=PRIORITY, available=[False, False, True, True, True])
    assert FedAlignSelector(eps=np.inf, warmup=0).select(view).clients.tolist() == []
    assert polls == []


def test_without_an_objective_no_client_matches(make_round):
    view, _ = make_round([np.nan, np.nan, 1.0, 1.0, 1.0], priority=PRIORITY)
    assert FedAlignSelector(eps=np.inf, warmup=0).select(view).clients.tolist() == [0, 1]
    view, _ = make_round([np.nan, 1.0, 1.1, np.nan, 3.0], priority=PRIORITY)
    assert FedAlignSelector(eps=0.5, warmup=0).select(view).clients.tolist() == [0, 1, 2]


WEIGHTS = [1.0, 0.5, 0.5, 0.0]


def test_the_spectrum_by_hand(make_round):
    """F = (10*1 + 0.5*20*2 + 0.5*20*4) / (10 + 10 + 10) = 70/30; with eps = 1, client 1 (2.0)
    matches, client 2 (4.0) does not, client 3 (3.0) does: weights 10, 20, 0.5*20 and 40."""
    view, polls = make_round([1.0, 2.0, 4.0, 3.0], sizes=[10, 20, 20, 40], priority=WEIGHTS)
    cohort = FedAlignSelector(eps=1.0, warmup=0).select(view)
    assert cohort.clients.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(cohort.weights, np.array([10, 20, 10, 40]) / 80)
    assert cohort.objective == pytest.approx(70 / 30)
    assert polls[0][0] == [0, 1, 2]
    assert polls[1] == ([3], "loss", None, pytest.approx(70 / 30 + 1))


def test_the_ends_of_the_spectrum(make_round):
    sizes = [10, 20, 20, 40]
    view, _ = make_round([1.0, 2.0, 4.0, 3.0], sizes=sizes, priority=WEIGHTS)
    weighted = FedAlignSelector(eps=0, warmup=0).select(view)
    np.testing.assert_allclose(weighted.weights, np.array([10, 10, 10]) / 30)
    view, _ = make_round([1.0, 2.0, 4.0, 3.0], sizes=sizes, priority=WEIGHTS)
    fedavg = FedAlignSelector(eps=np.inf, warmup=0).select(view)
    np.testing.assert_allclose(fedavg.weights, np.array(sizes) / 90)


def test_partial_participation_takes_the_same_share_of_both(make_round):
    priority = [True] * 8 + [False] * 12
    for seed in range(20):
        view, polls = make_round(np.ones(20), priority=priority, seed=seed)
        cohort = FedAlignSelector(eps=0.5, warmup=0, participation=0.5).select(view)
        assert (cohort.clients < 8).sum() == 4
        assert len(set(cohort.clients[cohort.clients >= 8].tolist())) == 6
        assert set(polls[0][0]) == set(cohort.clients[cohort.clients < 8].tolist())
        assert cohort.weights.sum() == pytest.approx(1)
    view, _ = make_round(np.ones(20), priority=[True, *[False] * 19])
    tiny = FedAlignSelector(eps=0.5, warmup=0, participation=0.01).select(view)
    assert tiny.clients.tolist() == [0]
    view, _ = make_round(np.ones(20), priority=priority)
    assert len(FedAlignSelector(eps=0.5, warmup=0, participation=10).select(view).clients) == 10


def test_partial_participation_weighs_by_equation_56(make_round):
    """K = 2 draws of 1/K / (1 + M) each, and p_k / (1 + M) for a matched free client, with
    M = p_k = 20/40 of the one that takes part."""
    for seed in range(20):
        view, _ = make_round([1.0] * 6, sizes=[10, 30, 20, 20, 20, 20], seed=seed,
                             priority=[1, 1, 0, 0, 0, 0])  # fmt: skip
        cohort = FedAlignSelector(eps=0.5, warmup=0, participation=0.5).select(view)
        # One of two priority clients, two of four free ones.
        np.testing.assert_allclose(cohort.weights, np.array([1, 0.5, 0.5]) / 2)


def test_equation_56_is_unbiased(make_round):
    """Lemma A.7: over the draws, priority client k weighs p_k / (1 + M) in expectation."""
    sizes = np.array([10, 30, 60, 50])
    total = np.zeros(4)
    n = 6000
    for seed in range(n):
        view, _ = make_round([1.0] * 4, sizes=sizes, priority=[1, 1, 1, 0], seed=seed)
        cohort = FedAlignSelector(eps=0.5, warmup=0, participation=0.7).select(view)
        np.add.at(total, cohort.clients, cohort.weights)
        assert 3 not in cohort.clients  # 0.7 of one free client is none
    np.testing.assert_allclose(total[:3] / n, [0.1, 0.3, 0.6], atol=0.02)


def test_partial_participation_in_the_spectrum_sums_to_1(make_round):
    for seed in range(50):
        view, _ = make_round([1.0] * 6, sizes=[10, 30, 20, 5, 20, 40], seed=seed,
                             priority=[1, 0.5, 0.2, 0.9, 0, 0])  # fmt: skip
        cohort = FedAlignSelector(eps=0.5, warmup=0, participation=0.8).select(view)
        assert cohort.weights.sum() == pytest.approx(1)
        # Everybody matches, so a client's copies together gain (1 - s_k) p_k.
        gains = (1 - view.priority_weights) * view.fractions
        M = sum(gains[k] for k in set(cohort.clients.tolist()))
        for k in set(cohort.clients.tolist()):
            copies = (cohort.clients == k).sum() if view.priority[k] else 0
            expected = (copies / 3 + gains[k]) / (1 + M)
            assert cohort.weights[cohort.clients == k].sum() == pytest.approx(expected)
