"""The same selectors on a real federation: clients that hold their own data, by Flower.

Needs the extra ``flower``: ``pip install 'skfed[flower]'``.
"""

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:
    raise ImportError("skfed.flower needs Flower: pip install 'skfed[flower]'.") from error

from skfed.flower._client import client_app
from skfed.flower._strategy import FederatedStrategy

__all__ = ["FederatedStrategy", "client_app"]
