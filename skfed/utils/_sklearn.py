"""The private scikit-learn names that skfed uses, in this one place.

scikit-learn may move them without notice; only this file would have to follow.
"""

from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import Interval, StrOptions, validate_params
from sklearn.utils._repr_html.estimator import _VisualBlock as VisualBlock

__all__ = ["Interval", "StrOptions", "VisualBlock", "safe_indexing", "validate_params"]
