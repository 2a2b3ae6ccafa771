"""Partitioners, generators, loaders, splitters, scores and diagnostics, one wrong argument each."""

import functools

import numpy as np
import pandas as pd
import pytest
from generated import generated
from hypothesis import strategies as st
from matplotlib.figure import Figure
from strategies import CLIENTS, INF, NAN, REFUSED, X, Y, junk, make, outcome

from skfed import FederatedRegressor, PowerOfChoice, datasets, diagnostics, metrics
from skfed.inspection import ClientsDisplay, ConvergenceDisplay, SelectionDisplay
from skfed.model_selection import (
    LeaveClientsOut,
    WithinClientKFold,
    WithinClientStratifiedKFold,
    WithinClientTimeSeriesSplit,
)
from skfed.privacy import privacy_spent

LABELS = np.arange(40) % 4
FITTED = make(priority=["a"]).fit(X, Y, CLIENTS)
REGRESSOR = FederatedRegressor(priority=["a"], n_rounds=2, engine="loop", random_state=0)
REGRESSOR.fit(X, X[:, 0], clients=CLIENTS)
BOUND = {"L": 2.0, "mu": 0.5, "sigma": 1.0, "G": 1.0, "Gamma": 0.1}
CHOICE = {"tau": 2, "m": 3, "rho_bar": 1.0, "rho_tilde": 1.5}
LOSSES = [0.1, 0.5, 0.3, 0.2]
SOME = {"X": X, "y": Y, "clients": CLIENTS}


def within(X=X, groups=CLIENTS, **params):
    return list(WithinClientKFold(**params).split(X, groups=groups))


def stratified(X=X, y=Y, groups=CLIENTS, **params):
    return list(WithinClientStratifiedKFold(**params).split(X, y, groups=groups))


def later(X=X, groups=CLIENTS, **params):
    return list(WithinClientTimeSeriesSplit(**params).split(X, groups=groups))


def leave(X=X, groups=CLIENTS, **params):
    return list(LeaveClientsOut(**params).split(X, groups=groups))


def client_scores(X, y, clients):
    return metrics.client_scores(FITTED, X, y, clients)


def usefulness(**given):
    return metrics.usefulness(FITTED, **given)


def personalised_scores(**given):
    return metrics.personalised_scores(FITTED, **given, local_steps=2)


def priority_accuracy(X, y, clients):
    return metrics.priority_accuracy(FITTED, X, y, clients)


def worst_client_accuracy(X, y, clients):
    return metrics.worst_client_accuracy(FITTED, X, y, clients)


def priority_neg_log_loss(X, y, clients):
    return metrics.priority_neg_log_loss(FITTED, X, y, clients)


def free_accuracy(X, y, clients):
    return metrics.free_accuracy(FITTED, X, y, clients)


def mean_client_accuracy(X, y, clients):
    return metrics.mean_client_accuracy(FITTED, X, y, clients)


def regressor_scores(X, y, clients):
    return metrics.client_scores(REGRESSOR, X, y, clients)


def worst_client_r2(X, y, clients):
    return metrics.worst_client_r2(REGRESSOR, X, y, clients)


def priority_r2(X, y, clients):
    return metrics.priority_r2(REGRESSOR, X, y, clients)


def clients_from_data(**given):
    ClientsDisplay.from_data(**given, ax=Figure().subplots())


def clients_from_estimator(**given):
    ClientsDisplay.from_estimator(FITTED, **given, ax=Figure().subplots())


def convergence(**given):
    ConvergenceDisplay.from_estimators(**given, ax=Figure().subplots())


def selection(**given):
    SelectionDisplay.from_estimator(FITTED, **given, ax=Figure().subplots())


FUNCTIONS = {
    datasets.partition_dirichlet: {
        **{"y": LABELS, "n_clients": 3, "alpha": 1.0, "min_size": 1, "y_test": LABELS},
    },
    datasets.partition_by_shards: {
        **{"y": LABELS, "n_clients": 3, "shards_per_client": 2, "y_test": LABELS},
    },
    datasets.draw_shards: {"y": LABELS, "n_clients": 3, "n_shards": 8, "shards_per_client": 2},
    datasets.has_priority_label: {"y_test": LABELS, "y": Y, "clients": CLIENTS, "priority": ["a"]},
    datasets.make_quadratic: {"n_clients": 3, "n_dims": 2},
    datasets.make_synthetic: {"alpha": 1.0, "beta": 1.0, "n_clients": 2},
    datasets.make_prioritized_synthetic: {
        **{"alpha": 1.0, "beta": 1.0, "n_priority": 2, "n_free": 2},
        **{"label_noise": 1.0, "irrelevant": 1.0, "skew": 1.5},
    },
    within: {"n_splits": 3, "shuffle": True, "X": X, "groups": CLIENTS},
    stratified: {"n_splits": 3, "shuffle": True, "X": X, "y": Y, "groups": CLIENTS},
    later: {"n_splits": 2, "X": X, "groups": CLIENTS},
    leave: {"n_splits": 2, "shuffle": True, "X": X, "groups": CLIENTS, "priority": ["a"]},
    diagnostics.fedalign_bound: {
        **{"T": [1, 2], "E": 5, "distance": 1.0, "theta": 1.0, "rho": 0.1, "n_draws": 3},
        **BOUND,
    },
    diagnostics.power_of_choice_bound: {"T": [1, 2], "distance": 1.0, **BOUND, **CHOICE},
    diagnostics.power_of_choice_bound_fixed: {
        **{"T": [1, 2], "lr": 0.1, "initial_error": 1.0},
        **BOUND,
        **CHOICE,
    },
    diagnostics.inclusion_trace: {"model": FITTED},
    diagnostics.selection_frequency: {"model": FITTED},
    diagnostics.alignment: {"model": FITTED, "L": 2.0, "mu": 0.5, "gaps": LOSSES, "gamma": 9.0},
    diagnostics.optima: {"model": FITTED, **SOME, "l2": 0.1, "tol": 1e-3},
    diagnostics.heterogeneity: {"optima": pd.DataFrame({"weight": [1.0], "gap": [0.1]})},
    diagnostics.selection_skew: {
        **{"selector": PowerOfChoice(d=3), "losses": LOSSES, "gaps": LOSSES},
        **{"sizes": [1, 2, 3, 4], "n_draws": 5},
    },
    diagnostics.skew_range: {
        **{"selector": PowerOfChoice(d=3), "losses": [LOSSES], "minima": [0.0] * 4},
        **{"optimum_losses": LOSSES, "sizes": [1, 2, 3, 4], "n_draws": 5},
    },
    client_scores: SOME,
    usefulness: SOME | {f"{name}_test": value for name, value in SOME.items()},
    personalised_scores: SOME | {f"{name}_test": value for name, value in SOME.items()},
    metrics.summarise_clients: {"scores": client_scores(**SOME)},
    priority_accuracy: SOME,
    worst_client_accuracy: SOME,
    priority_neg_log_loss: SOME,
    free_accuracy: SOME,
    mean_client_accuracy: SOME,
    regressor_scores: SOME | {"y": X[:, 0]},
    worst_client_r2: SOME | {"y": X[:, 0]},
    priority_r2: SOME | {"y": X[:, 0]},
    clients_from_data: {"y": Y, "clients": CLIENTS, "priority": ["a"]},
    clients_from_estimator: SOME,
    convergence: {"estimators": {"a": FITTED}, "x": "round", "y": "train_loss"},
    selection: {"kind": "rounds"},
    privacy_spent: {"model": FITTED, "delta": 1e-5},
}
# What else may be named, where two arguments do not go together.
ALSO = {"model": ["instance"], "groups": ["priority"], "clients": ["priority"]}
ALSO |= {"estimators": ["federated step"], "losses": ["sizes", "gaps"], "y": ["n_shards"]}
SEEDED = [f for f in FUNCTIONS if f.__module__.startswith("skfed.datasets._")]
vectors = st.one_of(
    st.lists(st.floats(), max_size=5),
    st.lists(st.sampled_from([0, 1, NAN, INF, -1, None, "a"]), min_size=12, max_size=12),
    st.sampled_from([np.zeros(0), np.zeros((12, 0)), np.zeros((12, 2)), np.zeros(12), [[]], X[:5]]),
)
wrong_call = st.sampled_from(list(FUNCTIONS)).flatmap(
    lambda function: st.tuples(
        st.just(function), st.sampled_from(sorted(FUNCTIONS[function])), st.one_of(junk, vectors)
    )
)


@generated(600, wrong_call)
def test_wrong_arguments(drawn):
    function, name, value = drawn
    good = FUNCTIONS[function]
    outcome(lambda: function(**good | {name: value}), name, *ALSO.get(name, []))


SCORES = [clients_from_data, clients_from_estimator, client_scores, usefulness, priority_accuracy]
SCORES += [personalised_scores]
SCORES += [worst_client_accuracy, priority_neg_log_loss, free_accuracy, mean_client_accuracy]
SCORES += [regressor_scores, worst_client_r2, priority_r2]
few = st.integers(0, 3)
wrong_shape = st.one_of(
    st.lists(few, max_size=4).map(tuple),
    st.integers(0, 30).filter(lambda n: n != len(X)).flatmap(lambda n: st.just((n, 2))),
    st.integers(0, 30).filter(lambda n: n != len(X)).map(lambda n: (n,)),
    st.tuples(st.just(len(X)), few, few),
)


@generated(150, st.sampled_from(SCORES), st.data(), wrong_shape)
def test_wrong_shapes(score, draw, shape):
    given = FUNCTIONS[score]
    name = draw.draw(st.sampled_from(sorted(given)))
    assert outcome(lambda: score(**given | {name: np.zeros(shape)}), name) is REFUSED


TABLE = pd.DataFrame({"priority": [True, False], "weight": [1.0, 0.0], "gap": [0.1, 0.2]})


@pytest.mark.parametrize("name", ["priority", "weight"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda table, name: table.drop(columns=name),
        lambda table, name: table.assign(**{name: "a"}),
        lambda table, name: table.assign(**{name: None}),
        lambda table, name: pd.concat([table, table[[name]]], axis=1),
        lambda table, name: table.set_axis(range(3), axis=1),
        lambda table, name: table.T,
    ],
    ids=["lacking", "strings", "missing", "twice", "without names", "turned"],
)
def test_tables(name, spoil):
    function, parameter = {
        "priority": (metrics.summarise_clients, "scores"),
        "weight": (diagnostics.heterogeneity, "optima"),
    }[name]
    function(TABLE)
    assert outcome(lambda: function(spoil(TABLE, name)), parameter) is REFUSED


@generated(40, st.sampled_from(SEEDED), junk)
def test_seeds(function, seed):
    call = functools.partial(function, **FUNCTIONS[function], random_state=seed)
    outcome(call, "random_state", "seed", "Seed")
