"""All private scikit-learn names that skfed uses: scikit-learn may move them without notice."""

import torch
from sklearn.base import BaseEstimator
from sklearn.calibration import _CalibratedClassifier as CalibratedClassifier
from sklearn.calibration import _SigmoidCalibration as SigmoidCalibration
from sklearn.calibration import _TemperatureScaling as TemperatureScaling
from sklearn.decomposition._pca import _infer_dimension as infer_dimension
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.pipeline import Pipeline, _name_estimators
from sklearn.preprocessing._data import _handle_zeros_in_scale as handle_zeros_in_scale
from sklearn.preprocessing._data import _is_constant_feature as is_constant_feature
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._encode import _check_unknown as check_unknown
from sklearn.utils._mask import _get_mask as get_mask
from sklearn.utils._param_validation import Interval, StrOptions, validate_params
from sklearn.utils._repr_html.estimator import _VisualBlock
from sklearn.utils.validation import _check_sample_weight as check_sample_weight
from sklearn.utils.validation import validate_data

__all__ = [
    "CalibratedClassifier",
    "Interval",
    "OpenPipeline",
    "SigmoidCalibration",
    "StrOptions",
    "TemperatureScaling",
    "check_sample_weight",
    "check_unknown",
    "encoder_columns",
    "get_mask",
    "handle_zeros_in_scale",
    "imputer_rows",
    "infer_dimension",
    "is_constant_feature",
    "name_steps",
    "safe_indexing",
    "set_curve_scorer",
    "validate_params",
    "visual_block",
]
name_steps = _name_estimators


def set_curve_scorer(estimator: TunedThresholdClassifierCV) -> None:
    """Set what a fitted estimator predicts with, made of its parameters."""
    estimator._curve_scorer = estimator._get_curve_scorer()


class OpenPipeline(Pipeline):
    """scikit-learn's Pipeline with two hooks between the arguments of fit and the steps.

    They apply to fit, fit_transform and fit_predict, and change nothing by default.
    """

    def _assign_params(self, params):
        """Return the arguments of fit, named as scikit-learn's Pipeline takes them."""
        return params

    def _transform_step_params(self, step_idx, params, step_params):
        """Return the arguments of a step's methods; ``params`` are the arguments of fit."""
        return step_params

    def _check_method_params(self, method, props, **kwargs):
        return super()._check_method_params(method, self._assign_params(props), **kwargs)

    def _get_metadata_for_step(self, *, step_idx, step_params, all_params):
        step_params = super()._get_metadata_for_step(
            step_idx=step_idx, step_params=step_params, all_params=all_params
        )
        return self._transform_step_params(step_idx, all_params, step_params)


def encoder_columns(encoder, X):
    """Return the columns of X as scikit-learn's encoders see them, each of its own dtype."""
    validate_data(encoder, X, reset=True, skip_check_array=True)
    return encoder._check_X(X, ensure_all_finite="allow-nan")[0]


def imputer_rows(imputer, X):
    """Return X as a SimpleImputer sees it in fit."""
    return imputer._validate_input(X, in_fit=True)


def visual_block(estimator: BaseEstimator) -> _VisualBlock:
    """Return the HTML block of an estimator with its component parameters side by side.

    scikit-learn shows only components that have ``fit``, which selectors lack.
    """
    components = {
        name: component
        for name, component in estimator.get_params(deep=False).items()
        if isinstance(component, BaseEstimator | torch.nn.Module)
    }
    if not components:
        name = type(estimator).__name__
        return _VisualBlock("single", estimator, names=name, name_details=str(estimator))
    return _VisualBlock(
        "parallel",
        list(components.values()),
        names=[f"{name}: {type(component).__name__}" for name, component in components.items()],
        name_details=[str(component) for component in components.values()],
    )
