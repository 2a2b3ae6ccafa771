"""Checks that any selector should pass.

``check_selector(MySelector())`` runs all checks and names the one that fails;
``parametrize_with_selector_checks`` makes a test of each. They call the selector on mock rounds
with given losses; nothing is trained. The rounds are early and late, of clients that have reported
or not, that have been timed or not, some of them unavailable, with and without priority.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.base import clone

from skfed.selection import BaseSelector, Cohort
from skfed.utils._global_generators import (
    global_generators_restored,
    global_states,
    seed_global_generators,
)
from skfed.utils._selector_answers import influence, polled, same
from skfed.utils._selector_decisions import check_worked_decisions
from skfed.utils._selector_memory import (
    check_a_memory_is_of_clients_by_index,
    check_admitted_clients_have_reported,
    check_only_the_memory_is_remembered,
    check_vectors_may_be_zero_or_unknown,
    check_what_it_needs_is_named,
)
from skfed.utils._selector_rounds import (
    EACH,
    LOSSES,
    N_CLIENTS,
    SIZES,
    Setting,
    fit_and_others,
    make_round,
    settings_for,
    shuffled_losses,
)
from skfed.utils._selector_statistics import (
    assert_expected,
    assert_no_difference,
    counts,
    counts_and_weights,
    draw,
    is_chosen,
    polled_counts,
)

__all__ = ["check_selector", "check_worked_decisions", "parametrize_with_selector_checks"]

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


def check_no_state_is_kept(selector: BaseSelector) -> None:
    """Selecting sets no attribute, and earlier rounds make no difference."""
    before = _attributes(selector)
    rounds = fit_and_others(selector)
    cohorts = _cohorts(selector, rounds, range(len(rounds)))
    after = _attributes(selector)
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    assert not changed, (
        f"its attributes changed: {sorted(changed)}; a selector keeps nothing from round to round, "
        "so that a fit can be repeated and resumed: take what is known of clients from the round"
    )
    _assert_earlier_rounds_do_not_matter(selector, rounds, cohorts)


def _assert_earlier_rounds_do_not_matter(
    selector: BaseSelector, rounds: list[Setting], cohorts: list[Cohort]
) -> None:
    """Go through the rounds again, as another fit would, and in other orders."""
    straight = list(range(len(rounds)))
    shuffled = np.random.default_rng(0).permutation(straight).tolist()
    for order in (straight, straight[::-1], shuffled, [t for t in shuffled for _ in range(2)]):
        for t, cohort in zip(order, _cohorts(clone(selector), rounds, order), strict=True):
            assert same(cohorts[t], cohort), (
                f"{rounds[t]} has another cohort after other rounds: state is kept outside the "
                "attributes, as in a module's global, a closure or a cache, or draws are not from "
                "round.rng"
            )


def _cohorts(selector: BaseSelector, rounds: list[Setting], order: Sequence[int]) -> list[Cohort]:
    """Return the cohorts of some rounds, in that order, with the global generators the same."""
    cohorts = []
    with global_generators_restored():
        for t in order:
            seed_global_generators(0)
            cohorts.append(selector.select(make_round(rounds[t], t, **shuffled_losses(t))))
    return cohorts


def check_only_the_rounds_generator_is_drawn_from(selector: BaseSelector) -> None:
    """The global generators of numpy, Python and torch are not used."""
    settings = settings_for(selector)
    outcomes, moved = [], False
    with global_generators_restored():
        for seed in (1, 2):
            seed_global_generators(seed)
            start = global_states()
            outcomes.append([selector.select(make_round(setting)) for setting in settings])
            moved |= global_states() != start
    for one, other in zip(*outcomes, strict=True):
        assert same(one, other), "the cohort depends on a global generator"
    assert not moved, "a global generator was drawn from: use round.rng"


def check_same_seed_gives_same_cohort(selector: BaseSelector) -> None:
    """Two rounds with the same generator state have the same cohort."""
    for seed, setting in enumerate(settings_for(selector)):
        cohorts = [selector.select(make_round(setting, seed)) for _ in range(2)]
        assert same(*cohorts), f"chose {cohorts[0].clients}, then {cohorts[1].clients}"


def check_cohorts_are_valid(selector: BaseSelector) -> None:
    """Indices exist, weights are finite, non-negative and sum to 1 unless unbiased.

    An unbiased cohort may be empty, as independent draws may be.
    """
    for setting in settings_for(selector):
        for seed in range(3):
            cohort = selector.select(make_round(setting, seed))
            assert isinstance(cohort, Cohort), f"returned {cohort!r}, not a Cohort"
            assert len(cohort.clients) or cohort.unbiased, (
                f"chose nobody, though many are available (in {setting})"
            )


def check_unavailable_clients_are_left_alone(selector: BaseSelector) -> None:
    """Clients that are not available are neither polled nor chosen."""
    for seed, setting in enumerate(3 * settings_for(selector)):
        available = np.random.default_rng(seed).random(N_CLIENTS) < 0.5
        view = make_round(setting, seed, available=available)
        chosen = {*selector.select(view).clients.tolist(), *polled(view)}
        away = chosen - set(np.flatnonzero(available).tolist())
        assert not away, f"polled or chose {sorted(away)}, which are not available (in {setting})"


def check_answers_used_are_asked_for(selector: BaseSelector) -> None:
    """The cohort does not depend on losses that were neither polled nor reported."""
    for seed, setting in enumerate(2 * settings_for(selector)):
        view = make_round(setting, seed)
        cohort = selector.select(view)
        losses = 7.0 + np.random.default_rng(seed).permutation(LOSSES)
        losses[polled(view)] = LOSSES[polled(view)]
        other = selector.select(make_round(setting, seed, losses=losses))
        assert same(cohort, other), f"it depends on losses it did not poll (in {setting})"


def check_answers_asked_for_are_used(selector: BaseSelector) -> None:
    """Polled clients are chosen by what they answer, not by what they reported before."""
    influences = [(setting, influence(selector, setting)) for setting in settings_for(selector)]
    for setting, (stale, _) in influences:
        assert not stale, (
            f"clients {sorted(stale)} are polled, but chosen by the stale losses of "
            f"round.reported, whatever they answer (in {setting})"
        )
    for setting, (_, unheard) in influences:
        assert not unheard, (
            f"it chooses among the clients that it polls, whatever they answer (in {setting})"
        )


def check_answers_count_for_who_gave_them(selector: BaseSelector) -> None:
    """Clients of equal size that swap their losses and seconds swap their frequencies."""
    swap = np.arange(N_CLIENTS)
    for i, j in ((1, 7), (2, 8), (4, 10)):  # equal in each setting, far apart in index and loss
        swap[[i, j]] = j, i
    _assert_renumbered(
        selector,
        swap,
        {"sizes": np.ones(N_CLIENTS, int)},
        "clients swapped their losses, but not their frequencies",
    )


def check_order_of_clients_does_not_matter(selector: BaseSelector) -> None:
    """Renumbering the clients renumbers the cohort, or its frequencies if it is random."""
    order = np.random.default_rng(0).permutation(N_CLIENTS)
    _assert_renumbered(selector, order, {}, "renumbering the clients changes who is chosen")


def _assert_renumbered(
    selector: BaseSelector, order: np.ndarray, view: dict[str, np.ndarray], message: str
) -> None:
    settings = settings_for(selector)
    straight = draw(selector, settings, counts_and_weights, view)
    # Independent of the others, so that a draw of each may be exchanged: counts may be above 1.
    renumbered = draw(selector, settings, counts_and_weights, view | {"order": order}, repeat=1)
    differences = renumbered[..., np.argsort(order)] - straight
    assert_no_difference(differences, settings, message)


def check_the_view_is_left_alone(selector: BaseSelector) -> None:
    """The arrays of the round are not changed."""
    for setting in settings_for(selector):
        view = make_round(setting)
        before = {n: v.copy() for n, v in vars(view).items() if isinstance(v, np.ndarray)}
        selector.select(view)
        for name, value in before.items():
            same_array = np.array_equal(getattr(view, name), value, equal_nan=value.dtype == float)
            assert same_array, f"round.{name} was changed (in {setting})"


def check_it_clones_and_pickles(selector: BaseSelector) -> None:
    """Copies have the same parameters and choose the same cohort."""
    copies = [clone(selector), pickle.loads(pickle.dumps(selector))]
    rebuilt = type(selector)(**selector.get_params(deep=False))
    for copy in [*copies, rebuilt]:
        assert repr(copy) == repr(selector), f"a copy is {copy!r}"
        for setting in settings_for(selector):
            cohorts = [one.select(make_round(setting)) for one in (copy, selector)]
            assert same(*cohorts), f"a copy chose other clients (in {setting})"


def check_a_single_available_client(selector: BaseSelector) -> None:
    """A single available client is chosen; a free or a timed one may be left out."""
    for setting in settings_for(selector):
        may_be_left = (setting.of_clients("priority") == 0) | setting.of_clients("timed")
        for k in range(N_CLIENTS):
            cohort = selector.select(make_round(setting, available=np.arange(N_CLIENTS) == k))
            chosen = set(cohort.clients.tolist())
            expected = [{k}, set()] if may_be_left[k] else [{k}]
            assert chosen in expected, (
                f"only client {k} is available, but it chose {chosen} (in {setting})"
            )


def check_ties_are_broken_at_random(selector: BaseSelector) -> None:
    """Clients of equal losses, sizes, seconds, priority and past are chosen equally often."""
    settings = settings_for(selector)
    view = _EQUAL | {"sizes": np.ones(N_CLIENTS, int), "same_past": True}
    rates = draw(selector, settings, counts_and_weights, view)
    for share in (0, 0.5):  # each is compared with the next of its group, and with one far away
        differences = np.zeros_like(rates)
        for rate, difference, setting in zip(rates, differences, settings, strict=True):
            for group in setting.groups():
                other = np.roll(group, max(1, int(share * len(group))))
                difference[..., group] = rate[..., other] - rate[..., group]
        assert_no_difference(differences, settings, "equal clients are not chosen equally often")


def check_failed_clients_are_not_preferred(selector: BaseSelector) -> None:
    """A client of a loss that is not finite, or whose training failed, is not chosen more often."""
    settings = settings_for(selector)
    for k in (0, N_CLIENTS - 1):
        middle = _losses_with(k, np.median(LOSSES))
        cases = {f"a polled loss of {bad}": {"losses": _losses_with(k, bad)} for bad in _BAD}
        cases["a client whose training failed"] = {"reported": _losses_with(k, np.nan)}
        usual = {"losses": middle, "reported": middle}
        before = draw(selector, settings[1::2], is_chosen, usual)
        for what, failed in cases.items():
            more = draw(selector, settings[1::2], is_chosen, usual | failed) - before
            message = f"{what} is preferred"
            assert_no_difference(more[..., k], settings[1::2], message, one_sided=True)
    all_failed = np.full(N_CLIENTS, np.nan)
    for setting in settings:
        selector.select(make_round(setting, losses=all_failed, reported=all_failed))


def check_unbiased_weights_are_fractions_on_average(selector: BaseSelector) -> None:
    """The weights q_k of an unbiased cohort have the expectation p_k."""
    settings = [replace(s, priority=EACH, available=EACH) for s in settings_for(selector)]
    settings = [s for s in settings if selector.select(make_round(s)).unbiased]
    if not settings:
        return
    weights = draw(selector, settings, counts_and_weights, {}, times=2)[:, :, 1]
    expected = np.tile(SIZES / SIZES.sum(), (len(settings), 1))
    # A client that was never drawn is taken to have no more weight, by its size, than the others.
    largest = weights.max(axis=1)
    most = expected * (largest / expected).max(axis=1, keepdims=True)
    assert_expected(
        weights,
        expected,
        np.where(largest > 0, largest, most),
        settings,
        "the weights q_k of an unbiased cohort are not p_k on average",
    )


def check_marginals_are_as_stated(selector: BaseSelector) -> None:
    """With equal losses, polls and choices are as frequent as ``marginals`` states."""
    settings = [s for s in settings_for(selector) if s.index in (5, 10)]
    stated = [selector.marginals(make_round(s, losses=_EQUAL["losses"])) for s in settings]
    view = {name: _EQUAL[name] for name in ("losses", "reported", "seconds")}
    for name, tally in (("polled", polled_counts), ("chosen", counts)):
        if all(name in marginals for marginals in stated):
            expected = np.array([marginals[name] for marginals in stated])
            draws = draw(selector, settings, tally, view, times=4)
            message = f"clients are not {name} as often as stated"
            assert_expected(draws, expected, np.ceil(expected), settings, message)


# The checks after the first three assume that a selector keeps no state and is seeded.
CHECKS: list[Check] = [
    check_no_state_is_kept,
    check_only_the_memory_is_remembered,
    check_what_it_needs_is_named,
    check_admitted_clients_have_reported,
    check_only_the_rounds_generator_is_drawn_from,
    check_same_seed_gives_same_cohort,
    check_cohorts_are_valid,
    check_unavailable_clients_are_left_alone,
    check_answers_used_are_asked_for,
    check_answers_asked_for_are_used,
    check_answers_count_for_who_gave_them,
    check_order_of_clients_does_not_matter,
    check_a_memory_is_of_clients_by_index,
    check_vectors_may_be_zero_or_unknown,
    check_the_view_is_left_alone,
    check_it_clones_and_pickles,
    check_a_single_available_client,
    check_ties_are_broken_at_random,
    check_failed_clients_are_not_preferred,
    check_unbiased_weights_are_fractions_on_average,
    check_marginals_are_as_stated,
]

_BAD = (np.nan, np.inf, -np.inf)
_EQUAL = {name: np.ones(N_CLIENTS) for name in ("losses", "reported", "seconds")}


def _losses_with(k: int, loss: float) -> np.ndarray:
    return np.where(np.arange(N_CLIENTS) == k, loss, LOSSES)


def _attributes(selector: BaseSelector) -> dict[str, tuple[int, str]]:
    """Return the identity and text of each attribute of the selector and its classes."""
    classes = [cls for cls in reversed(type(selector).__mro__) if issubclass(cls, BaseSelector)]
    attributes: dict = {}
    for owner in (*classes, selector):
        attributes |= vars(owner)
    return {name: (id(value), repr(value)) for name, value in attributes.items()}
