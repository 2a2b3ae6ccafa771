"""UCB-CS: values by hand, what is remembered, and who has no value."""

import numpy as np
import pytest

from skfed import FederatedClassifier, UcbSelector
from skfed.availability import Dropout

NAN, INF = np.nan, np.inf
WORKED = [
    # Nobody was chosen; S = {0, 1}, losses 2, 1; S = {0, 2}, losses 1, 3, deviations .5, .2.
    {"n_chosen": [0, 0, 0], "last_chosen": [-1, -1, -1], "reported": [INF, INF, INF]},
    {"n_chosen": [1, 1, 0], "last_chosen": [0, 0, -1], "reported": [2, 1, INF]},
    {"n_chosen": [2, 1, 1], "last_chosen": [1, 0, 1], "reported": [1, 1, 3]},
]


def make(make_round, t, memory, reported, n_chosen, last_chosen, loss_std=None, **view):
    loss_std = [NAN] * len(reported) if loss_std is None else loss_std
    past = {"n_chosen": n_chosen, "last_chosen": last_chosen, "loss_std": loss_std}
    past = {name: np.array(values) for name, values in past.items()}
    return make_round(
        np.ones(len(reported)), index=t, memory=memory, reported=reported, past=past, **view
    )[0]


def remembered(make_round, rounds, selector, **view):
    """Return the memory after some rounds and the last cohort."""
    memory, cohort = {}, None
    for t, given in enumerate(rounds):
        cohort = selector.select(make(make_round, t, memory, **given, **view))
        memory = cohort.memory
    return memory, cohort


def test_the_worked_decision(make_round):
    """With sigma = .5: (.9034, .4847, .7030)."""
    rounds = [*WORKED[:2], {**WORKED[2], "loss_std": [0.5, 9.0, 0.2]}]
    memory, cohort = remembered(make_round, rounds, UcbSelector(1), sizes=[50, 30, 20])
    np.testing.assert_allclose(memory["losses"], [2.4, 0.7, 3])
    np.testing.assert_allclose(memory["counts"], [1.7, 0.7, 1])
    assert memory["rounds"] == pytest.approx(1.7)
    assert cohort.clients.tolist() == [0]
    # Client 1 leads client 2 if sizes make it 0.4847 / .3 * .45 = .7270 > .7030 / .2 * .1 = .3515.
    _, cohort = remembered(make_round, rounds, UcbSelector(2), sizes=[45, 45, 10])
    assert cohort.clients.tolist() == [0, 1]


def test_the_first_round_with_a_value_has_no_second_term(make_round):
    """T = 1: L / N alone, 1 and 3 at equal sizes, whatever the deviations."""
    rounds = [
        {"n_chosen": [0, 0], "last_chosen": [-1, -1], "reported": [INF, INF]},
        {"n_chosen": [1, 1], "last_chosen": [0, 0], "reported": [1, 3], "loss_std": [99.0, 99.0]},
    ]
    assert remembered(make_round, rounds, UcbSelector(1))[1].clients.tolist() == [1]


def test_the_second_term_explores(make_round):
    """N = (1.7, .7), T = 1.7: 1 + sigma .7901 against .95 + sigma 1.2313."""
    rounds = [
        {"n_chosen": [0, 0], "last_chosen": [-1, -1], "reported": [INF, INF]},
        {"n_chosen": [1, 1], "last_chosen": [0, 0], "reported": [1, 0.95]},
        {"n_chosen": [2, 1], "last_chosen": [1, 0], "reported": [1, 0.95], "loss_std": [0.0, 9.0]},
    ]
    assert remembered(make_round, rounds, UcbSelector(1))[1].clients.tolist() == [0]
    rounds[2]["loss_std"] = [0.2, NAN]
    assert remembered(make_round, rounds, UcbSelector(1))[1].clients.tolist() == [1]


def test_nobody_answers(make_round):
    """Those chosen count with no loss; the one that was not chosen is next."""
    rounds = [
        {"n_chosen": [0, 0, 0], "last_chosen": [-1] * 3, "reported": [INF] * 3},
        {"n_chosen": [1, 1, 0], "last_chosen": [0, 0, -1], "reported": [NAN, INF, INF]},
    ]
    memory, cohort = remembered(make_round, rounds, UcbSelector(1))
    assert memory["losses"].tolist() == [0, 0, 0]
    assert memory["counts"].tolist() == [1, 1, 0]
    assert cohort.clients.tolist() == [2]


def test_a_failed_client_sinks(make_round):
    """Client 0 reported 3 and then failed: 2.1 / 1.7 = 1.2353 against 2."""
    rounds = [
        {"n_chosen": [0, 0], "last_chosen": [-1, -1], "reported": [INF, INF]},
        {"n_chosen": [1, 1], "last_chosen": [0, 0], "reported": [3, 2]},
        {"n_chosen": [2, 1], "last_chosen": [1, 0], "reported": [NAN, 2]},
    ]
    memory, cohort = remembered(make_round, rounds, UcbSelector(1))
    np.testing.assert_allclose(memory["losses"] / memory["counts"], [2.1 / 1.7, 2])
    assert cohort.clients.tolist() == [1]


def test_deviations_of_any_size(make_round):
    """The square of 1e200 is no float: client 1, of the smaller N, has the larger second term."""
    memory = {"losses": np.ones(3), "counts": np.array([2.0, 1.0, 2.0]), "rounds": 2.0}
    given = {"n_chosen": [2, 1, 2], "last_chosen": [1, 0, 1], "reported": [1.0] * 3}
    view = make(make_round, 2, memory, loss_std=[1e200, NAN, 1.0], **given)
    assert UcbSelector(1).select(view).clients.tolist() == [1]


def test_rounds_without_anybody_discount_nothing(make_round):
    """Nobody is available in round 2: the cohort of round 1 counts once."""
    nobody = WORKED[2] | {"available": [False] * 3}
    rounds = [*WORKED, nobody, WORKED[2] | {"n_chosen": [3, 1, 1], "last_chosen": [2, 0, 1]}]
    memory = {}
    for t, given in enumerate(rounds):
        cohort = UcbSelector(1).select(make(make_round, t, memory, **given))
        memory = memory if cohort.memory is None else cohort.memory
    assert memory["rounds"] == pytest.approx(1 + 0.7 + 0.49)
    np.testing.assert_allclose(memory["counts"], [1 + 0.7 + 0.49, 0.49, 0.7])


def test_ties_are_drawn_from_and_few_are_all_taken(make_round):
    given = {"n_chosen": [1] * 4, "last_chosen": [0] * 4, "reported": [1.0] * 4}
    counts = np.zeros(4)
    for seed in range(2000):
        counts[UcbSelector(1).select(make(make_round, 1, {}, **given, seed=seed)).clients] += 1
    np.testing.assert_allclose(counts / 2000, 0.25, atol=0.05)
    one = make(make_round, 1, {}, **given, available=[False, False, True, False])
    cohort = UcbSelector(3).select(one)
    assert (cohort.clients.tolist(), cohort.weights.tolist()) == ([2], [1.0])


def test_a_client_that_faded_is_as_if_new(make_round):
    memory = {"losses": np.array([0.0, 9.0]), "counts": np.array([0.0, 1.0]), "rounds": 1.0}
    given = {"n_chosen": [1, 5000], "last_chosen": [0, 4999], "reported": [1, 9]}
    cohort = UcbSelector(1).select(make(make_round, 5000, memory, **given))
    assert cohort.clients.tolist() == [0]


@pytest.mark.parametrize(("n_clients", "m"), [(3, 1), (4, 2), (40, 10), (1000, 100), (4000, 400)])
def test_the_default_is_good_for_few_and_many(make_round, n_clients, m):
    given = {"n_chosen": [1] * n_clients, "last_chosen": [0] * n_clients}
    view = make(make_round, 1, {}, np.arange(float(n_clients)), **given)
    assert UcbSelector().select(view).clients.tolist() == list(range(n_clients - m, n_clients))


def fit(blobs, selector, **params):
    X, y, clients = blobs
    model = FederatedClassifier(
        selector=selector, n_rounds=6, local_steps=3, random_state=0, **params
    )
    return model.fit(X, y, clients=clients)


def test_a_fit_takes_everybody_first_and_remembers(blobs):
    history = fit(blobs, UcbSelector(2)).history_
    assert {client for cohort in history["cohort"][:3] for client in cohort} == set("abcdef")
    assert (history["n_aggregated"] == 2).all()


def test_a_fit_with_dropouts(blobs):
    history = fit(blobs, UcbSelector(2), availability=Dropout(0.3)).history_
    assert history["n_failed"].sum() > 0
    assert (history["n_aggregated"] + history["n_failed"] == 2).all()


class WithoutFractions(UcbSelector):
    """The published mistake: p_k is left out."""

    def _select(self, round):
        equal = np.ones_like(round.sizes)
        return super()._select(replace_sizes(round, equal))


def replace_sizes(round, sizes):
    """Return a round with other sizes."""
    view = object.__new__(type(round))
    view.__dict__.update(round.__dict__, sizes=sizes)
    return view


def test_without_the_fractions_another_client_is_chosen(make_round):
    """1.807, 1.616, 3.515: client 2."""
    rounds = [*WORKED[:2], {**WORKED[2], "loss_std": [0.5, NAN, 0.2]}]
    _, cohort = remembered(make_round, rounds, WithoutFractions(1), sizes=[50, 30, 20])
    assert cohort.clients.tolist() == [2]
