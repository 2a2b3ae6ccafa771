"""Clustered sampling, by exact arithmetic on its urns, and in fits."""

from fractions import Fraction

import numpy as np
import pytest

from skfed import ClusteredSelector, FederatedClassifier
from skfed.availability import Dropout, IndependentAvailability
from skfed.privacy import GaussianMechanism
from skfed.selection._mock_round import mock_round

PLANE = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]])


def urns(selector, view, m):
    """Return the places of each client in each urn, whole numbers of shape (m, n_clients)."""
    owners, lengths = selector._urns(view, np.flatnonzero(view.available), m)
    ends = np.cumsum(lengths).tolist()
    capacity = ends[-1] // m
    places = np.zeros((m, len(view.sizes)), dtype=object)
    for k, end, length in zip(owners.tolist(), ends, lengths.tolist(), strict=True):
        for urn in range(m):
            inside = min(end, (urn + 1) * capacity) - max(end - length, urn * capacity)
            places[urn, k] += max(inside, 0)
    assert (places.sum(1) == capacity).all()
    return places


def variances(places):
    """Return the exact variance of how often each client is drawn, one place of each urn."""
    shares = np.vectorize(Fraction)(places, int(places[0].sum()))
    return (shares * (1 - shares)).sum(0)


def test_by_size_a_client_is_cut_where_an_urn_is_full(make_round):
    view, _ = make_round(np.ones(4), sizes=[40, 30, 20, 10])
    places = urns(ClusteredSelector(), view, 2)
    assert places.tolist() == [[80, 20, 0, 0], [0, 40, 40, 20]]


def test_similar_updates_share_an_urn(make_round):
    view, _ = make_round(np.ones(4), past={"updates": PLANE})
    places = urns(ClusteredSelector("updates"), view, 2)
    assert sorted(places.tolist()) == [[0, 0, 2, 2], [2, 2, 0, 0]]


@pytest.mark.parametrize("by", ["size", "updates"])
@pytest.mark.parametrize("n_clients", [3, 12, 60])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_expectation_is_exact_and_the_variance_below_that_of_independent_draws(
    by, n_clients, share
):
    for seed in range(5):
        rng = np.random.default_rng((seed, n_clients))
        sizes = (rng.pareto(1.0, n_clients) * 20).astype(int) + 1
        updates = rng.normal(size=(n_clients, 64)) + 3 * np.eye(64)[rng.integers(0, 4, n_clients)]
        updates[::5], updates[1::7] = np.nan, 0
        m = max(1, int(share * n_clients))
        view = mock_round(np.ones(n_clients), sizes=sizes, past={"updates": updates}, rng=rng)
        places = urns(ClusteredSelector(by), view, m)
        assert places.sum(0).tolist() == (m * sizes).tolist()
        p = [Fraction(int(size), int(sizes.sum())) for size in sizes]
        multinomial = np.array([m * one * (1 - one) for one in p])
        assert (variances(places) <= multinomial).all()
        if m > 1:
            assert variances(places).sum() < multinomial.sum()


@pytest.mark.parametrize("by", ["size", "updates"])
def test_draws_are_as_frequent_as_places(make_round, by):
    counts, n = np.zeros(4), 4000
    for seed in range(n):
        view, polls = make_round(
            np.ones(4), seed=seed, sizes=[70, 10, 15, 5], past={"updates": PLANE}
        )
        cohort = ClusteredSelector(by, 2).select(view)
        assert cohort.weights.tolist() == [0.5, 0.5]
        assert not cohort.unbiased and not polls and not view.sketched
        np.add.at(counts, cohort.clients, 1)
    np.testing.assert_allclose(counts / n, [1.4, 0.2, 0.3, 0.1], atol=4 * np.sqrt(0.25 / n))


def test_a_cohort_has_some_of_each_direction(make_round):
    groups = np.repeat(np.arange(5), 8)
    rng = np.random.default_rng(0)
    updates = np.eye(5)[groups] + 0.05 * rng.normal(size=(40, 5))
    for seed in range(20):
        view, _ = make_round(np.ones(40), seed=seed, past={"updates": updates})
        assert sorted(groups[ClusteredSelector("updates", 5).select(view).clients]) == [*range(5)]


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        (np.full((4, 2), np.nan), 6),
        (np.zeros((4, 2)), 6),
        (np.ones((4, 2)), 6),
        ([[1, 0], [1, 1], [np.nan] * 2, [0, 0]], 4),
        ([[1, 0], [1, 1], [np.inf, 1], [0, 0]], 4),
        ([[1, 0], [np.nan] * 2, [0, 0], [0, 0]], 6),
    ],
)
def test_clients_without_a_direction_are_clusters_of_their_own(make_round, updates, expected):
    """And equal ones share urns at random: all pairs come, or those of one and one."""
    pairs = set()
    for seed in range(200):
        view, _ = make_round(np.ones(4), seed=seed, past={"updates": np.array(updates, float)})
        pairs.add(tuple(ClusteredSelector("updates", 2).select(view).clients.tolist()))
    assert len(pairs) == expected


def test_updates_of_equal_direction_have_no_angle_that_is_nan(make_round):
    """The cosine of some vectors with themselves is above 1 by rounding."""
    updates = (
        np.tile(np.random.default_rng(0).normal(size=(1, 64)), (30, 1))
        * np.arange(1, 31.0)[:, None]
    )
    view, _ = make_round(np.ones(30), past={"updates": updates})
    assert len(ClusteredSelector("updates", 6).select(view).clients) == 6


@pytest.mark.parametrize("by", ["size", "updates"])
@pytest.mark.parametrize(("n_clients", "m"), [(1, 1), (3, 1), (4, 2), (40, 10), (4000, 400)])
def test_the_default_count_is_that_of_the_other_selectors(make_round, by, n_clients, m):
    updates = np.random.default_rng(0).normal(size=(n_clients, 8))
    view, _ = make_round(np.ones(n_clients), past={"updates": updates})
    assert len(ClusteredSelector(by).select(view).clients) == m


@pytest.mark.parametrize("by", ["size", "updates"])
def test_only_available_clients_fill_urns(make_round, by):
    available = np.array([False, True, True, False])
    view, _ = make_round(np.ones(4), sizes=[9, 2, 1, 9], available=available)
    places = urns(ClusteredSelector(by), view, 2)
    assert places.sum(0).tolist() == [0, 4, 2, 0]
    assert ClusteredSelector(by, 4).select(view).clients.shape == (2,)
    alone, _ = make_round(np.ones(4), available=np.arange(4) == 2)
    assert ClusteredSelector(by, 4).select(alone).clients.tolist() == [2]
    nobody, _ = make_round(np.ones(4), available=np.zeros(4, bool))
    assert ClusteredSelector(by).select(nobody).clients.tolist() == []


@pytest.mark.parametrize("by", ["size", "updates"])
def test_a_thousand_clients_of_whom_nobody_answers(make_round, by):
    nothing = np.full(1000, np.nan)
    view, _ = make_round(nothing, reported=nothing)
    assert len(np.unique(ClusteredSelector(by, 100).select(view).clients)) == 100


@pytest.mark.parametrize("by", ["size", "updates"])
def test_fits_with_who_is_away_and_who_drops_out(blobs, by):
    X, y, clients = blobs
    model = FederatedClassifier(
        selector=ClusteredSelector(by, 3),
        availability=Dropout(0.3, IndependentAvailability(0.7)),
        n_rounds=6,
        random_state=0,
    )
    first = model.fit(X, y, clients=clients).history_["cohort"].tolist()
    assert model.fit(X, y, clients=clients).history_["cohort"].tolist() == first
    assert max(map(len, first)) == 3
    assert model.history_["n_polled"].sum() == 0


def test_by_size_needs_nothing_of_clients(blobs):
    X, y, clients = blobs
    assert ClusteredSelector().needs == ()
    assert ClusteredSelector("updates").needs == ("updates",)
    private = FederatedClassifier(
        selector=ClusteredSelector(clients_per_round=2),
        update_privacy=GaussianMechanism(1.0, 0.1),
        n_rounds=1,
        random_state=0,
    )
    private.fit(X, y, clients=clients)
    with pytest.raises(ValueError, match="does not cover 'updates'"):
        private.set_params(selector__by="updates").fit(X, y, clients=clients)


def test_a_bad_parameter_is_named(make_round):
    view, _ = make_round(np.ones(4))
    with pytest.raises(ValueError, match="The 'by' parameter of ClusteredSelector"):
        ClusteredSelector("loss").select(view)
