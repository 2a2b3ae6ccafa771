"""Round robin: the lowest counts, ties at random."""

import numpy as np
import pytest

from skfed import FederatedClassifier, RoundRobinSelector
from skfed.availability import Dropout
from skfed.selection._sampling import lowest_probabilities


def chosen(make_round, n_chosen, m, seed=0, **view):
    n = len(n_chosen)
    round, polls = make_round(np.ones(n), seed=seed, past={"n_chosen": np.array(n_chosen)}, **view)
    cohort = RoundRobinSelector(m).select(round)
    assert not polls
    return cohort


def test_the_lowest_counts_are_chosen_and_weigh_by_size(make_round):
    cohort = chosen(make_round, [3, 1, 2, 0], 2, sizes=[10, 30, 20, 10])
    assert cohort.clients.tolist() == [1, 3]
    assert cohort.weights.tolist() == [0.75, 0.25]
    assert not cohort.unbiased


def test_ties_at_the_cut_are_broken_at_random(make_round):
    """Client 1 is in; of the three with count 2, one is."""
    cohorts = [chosen(make_round, [2, 0, 2, 2], 2, seed) for seed in range(3000)]
    rate = sum(np.bincount(cohort.clients, minlength=4) for cohort in cohorts) / 3000
    assert rate[1] == 1
    np.testing.assert_allclose(rate[[0, 2, 3]], 1 / 3, atol=4 * np.sqrt(2 / 9 / 3000))


def test_the_chances_of_tied_ranks():
    assert lowest_probabilities(np.array([2, 0, 2, 2]), 2).tolist() == [1 / 3, 1, 1 / 3, 1 / 3]
    assert lowest_probabilities(np.array([2, 0, 2]), 5).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("n_clients", "m"), [(3, 1), (4, 2), (40, 10), (4000, 400)])
def test_everybody_trains_once_in_each_pass(make_round, n_clients, m):
    counts = np.zeros(n_clients, int)
    for t in range(2 * -(-n_clients // m)):
        view, _ = make_round(np.ones(n_clients), seed=t, past={"n_chosen": counts.copy()})
        cohort = RoundRobinSelector().select(view)
        assert len(cohort.clients) == m
        counts[cohort.clients] += 1
        assert counts.max() - counts.min() <= 1
    assert set(counts.tolist()) <= {2, 3}


def test_who_is_away_waits_and_few_are_all_taken(make_round):
    available = [True, False, True, False]
    assert chosen(make_round, [5, 0, 7, 0], 3, available=available).clients.tolist() == [0, 2]
    one = chosen(make_round, [5, 0, 7, 0], 3, available=[False, False, True, False])
    assert one.clients.tolist() == [2]


def test_failed_clients_have_had_their_turn(make_round):
    reported = [np.nan, np.inf, 1.0]
    assert chosen(make_round, [1, 0, 0], 2, reported=reported).clients.tolist() == [1, 2]


def test_a_fit_with_dropouts_goes_round(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(
        selector=RoundRobinSelector(2), n_rounds=6, availability=Dropout(0.3), random_state=0
    ).fit(X, y, clients=clients)
    history = model.history_
    assert len(history) == 6
    assert history["n_failed"].sum() > 0
    for first in (0, 3):  # a pass: nobody trains twice, and all do who answered
        part = history[first : first + 3]
        trained = [client for cohort in part["cohort"] for client in cohort]
        assert len(set(trained)) == len(trained)
        assert len(trained) + part["n_failed"].sum() == 6
