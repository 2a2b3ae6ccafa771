"""OneHotEncoder, fitted from each client's categories."""

import numpy as np
from sklearn.preprocessing import OneHotEncoder

from skfed.preprocessing._base import SuppressingTransformer
from skfed.preprocessing._encoder import FederatedEncoder


class FederatedOneHotEncoder(FederatedEncoder, OneHotEncoder):
    """Encode categories as columns of 0 and 1; the categories are those of all clients.

    Each client sends the categories of each column, in one exchange; with ``min_frequency`` or
    ``max_categories`` also how many rows have them. The fitted attributes are those of
    :class:`sklearn.preprocessing.OneHotEncoder` on the pooled rows.

    Parameters
    ----------
    categories, drop, sparse_output, dtype, handle_unknown, min_frequency, max_categories, \
feature_name_combiner
        As in scikit-learn.
    priority : collection or mapping of client ids, default=None
        Whose categories count, as in :class:`FederatedStandardScaler`.
    min_count : int, default=1
        A client sends only categories of so many of its rows. What is left out is unknown to the
        encoder: pass ``handle_unknown="ignore"``, say.
    min_holders : int, default=1
        The server takes only categories that so many clients sent.

    Attributes
    ----------
    categories_, drop_idx_, infrequent_categories_, n_features_in_, feature_names_in_
        As in scikit-learn.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    See Also
    --------
    sklearn.preprocessing.OneHotEncoder : The same on rows that are in one place.
    skfed.preprocessing.FederatedOrdinalEncoder : Encodes categories as integers.

    Examples
    --------
    >>> from skfed.preprocessing import FederatedOneHotEncoder
    >>> encoder = FederatedOneHotEncoder(sparse_output=False)
    >>> encoder.fit_transform(
    ...     [["red"], ["blue"], ["red"]], clients=["a", "b", "b"]
    ... )
    array([[0., 1.],
           [1., 0.],
           [0., 1.]])
    """

    _parameter_constraints = {
        **OneHotEncoder._parameter_constraints,
        **SuppressingTransformer._suppression_constraints,
        "priority": "no_validation",
    }

    def __init__(
        self,
        *,
        categories="auto",
        drop=None,
        sparse_output=True,
        dtype=np.float64,
        handle_unknown="error",
        min_frequency=None,
        max_categories=None,
        feature_name_combiner="concat",
        priority=None,
        min_count=1,
        min_holders=1,
    ):
        super().__init__(
            categories=categories,
            drop=drop,
            sparse_output=sparse_output,
            dtype=dtype,
            handle_unknown=handle_unknown,
            min_frequency=min_frequency,
            max_categories=max_categories,
            feature_name_combiner=feature_name_combiner,
        )
        self.priority = priority
        self.min_count = min_count
        self.min_holders = min_holders
