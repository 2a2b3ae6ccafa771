"""The private scikit-learn names that skfed uses, in this one place.

scikit-learn may move them without notice; only this file would have to follow.
"""

from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import Interval, StrOptions

__all__ = ["Interval", "StrOptions", "safe_indexing"]
