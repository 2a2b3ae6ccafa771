"""Oort: each factor of the score by hand, who explores, and when the pacer moves."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from skfed import FederatedClassifier, OortSelector
from skfed.availability import Dropout
from skfed.callbacks import RoundCallback
from skfed.devices import ConstantDevices, LognormalDevices
from skfed.privacy import GaussianMechanism
from skfed.selection._mock_round import mock_round
from skfed.selection._oort import _bonus, _rounded, _scaled, _utilities

NAN, INF = np.nan, np.inf


def make(rms, last_chosen=None, n_chosen=None, seed=0, index=9, **view):
    """Return a round of clients of one row; those of loss NaN are new unless they were chosen."""
    rms = np.asarray(rms, float)
    is_new = np.isnan(rms)
    n_chosen = np.where(is_new, 0, 1) if n_chosen is None else np.array(n_chosen)
    last_chosen = np.where(n_chosen == 0, -1, 8) if last_chosen is None else np.array(last_chosen)
    past = {"n_chosen": n_chosen, "last_chosen": last_chosen, "loss_rms": rms}
    given = {"reported": np.where(is_new, INF, rms), "n_rounds": 100} | view
    rng = np.random.default_rng(seed)
    return mock_round(np.ones(len(rms)), past=past, rng=rng, index=index, **given)


def exploiting(m=1, **params):
    given = {"exploration": 0.0, "min_exploration": 0.0, "clip_quantile": 1.0}
    return OortSelector(m, **(given | params))


def rates(selector, n_clients, n=2000, **given):
    cohorts = [selector.select(make(seed=seed, **given)) for seed in range(n)]
    return sum(np.bincount(cohort.clients, minlength=n_clients) for cohort in cohorts) / n


WORKED = {
    "rms": [10, 5, 2, 1],
    "last_chosen": [4, 8, 8, 1],
    "sizes": [10] * 4,
    "seconds": [10, 40, 20, 20],
}


@pytest.mark.parametrize(
    ("quantile", "expected"),
    [(1.0, [1.2146, 0.1511, 0.2711, 0.3393]), (0.95, [1.2146, 0.1612, 0.2812, 0.3393])],
)
def test_the_worked_decision(quantile, expected):
    rule, view, clients = (
        exploiting(clip_quantile=quantile, step=20.0),
        make(**WORKED),
        np.arange(4),
    )
    scores = rule._utility_and_bonus(view, clients) * rule._system(view, clients, steps=1)
    np.testing.assert_allclose(scores, expected, atol=5e-5)
    assert rule._pool(scores, 1).tolist() == [0]
    assert rule._pool(scores, 2).tolist() == [0, 3]  # one place too far, for one client
    assert rule.set_params(cutoff=0.05)._pool(scores, 1).tolist() == [0, 1, 2, 3]


def test_utility_is_size_times_root_mean_square():
    """NaN of who failed last, diverged, or was never heard of; one that is late keeps its own."""
    view = make(
        [3, 2, 1, INF, NAN, 1e308],
        sizes=[10, 20, 30, 40, 50, 60],
        n_chosen=[1] * 6,
        reported=[3, NAN, 1, 1, INF, 1],
    )
    np.testing.assert_array_equal(_utilities(view, np.arange(6)), [30, NAN, 30, NAN, NAN, NAN])


@pytest.mark.parametrize(
    ("utilities", "quantile", "expected"),
    [
        ([100, 50, 20, 10], 1.0, [1, 4 / 9, 1 / 9, 0]),
        ([100, 50, 20, 10], 0.95, [1, 40 / 82.5, 10 / 82.5, 0]),
        ([1000, 40, 30, 20, 10], 0.75, [1, 1, 2 / 3, 1 / 3, 0]),
        ([7, 7, 7], 0.95, [0, 0, 0]),
        ([7], 0.95, [0]),
        ([0, 0], 0.95, [0, 0]),
        ([NAN, NAN], 0.95, [0, 0]),
        ([NAN, 2, 6, 4], 1.0, [0, 0, 1, 0.5]),
        ([5, 9], 0.0, [0, 0]),
        ([1e308, 0], 1.0, [1, 0]),
        ([5e-324, 0], 1.0, [1, 0]),
    ],
)
def test_utilities_are_clipped_and_scaled(utilities, quantile, expected):
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(_scaled(np.array(utilities, float), quantile), expected)


def test_the_bonus_counts_rounds_from_1():
    np.testing.assert_allclose(
        _bonus(10, np.array([5, 9, 9, 2])), [0.2146, 0.1600, 0.1600, 0.3393], atol=5e-5
    )
    assert _bonus(1, np.array([1])).tolist() == [0]


def test_the_bonus_grows_while_a_client_is_not_chosen():
    """Its utility is 9 of 1 to 10; the bonus of l = 1 overtakes 1 / 9 that is missing."""
    chosen = [
        exploiting().select(make([10, 9, 1], [t - 1, 0, t - 1], index=t)).clients.tolist()
        for t in (1, 40)
    ]
    assert chosen == [[0], [1]]


def test_who_is_slower_than_t_is_worth_less():
    rule, clients = exploiting(step=20.0), np.arange(5)
    view = make([1] * 5, seconds=[10, 40, 20, NAN, 80])
    np.testing.assert_allclose(rule._system(view, clients, 1), [1, 1 / 4, 1, 1, 1 / 16])
    np.testing.assert_allclose(rule._system(view, clients, 2), [1, 1, 1, 1, 1 / 4])
    rule.set_params(alpha=1)
    np.testing.assert_allclose(rule._system(view, clients, 1), [1, 1 / 2, 1, 1, 1 / 4])
    rule.set_params(alpha=0)
    assert rule._system(view, clients, 1).tolist() == [1] * 5
    untimed = make([1] * 5)
    assert exploiting()._system(untimed, clients, 1).tolist() == [1] * 5


def test_t_is_as_long_as_the_next_of_the_explored_need():
    """Of 20 clients 9 were timed after they were chosen; W m = 2, at most a fifth, 4."""
    seconds = np.full(20, NAN)
    seconds[[0, 3, 5, 7, 9, 11, 13, 15, 17]] = [9, 8, 7, 6, 5, 4, 3, 2, 1]
    view = make([1] * 18 + [NAN] * 2, seconds=seconds)
    found = [exploiting(1, window=2)._preferred(view, steps) for steps in (1, 2, 3, 4, 5)]
    assert found == [2, 4, 6, 8, INF]
    assert [exploiting(1)._preferred(view, steps) for steps in (1, 2, 3)] == [4, 8, INF]
    assert [exploiting(1, step=2.5)._preferred(view, steps) for steps in (1, 2)] == [2.5, 5]
    assert exploiting(1)._preferred(make([1] * 20), 1) == INF


def test_draws_from_the_pool_are_in_proportion_to_scores():
    """Utilities 3, 2, 1 at equal bonuses b = .15995: 1 + b, .5 + b, b."""
    scores = np.array([1.15995, 0.65995, 0.15995])
    found = rates(exploiting(cutoff=0.0), 3, rms=[3, 2, 1])
    np.testing.assert_allclose(found, scores / scores.sum(), atol=0.04)
    found = rates(exploiting(cutoff=0.5), 3, rms=[3, 2, 1])
    np.testing.assert_allclose(found, [*scores[:2] / scores[:2].sum(), 0], atol=0.04)
    assert rates(exploiting(cutoff=1.0), 3, n=20, rms=[3, 2, 1]).tolist() == [1, 0, 0]
    assert rates(exploiting(2), 3, n=20, rms=[3, 2, 1]).tolist() == [1, 1, 0]


def test_scores_of_zero_are_drawn_last():
    """In a first round that has explored clients, the bonus is 0."""
    given = {"rms": [5, 1, 1], "last_chosen": [0, 0, 0], "index": 0}
    np.testing.assert_allclose(
        rates(exploiting(2, cutoff=0.0), 3, **given), [1, 0.5, 0.5], atol=0.05
    )


def test_new_clients_are_drawn_by_their_speeds():
    given = {"rms": [NAN] * 3, "expected_seconds": [10, 20, 40]}
    np.testing.assert_allclose(rates(OortSelector(1), 3, **given), [4 / 7, 2 / 7, 1 / 7], atol=0.05)
    # Of seconds 10, 40 and unknown, the last is as the median, 25: rates .1, .025, .04.
    given["expected_seconds"] = [10, 40, NAN]
    expected = np.array([0.1, 0.025, 0.04]) / 0.165
    np.testing.assert_allclose(rates(OortSelector(1), 3, **given), expected, atol=0.05)
    given["expected_seconds"] = [0, 40, 40]
    assert rates(OortSelector(1), 3, n=50, **given).tolist() == [1, 0, 0]
    given["expected_seconds"] = None
    np.testing.assert_allclose(rates(OortSelector(1), 3, **given), [1 / 3] * 3, atol=0.05)


def test_places_are_shared_and_what_one_group_cannot_fill_goes_to_the_other():
    def n_new(rms, m, exploration):
        view = make(rms)
        return int(
            np.isnan(rms)[OortSelector(m, exploration=exploration).select(view).clients].sum()
        )

    many = [1.0] * 10 + [NAN] * 10
    assert [n_new(many, 4, epsilon) for epsilon in (0.0, 0.25, 0.5, 1.0)] == [0, 1, 2, 4]
    assert n_new([1.0] * 10 + [NAN], 4, 1.0) == 1
    assert n_new([1.0] + [NAN] * 10, 4, 0.0) == 3
    assert n_new([1.0] * 10, 4, 0.9) == 0


def test_parts_of_a_place_are_rounded_at_random():
    rng = np.random.default_rng(0)
    values = [_rounded(rng, 1.25) for _ in range(2000)]
    assert set(values) == {1, 2}
    assert np.mean(values) == pytest.approx(1.25, abs=0.04)
    assert {_rounded(rng, 3.0) for _ in range(50)} == {3}


def test_epsilon_falls_to_its_least():
    found, memory = [], {}
    rule = OortSelector(1)
    for t in range(100):
        memory = rule.select(make([1, 1], index=t, memory=memory)).memory
        found.append(memory["exploration"])
    assert found[:2] == pytest.approx([0.9 * 0.98, 0.9 * 0.98**2])
    assert found[73] == pytest.approx(0.9 * 0.98**74) and found[74] == 0.2 == found[99]
    none = exploiting()  # does not rise to a least value above it
    assert none.select(make([1, 1])).memory["exploration"] == 0


def paced(utilities, **params):
    """Return the steps of T after rounds in which one client trained with given losses."""
    memory, steps = {}, []
    rule = exploiting(**params)
    for t, rms in enumerate([NAN, *utilities]):
        n_chosen = [t, 1]
        view = make([rms, NAN], [t - 1, -1], n_chosen, index=t, memory=memory, sizes=[10, 1])
        memory = rule.select(view).memory
        steps.append(memory["steps"])
    return steps


def test_the_pacer_compares_windows():
    """Of two rounds: 30, 29, 29, 40; within a window utility may fall."""
    utilities = [2.0, 1.0, 1.9, 1.0, 2.9, 0.0, 2.0, 2.0]
    assert paced(utilities, window=2) == [1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert paced(utilities, window=1) == [1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert paced([3.0, NAN, NAN, 1.0], window=1) == [1, 1, 2, 2, 2]  # nobody answered: 0


def test_only_the_last_cohort_counts_in_a_window():
    memory = exploiting().select(make([1, 2, 4])).memory
    view = make([1, 2, 4], [8, 9, 9], index=10, memory=memory, sizes=[5, 6, 7])
    assert exploiting().select(view).memory["utility"] == 6 * 2 + 7 * 4


def test_utilities_near_the_largest_number():
    """They sum to infinity, and no window is below another."""
    memory, rule = {}, exploiting(window=1)
    for t in range(10, 14):
        view = make([1e308] * 3, [t - 1] * 3, index=t, memory=memory)
        memory = rule.select(view).memory
    assert (memory["before"], memory["steps"]) == (INF, 1)


def test_who_was_chosen_often_enough_leaves():
    rule = exploiting(max_selections=10)
    given = {"rms": [5, 4, 1]}
    assert rule.select(make(n_chosen=[9, 9, 9], **given)).clients.tolist() == [0]
    assert rule.select(make(n_chosen=[10, 9, 9], **given)).clients.tolist() == [1]
    # Two are needed, and one is below 10: the limit is 20 for all.
    rule.set_params(clients_per_round=2)
    assert rule.select(make(n_chosen=[10, 12, 9], **given)).clients.tolist() == [0, 1]
    assert rule.select(make(n_chosen=[20, 12, 9], **given)).clients.tolist() == [1, 2]
    assert rule.select(make(n_chosen=[40, 40, 40], **given)).clients.tolist() == [0, 1]


def test_by_default_the_limit_is_well_above_the_mean():
    """Chosen 5, 100 rounds x 1 of 3 or 100 x 1 of 100 times on average: 10, 100, 10."""
    rule = exploiting()
    for n_rounds, n_clients, limit in ((1, 3, 10), (100, 3, 100), (100, 100, 10)):
        rms = np.linspace(5, 1, n_clients)
        for n, first in ((limit - 1, 0), (limit, 1)):
            n_chosen = np.r_[n, np.ones(n_clients - 1, int)]
            view = make(rms, n_chosen=n_chosen, n_rounds=n_rounds)
            assert rule.set_params(cutoff=1.0).select(view).clients.tolist() == [first]


def test_equal_losses_are_drawn_from():
    np.testing.assert_allclose(rates(OortSelector(2), 4, rms=[2.0] * 4), 0.5, atol=0.05)


def test_few_are_all_taken_and_nobody_is_an_empty_cohort():
    one = make([1, 2, NAN, 3], available=[False, False, True, False])
    cohort = OortSelector(3).select(one)
    assert (cohort.clients.tolist(), cohort.weights.tolist()) == ([2], [1.0])
    nobody = make([1, 2], available=[False, False])
    assert OortSelector(1).select(nobody).clients.tolist() == []


def test_nobody_has_ever_answered():
    """All were chosen: equal, but for the round."""
    given = {"rms": [NAN] * 4, "n_chosen": [1] * 4, "reported": [NAN, INF, NAN, INF]}
    np.testing.assert_allclose(rates(OortSelector(2), 4, **given), 0.5, atol=0.05)


@pytest.mark.parametrize(("n_clients", "m"), [(3, 1), (4, 2), (40, 10), (1000, 100), (4000, 400)])
def test_the_default_is_good_for_few_and_many(n_clients, m):
    """Half of the clients are new."""
    rms = np.where(np.arange(n_clients) % 2, NAN, np.arange(n_clients))
    cohort = OortSelector().select(make(rms, seconds=np.where(np.isnan(rms), NAN, 1.0)))
    assert len(set(cohort.clients.tolist())) == m


def estimator(selector, **params):
    given = {"n_rounds": 8, "local_steps": 3, "random_state": 0} | params
    return FederatedClassifier(selector=selector, **given)


def fit(blobs, selector, **params):
    X, y, clients = blobs
    return estimator(selector, **params).fit(X, y, clients=clients)


def test_a_fit_explores_everybody_and_remembers(blobs):
    model = fit(blobs, OortSelector(2))
    assert {client for cohort in model.history_["cohort"] for client in cohort} == set("abcdef")
    assert (model.history_["n_aggregated"] == 2).all()
    assert (model.history_["scalars_up"][1:] == 2 * 2).all()  # the spread of losses
    assert model._server.memory.values["exploration"] == pytest.approx(0.9 * 0.98**8)


def test_a_fit_with_dropouts(blobs):
    history = fit(blobs, OortSelector(2), availability=Dropout(0.3)).history_
    assert history["n_failed"].sum() > 0
    assert (history["n_aggregated"] + history["n_failed"] == 2).all()


def test_slow_clients_train_less_often(blobs):
    """a takes 1,000 s, the others 1 s; after each was explored, a has a millionth of its score."""
    devices = ConstantDevices(1e9, 1e9, 1e9, dict.fromkeys("bcdef", 1.0) | {"a": 1000.0})
    history = fit(blobs, OortSelector(2, step=1.5), devices=devices, n_rounds=30).history_
    assert sum("a" in cohort for cohort in history["cohort"]) == 1


SETTINGS = {
    "plain": {},
    "dropouts": {"availability": Dropout(0.4)},
    "devices": {"devices": LognormalDevices(1e3, 1e5, 1e5, public=True), "deadline": 1.0},
}


class Stop(RoundCallback):
    def on_round_end(self, estimator, record):
        if record["round"] == 4:
            raise OSError("killed")


@pytest.mark.filterwarnings("ignore:.*late in .* rounds")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_fit_resumes_and_spreads_over_jobs_bit_for_bit(blobs, same_model, name, tmp_path):
    X, y, clients = blobs
    rule = OortSelector(2, window=1, max_selections=2)
    model = estimator(rule, engine="loop", **SETTINGS[name])

    def same(one, other):
        timeless = [c for c in one.history_ if not c.endswith("_seconds")]
        pd.testing.assert_frame_equal(one.history_[timeless], other.history_[timeless])
        assert same_model(one, other)
        assert one._server.memory.values == other._server.memory.values

    whole = clone(model).fit(X, y, clients=clients)
    assert np.isfinite(whole.coef_).all()
    same(clone(model).set_params(n_jobs=2).fit(X, y, clients=clients), whole)
    model.set_params(checkpoint=tmp_path)
    with pytest.raises(OSError, match="killed"), pytest.warns(UserWarning, match="interrupted"):
        clone(model).set_callbacks(Stop()).fit(X, y, clients=clients)
    same(clone(model).fit(X, y, clients=clients), whole)


def test_clients_of_one_class(blobs):
    X, y, _ = blobs
    model = estimator(OortSelector(2)).fit(X, y, clients=y)
    assert (model.history_["n_aggregated"] == 2).all()
    assert np.isfinite(model.history_["train_loss"]).all()


def test_loss_privacy_is_refused(blobs):
    noise = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="loss_privacy does not cover 'spread'"):
        fit(blobs, OortSelector(2), loss_privacy=noise)
