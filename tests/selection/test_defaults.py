"""How many clients the selectors poll and train by default."""

import numpy as np
import pytest

from skfed import ActiveFLSelector, PowerOfChoice, RandomSelector
from skfed.schedules import Constant


@pytest.mark.parametrize(
    ("n_clients", "drawn", "polled", "trained", "active"),
    [
        (1, 1, 1, 1, 1),
        (2, 2, 2, 1, 1),
        (4, 4, 4, 2, 2),
        (10, 10, 10, 5, 5),
        (11, 10, 10, 5, 5),
        (40, 10, 20, 10, 10),
        (4000, 400, 800, 400, 400),
    ],
)
def test_defaults_are_good_for_few_and_many_clients(
    make_round, n_clients, drawn, polled, trained, active
):
    losses = np.arange(float(n_clients))
    view, polls = make_round(losses)
    assert len(RandomSelector().select(view).clients) == drawn
    assert len(ActiveFLSelector().select(view).clients) == active
    assert not polls
    cohort = PowerOfChoice().select(view)
    assert [len(clients) for clients, *_ in polls] == [polled]
    assert cohort.clients.tolist() == sorted(polls[0][0])[-trained:]  # of highest loss


def test_up_to_ten_clients_train_once_each_by_size(make_round):
    for seed in range(5):
        view, _ = make_round(np.zeros(4), sizes=[10, 20, 30, 40], seed=seed)
        cohort = RandomSelector().select(view)
        assert cohort.clients.tolist() == [0, 1, 2, 3]
        np.testing.assert_allclose(cohort.weights, [0.1, 0.2, 0.3, 0.4])


def test_clients_that_are_not_available_do_not_train(make_round):
    view, _ = make_round(np.zeros(4), available=[True, False, True, True])
    assert RandomSelector().select(view).clients.tolist() == [0, 2, 3]


def test_more_than_ten_clients_are_drawn_with_replacement_and_weigh_alike(make_round):
    view, _ = make_round(np.zeros(11), sizes=[1000] + [1] * 10)
    cohort = RandomSelector().select(view)
    assert np.unique(cohort.clients).size < 10  # the first has nearly all rows
    assert cohort.weights.tolist() == [0.1] * 10


@pytest.mark.parametrize("selector", [RandomSelector, ActiveFLSelector])
def test_an_explicit_fraction_is_of_all_clients(make_round, selector):
    for n_clients, m in [(4, 1), (40, 4), (400, 40)]:
        view, _ = make_round(np.zeros(n_clients))
        assert len(selector(clients_per_round=0.1).select(view).clients) == m


@pytest.mark.parametrize(
    ("params", "polled", "trained"),
    [
        ({"clients_per_round": 3}, 6, 3),
        ({"clients_per_round": 30}, 40, 30),
        ({"d": 6}, 6, 3),
        ({"d": 1}, 1, 1),
        ({"d": 0.2, "clients_per_round": 0.1}, 8, 4),
        ({"d": Constant(40)}, 40, 10),
    ],
    ids=str,
)
def test_the_default_of_one_count_follows_from_the_other(make_round, params, polled, trained):
    view, polls = make_round(np.arange(40.0))
    cohort = PowerOfChoice(**params).select(view)
    assert (len(polls[0][0]), len(cohort.clients)) == (polled, trained)
