"""Every method, on games whose values are known."""

import itertools
import math
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from skfed.contribution import (
    BaseContribution,
    DataBanzhaf,
    ExactShapley,
    GTGShapley,
    LeaveOneOut,
    Values,
)
from skfed.contribution._banzhaf import reuse_estimate

METHODS = [LeaveOneOut(), ExactShapley(), DataBanzhaf(), GTGShapley()]
EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=repr)


class Game:
    """A game by its table; it refuses what v is not to be asked, and keeps what it was asked."""

    def __init__(self, table):
        self.table = np.asarray(table, dtype=float)  # subset j has player i if bit i of j is set
        self.n_players = len(self.table).bit_length() - 1
        self.calls = []

    def __call__(self, subsets):
        assert subsets.dtype == bool
        assert subsets.shape == (len(subsets), self.n_players)
        subsets_asked = (subsets << np.arange(self.n_players)).sum(axis=1).tolist()
        assert 0 not in subsets_asked, "nobody's gain is 0"
        assert len({*self.asked, *subsets_asked}) == len(self.asked) + len(subsets_asked), "twice"
        self.calls.append(subsets_asked)
        return self.table[subsets_asked]

    @property
    def asked(self):
        return [subset for call in self.calls for subset in call]


def values(method, table, seed=0):
    game = Game(table)
    return method.values(game, game.n_players, np.random.default_rng(seed))


def random_game(n_players=8, seed=0):
    """Return the table of a game with more noise than order."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=2**n_players)
    for i, weight in enumerate(rng.normal(size=n_players)):
        table[np.arange(2**n_players) >> i & 1 == 1] += weight
    table[0] = 0
    return table


def exhaustive_gtg(**params):
    """Return GTG-Shapley that cuts nothing short and does not end early."""
    return GTGShapley(0, 0, 0, **params)


def cycles(n_cycles, n_players=8):
    """Return GTG-Shapley of so many cycles."""
    n = n_cycles * n_players
    return exhaustive_gtg(min_permutations=n, max_permutations=n)


#         {} A   B   AB  C  AC  BC  ABC
WORKED = [0, 0.4, 0.4, 0.4, 0, 0.6, 0.6, 0.6]


@pytest.mark.parametrize(
    ("method", "by_hand"),
    [
        (LeaveOneOut(), [0, 0, 0.2]),
        (ExactShapley(), [0.7 / 3, 0.7 / 3, 0.4 / 3]),
        (DataBanzhaf(), [0.25, 0.25, 0.15]),
        (DataBanzhaf(n_subsets=8), [0.25, 0.25, 0.15]),
    ],
    ids=repr,
)
def test_values_by_hand(method, by_hand):
    found = values(method, WORKED)
    assert found.values == pytest.approx(by_hand)
    assert found.errors.tolist() == [0, 0, 0]


def test_banzhaf_by_reuse_of_four_subsets_by_hand():
    """Of A, BC, AC and nobody, with .4, .6, .6 and 0: A is in the first and the third."""
    subsets = np.array([[1, 0, 0], [0, 1, 1], [1, 0, 1], [0, 0, 0]], dtype=bool)
    found = reuse_estimate(subsets, np.array([0.4, 0.6, 0.6, 0.0]))
    assert found.values == pytest.approx([0.2, 0.8 / 3, 0.4])
    # A: samples (.4, .6) and (.6, 0), of variances .02 and .18, over 2 each. B: (.6), which takes
    # the variance of (.4, .6, 0), .28 / 3; over 1 and over 3. C: (.6, .6) and (.4, 0).
    by_hand = [0.2 / 2, 0.28 / 3 * (1 + 1 / 3), 0.08 / 2]
    assert found.errors**2 == pytest.approx(by_hand)


def test_of_one_subset_on_either_side_the_error_is_unknown():
    found = reuse_estimate(np.array([[True, False], [False, True]]), np.array([0.5, 0.2]))
    assert found.values == pytest.approx([0.3, -0.3])
    assert np.isnan(found.errors).all()


def test_gtg_by_hand(monkeypatch):
    """Two cycles, ABC, BCA, CAB and ACB, BAC, CBA: A adds .4, 0, .6 and then .4, 0, 0."""
    drawn = iter([[1, 2], [2, 0], [0, 1], [2, 1], [0, 2], [1, 0]])

    class Rng:
        def permutation(self, rest):
            order = next(drawn)
            assert sorted(order) == sorted(rest)
            return order

    method = exhaustive_gtg(min_permutations=1, max_permutations=6)
    game = Game(WORKED)
    found = method.values(game, 3, Rng())
    # B: 0, .4, 0 and 0, .4, .6. C: .2, .2, 0 and .2, .2, 0. Means of cycles: A 1/3 and .4/3; B .4/3
    # and 1/3; C .4/3 twice.
    assert found.values == pytest.approx([0.7 / 3, 0.7 / 3, 0.4 / 3])
    assert found.errors == pytest.approx([0.1, 0.1, 0])  # half the difference of two
    assert game.calls[0] == [0b111]
    assert sorted(game.calls[1]) == [0b001, 0b010, 0b100]
    assert game.calls[2:] == [[0b011, 0b110, 0b101]]


@pytest.mark.parametrize("n_players", [1, 2, 3, 5, 8])
def test_shapley_is_the_mean_over_all_permutations(n_players):
    if n_players > 5:
        by_definition = values(cycles(3000, n_players), random_game(n_players))
        tolerance = 4 * by_definition.errors
    else:
        tables = random_game(n_players)
        added = np.zeros(n_players)
        for order in itertools.permutations(range(n_players)):
            ends = np.cumsum([0, *(1 << i for i in order)])
            added[list(order)] += np.diff(tables[ends])
        by_definition = Values(added / math.factorial(n_players), np.zeros(n_players))
        tolerance = 1e-12
    exact = values(ExactShapley(), random_game(n_players)).values
    assert (np.abs(exact - by_definition.values) <= tolerance).all()


@pytest.mark.parametrize("method", [ExactShapley(), exhaustive_gtg(), DataBanzhaf(3)], ids=repr)
@pytest.mark.parametrize("n_players", [1, 2, 7])
def test_shapley_values_sum_to_the_gain_of_all(method, n_players):
    table = random_game(n_players)
    total = values(method, table).values.sum()
    is_shapley = not isinstance(method, DataBanzhaf) or n_players == 1
    assert (total == pytest.approx(table[-1])) == is_shapley


def with_twins_and_a_null_player(seed):
    """Return a game of 6 players: 0 and 1 add the same to all subsets, and player 2 nothing."""
    subsets = np.arange(64)
    other = random_game(5, seed)
    n_twins = (subsets & 1) + (subsets >> 1 & 1)
    table = other[n_twins % 2 | n_twins // 2 << 1 | (subsets >> 3) << 2]
    return table


@EVERY_METHOD
def test_equal_players_get_equal_values_and_a_null_player_0(method):
    table = with_twins_and_a_null_player(seed=1)
    found = values(clone(method), table)
    assert found.values[2] == pytest.approx(0, abs=1e-12)
    assert found.errors[2] == 0
    first, second = found.values[:2]
    slack = 4 * math.hypot(*found.errors[:2]) + 1e-12
    assert abs(first - second) <= slack
    assert np.ptp(found.values) > 0.1
    if isinstance(method, GTGShapley):
        assert found.errors[0] > 0
    else:
        assert slack == 1e-12


def test_a_null_player_is_worth_0_up_to_the_error_of_drawn_subsets():
    found = values(DataBanzhaf(40), with_twins_and_a_null_player(seed=1))
    assert 0 < abs(found.values[2]) < 3 * found.errors[2]


@EVERY_METHOD
def test_harm_is_a_value_below_0(method):
    weights = np.array([0.5, -0.3, 0.2, 0, -0.1])
    table = (np.arange(32)[:, None] >> np.arange(5) & 1) @ weights
    found = values(method, table)
    assert found.values == pytest.approx(weights)  # whatever is averaged
    assert found.errors == pytest.approx(np.zeros(5))


@EVERY_METHOD
def test_a_player_alone_gets_the_gain(method):
    game = Game([0, -0.7])
    found = method.values(game, 1, np.random.default_rng(0))
    assert found.values == pytest.approx([-0.7])
    assert found.errors == pytest.approx([0])
    assert game.calls == [[1]]


@pytest.mark.parametrize(
    ("method", "by_hand"),
    [
        (LeaveOneOut(), [0.4, 0.6]),
        (ExactShapley(), [0.2, 0.4]),  # (v(A) + v(AB) - v(B)) / 2
        (DataBanzhaf(), [0.2, 0.4]),
        (GTGShapley(), [0.2, 0.4]),  # a cycle is AB and BA
    ],
    ids=repr,
)
def test_two_players(method, by_hand):
    found = values(method, [0, 0.0, 0.2, 0.6])
    assert found.values == pytest.approx(by_hand)
    assert found.errors == pytest.approx([0, 0])


def test_exact_shapley_of_more_than_ten_players_is_an_error_that_names_the_way_out():
    def gains(subsets):
        raise AssertionError("nothing is evaluated")

    with pytest.raises(ValueError, match=r"there are 11, with 2,048 .*use DataBanzhaf\(\)"):
        ExactShapley().values(gains, 11, np.random.default_rng(0))
    assert values(ExactShapley(), random_game(10)).values.shape == (10,)


@pytest.mark.parametrize("method", [LeaveOneOut(), DataBanzhaf(), GTGShapley()], ids=repr)
def test_others_take_more_players_than_all_subsets_could_be_evaluated_of(method):
    weights = np.random.default_rng(0).normal(size=70)
    found = method.values(lambda subsets: subsets @ weights, 70, np.random.default_rng(0))
    errors = np.abs(found.values - weights)
    assert (errors <= 4.5 * found.errors + 1e-9).all()


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        (LeaveOneOut(), [9]),
        (ExactShapley(), [255]),
        (DataBanzhaf(255), [range(110, 190)]),
        (DataBanzhaf(256), [255]),
        # All together, all alone, then prefixes of 2 to 7.
        (cycles(2), [1, 8, *[range(2, 9)] * 6, *[range(9)] * 7]),
    ],
    ids=repr,
)
def test_subsets_are_evaluated_side_by_side_and_once(method, calls):
    game = Game(random_game())
    method.values(game, 8, np.random.default_rng(0))
    sizes = [len(call) for call in game.calls]
    assert len(sizes) <= len(calls)
    for size, expected in zip(sizes, calls, strict=False):
        assert size in (expected if isinstance(expected, range) else [expected])


def gtg_models(n_players, **params):
    """Return the mean number of models that GTG-Shapley evaluates, and that of permutations."""
    counts = []
    for seed in range(5):
        weights = np.random.default_rng(seed).random(n_players)
        asked = []

        def gains(subsets, weights=weights, asked=asked):
            asked.extend(subsets)
            sums = subsets @ weights
            return sums + 0.3 * np.sin(7 * sums)

        GTGShapley(**params).values(gains, n_players, np.random.default_rng(seed))
        counts.append(len(asked))
    return np.mean(counts)


@pytest.mark.parametrize(
    ("n_players", "params", "documented"),
    [
        (8, {"max_permutations": 30}, 130),
        (10, {"max_permutations": 30}, 200),
        (20, {"max_permutations": 30}, 710),
        (30, {"max_permutations": 30}, 1670),
        (10, {"min_permutations": 200}, 710),
    ],
)
def test_the_documented_numbers_of_models_of_gtg(n_players, params, documented):
    assert gtg_models(n_players, **params) == pytest.approx(documented, rel=0.04)
    assert f"{documented:,}" in GTGShapley.__doc__


DRAWN = pytest.mark.parametrize(
    ("method", "more", "exact"),
    [(DataBanzhaf(50), DataBanzhaf(200), DataBanzhaf(256)), (cycles(10), cycles(160), None)],
    ids=["DataBanzhaf", "GTGShapley"],
)


@DRAWN
def test_estimates_converge_to_exact_values_and_their_errors_are_honest(method, more, exact):
    table = random_game()
    truth = values(exact or ExactShapley(), table).values
    ratios, distances = [], []
    for budget in (method, more):
        found = [values(budget, table, seed) for seed in range(60)]
        differences = np.array([one.values for one in found]) - truth
        errors = np.array([one.errors for one in found])
        distances.append(np.sqrt((differences**2).mean()))
        ratios.append(distances[-1] / np.sqrt((errors**2).mean()))
        assert 0.9 < (np.abs(differences) < 1.96 * errors).mean() < 0.98
        assert (np.abs(differences.mean(axis=0)) < 4 * errors.mean(axis=0) / np.sqrt(60)).all()
    assert 0.9 < min(ratios) <= max(ratios) < 1.1
    growth = 4 if isinstance(method, DataBanzhaf) else 16
    assert distances[0] / distances[1] == pytest.approx(np.sqrt(growth), rel=0.15)


@pytest.mark.parametrize(("n_subsets", "too_small"), [(3, 0.23), (8, 0.11), (64, 0.01)])
def test_errors_of_few_subsets_are_too_small_by_at_most_what_is_documented(n_subsets, too_small):
    """In an additive game the gains of a subset and its complement have the correlation -1."""
    table = (np.arange(256)[:, None] >> np.arange(8) & 1) @ np.arange(1, 9)
    found = [values(DataBanzhaf(n_subsets), table, seed) for seed in range(400)]
    differences = np.array([one.values for one in found]) - np.arange(1, 9)
    errors = np.array([one.errors for one in found])
    ratio = np.sqrt((errors**2).mean() / (differences**2).mean())
    assert 1 - ratio == pytest.approx(too_small, abs=0.03)


def test_gtg_within_a_round_adds_nothing_once_the_gain_is_reached():
    """All but .05 is there once A has come: who comes after it adds nothing, and is not asked."""
    subsets = np.arange(16)
    table = 0.95 * (subsets & 1) + 0.05 * (subsets == 15)
    game = Game(table)
    method = GTGShapley(0, 0.06, min_permutations=40)
    found = method.values(game, 4, np.random.default_rng(0))
    assert found.values[1:].tolist() == [0, 0, 0]
    assert 0.95 < found.values[0] < 1  # it adds 1 where it is the last
    assert game.calls[1] == [0b0001, 0b0010, 0b0100, 0b1000]
    read_on = [subset for call in game.calls[2:] for subset in call if not subset & 1]
    assert {0b0110, 0b1010, 0b1100, 0b1110} == {*read_on}
    # At the threshold a permutation is read on: B adds .0625 to A.
    assert values(GTGShapley(0, 0.0625), [0, 0.5, 0, 0.5625]).values[1] > 0
    assert values(GTGShapley(0, 0.0626), [0, 0.5, 0, 0.5625]).values[1] == 0


def test_gtg_between_rounds_leaves_small_gains_out():
    for total, counts in ((0.009, False), (-0.009, False), (0.01, True), (-0.011, True)):
        game = Game([0, 0.3, 0.1, total])
        found = GTGShapley(0.01, 0).values(game, 2, np.random.default_rng(0))
        assert found.values.any() == counts
        assert (len(game.asked) == 1) == (not counts)
    assert values(GTGShapley(0, 0), [0, 0.3, 0.1, 0]).values == pytest.approx([0.1, -0.1])


def n_permutations(method, n_players, table=None):
    """Return how many permutations are drawn."""
    drawn = []

    class Rng:
        def permutation(self, rest):
            drawn.append(rest)
            return np.random.default_rng(len(drawn)).permutation(rest)

    table = random_game(n_players) if table is None else table
    method.values(Game(table), n_players, Rng())
    return len(drawn)


def test_gtg_ends_when_it_has_converged_in_whole_cycles():
    additive = (np.arange(128)[:, None] >> np.arange(7) & 1) @ np.arange(1, 8)
    assert n_permutations(GTGShapley(), 7, additive) == 35  # at once: every permutation is alike
    assert n_permutations(GTGShapley(min_permutations=1), 7, additive) == 14  # two for the errors
    noisy = random_game(7)
    assert n_permutations(GTGShapley(tol=0), 7) == 196  # 200 rounded down
    assert n_permutations(GTGShapley(tol=0, min_permutations=30, max_permutations=30), 7) == 35
    assert 35 <= n_permutations(GTGShapley(tol=0.3), 7, noisy)
    assert n_permutations(GTGShapley(tol=0.3), 7, noisy) < n_permutations(GTGShapley(), 7, noisy)


def test_gtg_looks_at_the_means_of_the_last_ten_permutations():
    """Two players: means of 12 permutations of which the last adds 1 and the others 2, and 0."""
    from skfed.contribution._gtg_shapley import _has_converged

    added = np.column_stack([[2.0] * 11 + [1.0], np.zeros(12)])
    change = (2 - 23 / 12) / (23 / 12) / 2  # of the first player, in the mean with 0
    assert _has_converged(added, change * 1.001)
    assert not _has_converged(added, change * 0.999)
    added = np.column_stack([[9.0] + [2.0] * 11])  # 9, 5.5, 4.33, ...: the third counts
    third, final = 13 / 3, 31 / 12
    assert _has_converged(added, (third - final) / final * 1.001)
    assert not _has_converged(added, (third - final) / final * 0.999)


@EVERY_METHOD
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_gain_that_is_not_finite_is_passed_on_without_a_warning(method, bad):
    table = random_game(6)
    table[np.arange(64) & 1 == 1] = bad  # whoever is with player 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = values(method, table)
    assert not np.isfinite(found.values[0])


@EVERY_METHOD
def test_the_same_generator_gives_the_same_values(method):
    table = random_game(7)
    once, again, other = (values(method, table, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(once, again)
    is_drawn = isinstance(method, DataBanzhaf | GTGShapley)
    assert (once.values.tolist() != other.values.tolist()) == is_drawn == (once.errors.max() > 0)


@EVERY_METHOD
def test_parameters_are_those_of_a_scikit_learn_estimator(method):
    shared = {"metric": "accuracy", "evaluate_on": "validation", "every": 5}
    changed = clone(method).set_params(**shared)
    assert changed.get_params() == method.get_params() | shared
    copied = clone(changed)
    assert copied.get_params() == changed.get_params()
    assert repr(method) == f"{type(method).__name__}()"
    assert "every=5" in repr(changed)
    with pytest.raises(TypeError, match="positional"):
        type(method)(*range(1, len(method.get_params()) + 1))


def test_own_parameters_come_first():
    assert DataBanzhaf(9).n_subsets == 9
    assert GTGShapley(1, 2, 3, 4, 5).get_params() == {
        "between_round_threshold": 1,
        "within_round_threshold": 2,
        "tol": 3,
        "min_permutations": 4,
        "max_permutations": 5,
        "metric": "loss",
        "evaluate_on": "priority",
        "every": 1,
    }


@pytest.mark.parametrize(
    "method",
    [
        LeaveOneOut(metric="f1"),
        LeaveOneOut(evaluate_on="server"),
        ExactShapley(every=0),
        ExactShapley(every=True),
        ExactShapley(every=1.5),
        DataBanzhaf(2),
        DataBanzhaf(64.0),
        DataBanzhaf(metric=None),
        GTGShapley(-0.1),
        GTGShapley(within_round_threshold=np.nan),
        GTGShapley(tol=-1),
        GTGShapley(min_permutations=0),
        GTGShapley(max_permutations=None),
    ],
    ids=repr,
)
def test_parameters_out_of_range_are_an_error(method):
    with pytest.raises(ValueError, match=f"parameter of {type(method).__name__} must be"):
        values(method, WORKED)


def test_gtg_with_a_minimum_above_its_maximum_is_an_error():
    with pytest.raises(ValueError, match="min_permutations=30 is above max_permutations=20"):
        values(GTGShapley(max_permutations=20), WORKED)


def test_a_method_of_ones_own():
    class Alone(BaseContribution):
        """v of each player alone, asked twice."""

        def _values(self, gains, n_players, rng):
            alone = np.eye(n_players, dtype=int)
            assert gains(np.zeros((2, n_players))).tolist() == [0, 0]
            assert gains(alone).tolist() == gains(alone[::-1])[::-1].tolist()
            return Values(gains(np.repeat(alone, 2, axis=0))[::2], np.zeros(n_players))

    game = Game(WORKED)
    found = Alone().values(game, 3, np.random.default_rng(0))
    assert found.values.tolist() == [0.4, 0.4, 0]
    assert game.calls == [[1, 2, 4]]


class Wrong(BaseContribution):
    def __init__(self, found):
        self.found = found
        super().__init__()

    def _values(self, gains, n_players, rng):
        return self.found


@pytest.mark.parametrize("found", [None, np.zeros(3), Values(np.zeros(3), np.zeros(2))])
def test_a_method_that_returns_something_else_is_told_so(found):
    with pytest.raises(TypeError, match=r"Wrong\._values returned .* each of 3 clients"):
        Wrong(found).values(lambda subsets: subsets.sum(1), 3, np.random.default_rng(0))
