"""Random draws of clients, against exact probabilities."""

import numpy as np
import pytest

from skfed.selection._sampling import draw_by_size, inclusion_probabilities

SIZES = {
    "mild": np.array([1, 2, 3, 4]),
    "skewed": np.array([1, 1, 1, 10_000]),  # one client has nearly all rows
}


def test_inclusion_probabilities_by_hand():
    """Two draws of sizes 1, 1, 2: P(3) = 1/2 + 2 * 1/4 * 2/3."""
    expected = [0.25 + 0.25 / 3 + 0.5 / 2, 0.25 + 0.25 / 3 + 0.5 / 2, 0.5 + 1 / 3]
    chances = np.array([0.25, 0.25, 0.5])
    np.testing.assert_allclose(inclusion_probabilities(chances, 2), expected)
    assert inclusion_probabilities(chances, 3).tolist() == pytest.approx([1, 1, 1])
    assert inclusion_probabilities(chances, 1).tolist() == chances.tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", SIZES)
def test_inclusion_without_replacement(sizes, n):
    sizes = SIZES[sizes]
    rng, everybody = np.random.default_rng(0), np.ones(4, bool)
    n_trials = 4000
    counts = np.zeros(4)
    for _ in range(n_trials):
        drawn = draw_by_size(rng, np.cumsum(sizes), everybody, n, replace=False)
        assert len(set(drawn.tolist())) == n
        counts[drawn] += 1
    expected = inclusion_probabilities(sizes / sizes.sum(), n)
    error = np.sqrt(expected * (1 - expected) / n_trials)
    assert (np.abs(counts / n_trials - expected) <= 4 * error + 1e-12).all()


def test_the_order_of_draws_without_replacement():
    """The first draw is by size, whatever the later ones."""
    rng, ends = np.random.default_rng(0), np.cumsum([1, 2, 3, 4])
    first = [draw_by_size(rng, ends, np.ones(4, bool), 4, False)[0] for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(first) / 4000, [0.1, 0.2, 0.3, 0.4], atol=0.03)


def test_draws_with_replacement_are_by_size():
    rng, ends = np.random.default_rng(0), np.cumsum([1, 2, 3, 4])
    drawn = draw_by_size(rng, ends, np.ones(4, bool), 20_000, replace=True)
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, [0.1, 0.2, 0.3, 0.4], atol=0.015)


@pytest.mark.parametrize("replace", [True, False])
def test_only_available_clients_are_drawn(replace):
    rng, ends = np.random.default_rng(0), np.cumsum([1, 2, 3, 4])
    available = np.array([True, False, True, False])
    drawn = [draw_by_size(rng, ends, available, 1, replace)[0] for _ in range(2000)]
    np.testing.assert_allclose(
        np.bincount(drawn, minlength=4) / 2000, [0.25, 0, 0.75, 0], atol=0.04
    )


def test_a_round_caps_draws_at_the_available_clients(make_round):
    view, _ = make_round([1.0, 2.0, 3.0], available=[True, False, True])
    assert sorted(view.draw(9)) == sorted(view.draw(9, by_size=False)) == [0, 2]
    assert len(view.draw(9, replace=True)) == 9
