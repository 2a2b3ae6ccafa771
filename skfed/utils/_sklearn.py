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
    """scikit-learn's Pipeline, where a subclass has a say in what its steps are given.

    These methods are between the arguments of fit, fit_transform or fit_predict, and the steps;
    here they change nothing.
    """

    def _given(self, params):
        """Return the arguments of fit, named as scikit-learn's Pipeline takes them."""
        return params

    def _given_to(self, step_idx, params, given):
        """Return what a step's methods are given of ``params``, the arguments of fit."""
        return given

    def _check_method_params(self, method, props, **kwargs):
        return super()._check_method_params(method, self._given(props), **kwargs)

    def _get_metadata_for_step(self, *, step_idx, step_params, all_params):
        given = super()._get_metadata_for_step(
            step_idx=step_idx, step_params=step_params, all_params=all_params
        )
        return self._given_to(step_idx, all_params, given)
