import numpy as np
import pytest

from skfed import PowerOfChoice
from skfed.schedules import StepDecay


def test_with_all_as_candidates_it_picks_exactly_the_highest_losses(make_round):
    rng = np.random.default_rng(0)
    for seed in range(50):
        losses = rng.normal(size=12)
        view, polls = make_round(losses, sizes=rng.integers(1, 50, 12), seed=seed)
        cohort = PowerOfChoice(d=12, clients_per_round=3).select(view)
        assert set(cohort.clients) == set(np.argsort(losses)[-3:])
        assert cohort.weights.tolist() == [1 / 3] * 3
        assert sorted(polls[0][0]) == list(range(12))  # one poll, of all clients
        assert polls[0][1:] == ("loss", None, None)


def test_it_picks_the_highest_losses_among_its_candidates_only(make_round):
    losses = np.arange(10.0)
    for seed in range(50):
        view, polls = make_round(losses, seed=seed)
        cohort = PowerOfChoice(d=4, clients_per_round=2).select(view)
        assert len(polls) == 1
        assert cohort.clients.tolist() == sorted(polls[0][0])[-2:]


def test_candidates_follow_p_k_without_replacement(make_round):
    """Inclusion of k among d = 2: p_k + sum over j of p_j p_k / (1 - p_j)."""
    p = np.array([0.1, 0.2, 0.3, 0.4])
    expected = np.array(
        [p[k] + sum(p[j] * p[k] / (1 - p[j]) for j in range(4) if j != k) for k in range(4)]
    )
    np.testing.assert_allclose(expected.sum(), 2)
    n = 8000
    counts = np.zeros(4)
    for seed in range(n):
        view, polls = make_round(np.zeros(4), sizes=(10 * p).astype(int), seed=seed)
        PowerOfChoice(d=2, clients_per_round=1).select(view)
        assert len(set(polls[0][0])) == 2
        counts[polls[0][0]] += 1
    error = np.sqrt(expected * (1 - expected) / n)
    assert (np.abs(counts / n - expected) < 4 * error).all()


def test_ties_are_broken_at_random(make_round):
    counts = np.zeros(4)
    for seed in range(2000):
        view, _ = make_round([1.0, 1.0, 1.0, 0.0], seed=seed)
        counts[PowerOfChoice(d=4, clients_per_round=1).select(view).clients] += 1
    assert counts[3] == 0
    assert (np.abs(counts[:3] / 2000 - 1 / 3) < 4 * np.sqrt(2 / 9 / 2000)).all()


def test_a_client_without_an_answer_is_never_preferred(make_round):
    view, _ = make_round([np.nan, 0.1, 0.2, np.nan])
    cohort = PowerOfChoice(d=4, clients_per_round=2).select(view)
    assert cohort.clients.tolist() == [1, 2]


def test_only_available_clients_are_candidates(make_round):
    view, polls = make_round(np.arange(4.0), available=[True, True, True, False])
    assert PowerOfChoice(d=4, clients_per_round=1).select(view).clients.tolist() == [2]
    assert sorted(polls[0][0]) == [0, 1, 2]


def test_cpow_d_polls_a_batch(make_round):
    view, polls = make_round(np.arange(6.0))
    cohort = PowerOfChoice(d=6, clients_per_round=2, loss="batch").select(view)
    assert cohort.clients.tolist() == [4, 5]
    assert polls[0][1:] == ("loss", "batch", None)


def test_rpow_d_polls_nobody_and_prefers_clients_never_selected(make_round):
    reported = np.array([0.5, np.inf, 2.0, np.nan, 1.0])
    view, polls = make_round(np.zeros(5), reported=reported)
    selector = PowerOfChoice(d=5, clients_per_round=3, loss="reported")
    assert selector.select(view).clients.tolist() == [1, 2, 4]
    assert polls == []


@pytest.mark.parametrize(
    ("d", "expected"),
    [
        (StepDecay(20, 0.5, milestones=2), [20, 20, 10, 10, 5, 5, 3, 3]),  # 2.5 rounds to 3 = m
        (StepDecay(20, 3 / 20, [0.5]), [20] * 4 + [3] * 4),
        (lambda t: 20 - 2.6 * t, [20, 17, 15, 12, 10, 7, 4, 3]),
    ],
    ids=["every two rounds", "at half of the rounds", "callable"],
)
def test_adapow_d_takes_d_from_K_to_m(make_round, d, expected):
    selector = PowerOfChoice(d=d, clients_per_round=3)
    for index, n_candidates in enumerate(expected):
        view, polls = make_round(np.arange(20.0), index=index, n_rounds=8)
        assert len(selector.select(view).clients) == 3
        assert len(polls[0][0]) == n_candidates
        assert selector.scheduled(view) == {"d": n_candidates}


def test_a_scheduled_d_above_K_is_an_error(make_round):
    view, _ = make_round(np.zeros(5))
    with pytest.raises(ValueError, match="asks for more candidates than the 5 clients"):
        PowerOfChoice(d=lambda t: 6, clients_per_round=1).select(view)
