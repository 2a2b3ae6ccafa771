"""Fitted estimators of scikit-learn as plain values, for files and messages without code.

A state has the class's name and the fitted attributes, not the parameters: it is restored into an
estimator with the parameters of the fitted one, which makes all objects that the state needs.
"""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import sklearn
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer

from skfed.preprocessing import PooledTransformer
from skfed.utils import _files
from skfed.utils._sklearn import (
    CalibratedClassifier,
    SigmoidCalibration,
    TemperatureScaling,
    set_curve_scorer,
)

# Attributes that begin so are configuration, or of scikit-learn's callbacks.
_NOT_FITTED = "_metadata_request", "_skl_", "_callback_", "_parent_callback_", "_curve_scorer"
_CALIBRATORS = {
    "sigmoid": SigmoidCalibration,
    "isotonic": partial(IsotonicRegression, out_of_bounds="clip"),
    "temperature": TemperatureScaling,
}
_NAMES = {Pipeline: "steps", FeatureUnion: "transformer_list"}

State = dict[str, Any] | str | None  # a string or None stands for itself, as in a ColumnTransformer


def state_of(estimator: Any) -> State:
    """Return the fitted state of an estimator, of "drop", "passthrough" or None itself.

    Raises
    ------
    TypeError
        If a fitted attribute is no plain value.
    """
    if not isinstance(estimator, BaseEstimator):
        return estimator
    if hasattr(estimator, "_fitted_state"):
        fitted = estimator._fitted_state()
    elif parts := parts_of(estimator):
        fitted = [[name, state_of(part)] for name, part in parts]
    elif isinstance(estimator, FrozenEstimator):
        fitted = None  # it has been fitted before, and belongs to the parameters
    else:
        fitted = _attributes_of(estimator)
    return {"type": type(estimator).__name__, "fitted": fitted}


def restore(estimator: Any, state: Any) -> Any:
    """Return the estimator, with the fitted attributes of a state, which may be anything.

    Raises
    ------
    ValueError
        If the state is not of such an estimator.
    """
    if not isinstance(estimator, BaseEstimator):
        _check(state == estimator, estimator, state)
        return estimator
    _check(isinstance(state, dict) and {"type", "fitted"} == state.keys(), estimator, state)
    _check(state["type"] == type(estimator).__name__, estimator, state["type"])
    fitted = state["fitted"]
    try:
        if hasattr(estimator, "_restore_fitted"):
            estimator._restore_fitted(fitted)
        elif parts_of(estimator):
            parts = _as_fitted(estimator)
            names, found = ([name for name, _ in pairs] for pairs in (parts, fitted))
            _check(names == found, names, found)
            for (_, part), (_, own) in zip(parts, fitted, strict=True):
                restore(part, own)
        elif not isinstance(estimator, FrozenEstimator):
            _restore_attributes(estimator, fitted)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"it has no valid {type(estimator).__name__}: {error!r}.") from error
    return estimator


def parts_of(estimator: BaseEstimator) -> list[tuple[str, Any]]:
    """Return the named parts of a Pipeline or FeatureUnion, which are fitted themselves."""
    for kind, name in _NAMES.items():
        if isinstance(estimator, kind):
            return getattr(estimator, name)
    return []


def _as_fitted(estimator: BaseEstimator) -> list[tuple[str, Any]]:
    """Return the parts; of a FeatureUnion as fit leaves it, "passthrough" a transformer."""
    if isinstance(estimator, FeatureUnion):
        estimator.transformer_list = [
            (name, FunctionTransformer(feature_names_out="one-to-one") if _passes(part) else part)
            for name, part in estimator.transformer_list
        ]
    return parts_of(estimator)


def _passes(part: Any) -> bool:
    return isinstance(part, str) and part == "passthrough"


def _attributes_of(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the fitted attributes."""
    parameters = estimator.get_params(deep=False)
    attributes = {
        name: value
        for name, value in vars(estimator).items()
        if name not in parameters and not name.startswith(_NOT_FITTED)
    }
    if isinstance(estimator, IsotonicRegression):
        attributes.pop("f_")  # made of the others, as when it is unpickled
    for name, value in attributes.items():
        attributes[name] = value = _plain(estimator, name, value)
        try:
            _files.to_json(value, {})
        except TypeError as error:
            raise TypeError(
                f"{type(estimator).__name__} has {name}, which cannot be written without pickle: "
                f"{error} Use joblib for it."
            ) from error
    return attributes


def _plain(estimator: BaseEstimator, name: str, value: Any) -> Any:
    """Return an attribute without estimators and tables."""
    if name == "exchange_":
        return value.to_dict("list")
    if isinstance(estimator, ColumnTransformer) and name == "transformers_":
        return [(part_name, state_of(part), columns) for part_name, part, columns in value]
    if isinstance(estimator, ColumnTransformer) and name == "_remainder":
        return value[0], None, value[2]
    if isinstance(estimator, CalibratedClassifierCV) and name == "calibrated_classifiers_":
        return [[state_of(one.estimator), list(map(state_of, one.calibrators))] for one in value]
    return value if _prototype(estimator, name) is None else state_of(value)


def _prototype(estimator: BaseEstimator, name: str) -> BaseEstimator | None:
    """Return the unfitted estimator of an attribute that holds a fitted one."""
    if isinstance(estimator, SimpleImputer) and name == "indicator_" and estimator.add_indicator:
        return MissingIndicator(missing_values=estimator.missing_values, error_on_new=False)
    if isinstance(estimator, PooledTransformer) and name == "transformer_":
        return clone(estimator.transformer)
    if isinstance(estimator, FixedThresholdClassifier | TunedThresholdClassifierCV):
        return clone(estimator.estimator) if name == "estimator_" else None
    return None


def _restore_attributes(estimator: BaseEstimator, fitted: dict[str, Any]) -> None:
    parameters = estimator.get_params(deep=False)
    for name in fitted:
        # A state may come from the network: it cannot change parameters, say min_count, or methods.
        if name in parameters or hasattr(type(estimator), name) or name.startswith(_NOT_FITTED):
            raise ValueError(f"{type(estimator).__name__} has no fitted attribute {name!r}.")
        setattr(estimator, name, _unplain(estimator, name, fitted))
    if isinstance(estimator, TunedThresholdClassifierCV):
        set_curve_scorer(estimator)
    if isinstance(estimator, IsotonicRegression):
        estimator.__setstate__(vars(estimator) | {"_sklearn_version": sklearn.__version__})


def _unplain(estimator: BaseEstimator, name: str, fitted: dict[str, Any]) -> Any:
    """Return what ``_plain`` was given."""
    value = fitted[name]
    if name == "exchange_":
        return pd.DataFrame(value)
    if isinstance(estimator, ColumnTransformer) and name == "transformers_":
        return [_restored_part(estimator, *part) for part in value]
    if isinstance(estimator, ColumnTransformer) and name == "_remainder":
        return value[0], estimator.remainder, value[2]
    if isinstance(estimator, CalibratedClassifierCV) and name == "calibrated_classifiers_":
        return [_calibrated(estimator, fitted["classes_"], *parts) for parts in value]
    if isinstance(estimator, SigmoidCalibration):
        return np.float64(value)  # with a float results would have the dtype of the scores
    prototype = _prototype(estimator, name)
    return value if prototype is None else restore(prototype, value)


def _calibrated(
    estimator: CalibratedClassifierCV, classes: np.ndarray, state: Any, calibrators: Any
) -> CalibratedClassifier:
    """Return one of the calibrated classifiers of an estimator."""
    return CalibratedClassifier(
        restore(clone(estimator.estimator), state),
        [restore(_CALIBRATORS[estimator.method](), one) for one in calibrators],
        classes=classes,
        method=estimator.method,
    )


def _restored_part(columns: ColumnTransformer, name: str, state: Any, selected: Any) -> tuple:
    """Return a fitted transformer of some columns, and what it takes."""
    prototypes = {one: part for one, part, _ in columns.transformers}
    part = prototypes.get(name, columns.remainder)
    if _passes(part):  # scikit-learn fits such a transformer for it
        part = FunctionTransformer(
            accept_sparse=True, check_inverse=False, feature_names_out="one-to-one"
        )
    return name, restore(clone(part) if isinstance(part, BaseEstimator) else part, state), selected


def _check(valid: bool, expected: Any, found: Any) -> None:
    if not valid:
        text = repr(found)
        text = text if len(text) <= 80 else f"{text[:80]}..."
        raise ValueError(f"it has {text} where {_name_of(expected)!r} was expected.")


def _name_of(expected: Any) -> Any:
    return type(expected).__name__ if isinstance(expected, BaseEstimator) else expected
