"""Which Pipelines can be fitted over clients that hold their own data."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils import get_tags

from skfed import preprocessing
from skfed._estimator import BaseFederated
from skfed.preprocessing import BaseFederatedTransformer, PooledTransformer

_PARTS = {
    Pipeline: "steps",
    FeatureUnion: "transformer_list",
    ColumnTransformer: "transformers",
}
_NO_VALUES = FrozenEstimator, PolynomialFeatures  # fit looks at no value of a row
_HERE = {"memory": None, "n_jobs": None, "sparse_threshold": 0.0}


def split(estimator: Any) -> tuple[Pipeline | None, Any]:
    """Return the steps before the estimator of a Pipeline, None if there are none, and it."""
    if not isinstance(estimator, Pipeline):
        return None, estimator
    return (estimator[:-1] if len(estimator) > 1 else None), estimator[-1]


def check_estimator(estimator: Any) -> None:
    """Check that an estimator or Pipeline can run over Flower."""
    steps, last = split(estimator)
    if not isinstance(last, BaseFederated):
        raise TypeError(
            "estimator must be a FederatedClassifier or FederatedRegressor, or a Pipeline that "
            f"ends in one; got {type(last).__name__}."
        )
    if getattr(last, "class_weight", None) == "balanced":
        raise ValueError(
            "class_weight='balanced' needs the label counts of all clients, which they do not send "
            "over Flower: pass a dict of labels to weights."
        )
    for name, part in _named_parts(steps):
        _check_part(name, part)


def federated_parts(steps: Pipeline | None) -> list[BaseFederatedTransformer]:
    """Return the transformers that are fitted by exchanges."""
    parts = [part for _, part in _named_parts(steps)]
    return [part for part in parts if isinstance(part, BaseFederatedTransformer)]


@contextmanager
def fitted_one_by_one(steps: Pipeline) -> Iterator[None]:
    """Context manager in which transformers are fitted in this thread and in their order.

    Nothing is cached, and a ColumnTransformer returns a dense array, whatever its density.
    """
    before = steps.get_params()
    own = {name: value for name, value in before.items() if name.rpartition("__")[2] in _HERE}
    steps.set_params(**{name: _HERE[name.rpartition("__")[2]] for name in own})
    try:
        yield
    finally:
        steps.set_params(**own)


def _named_parts(step: Any, name: str = "") -> Iterator[tuple[str, BaseEstimator]]:
    """Yield the transformers of steps, with their names as set_params takes them."""
    for kind, parameter in _PARTS.items():
        if isinstance(step, kind):
            for own_name, part, *_ in getattr(step, parameter):
                yield from _named_parts(part, f"{name}__{own_name}" if name else own_name)
            yield from _named_parts(getattr(step, "remainder", None), f"{name}__remainder")
            return
    if isinstance(step, BaseEstimator):
        yield name, step


def _check_part(name: str, part: BaseEstimator) -> None:
    """Check that clients can fit a transformer together, or that it needs no fit."""
    kind = type(part).__name__
    if isinstance(part, BaseFederatedTransformer):
        if getattr(part, "scope", "all") == "client":
            raise ValueError(
                f"step {name!r}, a {kind}, has scope='client', which skfed.flower does not "
                "support: use scope='all'."
            )
        if getattr(part, "privacy", None) is not None:
            raise ValueError(
                f"step {name!r}, a {kind}, has privacy, which skfed.flower does not support: the "
                "noise is that of a simulation, and protects no data. Leave privacy and bounds out."
            )
        return
    if isinstance(part, _NO_VALUES) or not get_tags(part).requires_fit:
        return
    own = type(part.transformer if isinstance(part, PooledTransformer) else part).__name__
    kind = kind if own == kind else f"{kind} of a {own}"
    ready = f"Federated{own}"
    use = (
        f"{ready} of skfed.preprocessing"
        if ready in preprocessing.__all__
        else ("a transformer of skfed.preprocessing, or write one (BaseFederatedTransformer)")
    )
    raise TypeError(
        f"step {name!r}, a {kind}, is fitted on rows, which stay with their clients: use {use}; or "
        "pass a transformer fitted elsewhere as sklearn.frozen.FrozenEstimator."
    )
