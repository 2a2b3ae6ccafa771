"""The private scikit-learn names that skfed uses, in this one place.

scikit-learn may move them without notice; only this file would have to follow.
"""

from sklearn.pipeline import Pipeline, _name_estimators
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import Interval, StrOptions, validate_params
from sklearn.utils._repr_html.estimator import _VisualBlock as VisualBlock
from sklearn.utils.validation import _check_sample_weight as check_sample_weight

__all__ = [
    "Interval",
    "OpenPipeline",
    "StrOptions",
    "VisualBlock",
    "check_sample_weight",
    "name_steps",
    "safe_indexing",
    "validate_params",
]
name_steps = _name_estimators


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
