"""Draws in proportion to the root of the size times the last loss."""

import numpy as np
import pytest

from skfed import FederatedClassifier, LossProportionalSelector
from skfed.availability import Dropout
from skfed.selection._sampling import inclusion_probabilities

N_DRAWS = 4000


def rates(make_round, reported, m, n=N_DRAWS, **view):
    counts = np.zeros(len(reported))
    for seed in range(n):
        round, polls = make_round(np.zeros(len(reported)), seed=seed, reported=reported, **view)
        cohort = LossProportionalSelector(m).select(round)
        assert not polls
        assert len(set(cohort.clients.tolist())) == len(cohort.clients)
        assert len(set(cohort.weights.tolist())) == 1
        counts[cohort.clients] += 1
    return counts / n


def assert_near(found, expected):
    expected = np.asarray(expected)
    np.testing.assert_allclose(
        found, expected, atol=5 * np.sqrt(np.max(expected * (1 - expected)) / N_DRAWS) + 1e-9
    )


def test_one_draw_is_in_proportion_to_the_loss_and_the_root_of_the_size(make_round):
    """Values sqrt(4) 1, sqrt(1) 2, sqrt(9) 2 = 2, 2, 6."""
    assert_near(rates(make_round, [1.0, 2.0, 2.0], 1, sizes=[4, 1, 9]), [0.2, 0.2, 0.6])


def test_several_draws_are_without_replacement(make_round):
    reported = np.array([1.0, 2.0, 3.0, 4.0, 0.5])
    expected = inclusion_probabilities(reported / reported.sum(), 3)
    assert_near(rates(make_round, reported, 3), expected)


def test_new_clients_come_first_and_failed_ones_have_the_smallest_value(make_round):
    """Client 0 is new; of 1, 2, 3 with values 1, 3, 1 (it failed) one is drawn."""
    view = {"past": {"n_chosen": np.array([0, 1, 1, 1])}}
    assert_near(rates(make_round, [np.inf, 1.0, 3.0, np.nan], 2, **view), [1, 0.2, 0.6, 0.2])


def test_who_was_chosen_and_never_answered_is_not_new(make_round):
    view = {"past": {"n_chosen": np.array([2, 1, 1])}}
    assert_near(rates(make_round, [np.inf, 1.0, 3.0], 1, **view), [0.2, 0.2, 0.6])


def test_clients_without_a_loss_are_alike(make_round):
    assert_near(rates(make_round, [np.nan] * 4, 1), [0.25] * 4)
    assert_near(rates(make_round, [np.inf] * 4, 1, sizes=[1, 1, 1, 97]), [0.25] * 4)


def test_losses_of_0_and_below_are_drawn_last(make_round):
    assert_near(rates(make_round, [0.0, -2.0, 1.0], 2), [0.5, 0.5, 1])
    assert_near(rates(make_round, [0.0, 0.0], 1), [0.5, 0.5])


@pytest.mark.parametrize("loss", [1e-300, 5e-324, 1e300])
def test_losses_of_any_magnitude(make_round, loss):
    assert_near(rates(make_round, [loss, 2 * loss], 1), [1 / 3, 2 / 3])


def test_few_are_all_taken(make_round):
    view, _ = make_round(np.zeros(3), reported=[1.0, 2.0, 3.0], available=[True, False, True])
    cohort = LossProportionalSelector(3).select(view)
    assert cohort.clients.tolist() == [0, 2]
    assert cohort.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("n_clients", "m"), [(3, 1), (4, 2), (40, 10), (1000, 100), (4000, 400)])
def test_the_default_is_good_for_few_and_many(make_round, n_clients, m):
    view, _ = make_round(np.zeros(n_clients), reported=np.linspace(1, 2, n_clients))
    assert len(LossProportionalSelector().select(view).clients) == m


def test_a_fit_with_dropouts(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(
        selector=LossProportionalSelector(2), n_rounds=6, availability=Dropout(0.3), random_state=0
    ).fit(X, y, clients=clients)
    history = model.history_
    assert len(history) == 6
    assert history["n_failed"].sum() > 0
    assert (history["n_aggregated"] + history["n_failed"] == 2).all()
