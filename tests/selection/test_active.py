import numpy as np

from skfed import ActiveFLSelector


def frequencies(make_round, selector, reported, n=4000):
    counts = np.zeros(len(reported))
    for seed in range(n):
        view, polls = make_round(np.zeros(len(reported)), seed=seed, reported=reported)
        cohort = selector.select(view)
        assert polls == []
        assert len(set(cohort.clients.tolist())) == len(cohort.clients)
        counts[cohort.clients] += 1
    return counts / n


def test_before_the_first_report_all_clients_are_equally_likely(make_round):
    rate = frequencies(make_round, ActiveFLSelector(clients_per_round=3), np.full(12, np.inf))
    np.testing.assert_allclose(rate, 0.25, atol=4 * np.sqrt(0.25 * 0.75 / 4000))


def test_the_draw_by_value_leaves_out_the_lowest_and_follows_the_softmax(make_round):
    """alpha1 = 0.5 of 4 leaves clients 2 and 3, with odds exp(0) : exp(ln 3)."""
    reported = np.array([0.0, 0.5, 1.0, 1.0 + np.log(3)])
    selector = ActiveFLSelector(clients_per_round=1, alpha1=0.5, alpha2=1.0, alpha3=0.0)
    rate = frequencies(make_round, selector, reported)
    assert rate[:2].tolist() == [0, 0]
    np.testing.assert_allclose(rate[2:], [0.25, 0.75], atol=4 * np.sqrt(0.1875 / 4000))


def test_m_3_is_2_by_value_and_1_uniform_from_the_others(make_round):
    reported = np.arange(12.0)
    selector = ActiveFLSelector(clients_per_round=3, alpha1=0.75, alpha2=0.0, alpha3=0.1)
    rate = frequencies(make_round, selector, reported)
    # 2 of the 3 highest, then 1 of the other 10.
    np.testing.assert_allclose(rate[9:], 2 / 3 + 1 / 3 / 10, atol=0.035)
    np.testing.assert_allclose(rate[:9], 1 / 10, atol=0.02)


def test_never_selected_and_failed_clients_have_no_value(make_round):
    reported = np.array([np.inf, np.nan, 5.0, 1.0])
    selector = ActiveFLSelector(clients_per_round=1, alpha1=0.5, alpha2=1.0, alpha3=0.0)
    assert frequencies(make_round, selector, reported, n=200)[:2].tolist() == [0, 0]
