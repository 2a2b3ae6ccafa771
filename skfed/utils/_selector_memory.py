"""Checks of what a rule remembers, and of whom it admits in a second phase."""

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from sklearn.base import clone

from skfed.selection import BaseSelector
from skfed.selection._base import admission_of
from skfed.selection._cohort import checked_cohort
from skfed.utils._selector_answers import same
from skfed.utils._selector_rounds import (
    N_CLIENTS,
    fit_and_others,
    make_round,
    round_maker,
    settings_for,
    shuffled_losses,
)
from skfed.utils._selector_statistics import assert_no_difference, draw_fits

_N_REMEMBERED = 8  # rounds of a fit in which clients are renumbered


def check_only_the_memory_is_remembered(selector: BaseSelector) -> None:
    """Another object that is handed the memory goes on as the one that gave it."""
    memory: Mapping[str, Any] = {}
    rounds = []
    for t, setting in enumerate(fit_and_others(selector)):
        make = round_maker(setting, memory=memory, **shuffled_losses(t))
        cohort = selector.select(make(t))
        other = clone(selector).select(make(t))
        assert same(cohort, other), (
            f"with the memory of round {t - 1}, another object has another cohort or memory in "
            f"round {t}: give all that it is to remember as Cohort(memory=...)"
        )
        memory = memory if cohort.memory is None else cohort.memory
        rounds.append((t, make, cohort))
    for t, make, cohort in reversed(rounds):
        assert same(cohort, selector.select(make(t))), (
            f"round {t}, undone and repeated with the memory of round {t - 1}, has another cohort "
            "or memory"
        )


def check_a_memory_is_of_clients_by_index(selector: BaseSelector) -> None:
    """Renumbering the clients renumbers the cohorts of a fit, whatever is remembered."""
    order = np.random.default_rng(0).permutation(N_CLIENTS)
    rounds = fit_and_others(selector)[:_N_REMEMBERED]
    straight = draw_fits(selector, rounds, {})
    renumbered = draw_fits(selector, rounds, {"order": order}, repeat=1)
    assert_no_difference(
        renumbered[..., np.argsort(order)] - straight,
        rounds,
        "renumbering the clients changes who is chosen, once rounds are remembered",
    )


def check_vectors_may_be_zero_or_unknown(selector: BaseSelector) -> None:
    """Cohorts are valid whatever updates, gradients and norms are 0, or not known."""
    alternate = np.arange(N_CLIENTS) % 3 == 0
    for some, value in product((alternate, np.full(N_CLIENTS, True)), (0.0, np.nan)):
        scale = np.where(some, value, 1.0)
        memory: Mapping[str, Any] = {}
        for seed, setting in enumerate(settings_for(selector)):
            view = round_maker(setting, scale=scale, memory=memory)(seed)
            cohort = selector.select(view)
            memory = memory if cohort.memory is None else cohort.memory
            if (admit := admission_of(selector)) is not None:
                admitted = admit(view, view.reports(cohort))
                checked_cohort(admitted, view.available, "admit")


def check_what_it_needs_is_named(selector: BaseSelector) -> None:
    """The class attribute ``needs`` names all that the rule takes of the past, as in a fit."""
    for seed, setting in enumerate(settings_for(selector)):
        view = make_round(setting, seed, needs=selector.needs)
        cohort = selector.select(view)
        if (admit := admission_of(selector)) is not None:
            admit(view, view.reports(cohort))


def check_admitted_clients_have_reported(selector: BaseSelector) -> None:
    """A rule with two phases admits clients of its cohort, each copy once, and no failed one."""
    admit = admission_of(selector)
    if admit is None:
        return
    for seed, setting in enumerate(settings_for(selector)):
        view = make_round(setting, seed)
        reports = view.reports(selector.select(view))
        admitted = admit(view, reports)
        reported = Counter(reports.clients[~np.isnan(reports.norms)].tolist())
        wrong = Counter(np.asarray(admitted.clients).tolist()) - reported
        assert not wrong, f"admits {sorted(wrong)}, which have not reported so many updates"
        checked_cohort(admitted, view.available, "admit")
