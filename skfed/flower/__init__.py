"""The same selectors on a real federation: clients that hold their own data, by Flower.

Needs ``pip install "flwr>=1.41,<1.42"``.
"""

from skfed.utils._extras import needs

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:
    raise ImportError(needs("skfed.flower", "flower")) from error

from skfed.flower._client import client_app
from skfed.flower._strategy import FederatedStrategy

__all__ = ["FederatedStrategy", "client_app"]
