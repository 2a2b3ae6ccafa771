"""Checks that any selector should pass.

``check_selector(MySelector())`` runs all checks and names the one that fails;
``parametrize_with_selector_checks`` makes a test of each. They call the selector on mock rounds
with given losses; nothing is trained.
"""

import pickle
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
from sklearn.base import clone

from skfed.selection import BaseSelector, Cohort
from skfed.selection._mock_round import MockRound, mock_round

__all__ = ["check_selector", "parametrize_with_selector_checks"]

_N_CLIENTS = 12
_N_DRAWS = 600
_SIGMAS = 5.0  # largest deviation of a frequency from its expectation, in standard errors

Check = Callable[[BaseSelector], None]


def check_selector(selector: BaseSelector) -> None:
    """Run every check.

    Parameters
    ----------
    selector : BaseSelector
        The selector to check, with parameters that are valid for 12 clients.

    Raises
    ------
    AssertionError
        If a check fails; the message begins with the check's name.
    """
    for check in CHECKS:
        run_check(check, selector)


def parametrize_with_selector_checks(selectors: Sequence[BaseSelector]):
    """Make a pytest parametrization of ``selector`` and ``check``, one test each.

    Parameters
    ----------
    selectors : sequence of BaseSelector
        The selectors to check.

    Returns
    -------
    decorator
        For ``def test(selector, check): check(selector)``.
    """
    import pytest

    cases = [
        pytest.param(selector, partial(run_check, check), id=f"{selector!r}-{check.__name__}")
        for selector in selectors
        for check in CHECKS
    ]
    return pytest.mark.parametrize(("selector", "check"), cases)


def run_check(check: Check, selector: BaseSelector) -> None:
    """Run one check; any failure becomes an AssertionError that begins with its name."""
    try:
        check(clone(selector))
    except Exception as error:
        raise AssertionError(f"{check.__name__}: {selector!r}: {error}") from error


def check_cohorts_are_valid(selector: BaseSelector) -> None:
    """Indices exist, weights are finite, non-negative and sum to 1 unless unbiased."""
    # Early and late rounds, in which either all clients or none have reported.
    for index, reported in product(range(10), (_LOSSES, np.full(_N_CLIENTS, np.inf))):
        cohort = selector.select(_round(seed=index, index=index, reported=reported))
        assert isinstance(cohort, Cohort), f"returned {cohort!r}, not a Cohort"
        assert len(cohort.clients), "chose nobody although everybody is available"


def check_unavailable_clients_are_left_alone(selector: BaseSelector) -> None:
    """Clients that are not available are neither polled nor chosen."""
    for seed in range(30):
        available = np.random.default_rng(seed).random(_N_CLIENTS) < 0.5
        view = _round(seed=seed, available=available)
        chosen = {*selector.select(view).clients.tolist(), *_polled(view)}
        away = chosen - set(np.flatnonzero(available).tolist())
        assert not away, f"polled or chose {sorted(away)}, which are not available"


def check_answers_used_are_asked_for(selector: BaseSelector) -> None:
    """The cohort does not depend on losses that were neither polled nor reported."""
    for seed in range(20):
        view = _round(seed=seed, reported=_LOSSES)
        cohort = selector.select(view)
        losses = 7.0 + np.random.default_rng(seed).permutation(_LOSSES)
        losses[_polled(view)] = _LOSSES[_polled(view)]
        other = _round(seed=seed, losses=losses, reported=_LOSSES)
        assert _same(cohort, selector.select(other)), "it depends on losses it did not poll"


def check_answers_count_for_who_gave_them(selector: BaseSelector) -> None:
    """Two clients of equal size that swap their losses swap their frequencies."""
    sizes = np.ones(_N_CLIENTS, int)
    straight = _frequencies(selector, sizes=sizes)
    for i, j in ((1, 8), (2, 5), (4, 10)):  # free clients, far apart in index and loss
        swap = np.arange(_N_CLIENTS)
        swap[[i, j]] = j, i
        swapped = _frequencies(selector, sizes=sizes, losses=_LOSSES[swap], reported=_LOSSES[swap])
        message = f"clients {i} and {j} swapped their losses, but not their frequencies"
        _assert_close(swapped[:, swap], straight, 2, message)


def check_order_of_clients_does_not_matter(selector: BaseSelector) -> None:
    """Renumbering the clients renumbers the cohort, or its frequencies if it is random."""
    order = np.random.default_rng(0).permutation(_N_CLIENTS)
    straight = _frequencies(selector)
    renumbered = _frequencies(selector, order=order)[:, np.argsort(order)]
    _assert_close(renumbered, straight, 2, "renumbering the clients changes who is chosen")


def check_same_seed_gives_same_cohort(selector: BaseSelector) -> None:
    """Two rounds with the same generator state have the same cohort."""
    for seed in range(10):
        cohorts = [selector.select(_round(seed=seed)) for _ in range(2)]
        assert _same(*cohorts), f"chose {cohorts[0].clients}, then {cohorts[1].clients}"


def check_only_the_rounds_generator_is_drawn_from(selector: BaseSelector) -> None:
    """The global generators of numpy, Python and torch are not used."""
    before = np.random.get_state(), random.getstate(), torch.get_rng_state()  # noqa: NPY002
    try:
        cohorts, moved = [], False
        for seed in (1, 2):
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            torch.manual_seed(seed)
            start = _global_states()
            cohorts.append(selector.select(_round(seed=5)))
            moved |= _global_states() != start
    finally:
        np.random.set_state(before[0])  # noqa: NPY002
        random.setstate(before[1])
        torch.set_rng_state(before[2])
    assert _same(*cohorts), "the cohort depends on a global generator"
    assert not moved, "a global generator was drawn from: use round.rng"


def check_no_state_is_kept(selector: BaseSelector) -> None:
    """Selecting sets no attribute, and earlier rounds make no difference."""
    fresh = clone(selector)
    before = _attributes(selector)
    for seed in range(5):
        selector.select(_round(seed=seed, index=seed))
    after = _attributes(selector)
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    assert not changed, (
        f"its attributes changed: {sorted(changed)}; a selector keeps nothing from round to round, "
        "so that a fit can be repeated and resumed: take what is known of clients from the round"
    )
    cohorts = selector.select(_round(seed=9)), fresh.select(_round(seed=9))
    assert _same(*cohorts), "an earlier round changed the cohort of a later one"


def check_the_view_is_left_alone(selector: BaseSelector) -> None:
    """The arrays of the round are not changed."""
    view = _round()
    before = {n: v.copy() for n, v in vars(view).items() if isinstance(v, np.ndarray)}
    selector.select(view)
    for name, value in before.items():
        same = np.array_equal(getattr(view, name), value, equal_nan=value.dtype.kind == "f")
        assert same, f"round.{name} was changed"


def check_it_clones_and_pickles(selector: BaseSelector) -> None:
    """Copies have the same parameters and choose the same cohort."""
    copies = [clone(selector), pickle.loads(pickle.dumps(selector))]
    rebuilt = type(selector)(**selector.get_params(deep=False))
    for copy in [*copies, rebuilt]:
        assert repr(copy) == repr(selector), f"a copy is {copy!r}"
        assert _same(copy.select(_round()), selector.select(_round())), "a copy chose other clients"


def check_a_single_available_client(selector: BaseSelector) -> None:
    """A single available client is chosen; if it is free, an empty cohort is allowed too."""
    for k in range(_N_CLIENTS):
        cohort = selector.select(_round(available=np.arange(_N_CLIENTS) == k))
        chosen = set(cohort.clients.tolist())
        expected = [{k}] if _PRIORITY[k] else [{k}, set()]
        assert chosen in expected, f"only client {k} is available, but it chose {chosen}"


def check_ties_are_broken_at_random(selector: BaseSelector) -> None:
    """Clients of equal losses, sizes and priority are chosen equally often."""
    equal = {"losses": np.ones(_N_CLIENTS), "sizes": np.ones(_N_CLIENTS, int)}
    for reported in (np.full(_N_CLIENTS, np.inf), np.ones(_N_CLIENTS)):
        rate = _frequencies(selector, reported=reported, **equal)
        for group in (_PRIORITY, ~_PRIORITY):
            mean = rate[:, group].mean(axis=1, keepdims=True) * np.ones(group.sum())
            _assert_close(rate[:, group], mean, 1, "equal clients are not chosen equally often")


def check_failed_clients_are_not_preferred(selector: BaseSelector) -> None:
    """A client of a loss that is not finite, or whose training failed, is not chosen more often."""
    for k in (0, _N_CLIENTS - 1):
        median = _losses_with(k, np.median(_LOSSES))
        rate = _frequencies(selector, losses=median, reported=median)[0, k]
        for bad in (np.nan, np.inf, -np.inf):
            losses = _losses_with(k, bad)
            polled = _frequencies(selector, losses=losses, reported=median)[0, k]
            assert polled <= rate + _tolerance(rate, 2), f"a polled loss of {bad} is preferred"
        reported = _losses_with(k, np.nan)
        failed = _frequencies(selector, losses=median, reported=reported)[0, k]
        assert failed <= rate + _tolerance(rate, 2), "a client whose training failed is preferred"
    all_failed = np.full(_N_CLIENTS, np.nan)
    selector.select(_round(losses=all_failed, reported=all_failed))


def check_marginals_are_as_stated(selector: BaseSelector) -> None:
    """With equal losses, polls and choices are as frequent as ``marginals`` states."""
    losses = np.ones(_N_CLIENTS)
    rates = {"polled": np.zeros(_N_CLIENTS), "chosen": np.zeros(_N_CLIENTS)}
    for seed in range(_N_DRAWS):
        view = _round(seed=seed, losses=losses)
        chosen = selector.select(view).clients
        for name, clients in (("polled", np.array(_polled(view), int)), ("chosen", chosen)):
            rates[name] += np.bincount(clients, minlength=_N_CLIENTS) / _N_DRAWS
    for name, expected in selector.marginals(_round(losses=losses)).items():
        _assert_close(rates[name], expected, 1, f"clients are not {name} as often as stated")


# The checks after the first three assume that a selector keeps no state and is seeded.
CHECKS: list[Check] = [
    check_no_state_is_kept,
    check_only_the_rounds_generator_is_drawn_from,
    check_same_seed_gives_same_cohort,
    check_cohorts_are_valid,
    check_unavailable_clients_are_left_alone,
    check_answers_used_are_asked_for,
    check_answers_count_for_who_gave_them,
    check_order_of_clients_does_not_matter,
    check_the_view_is_left_alone,
    check_it_clones_and_pickles,
    check_a_single_available_client,
    check_ties_are_broken_at_random,
    check_failed_clients_are_not_preferred,
    check_marginals_are_as_stated,
]

# Clients of different sizes and losses, a third of them with priority. Some free clients' losses
# are near those of the priority clients, some far.
_SIZES = np.array([5, 40, 10, 25, 15, 30, 20, 35, 8, 12, 28, 18])
_PRIORITY = np.arange(_N_CLIENTS) % 3 == 0
_LOSSES = np.array([1.103, 1.71, 1.389, 1.297, 1.004, 1.93, 1.57, 1.178, 2.11, 1.461, 2.02, 1.833])


def _round(
    seed: int = 0,
    *,
    losses: np.ndarray = _LOSSES,
    sizes: np.ndarray = _SIZES,
    available: np.ndarray | None = None,
    reported: np.ndarray | None = None,
    index: int = 5,
    order: np.ndarray | None = None,
) -> MockRound:
    """Return a mock round of the clients above; ``order`` renumbers them."""
    order = np.arange(_N_CLIENTS) if order is None else order
    reported = losses if reported is None else reported
    return mock_round(
        losses[order],
        sizes=sizes[order],
        priority_weights=_PRIORITY[order].astype(float),
        available=available,
        reported=reported[order],
        index=index,
        rng=np.random.default_rng((7, seed)),
    )


def _losses_with(k: int, loss: float) -> np.ndarray:
    return np.where(np.arange(_N_CLIENTS) == k, loss, _LOSSES)


def _polled(view: MockRound) -> list[int]:
    return [k for clients, *_ in view.polls for k in clients]


def _same(one: Cohort, other: Cohort) -> bool:
    return np.array_equal(one.clients, other.clients) and np.array_equal(one.weights, other.weights)


def _frequencies(selector: BaseSelector, **view) -> np.ndarray:
    """Return the mean count and the mean weight of each client in a cohort."""
    totals = np.zeros((2, _N_CLIENTS))
    for seed in range(_N_DRAWS):
        cohort = selector.select(_round(seed=seed, **view))
        totals[0] += np.bincount(cohort.clients, minlength=_N_CLIENTS)
        totals[1] += np.bincount(cohort.clients, cohort.weights, minlength=_N_CLIENTS)
    return totals / _N_DRAWS


def _tolerance(rate: np.ndarray, n_samples: int) -> np.ndarray:
    """Return the tolerance of a difference of ``n_samples`` mean counts."""
    variance = np.maximum(rate, 1 / _N_DRAWS) * np.maximum(1 - rate, 0.1)
    return _SIGMAS * np.sqrt(n_samples * variance / _N_DRAWS)


def _assert_close(rate: np.ndarray, expected: np.ndarray, n_samples: int, message: str) -> None:
    off = np.abs(rate - expected)
    fixed = np.isin(expected, (0.0, 1.0)) & np.isin(rate, (0.0, 1.0))
    bad = off > np.where(fixed, 0.0, _tolerance(expected, n_samples))
    assert not bad.any(), (
        f"{message}: {np.round(rate, 3).tolist()} against {np.round(expected, 3).tolist()}"
    )


def _attributes(selector: BaseSelector) -> dict[str, tuple[int, str]]:
    """Return the identity and text of each attribute of the selector and its class."""
    attributes = {**vars(type(selector)), **vars(selector)}
    return {name: (id(value), repr(value)) for name, value in attributes.items()}


def _global_states() -> tuple:
    numpy_state = repr(np.random.get_state(legacy=False))  # noqa: NPY002
    return numpy_state, random.getstate(), torch.get_rng_state().tolist()
