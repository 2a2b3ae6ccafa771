"""Bad values of every kind, and what may come of them."""

import re
from decimal import Decimal

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from skfed import FederatedClassifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2)).astype(np.float32)
Y = np.arange(12) % 2
CLIENTS = np.repeat(["a", "b", "c", "d"], 3)

NAN, INF = float("nan"), float("inf")

ODD = [
    *(None, True, False, "", "3", "auto", "a", b"1", 1j, object, object(), len, np.sin),
    *(NAN, INF, -INF, np.float32(NAN), np.float64(INF), -0.0, 5e-324, 1e300, -1e300, -(10**30)),
    *([], (), {}, set(), [1], ["a"], [None], [[]], {"a": 1}, {"a": NAN}, {"a": "b"}, {1: []}),
    *(np.array(3), np.array([1.0, 2.0]), np.empty(0), np.empty((0, 2)), np.ones((2, 2, 2))),
    *(np.array("3"), np.array([None]), np.array([NAN]), np.array([1j]), np.array(["a", "b"])),
    *(pd.NA, pd.NaT, pd.Series([], dtype=float), pd.DataFrame(), Decimal("0.5"), Decimal("nan")),
    *(np.datetime64("NaT"), np.datetime64("2026-01-01"), range(3), slice(3)),
    *(lambda round: NAN, lambda round: "3", lambda round: -1, lambda: 0, lambda round: None),
]

# No large integers: a fit of so many rounds is a good one.
junk = st.one_of(
    st.sampled_from(ODD),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.one_of(st.floats(), st.none(), st.text(max_size=2)), max_size=3),
)


def named(error, *names):
    told = "\n".join([str(error), *getattr(error, "__notes__", [])])
    return any(re.search(rf"(?<![a-z_]){re.escape(name)}(?![a-z_])", told) for name in names)


REFUSED = object()
DIVERGES = "not finite"  # what a number in range may still come to, by the failing client's cause


def outcome(call, *names, kinds=(ValueError, TypeError)):
    """Return what a call gives; REFUSED if a kind error says which of the names is wrong."""
    try:
        return call()
    except kinds as error:
        assert named(error, *names), f"none of {names} is in: {error}"
        return REFUSED


def make(**params):
    """Return an estimator that fits in milliseconds."""
    return FederatedClassifier(**{"engine": "loop", "n_rounds": 1, "random_state": 0} | params)


def weights(model):
    return np.concatenate([w.numpy().ravel() for w in model.net_.module_.state_dict().values()])


def is_sane(model, X=X):
    probabilities = model.predict_proba(X)
    return (
        np.isfinite(probabilities).all()
        # Those of several labels have no sum.
        and (model.predict(X).ndim == 2 or np.allclose(probabilities.sum(axis=1), 1))
        and len(model.history_) == model.n_rounds_ >= 1
        and len(model.clients_) == len(model.sizes_) == len(model.priority_)
        and model.sizes_.min() >= 1
    )


EXPECTED = weights(make().fit(X, Y, CLIENTS))


def is_usable(model):
    """Tell whether a good fit gives what it gives on a new estimator, bit for bit."""
    return np.array_equal(weights(model.fit(X, Y, CLIENTS)), EXPECTED)
