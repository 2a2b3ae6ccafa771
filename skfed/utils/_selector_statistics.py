"""How often a selector chooses each client, and whether a difference is more than chance.

The tolerances follow from the variance of the draws themselves, by bounds that hold for rare draws
too. At 6 standard errors, chance exceeds one with a probability of at most 2 exp(-18) = 3e-8, and
any of the 10,000 of ``check_selector`` with one of at most 3e-4.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from skfed.selection import BaseSelector, Cohort
from skfed.selection._mock_round import MockRound
from skfed.utils._selector_answers import polled
from skfed.utils._selector_rounds import N_CLIENTS, Setting, round_maker

N_DRAWS = 80  # in each setting
SIGMAS = 6.0
_ROUNDING = 1e-9


def draw(
    selector: BaseSelector,
    settings: Sequence[Setting],
    tally: Callable[[Cohort, MockRound], np.ndarray],
    view: dict[str, Any],
    times: int = 1,
    repeat: int = 0,
) -> np.ndarray:
    """Return what ``tally`` counts in each draw, as (settings, draws, ...).

    There are ``times`` as many as usual. Draws of the same number have the same seed, so that views
    are compared in pairs; those of different settings are independent, and those of another
    ``repeat``.
    """
    tallies = []
    n_draws = times * N_DRAWS
    for i, setting in enumerate(settings):
        make, first = round_maker(setting, **view), (repeat * len(settings) + i) * n_draws
        for round in map(make, range(first, first + n_draws)):
            tallies.append(tally(selector.select(round), round))
    return np.reshape(tallies, (len(settings), n_draws, *tallies[0].shape))


def draw_fits(
    selector: BaseSelector, settings: Sequence[Setting], view: dict[str, Any], repeat: int = 0
) -> np.ndarray:
    """Return how often each client is chosen in the rounds of fits, as (settings, fits, clients).

    What a rule remembers is handed on from setting to setting. Fits of another ``repeat`` are
    independent.
    """
    found = np.zeros((len(settings), N_DRAWS, N_CLIENTS))
    for fit in range(N_DRAWS):
        memory: Mapping[str, Any] = {}
        for t, setting in enumerate(settings):
            make = round_maker(setting, memory=memory, **view)
            round = make((repeat * N_DRAWS + fit) * len(settings) + t)
            cohort = selector.select(round)
            found[t, fit] = counts(cohort, round)
            memory = memory if cohort.memory is None else cohort.memory
    return found


def counts(cohort: Cohort, round: MockRound) -> np.ndarray:
    """Return how often each client is in a cohort."""
    return np.bincount(cohort.clients, minlength=N_CLIENTS).astype(float)


def is_chosen(cohort: Cohort, round: MockRound) -> np.ndarray:
    """Return 1 for each client that is in a cohort, else 0."""
    return np.minimum(counts(cohort, round), 1)


def polled_counts(cohort: Cohort, round: MockRound) -> np.ndarray:
    """Return how often each client was polled."""
    return np.bincount(np.array(polled(round), int), minlength=N_CLIENTS).astype(float)


def counts_and_weights(cohort: Cohort, round: MockRound) -> np.ndarray:
    """Return how often each client is in a cohort, and with which weight in all."""
    weights = np.bincount(cohort.clients, cohort.weights, minlength=N_CLIENTS)
    return np.stack([counts(cohort, round), weights])


def assert_no_difference(
    differences: np.ndarray, settings: Sequence[Setting], message: str, one_sided: bool = False
) -> None:
    """Assert that differences of paired draws have a mean of 0, or with ``one_sided`` of at most 0.

    They have to be symmetric then, as those of draws that may be exchanged are, or of zeros and
    ones of one expectation. Their mean is within s root mean squares over sqrt(n), but for a
    probability of 2 exp(-s²/2) (Hoeffding).
    """
    for where, part in _parts(settings):
        sample = _joined(differences[part])
        mean = sample.mean(axis=0)
        tolerance = SIGMAS * np.sqrt((sample**2).mean(axis=0) / len(sample)) + _ROUNDING
        bad = (mean if one_sided else np.abs(mean)) > tolerance
        assert not bad.any(), f"{message} ({where}: off by {np.round(mean, 3).tolist()})"


def assert_expected(
    draws: np.ndarray,
    expected: np.ndarray,
    largest: np.ndarray,
    settings: Sequence[Setting],
    message: str,
) -> None:
    """Assert that draws have the expected mean, given the ``largest`` value of one.

    ``expected`` and ``largest`` are by setting. A value that is 0 or the largest has the variance
    expected * (largest - expected); it is used too, since a rare one may not have been drawn. The
    bound is that of Bernstein.
    """
    for where, part in _parts(settings):
        aim, top = expected[part], largest[part]
        deviations = _joined(draws[part] - aim[:, None])
        variance = (aim * (top - aim)).mean(axis=0)
        _assert_near(deviations, aim.mean(axis=0), variance, top.max(axis=0), message, f"{where}: ")


def assert_mean(draws: np.ndarray, expected: np.ndarray, largest: float, message: str) -> None:
    """Assert that draws, along the first axis, have the expected mean; see ``assert_expected``."""
    # Values between 0 and the largest have at most this variance (Bhatia, Davis).
    variance = np.maximum(expected * (largest - expected), 0)
    _assert_near(draws - expected, expected, variance, np.array(largest), message, "")


def _assert_near(
    deviations: np.ndarray,
    aim: np.ndarray,
    variance: np.ndarray,
    top: np.ndarray,
    message: str,
    where: str,
) -> None:
    """Assert that deviations have a mean of 0 within Bernstein's bound."""
    n, mean = len(deviations), deviations.mean(axis=0)
    variance = np.maximum((deviations**2).mean(axis=0), variance)
    tolerance = SIGMAS * np.sqrt(variance / n) + SIGMAS**2 / 3 * top / n
    bad = np.abs(mean) > tolerance + _ROUNDING
    found, due = (np.round(rates, 3).tolist() for rates in (aim + mean, aim))
    assert not bad.any(), f"{message} ({where}{found} for {due})"


def _parts(settings: Sequence[Setting]) -> list[tuple[str, slice]]:
    """Return each setting alone, then all of them, with their names."""
    alone = [(f"in {setting}", slice(i, i + 1)) for i, setting in enumerate(settings)]
    return [*alone, ("over all rounds", slice(None))]


def _joined(draws: np.ndarray) -> np.ndarray:
    """Return the draws of some settings as one sample."""
    return draws.reshape(-1, *draws.shape[2:])
