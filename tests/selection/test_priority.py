"""Who has priority is heeded, or the user is told that it is not."""

import re
import warnings

import numpy as np
import pytest
from rules import COMPARED
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold

from skfed import (
    ActiveFLSelector,
    FedAlignSelector,
    FederatedClassifier,
    FederatedRegressor,
    PowerOfChoice,
    RandomSelector,
)
from skfed.modules import LinearRegression
from skfed.schedules import LinearDecay
from skfed.selection import BaseSelector, Cohort

HEEDLESS = [
    RandomSelector(2),
    PowerOfChoice(d=3, clients_per_round=1),
    ActiveFLSelector(2),
    *(clone(rule).set_params(ignore_priority=False) for rule in COMPARED if not rule.uses_priority),
]
NO_INFLUENCE = "priority has no influence on who trains"


class Everybody(BaseSelector):
    """All available clients, whoever has priority."""

    uses_priority = False

    def _select(self, round):
        return Cohort.by_size(np.flatnonzero(round.available), round.sizes)


def fit(blobs, selector=None, priority=("b", "d"), kind=FederatedClassifier, **params):
    X, y, clients = blobs
    params = {"n_rounds": 3, "random_state": 0} | params
    model = kind(selector=selector, priority=priority, **params)
    return model.fit(X, y if kind is FederatedClassifier else y / 10, clients=clients)


@pytest.mark.parametrize("kind", [FederatedClassifier, FederatedRegressor])
def test_without_a_selector_priority_clients_are_those_of_fedalign(blobs, same_model, kind):
    by_default = fit(blobs, kind=kind)
    assert {"b", "d"} <= set(by_default.history_["cohort"][0])
    assert same_model(by_default, fit(blobs, FedAlignSelector(), kind=kind))
    assert by_default.selector is None


def test_without_a_selector_and_priority_clients_are_drawn(blobs, same_model):
    drawn = fit(blobs, RandomSelector(), priority=None)
    assert same_model(fit(blobs, priority=None), drawn)


@pytest.mark.parametrize("selector", [*HEEDLESS, Everybody()], ids=lambda s: type(s).__name__)
def test_a_selector_that_pays_no_heed_to_priority_warns_once_a_fit(blobs, selector):
    with pytest.warns(UserWarning, match=NO_INFLUENCE) as told:
        fit(blobs, selector)
    assert len(told) == 1
    name = type(selector).__name__
    own = "ignore_priority" in selector.get_params()
    declared = f"{name}(ignore_priority=True)" if own else f"{name}.ignore_priority = True"
    assert str(told[0].message).endswith(f"if this is meant, {declared}.")
    assert told[0].filename == __file__


@pytest.mark.parametrize("selector", HEEDLESS, ids=lambda s: type(s).__name__)
def test_that_priority_plays_no_part_can_be_declared(blobs, same_model, selector):
    meant = clone(selector).set_params(ignore_priority=True)
    with pytest.warns(UserWarning, match=NO_INFLUENCE):
        warned = fit(blobs, selector)
    assert same_model(fit(blobs, meant), warned)


def test_a_selector_of_ones_own_declares_it_by_an_attribute(blobs, monkeypatch):
    monkeypatch.setattr(Everybody, "ignore_priority", True, raising=False)
    fit(blobs, Everybody())


@pytest.mark.parametrize("priority", [None, list("abcdef"), dict.fromkeys("abcdef", 1.0)])
def test_priority_of_all_is_no_cause_for_a_warning(blobs, priority):
    fit(blobs, RandomSelector(2), priority)


def test_partial_fit_and_a_warm_start_warn_once(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(selector=RandomSelector(2), priority=["a"], n_rounds=4)
    model.set_params(warm_start=True, random_state=0)
    with pytest.warns(UserWarning, match=NO_INFLUENCE) as told:
        for _ in range(3):
            model.partial_fit(X, y, clients=clients)
        model.fit(X, y, clients=clients)
    assert len(told) == 1
    with pytest.warns(UserWarning, match="PowerOfChoice selects without it"):
        model.set_params(selector=HEEDLESS[1], n_rounds=5).fit(X, y, clients=clients)


def test_partial_fit_warms_up_for_a_share_of_the_planned_rounds(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(priority=["a", "d"], n_rounds=20, random_state=0)
    for _ in range(3):
        model.partial_fit(X, y, clients=clients)
    assert model.history_["n_polled"].tolist() == [0, 0, 6]  # two of twenty are warm-up


def test_a_search_over_selectors_declares_it_in_the_grid(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(priority=["a", "b"], n_rounds=1, engine="loop", random_state=0)
    grid = [
        {"selector": [None, FedAlignSelector(eps=1.0)]},
        {"selector": [RandomSelector(2)], "selector__ignore_priority": [True]},
    ]
    folds = KFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(model, grid, cv=folds, error_score="raise").fit(X, y, clients=clients)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def far_off(blobs, selector, **params):
    """Fit a regressor to targets in the hundreds: losses of 5e5, far from each other."""
    X, y, clients = blobs
    y = 700.0 + 100 * y + 40 * (clients == "d")
    params = {"lr_schedule": 1e-3, "n_rounds": 10, "random_state": 0} | params
    net = LinearRegression(5, 1, standardize=True)  # which begins at 0
    model = FederatedRegressor(net, selector=selector, priority=["b", "c"], **params)
    return model.fit(X, y, clients=clients)


def test_fedalign_warns_if_nobody_matched_all_run_long(blobs):
    with pytest.warns(UserWarning, match="matched no free client in any of the 9 rounds") as told:
        model = far_off(blobs, None)
    assert len(told) == 1
    text = str(told[0].message)
    F = model.history_["objective"].dropna()
    assert f"F was from {F.min():.4g} to {F.max():.4g}" in text
    assert F.max() > 1e5
    # Four free clients in eight rounds, some of whom are well below F.
    assert re.search(r"eps was 0\.2\. After round 0, free clients were polled \d+ times", text)
    for way_out in ("in units of the loss", "scale y", "match='accuracy'", "eps=0"):
        assert way_out in text


@pytest.mark.parametrize(
    ("selector", "matters"),
    [
        (FedAlignSelector(eps=0.0), False),  # meant to match nobody
        (FedAlignSelector(warmup=1.0), False),  # nobody is asked
        (FedAlignSelector(eps=np.inf), False),
        (FedAlignSelector(eps=LinearDecay(0.2)), True),
        (FedAlignSelector(eps=LinearDecay(1e9)), False),  # they matched, until eps was 0
    ],
    ids=str,
)
def test_fedalign_warns_only_of_an_eps_that_was_to_match(blobs, selector, matters):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        far_off(blobs, selector)
    assert [str(w.message)[:40] for w in told] == matters * [
        "FedAlignSelector matched no free client "
    ]


def test_fedalign_warns_after_the_planned_rounds_of_partial_fit(blobs):
    X, y, clients = blobs
    model = FederatedRegressor(priority=["b"], n_rounds=3, lr_schedule=1e-3, random_state=0)
    y = 700.0 + 100 * y
    for _ in range(2):
        model.partial_fit(X, y, clients=clients)
    with pytest.warns(UserWarning, match="matched no free client in any of the 3 rounds"):
        model.partial_fit(X, y, clients=clients)
    model.partial_fit(X, y, clients=clients)


def test_matching_by_accuracy_warns_in_units_of_the_error(blobs):
    X, _, clients = blobs
    ones = np.isin(clients, ["b", "d"])  # who are right about every row of theirs, and no other
    model = FederatedClassifier(
        selector=FedAlignSelector(match="accuracy", warmup=1), priority=["b", "d"], n_rounds=3
    )
    with pytest.warns(UserWarning, match="in units of the error: raise it; set eps=0"):
        model.set_params(random_state=0).fit(np.zeros_like(X), ones.astype(int), clients=clients)


def test_how_many_free_clients_were_below_the_priority_clients_is_told(blobs):
    """The first model is all zeros, the priority client alone learns, and others answer or not."""
    X, y, clients = blobs
    selector = FedAlignSelector(eps=1e-6, warmup=1)
    model = FederatedClassifier(
        selector=selector, priority=["b"], n_rounds=2, lr_schedule=0.1, random_state=0
    )
    rows = np.isin(clients, ["a", "b", "c"])
    with pytest.warns(UserWarning, match=r"free clients were polled 2 times; (\d)") as told:
        model.fit(X[rows], y[rows], clients=clients[rows])
    last = model.history_.iloc[-1]
    n_below = last["scalars_up"] - 1  # the priority client answers too
    assert f"2 times; {n_below} answers were below F - eps" in str(told[0].message)


def test_rounds_of_another_selector_are_not_those_of_fedalign(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(
        selector=RandomSelector(2, ignore_priority=True), priority=["a"], n_rounds=2
    )
    model.set_params(warm_start=True, random_state=0).fit(X, y, clients=clients)
    aligned = FedAlignSelector(eps=1e-9, warmup=0)
    with pytest.warns(UserWarning, match="in any of the 1 rounds"):
        model.set_params(selector=aligned, n_rounds=3).fit(X, y, clients=clients)
