import numpy as np

from skfed import RandomSelector


def draw_often(make_round, selector, sizes, n=4000):
    """Return how often each client is drawn a round, over many rounds."""
    counts = np.zeros(len(sizes))
    for seed in range(n):
        view, polls = make_round(np.zeros(len(sizes)), sizes=sizes, seed=seed)
        cohort = selector.select(view)
        assert polls == []
        np.add.at(counts, cohort.clients, 1)
    return counts / n


def test_draws_by_size_with_replacement_and_plain_mean(make_round):
    sizes = np.array([10, 20, 30, 40])
    rate = draw_often(make_round, RandomSelector(clients_per_round=2), sizes)
    expected = 2 * sizes / 100
    # m draws of a multinomial: variance m p (1 - p) a round
    error = np.sqrt(2 * sizes / 100 * (1 - sizes / 100) / 4000)
    assert (np.abs(rate - expected) < 4 * error).all()
    view, _ = make_round(np.zeros(4), sizes=sizes)
    cohort = RandomSelector(clients_per_round=7).select(view)
    assert len(cohort.clients) == 4  # capped by the number of available clients
    assert cohort.weights.tolist() == [0.25] * 4


def test_draws_by_size_ignore_priority(make_round):
    view, _ = make_round(np.zeros(3), sizes=[1, 1, 98], priority=[True, False, False])
    assert RandomSelector(clients_per_round=1).select(view).clients.tolist() == [2]


def test_uniform_draws_without_replacement_are_weighted_by_size(make_round):
    selector = RandomSelector(clients_per_round=3, probability="uniform", replace=False)
    rate = draw_often(make_round, selector, np.array([1, 5, 5, 89]))
    assert (np.abs(rate - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 4000)).all()
    view, _ = make_round(np.zeros(4), sizes=[10, 20, 30, 40])
    cohort = selector.select(view)
    sizes = view.sizes[cohort.clients]
    assert len(set(cohort.clients.tolist())) == 3
    np.testing.assert_allclose(cohort.weights, sizes / sizes.sum())


def test_unbiased_weights_are_p_k_times_K_over_m(make_round):
    view, _ = make_round(np.zeros(4), sizes=[10, 20, 30, 40])
    cohort = RandomSelector(2, "uniform", replace=False, weighting="unbiased").select(view)
    assert cohort.unbiased
    np.testing.assert_allclose(cohort.weights, view.sizes[cohort.clients] / 100 * 4 / 2)
    view, _ = make_round(np.zeros(4), sizes=[10, 20, 30, 40], available=[0, 1, 0, 1])
    cohort = RandomSelector(1, "uniform", replace=False, weighting="unbiased").select(view)
    np.testing.assert_allclose(cohort.weights, view.sizes[cohort.clients] / 60 * 2 / 1)
