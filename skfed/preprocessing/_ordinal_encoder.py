"""OrdinalEncoder, fitted from each client's categories."""

import numpy as np
from sklearn.preprocessing import OrdinalEncoder

from skfed.preprocessing._base import SuppressingTransformer
from skfed.preprocessing._encoder import FederatedEncoder


class FederatedOrdinalEncoder(FederatedEncoder, OrdinalEncoder):
    """Encode categories as integers; the categories are those of all clients.

    Each client sends the categories of each column, in one exchange; with ``min_frequency`` or
    ``max_categories`` also how many rows have them. The fitted attributes are those of
    :class:`sklearn.preprocessing.OrdinalEncoder` on the pooled rows.

    Parameters
    ----------
    categories, dtype, handle_unknown, unknown_value, encoded_missing_value, min_frequency, \
max_categories
        As in scikit-learn.
    priority : collection or mapping of client ids, default=None
        Whose categories count, as in :class:`FederatedStandardScaler`.
    min_count : int, default=1
        A client sends only categories of so many of its rows. What is left out is unknown to the
        encoder: pass ``handle_unknown="use_encoded_value", unknown_value=-1``, say.
    min_holders : int, default=1
        The server takes only categories that so many clients sent.

    Attributes
    ----------
    categories_, infrequent_categories_, n_features_in_, feature_names_in_
        As in scikit-learn.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    See Also
    --------
    sklearn.preprocessing.OrdinalEncoder : The same on rows that are in one place.
    skfed.preprocessing.FederatedOneHotEncoder : Encodes categories as columns of 0 and 1.

    Examples
    --------
    >>> from skfed.preprocessing import FederatedOrdinalEncoder
    >>> encoder = FederatedOrdinalEncoder()
    >>> encoder.fit_transform(
    ...     [["red"], ["blue"], ["red"]], clients=["a", "b", "b"]
    ... ).ravel()
    array([1., 0., 1.])
    """

    _parameter_constraints = {
        **OrdinalEncoder._parameter_constraints,
        **SuppressingTransformer._suppression_constraints,
        "priority": "no_validation",
    }

    def __init__(
        self,
        *,
        categories="auto",
        dtype=np.float64,
        handle_unknown="error",
        unknown_value=None,
        encoded_missing_value=np.nan,
        min_frequency=None,
        max_categories=None,
        priority=None,
        min_count=1,
        min_holders=1,
    ):
        super().__init__(
            categories=categories,
            dtype=dtype,
            handle_unknown=handle_unknown,
            unknown_value=unknown_value,
            encoded_missing_value=encoded_missing_value,
            min_frequency=min_frequency,
            max_categories=max_categories,
        )
        self.priority = priority
        self.min_count = min_count
        self.min_holders = min_holders
