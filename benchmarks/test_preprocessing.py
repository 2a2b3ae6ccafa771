"""Times federated transformers against scikit-learn's on the pooled rows."""

from functools import partial
from time import perf_counter

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, RobustScaler, StandardScaler

from skfed import preprocessing

N_ROWS, N_COLUMNS, N_CLIENTS = 292_000, 70, 12
SUMS = {
    "mean imputer": SimpleImputer(),
    "standard scaler": StandardScaler(),
    "min-max scaler": MinMaxScaler(),
    "PCA": PCA(),
}
STEPS = {
    **{name: (step,) for name, step in SUMS.items()},
    "these four": tuple(SUMS.values()),
    "one-hot encoder": (OneHotEncoder(),),
    "median imputer": (SimpleImputer(strategy="median"),),
    "robust scaler": (RobustScaler(),),
}


@pytest.fixture(scope="module")
def table():
    """Numbers, a few of them missing, small integers, and the clients of the rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_COLUMNS))
    X[rng.random(X.shape) < 0.02] = np.nan
    return X, rng.integers(0, 20, (N_ROWS, 10)), rng.integers(0, N_CLIENTS, N_ROWS)


def time_steps(steps, X, **fit_params):
    """Return the seconds of fitting each step; what needs values gets zeros for missing ones."""
    filled = np.nan_to_num(X)
    seconds = 0.0
    for step in steps:
        rows = X if isinstance(step, SimpleImputer) else filled
        start = perf_counter()
        step.fit(rows, **fit_params)
        seconds += perf_counter() - start
    return [seconds]


def federated(step):
    """Return the federated transformer with the strategy of scikit-learn's, if it has one."""
    strategy = {"strategy": step.strategy} if isinstance(step, SimpleImputer) else {}
    return getattr(preprocessing, f"Federated{type(step).__name__}")(**strategy)


@pytest.mark.parametrize("kind", STEPS)
def test_preprocessing(benchmark, compare, one_core, table, kind):
    numbers, integers, clients = table
    X = integers if kind == "one-hot encoder" else numbers
    plain = STEPS[kind]
    own = [federated(step) for step in plain]
    contestants = {
        "pooled": partial(time_steps, plain, X),
        "federated": partial(time_steps, own, X, clients=clients),
    }
    found = compare("preprocessing", contestants, base="pooled", n_turns=6)
    benchmark.extra_info |= {"steps": kind}
    print(f"\n{kind}:", *found.lines(), sep="\n")
