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
def test_in_the_warm_up_only_priority_clients_train_and_nobody_is_polled(
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


def test_without_a_priority_client_in_reach_nobody_trains(make_round):
    view, polls = make_round(LOSSES, priority=PRIORITY, available=[False, False, True, True, True])
    assert FedAlignSelector(eps=np.inf, warmup=0).select(view).clients.tolist() == []
    assert polls == []


def test_an_objective_that_nobody_tells_matches_nobody(make_round):
    view, _ = make_round([np.nan, np.nan, 1.0, 1.0, 1.0], priority=PRIORITY)
    assert FedAlignSelector(eps=np.inf, warmup=0).select(view).clients.tolist() == [0, 1]
    view, _ = make_round([np.nan, 1.0, 1.1, np.nan, 3.0], priority=PRIORITY)
    assert FedAlignSelector(eps=0.5, warmup=0).select(view).clients.tolist() == [0, 1, 2]
