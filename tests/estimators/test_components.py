"""Selectors, schedules, devices, rules of aggregation and the like as scikit-learn's parts.

They are found in the public modules, so that a new one is tested as soon as it is there.
"""

import importlib
import inspect
import pickle
import pkgutil

import pytest
from sklearn.base import clone
from sklearn.model_selection import BaseCrossValidator, GridSearchCV

import skfed
from skfed import FederatedClassifier
from skfed.aggregation import BaseAggregator, ServerOptimizer
from skfed.availability import BaseAvailability
from skfed.devices import BaseDevices
from skfed.model_selection import LeaveClientsOut
from skfed.schedules import BaseSchedule
from skfed.selection import BaseSelector

KINDS = (
    BaseSelector,
    BaseSchedule,
    BaseAvailability,
    BaseDevices,
    BaseAggregator,
    ServerOptimizer,
    BaseCrossValidator,
)
# What parameters without a default are given here.
GIVEN = {
    "value": 0.5,
    "start": 0.5,
    "factor": 0.5,
    "rate": 0.5,
    "milestones": [2, 4],
    "numerator": 2.0,
    "mu": 1.0,
    "gamma": 8.0,
    "rounds": {"a": 1},
    "trace": [["a"], ["a", "b"]],
    "rows_per_second": 100.0,
    "bytes_down_per_second": 1000.0,
    "bytes_up_per_second": {"a": 1000.0, "b": 500.0},
    "frame": [["a"], [1.0]],
}


def public_modules():
    yield skfed
    for module in pkgutil.walk_packages(skfed.__path__, "skfed."):
        if module.name == "skfed.flower":  # an extra, without such parts
            continue
        if not any(part.startswith("_") for part in module.name.split(".")):
            yield importlib.import_module(module.name)


def components():
    """Return an instance of every public class of one of the kinds, but the bases, by name."""
    found = {
        value
        for module in public_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isclass(value)
    }
    ours = [c for c in found if c.__module__.startswith("skfed") and issubclass(c, KINDS)]
    return {c.__name__: make(c) for c in ours if not c.__name__.startswith("Base")}


def make(component):
    needed = [
        name
        for name, parameter in inspect.signature(component).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    return component(**{name: GIVEN[name] for name in needed})


COMPONENTS = components()
each = pytest.mark.parametrize("component", sorted(COMPONENTS.values(), key=repr), ids=repr)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_some_of_each_kind_are_found(kind):
    assert any(isinstance(component, kind) for component in COMPONENTS.values())


@each
def test_clones_and_pickles_have_the_same_parameters(component):
    params = component.get_params()
    for copy in (clone(component), pickle.loads(pickle.dumps(component))):
        assert type(copy) is type(component) and copy is not component
        assert copy.get_params() == params
        assert repr(copy) == repr(component)


@each
def test_parameters_are_set_got_and_printed(component):
    assert set(component.get_params()) == set(inspect.signature(type(component)).parameters)
    assert component.set_params(**component.get_params()) is component
    assert repr(component).startswith(f"{type(component).__name__}(")
    for name in component.get_params():
        changed = clone(component).set_params(**{name: "another"})
        assert changed.get_params()[name] == "another"
        assert f"{name}='another'" in repr(changed)
        others = set(component.get_params()) - {name}
        assert all(changed.get_params()[o] == component.get_params()[o] for o in others)
    with pytest.raises(ValueError, match="Invalid parameter 'nonsense'"):
        component.set_params(nonsense=1)


@each
def test_it_is_a_part_of_an_estimator_or_a_search(component):
    """Its parameters are reached by a name with two underscores."""
    if isinstance(component, BaseCrossValidator):
        whole, place = GridSearchCV(FederatedClassifier(), {}, cv=component), "cv"
    else:
        place = next(
            name
            for name, kinds in FederatedClassifier._parameter_constraints.items()
            if any(inspect.isclass(k) and isinstance(component, k) for k in kinds)
        )
        whole = FederatedClassifier(**{place: component})
    names = {f"{place}__{name}" for name in component.get_params()}
    assert names <= set(clone(whole).get_params())


def test_a_splitter_is_searched_like_any_part():
    search = GridSearchCV(FederatedClassifier(), {}, cv=LeaveClientsOut(3, priority=["a"]))
    assert clone(search).set_params(cv__n_splits=7).cv.n_splits == 7
    assert search.cv.n_splits == 3
