"""Transformers of scikit-learn that are fitted without pooling the clients' rows.

Each is a subclass of scikit-learn's transformer of that name, and has its fitted attributes.
``fit(X, y=None, clients=None)`` takes the id of the client that holds each row, as the estimators
do. Clients send statistics of their own rows, in one or more exchanges, and ``exchange_`` lists
them, a row for each exchange and client:

=============== ====================================================================================
column          meaning
=============== ====================================================================================
``exchange``    Its number, from 0.
``client``      The client's id.
``bytes_down``  Bytes of what the server asked for; nothing where it asks for all there is.
``bytes_up``    Bytes of what the client sent: numbers in their dtype, text as UTF-8.
``held``        The names of the statistics that it sent.
``result``      ``"exact"``, or ``"suppressed"`` where ``min_count`` or ``min_holders`` left
                something out, at the client or at the server; ``"failed"`` where a client of
                :mod:`skfed.flower` sent nothing valid; ``"noisy"`` with ``privacy``, or
                ``"clipped"`` if it adds no noise.
=============== ====================================================================================

The fitted transformer, which clients need to transform their rows, is not in the table.
:class:`BaseFederatedTransformer` is the contract for one of your own.
"""

from skfed.preprocessing._base import BaseFederatedTransformer
from skfed.preprocessing._min_max_scaler import FederatedMinMaxScaler
from skfed.preprocessing._one_hot_encoder import FederatedOneHotEncoder
from skfed.preprocessing._ordinal_encoder import FederatedOrdinalEncoder
from skfed.preprocessing._pca import FederatedPCA
from skfed.preprocessing._pooled import PooledTransformer, pooled
from skfed.preprocessing._robust_scaler import FederatedRobustScaler
from skfed.preprocessing._simple_imputer import FederatedSimpleImputer
from skfed.preprocessing._standard_scaler import FederatedStandardScaler

__all__ = [
    "BaseFederatedTransformer",
    "FederatedMinMaxScaler",
    "FederatedOneHotEncoder",
    "FederatedOrdinalEncoder",
    "FederatedPCA",
    "FederatedRobustScaler",
    "FederatedSimpleImputer",
    "FederatedStandardScaler",
    "PooledTransformer",
    "pooled",
]
