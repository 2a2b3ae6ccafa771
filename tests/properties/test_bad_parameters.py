"""Parameters of the estimator and of its parts: what is wrong is told by its name."""

import numpy as np
import pandas as pd
import pytest
import torch
from generated import generated
from hypothesis import strategies as st
from rules import COMPARED
from sklearn.base import clone
from strategies import (
    CLIENTS,
    DIVERGES,
    ODD,
    REFUSED,
    X,
    Y,
    is_sane,
    is_usable,
    junk,
    make,
    outcome,
)

from skfed import (
    ActiveFLSelector,
    FedAlignSelector,
    FedCSSelector,
    PowerOfChoice,
    RandomSelector,
    aggregation,
    availability,
    devices,
    schedules,
)
from skfed.contribution import DataBanzhaf, ExactShapley, GTGShapley, LeaveOneOut
from skfed.privacy import GaussianMechanism
from skfed.selection._mock_round import mock_round

SELECTORS = [
    RandomSelector(),
    RandomSelector(2, "uniform", replace=False),
    PowerOfChoice(d=3),
    FedAlignSelector(warmup=0),
    ActiveFLSelector(),
    FedCSSelector(round_seconds=5.0),
    *COMPARED,
]
SCHEDULES = [
    schedules.Constant(0.5),
    schedules.LinearDecay(1.0),
    schedules.CosineDecay(1.0),
    schedules.ExponentialDecay(1.0, 0.5),
    schedules.StepDecay(1.0),
    schedules.InverseTimeDecay(2.0, 1.0, 8.0),
]
CONTRIBUTIONS = [LeaveOneOut(), ExactShapley(), DataBanzhaf(), GTGShapley()]
TRACE = pd.DataFrame(
    {"client": list("abcd"), "round": [0, 1, 0, 2]}
    | {f"{what}_per_second": 1.0 for what in ("rows", "bytes_down", "bytes_up")}
)
PARTS = {
    "selector": SELECTORS,
    "lr_schedule": SCHEDULES,
    "aggregator": [aggregation.TrimmedMean(), aggregation.NormClipping()],
    "server_optimizer": [
        aggregation.ServerOptimizer(),
        aggregation.ServerOptimizer(torch.optim.Adam, lr=0.1, options={"eps": 1e-3}),
    ],
    "availability": [
        availability.AlternatingHalves(),
        availability.IndependentAvailability(),
        availability.TraceAvailability([[True] * 4, [False, True, True, True]]),
        availability.Dropout(),
    ],
    "devices": [
        devices.ConstantDevices(1.0, 1.0, dict.fromkeys("abcd", 2.0)),
        devices.LognormalDevices(1.0, 1.0, 1.0, jitter=1.0),
        devices.TraceDevices(TRACE),
    ],
    "contribution": CONTRIBUTIONS,
    "update_privacy": [GaussianMechanism()],
    "loss_privacy": [GaussianMechanism()],
}


def with_a_wrong_parameter(parts):
    """Draw a part, the name of a parameter of its own, and what that is to be."""
    one = st.sampled_from(parts).flatmap(
        lambda part: st.tuples(
            st.just(part), st.sampled_from(sorted(part.get_params(deep=False))), junk
        )
    )
    return one.map(lambda drawn: (clone(drawn[0]).set_params(**{drawn[1]: drawn[2]}), drawn[1]))


own = st.sampled_from(sorted(set(make().get_params()) - {"n_jobs"}))


@generated(120, own, junk)
def test_parameters_of_the_estimator(name, value):
    model = make()
    good = model.get_params()[name]
    model.set_params(**{name: value})
    if outcome(lambda: model.fit(X, Y, CLIENTS), name, DIVERGES) is not REFUSED:
        assert is_sane(model)
    assert is_usable(model.set_params(**{name: good}))


placed = st.sampled_from(sorted(PARTS)).flatmap(
    lambda place: st.tuples(st.just(place), with_a_wrong_parameter(PARTS[place]))
)


@generated(160, placed)
def test_parameters_of_parts_in_an_estimator(drawn):
    place, (part, name) = drawn
    model = make(**{place: part})
    if outcome(lambda: model.fit(X, Y, CLIENTS), name, place, DIVERGES) is REFUSED:
        assert not hasattr(model, "net_")
    else:
        assert is_sane(model)
    assert is_usable(model.set_params(**{place: None}))


@generated(100, with_a_wrong_parameter(SELECTORS), st.integers(3, 9))
def test_parameters_of_selectors_alone(drawn, n_clients):
    selector, name = drawn
    priority = np.arange(n_clients) % 2 == 0
    view = mock_round(np.linspace(0, 3, n_clients), priority_weights=priority)
    cohort = outcome(lambda: selector.select(view), name)
    if cohort is not REFUSED:
        assert set(cohort.clients) <= set(range(n_clients))
        assert np.isclose(cohort.weights.sum(), 1) or cohort.unbiased


@generated(100, with_a_wrong_parameter(SCHEDULES), st.integers(0, 9), st.integers(1, 9))
def test_parameters_of_schedules_alone(drawn, index, n_rounds):
    schedule, name = drawn
    value = outcome(lambda: schedule.at(index, n_rounds), name)
    assert value is REFUSED or value >= 0


@generated(100, with_a_wrong_parameter(CONTRIBUTIONS), st.integers(1, 5))
def test_parameters_of_contribution_methods_alone(drawn, n_players):
    method, name = drawn
    rng = np.random.default_rng(0)
    worth = outcome(
        lambda: method.values(lambda subsets: subsets.sum(axis=1), n_players, rng), name
    )
    if worth is not REFUSED:
        assert np.isfinite(worth).all()
        assert np.shape(worth) == (2, n_players)


scheduled = st.sampled_from([("selector", "eps"), ("selector", "d"), (None, "lr_schedule")])


@pytest.mark.filterwarnings("ignore:FedAlignSelector matched no free client")  # eps may be tiny
@generated(50, scheduled, st.sampled_from(ODD).map(lambda value: lambda round: value))
def test_what_a_callable_of_the_round_returns(where, schedule):
    place, name = where
    selectors = {
        "eps": FedAlignSelector(schedule, warmup=0),
        "d": PowerOfChoice(schedule, ignore_priority=True),
    }
    model = make(**({place: selectors[name]} if place else {name: schedule}), priority=["a"])
    if outcome(lambda: model.fit(X, Y, CLIENTS), name, DIVERGES) is not REFUSED:
        assert is_sane(model)
    assert is_usable(model.set_params(selector=None, lr_schedule=None, priority=None))


@generated(50, st.recursive(junk, lambda inner: st.dictionaries(st.text(max_size=1), inner)))
def test_priority(value):
    model = make(priority=value)
    if outcome(lambda: model.fit(X, Y, CLIENTS), "priority") is REFUSED:
        assert not hasattr(model, "net_")
    else:
        assert is_sane(model)
    assert is_usable(model.set_params(priority=None))


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_an_array_for_a_selectors_parameter_is_refused_by_its_name(selector):
    for name in selector.get_params(deep=False):
        wrong = clone(selector).set_params(**{name: np.array([1.0, 2.0])})
        model = make(selector=wrong, priority=["a"])
        with pytest.raises(ValueError, match=f"The '{name}' parameter of"):
            model.fit(X, Y, CLIENTS)
