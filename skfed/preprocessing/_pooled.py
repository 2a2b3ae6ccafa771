"""The mark of transformers that are meant to be fitted on all clients' rows together."""

from typing import Any

from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skfed.utils._routing import takes_in_fit


def _has(method: str):
    return available_if(lambda self: hasattr(self.transformer, method))


class PooledTransformer(TransformerMixin, BaseEstimator):
    """A transformer that is meant to be fitted on all clients' rows, as if they were in one place.

    :func:`skfed.make_pipeline` does not warn of it.

    Parameters
    ----------
    transformer : transformer
        What is fitted, as a copy, and transforms.

    Attributes
    ----------
    transformer_ : transformer
        The fitted copy.

    See Also
    --------
    skfed.preprocessing.pooled : Makes one of a transformer.
    """

    def __init__(self, transformer):
        self.transformer = transformer

    def fit(self, X, y=None):
        """Fit a copy of the transformer.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,), default=None
            Targets.

        Returns
        -------
        self
        """
        self.transformer_ = clone(self.transformer).fit(X, y)
        return self

    def fit_transform(self, X, y=None):
        """Fit a copy of the transformer, and return what its ``fit_transform`` returns.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,), default=None
            Targets.

        Returns
        -------
        array-like
            The rows transformed, of a TargetEncoder by cross-fitting, say.
        """
        self.transformer_ = clone(self.transformer)
        return self.transformer_.fit_transform(X, y)

    def transform(self, X):
        """Return the rows transformed.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array-like
            What the transformer returns.
        """
        check_is_fitted(self)
        return self.transformer_.transform(X)

    @_has("inverse_transform")
    def inverse_transform(self, X):
        """Return the rows before they were transformed.

        Parameters
        ----------
        X : array-like
            Transformed rows.

        Returns
        -------
        array-like
            What the transformer returns.
        """
        check_is_fitted(self)
        return self.transformer_.inverse_transform(X)

    @_has("get_feature_names_out")
    def get_feature_names_out(self, input_features=None):
        """Return the names of the columns that ``transform`` returns.

        Parameters
        ----------
        input_features : array-like of str, default=None
            The names of the columns of X.

        Returns
        -------
        ndarray of str
            The names.
        """
        check_is_fitted(self)
        return self.transformer_.get_feature_names_out(input_features)

    @property
    def n_features_in_(self) -> int:
        """The number of columns seen in fit."""
        return self.transformer_.n_features_in_

    @property
    def feature_names_in_(self):
        """The names of the columns seen in fit, if they have names."""
        return self.transformer_.feature_names_in_

    def __sklearn_tags__(self):
        return get_tags(self.transformer)


def pooled(transformer: Any) -> PooledTransformer:
    """Say that a transformer of scikit-learn is meant to be fitted on all clients' rows together.

    :func:`skfed.make_pipeline` warns of transformers that are fitted so, unless this says that it
    is meant: in a comparison, say, or where the rows are public.

    Parameters
    ----------
    transformer : transformer
        A transformer with ``fit`` and ``transform``.

    Returns
    -------
    PooledTransformer
        One that is fitted and transforms as it does. Its parameters are named
        ``transformer__parameter``.

    Raises
    ------
    TypeError
        If it is no transformer, or one that takes clients and so pools nothing.

    Examples
    --------
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skfed.preprocessing import pooled
    >>> pooled(StandardScaler()).fit_transform([[1.0], [3.0]]).ravel()
    array([-1.,  1.])
    """
    name = getattr(transformer, "__name__", type(transformer).__name__)
    if isinstance(transformer, type) or not (
        hasattr(transformer, "fit") and hasattr(transformer, "transform")
    ):
        raise TypeError(
            f"pooled takes a transformer, an object with fit and transform; got {name}: an "
            "estimator needs no mark, and a class is to be called."
        )
    if takes_in_fit(transformer, "clients"):
        raise TypeError(f"{name} takes clients, and so pools nothing: leave pooled(...) out.")
    return PooledTransformer(transformer)
