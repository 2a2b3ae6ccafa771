"""The warning of transformers that are fitted on all clients' rows, as if in one place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import PolynomialCountSketch, SkewedChi2Sampler
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures
from sklearn.random_projection import BaseRandomProjection
from sklearn.utils import get_tags

from skfed.preprocessing._pooled import PooledTransformer
from skfed.utils._routing import takes_in_fit
from skfed.utils._warnings import warn

_READY = (
    *("MinMaxScaler", "OneHotEncoder", "OrdinalEncoder", "PCA", "RobustScaler", "SimpleImputer"),
    "StandardScaler",
)
_LISTS = ("steps", "transformer_list", "transformers", "estimators")
_WITHIN = ("estimator", "regressor", "remainder", "final_estimator")
# What these learn from rows is the number of columns.
_STATELESS = (PolynomialFeatures, PolynomialCountSketch, SkewedChi2Sampler)

_warned: ContextVar[bool] = ContextVar("warned of pooling", default=False)


@contextmanager
def warning_of_pooling(pipeline: Any, fit_params: Mapping[str, Any]) -> Iterator[None]:
    """Context manager around a fit: warn of what pools rows, of steps within steps once."""
    given = any(n.endswith("clients") and v is not None for n, v in fit_params.items())
    if given and not _warned.get():
        _warn(list(_steps(pipeline)))
    token = _warned.set(_warned.get() or given)
    try:
        yield
    finally:
        _warned.reset(token)


def pools_rows(step: Any) -> bool:
    """Tell whether a step is a transformer that is fitted on rows, and does not take clients."""
    if isinstance(step, PooledTransformer | FrozenEstimator) or not hasattr(step, "transform"):
        return False
    if not get_tags(step).requires_fit or takes_in_fit(step, "clients"):
        return False
    return not _is_given(step)


def _is_given(step: Any) -> bool:
    """Tell whether parameters say all that fit could find in rows but their number of columns."""
    if isinstance(step, OneHotEncoder | OrdinalEncoder):
        counts = (step.min_frequency, step.max_categories)
        return not isinstance(step.categories, str) and counts == (None, None)
    if isinstance(step, SimpleImputer):
        return step.strategy == "constant" and step.keep_empty_features
    if isinstance(step, BaseRandomProjection):
        return step.n_components != "auto"
    return isinstance(step, _STATELESS)


def _warn(steps: list[Any]) -> None:
    plain = _names(step for step in steps if pools_rows(step))
    if plain:
        ready = [f"Federated{name}" for name in plain if name in _READY]
        warn(
            f"{', '.join(plain)}: fitted on the rows of all clients, as if they were in one place. "
            + (f"Use {', '.join(ready)} of skfed.preprocessing, or " if ready else "Use ")
            + f"skfed.preprocessing.pooled({plain[0]}(...)) if this is meant."
        )
    targets = [s for s in steps if isinstance(s, TransformedTargetRegressor)]
    of_targets = [s.transformer for s in targets if s.transformer is not None]
    plain = _names(step for step in of_targets if pools_rows(step) or takes_in_fit(step, "clients"))
    if plain:
        warn(
            f"TransformedTargetRegressor: its {', '.join(plain)} is fitted on the targets of all "
            "clients, as if they were in one place. Scale y before by a FederatedStandardScaler of "
            f"skfed.preprocessing, or use skfed.preprocessing.pooled({plain[0]}(...)) if this is "
            "meant."
        )


def _names(steps: Any) -> list[str]:
    return list(dict.fromkeys(type(step).__name__ for step in steps))


def _steps(step: Any) -> Iterator[Any]:
    """Yield an estimator, and those that it fits: of a Pipeline, a ColumnTransformer, a search."""
    if step is None or isinstance(step, str | type | PooledTransformer | FrozenEstimator):
        return
    lists = [name for name in _LISTS if hasattr(step, name)]
    if not lists:
        yield step
    if not isinstance(step, BaseEstimator):
        return
    for name in lists:
        for part in getattr(step, name):
            yield from _steps(part[1])
    for name in _WITHIN:
        yield from _steps(getattr(step, name, None))
