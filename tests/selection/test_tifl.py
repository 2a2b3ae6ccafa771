"""TiFL: tiers by seconds, their probabilities and credits, and who belongs to none."""

import numpy as np
import pytest

from skfed import FederatedClassifier, FederatedRegressor, TiflSelector
from skfed.availability import Dropout, IndependentAvailability
from skfed.devices import ConstantDevices
from skfed.selection._tifl import _tiers

NAN = np.nan
SIX = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]  # tiers {0, 1}, {2, 3}, {4, 5}
ERRORS = [0.1, 0.1, 0.4, 0.4, 0.3, 0.3]  # accuracies .9, .6, .7


def make(make_round, seconds, errors=None, n_chosen=None, index=1, **view):
    n_chosen = np.ones(len(seconds), int) if n_chosen is None else np.array(n_chosen)
    errors = np.zeros(len(seconds)) if errors is None else errors
    return make_round(errors, seconds=seconds, past={"n_chosen": n_chosen}, index=index, **view)


def memory(values=(NAN, NAN, 0.3), credits=(5, 5, 0), last_tier=2):
    n = len(values)
    return {
        "values": np.array(values),
        "credits": np.array(credits),
        "probabilities": np.full(n, 1 / n),
        "last_tier": last_tier,
    }


def rates(make_round, selector, seconds, n=2000, **given):
    counts = np.zeros(len(seconds))
    for seed in range(n):
        counts[selector.select(make(make_round, seconds, seed=seed, **given)[0]).clients] += 1
    return counts / n


def test_the_worked_decision(make_round):
    """Accuracies (.9, .6, .7), credits (5, 5, 0): (1/3, 2/3, 0)."""
    given = {"errors": ERRORS, "index": 10, "memory": memory()}
    view, polls = make(make_round, SIX, **given)
    cohort = TiflSelector(2).select(view)
    np.testing.assert_allclose(cohort.memory["probabilities"], [1 / 3, 2 / 3, 0])
    np.testing.assert_allclose(cohort.memory["values"], [0.1, 0.4, 0.3])
    assert polls == [([0, 1, 2, 3, 4, 5], "error", None, None)]
    tier = cohort.memory["last_tier"]
    assert cohort.clients.tolist() == [2 * tier, 2 * tier + 1]
    assert cohort.memory["credits"].tolist() == ([4, 5, 0] if tier == 0 else [5, 4, 0])
    found = rates(make_round, TiflSelector(2), SIX, **given)
    np.testing.assert_allclose(found, [1 / 3, 1 / 3, 2 / 3, 2 / 3, 0, 0], atol=0.05)


@pytest.mark.parametrize(
    ("before", "last_tier", "changes"),
    [
        (0.3, 2, True),  # as accurate as before
        (0.2, 2, True),  # less
        (0.31, 2, False),  # it has risen
        (NAN, 2, False),  # not known
        (0.0, -1, False),  # no tier was drawn yet
    ],
)
def test_probabilities_change_if_the_accuracy_has_not_risen(make_round, before, last_tier, changes):
    remembered = memory((NAN, NAN, before), (5, 5, 5), last_tier)
    view, _ = make(make_round, SIX, ERRORS, index=10, memory=remembered)
    expected = [1 / 6, 3 / 6, 2 / 6] if changes else [1 / 3] * 3
    found = TiflSelector(2).select(view).memory["probabilities"]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(
    ("index", "interval", "is_due"),
    [(0, 10, 1), (5, 10, 0), (20, 10, 1), (5, 1, 1), (0, None, 0), (10, None, 0)],
)
def test_polls_are_in_the_rounds_that_the_interval_divides(make_round, index, interval, is_due):
    view, polls = make(make_round, SIX, ERRORS, index=index)
    cohort = TiflSelector(2, interval=interval).select(view)
    assert len(polls) == is_due
    assert ("credits" in cohort.memory) == (interval is not None)


def test_equal_accuracies_are_ordered_at_random(make_round):
    given = {"errors": [0.3] * 6, "index": 10, "memory": memory(credits=(5, 5, 5))}
    np.testing.assert_allclose(rates(make_round, TiflSelector(2), SIX, **given), 1 / 3, atol=0.05)


def test_a_tier_that_does_not_answer_keeps_its_place(make_round):
    """Tier 0 was the least accurate; NaN and infinity are no answers."""
    remembered = memory((0.9, 0.2, 0.3), (5, 5, 5))
    answers = [NAN, np.inf, 0.4, NAN, 0.3, 0.3]
    view, _ = make(make_round, SIX, answers, index=10, memory=remembered)
    cohort = TiflSelector(2).select(view)
    np.testing.assert_allclose(cohort.memory["values"], [0.9, 0.4, 0.3])
    np.testing.assert_allclose(cohort.memory["probabilities"], [3 / 6, 2 / 6, 1 / 6])


def test_losses_near_the_largest_number(make_round):
    """Times sizes they would overflow; means do not."""
    answers = [1e308, 1.6e308, 1, 2, NAN, NAN]
    given = {"sizes": np.array([10, 20, 10, 30, 10, 10]), "index": 10, "memory": memory()}
    view, _ = make(make_round, SIX, answers, **given)
    found = TiflSelector(2, metric="loss").select(view).memory["values"]
    np.testing.assert_allclose(found, [1.4e308, 1.75, 0.3])


def play(make_round, n_rounds, planned, available):
    """Return the tiers drawn in some rounds, and the memory after them."""
    drawn, remembered = [], {}
    for t in range(n_rounds):
        given = {"memory": remembered, "seed": t, "n_rounds": planned, "available": available}
        cohort = TiflSelector(2).select(make(make_round, SIX, ERRORS, index=t, **given)[0])
        remembered = cohort.memory
        drawn.append(remembered["last_tier"])
    return drawn, remembered


@pytest.mark.parametrize("n_rounds", [9, 10, 1])
def test_credits_last_for_all_rounds(make_round, n_rounds):
    """ceil(rounds / 3) each."""
    drawn, after = play(make_round, n_rounds, n_rounds, np.ones(6, bool))
    counts = np.bincount(drawn, minlength=3)
    each = -(-n_rounds // 3)
    assert (counts <= each).all()
    assert after["credits"].tolist() == (each - counts).tolist()


def test_rounds_beyond_all_credits_begin_anew(make_round):
    drawn, after = play(make_round, 9, 3, np.ones(6, bool))
    assert [sorted(drawn[t : t + 3]) for t in (0, 3, 6)] == [[0, 1, 2]] * 3
    assert after["credits"].tolist() == [0, 0, 0]


def test_only_tiers_without_credits_in_reach(make_round):
    """Their probabilities are 0: they are equally likely, and the other credits are kept."""
    remembered = memory(credits=(0, 4, 0)) | {"probabilities": np.array([0.0, 1.0, 0.0])}
    given = {"memory": remembered, "available": [True, True, False, False, True, True]}
    found = rates(make_round, TiflSelector(2), SIX, **given)
    np.testing.assert_allclose(found, [0.5, 0.5, 0, 0, 0.5, 0.5], atol=0.05)
    cohort = TiflSelector(2).select(make(make_round, SIX, **given)[0])
    assert cohort.memory["credits"].tolist() == [0, 4, 0]


def test_a_tier_always_away_does_not_hold_up_the_others(make_round):
    drawn, after = play(make_round, 12, 6, np.arange(6) < 2)
    assert drawn == [0] * 12
    assert after["credits"].tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    ("seconds", "n_tiers", "expected"),
    [
        ([9, 1, 5, 2, 8, 4], 3, [2, 0, 1, 0, 2, 1]),
        ([1, 2, 3, 4, 5, 6, 7], 3, [0, 0, 0, 1, 1, 2, 2]),
        ([3, 1, 2], 3, [2, 0, 1]),
        ([2, 1], 3, [1, 0]),
        ([5, NAN, 1, 2], 2, [1, 1, 0, 0]),
    ],
)
def test_tiers_have_equal_numbers(seconds, n_tiers, expected):
    new = np.zeros(len(seconds), bool)
    found = _tiers(np.random.default_rng(0), np.array(seconds, float), new, n_tiers)
    assert found.tolist() == expected


def test_tiers_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    for n in range(1, 40):
        seconds, new = rng.random(n), rng.random(n) < 0.3
        new[0] = False
        ordered = sorted(np.flatnonzero(~new), key=lambda k: seconds[k])
        for n_tiers in (1, 2, 5):
            found = _tiers(rng, seconds, new, n_tiers)
            for rank, k in enumerate(ordered):
                assert found[k] == rank * n_tiers // len(ordered)
            assert (found[new] == -1).all()


@pytest.mark.parametrize(
    ("n_clients", "m", "n_tiers"),
    [(3, 1, 3), (4, 2, 2), (40, 10, 4), (1000, 100, 5), (4000, 400, 5)],
)
def test_the_default_is_good_for_few_and_many(make_round, n_clients, m, n_tiers):
    seconds = np.arange(1.0, n_clients + 1)
    cohort = TiflSelector().select(make(make_round, seconds)[0])
    assert len(np.unique(cohort.clients)) == m
    assert len(cohort.memory["credits"]) == n_tiers
    assert len(np.unique(cohort.clients * n_tiers // n_clients)) == 1


def test_new_clients_come_first_and_take_no_credit(make_round):
    given = {"n_chosen": [0, 0, 0, 1, 1, 1], "index": 10}
    view, polls = make(make_round, [NAN, NAN, NAN, 1.0, 2.0, 3.0], **given)
    cohort = TiflSelector(2).select(view)
    assert set(cohort.clients) < {0, 1, 2}
    assert (polls, dict(cohort.memory)) == ([], {})
    np.testing.assert_allclose(
        rates(make_round, TiflSelector(2), [NAN, NAN, NAN, 1.0, 2.0, 3.0], **given),
        [2 / 3, 2 / 3, 2 / 3, 0, 0, 0],
        atol=0.05,
    )


def test_without_seconds_it_is_a_random_choice(make_round):
    selector = TiflSelector(2, interval=1)
    view, polls = make(make_round, [NAN] * 6)
    assert (dict(selector.select(view).memory), polls) == ({}, [])
    np.testing.assert_allclose(rates(make_round, selector, [NAN] * 6), 1 / 3, atol=0.05)


def test_expected_seconds_are_remembered_of_clients_that_are_away(make_round):
    """Clients 0 and 1 are away in round 1, and are still the first tier."""
    given = {"n_chosen": [0] * 6, "expected_seconds": SIX}
    first = TiflSelector(2).select(make(make_round, [NAN] * 6, **given)[0])
    assert first.memory["seconds"].tolist() == SIX
    given |= {"available": [False, False, True, True, True, True], "memory": first.memory}
    pairs = {
        tuple(TiflSelector(2).select(make(make_round, [NAN] * 6, seed=s, **given)[0]).clients)
        for s in range(50)
    }
    assert pairs == {(2, 3), (4, 5)}
    unknown = given | {"memory": {}}  # four clients are cut into three tiers: {2, 3}, {4}, {5}
    cohorts = {
        tuple(TiflSelector(2).select(make(make_round, [NAN] * 6, seed=s, **unknown)[0]).clients)
        for s in range(50)
    }
    assert cohorts == {(2, 3), (4,), (5,)}


def test_few_are_all_taken(make_round):
    one = make(make_round, SIX, available=np.arange(6) == 4)[0]
    assert TiflSelector(3).select(one).clients.tolist() == [4]
    nobody = make(make_round, SIX, available=np.zeros(6, bool))[0]
    assert len(TiflSelector(3).select(nobody).clients) == 0
    alone = make(make_round, [1.0])[0]
    assert TiflSelector().select(alone).clients.tolist() == [0]


def test_equal_seconds_are_drawn_from(make_round):
    np.testing.assert_allclose(rates(make_round, TiflSelector(2), [2.0] * 6), 1 / 3, atol=0.05)


def fit(
    blobs, selector, kind=FederatedClassifier, public=False, latency=None, callbacks=(), **params
):
    X, y, clients = blobs
    latency = [1, 9, 2, 8, 3, 7] if latency is None else latency
    devices = ConstantDevices(1e9, 1e9, 1e9, dict(zip("abcdef", latency, strict=True)))
    params = {
        "n_rounds": 8,
        "random_state": 0,
        "devices": devices.set_params(public=public),
    } | params
    model = kind(selector=selector, **params).set_callbacks(*callbacks)
    return model.fit(X, y, clients=clients)


QUICK, SLOW = set("ace"), set("bdf")


@pytest.mark.parametrize("public", [True, False])
def test_a_fit_trains_one_tier_a_round(blobs, public):
    history = fit(blobs, TiflSelector(2, n_tiers=2, interval=4), public=public).history_
    cohorts = [set(cohort) for cohort in history["cohort"]]
    first = 0 if public else 3
    if not public:  # each of the six is timed
        assert cohorts[0] | cohorts[1] | cohorts[2] == QUICK | SLOW
    assert all(cohort < QUICK or cohort < SLOW for cohort in cohorts[first:])
    assert sum(cohort < QUICK for cohort in cohorts[first:]) <= 4
    due = [t for t in (0, 4) if t >= first]
    assert history["n_polled"].tolist() == [6 if t in due else 0 for t in range(8)]
    assert history["models_down"].tolist() == [6 if t in due else 2 for t in range(8)]


def test_a_fit_with_dropouts_and_clients_that_are_away(blobs):
    """Nobody answers in some rounds."""
    for availability in (Dropout(0.7), IndependentAvailability(0.3)):
        selector = TiflSelector(2, n_tiers=3, interval=2)
        history = fit(blobs, selector, n_rounds=20, availability=availability).history_
        assert len(history) == 20


def test_a_regressor_is_polled_for_its_loss(blobs):
    X, y, clients = blobs
    data = X, y / 10, clients
    with pytest.raises(ValueError, match=r"TiflSelector\(metric='loss'\)"):
        fit(data, TiflSelector(2, interval=1), FederatedRegressor, public=True)
    model = fit(data, TiflSelector(2, interval=1, metric="loss"), FederatedRegressor, public=True)
    assert (model.history_["n_polled"] == 6).all()


def test_a_fit_goes_on_with_warm_start(blobs):
    model = fit(blobs, TiflSelector(3, n_tiers=2), public=True, n_rounds=2, warm_start=True)
    X, y, clients = blobs
    model.set_params(n_rounds=8).fit(X, y, clients=clients)
    cohorts = ["".join(sorted(cohort)) for cohort in model.history_["cohort"]]
    assert set(cohorts) == {"ace", "bdf"}
    assert cohorts[0] != cohorts[1]


def test_devices_of_one_speed_and_clients_of_one_class(blobs):
    X, _, clients = blobs
    y = np.unique(clients, return_inverse=True)[1] % 3
    model = fit((X, y, clients), TiflSelector(2, interval=2), latency=[1] * 6, public=True)
    assert (model.history_["n_aggregated"] == 2).all()


@pytest.mark.parametrize(
    "wrong", [{"n_tiers": 0}, {"interval": 0}, {"metric": "accuracy"}, {"clients_per_round": 0}]
)
def test_parameters_are_checked(make_round, wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"The '{name}' parameter of TiflSelector"):
        TiflSelector(**wrong).select(make(make_round, SIX)[0])
