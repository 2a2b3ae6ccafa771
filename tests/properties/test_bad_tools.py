"""Partitioners, generators, loaders, splitters, scores and diagnostics, one wrong argument each."""

import functools

import numpy as np
import pandas as pd
from generated import generated
from hypothesis import strategies as st
from strategies import CLIENTS, INF, NAN, X, Y, junk, make, outcome

from skfed import PowerOfChoice, datasets, diagnostics, metrics
from skfed.model_selection import LeaveClientsOut, WithinClientKFold
from skfed.privacy import privacy_spent

LABELS = np.arange(40) % 4
FITTED = make(priority=["a"]).fit(X, Y, CLIENTS)
BOUND = {"L": 2.0, "mu": 0.5, "sigma": 1.0, "G": 1.0, "Gamma": 0.1}
CHOICE = {"tau": 2, "m": 3, "rho_bar": 1.0, "rho_tilde": 1.5}
LOSSES = [0.1, 0.5, 0.3, 0.2]
SOME = {"X": X, "y": Y, "clients": CLIENTS}


def within(X=X, groups=CLIENTS, **params):
    return list(WithinClientKFold(**params).split(X, groups=groups))


def leave(X=X, groups=CLIENTS, **params):
    return list(LeaveClientsOut(**params).split(X, groups=groups))


def client_scores(X, clients):
    return metrics.client_scores(FITTED, X, Y, clients)


def priority_accuracy(clients):
    return metrics.priority_accuracy(FITTED, X, Y, clients)


def worst_client_accuracy(clients):
    return metrics.worst_client_accuracy(FITTED, X, Y, clients)


FUNCTIONS = {
    datasets.partition_dirichlet: {"y": LABELS, "n_clients": 3, "alpha": 1.0, "min_size": 1},
    datasets.partition_by_shards: {"y": LABELS, "n_clients": 3, "shards_per_client": 2},
    datasets.draw_shards: {"y": LABELS, "n_clients": 3, "n_shards": 8, "shards_per_client": 2},
    datasets.has_priority_label: {"y_test": LABELS, "y": Y, "clients": CLIENTS, "priority": ["a"]},
    datasets.make_quadratic: {"n_clients": 3, "n_dims": 2},
    datasets.make_synthetic: {"alpha": 1.0, "beta": 1.0, "n_clients": 2},
    datasets.make_prioritized_synthetic: {
        **{"alpha": 1.0, "beta": 1.0, "n_priority": 2, "n_free": 2},
        **{"label_noise": 1.0, "irrelevant": 1.0, "skew": 1.5},
    },
    within: {"n_splits": 3, "shuffle": True, "X": X, "groups": CLIENTS},
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
    client_scores: {"X": X, "clients": CLIENTS},
    priority_accuracy: {"clients": CLIENTS},
    worst_client_accuracy: {"clients": CLIENTS},
    privacy_spent: {"model": FITTED, "delta": 1e-5},
}
# What else may be named, where two arguments do not go together.
ALSO = {"model": ["instance"], "groups": ["priority"], "clients": ["priority"]}
ALSO |= {"losses": ["sizes", "gaps"], "y": ["n_shards"]}
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


@generated(400, wrong_call)
def test_wrong_arguments(drawn):
    function, name, value = drawn
    good = FUNCTIONS[function]
    outcome(lambda: function(**good | {name: value}), name, *ALSO.get(name, []))


@generated(40, st.sampled_from(SEEDED), junk)
def test_seeds(function, seed):
    call = functools.partial(function, **FUNCTIONS[function], random_state=seed)
    outcome(call, "random_state", "seed", "Seed")
