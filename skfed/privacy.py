"""Clipping and noise on what clients send.

Dwork, Roth: The Algorithmic Foundations of Differential Privacy, 2014, appendix A (the Gaussian
mechanism); McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language
Models, ICLR 2018 (clipped updates); Mironov: Rényi Differential Privacy, CSF 2017 (accounting).

Each client adds noise before it sends, so that the server need not be trusted. This protects all of
a client's data against readers of its messages (local, client-level privacy). It needs much more
noise than a trusted server that adds noise to a sum.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from skfed._mechanism import GaussianMechanism
from skfed.preprocessing import PooledTransformer
from skfed.preprocessing._pooled_steps import pools_rows
from skfed.utils._extras import needs
from skfed.utils._ids import client_index, digest, native

__all__ = ["GaussianMechanism", "privacy_spent"]


def privacy_spent(model: Any, delta: float = 1e-5) -> pd.DataFrame:
    """Return the privacy that each client's messages have spent so far.

    Two updates, or vectors of statistics, of a client differ by at most twice ``clip``, two losses
    by at most ``clip``. The messages of all rounds and exchanges are composed by Opacus's
    accountant (Rényi differential privacy, without amplification by sampling, since the server
    knows which clients take part).

    Parameters
    ----------
    model : FederatedClassifier, FederatedRegressor, federated transformer or Pipeline of them
        A fitted model. The messages of all steps of a Pipeline are composed.
    delta : float, default=1e-5
        The delta of (epsilon, delta)-differential privacy, in (0, 1).

    Returns
    -------
    DataFrame, indexed by client id
        ``n_statistics``, ``n_updates`` and ``n_losses`` sent, and ``epsilon``: infinite if a
        message had no noise, or if a step of a Pipeline was fitted on the rows of all clients
        (:func:`skfed.preprocessing.pooled` or not); 0 if all messages are (0, delta)-differentially
        private.

    Raises
    ------
    ImportError
        If Opacus is not installed.
    TypeError
        If no part of the model exchanges messages with clients.
    ValueError
        If delta is not in (0, 1).
    """
    check_is_fitted(model)
    if not (isinstance(delta, Real) and 0 < delta < 1):
        raise ValueError(f"delta={delta!r} must be in (0, 1).")
    messages: dict[bytes, Messages] = defaultdict(Counter)
    clients: dict[bytes, Any] = {}
    parts, pools = list(_fitted_parts(model)), _pools_rows(model)
    if not parts:
        raise TypeError(
            f"model is a {type(model).__name__}, in which nothing exchanges messages with clients: "
            "pass a federated estimator or transformer, or a Pipeline of them."
        )
    for part in parts:
        found, names = _statistics(part) if hasattr(part, "exchange_") else _of_rounds(part)
        clients |= {digest(native(name)): native(name) for name in names}
        for key, count in found.items():
            messages[key].update(count)
    counts = [messages[key] for key in clients]
    frozen = [frozenset(count.items()) for count in counts]
    epsilons = {one: np.inf if pools else _epsilon(one, delta) for one in set(frozen)}
    table = pd.DataFrame(
        {
            "n_statistics": [_total(count, "statistics") for count in counts],
            "n_updates": [_total(count, "update") for count in counts],
            "n_losses": [_total(count, "loss") for count in counts],
            "epsilon": [epsilons[one] for one in frozen],
        }
    )
    if len(parts) > 1:
        names = np.fromiter(clients.values(), dtype=object, count=len(clients))
    return table.set_index(client_index(np.asarray(names)))


_NO_PRIVACY = 1e15  # epsilon is larger, and the best order no longer differs from 1
Messages = Counter[
    tuple[str, float]
]  # by kind and noise multiplier; kinds are keys of _SENSITIVITY


# In units of clip.
_SENSITIVITY = {"statistics": 2.0, "update": 2.0, "loss": 1.0}


def _leaves(model: Any) -> Iterator[Any]:
    """Yield the fitted parts of a Pipeline, or the model."""
    for name in ("steps", "transformers_", "transformer_list"):
        if hasattr(model, name):
            for part in getattr(model, name):
                yield from _leaves(part[1])
            return
    yield model


def _fitted_parts(model: Any) -> Iterator[Any]:
    """Yield what exchanged something with clients."""
    for part in _leaves(model):
        if hasattr(part, "exchange_") or hasattr(part, "_server"):
            yield part


def _pools_rows(model: Any) -> bool:
    """Tell whether a part was fitted on the rows of all clients."""
    return any(isinstance(part, PooledTransformer) or pools_rows(part) for part in _leaves(model))


def _statistics(transformer: Any) -> tuple[dict[bytes, Messages], list]:
    """Count the messages of each client in a transformer's exchanges, and return the clients."""
    table = transformer.exchange_
    multiplier = getattr(transformer, "_noise_multiplier", 0.0)  # that of the fit
    messages: dict[bytes, Messages] = defaultdict(Counter)
    for client in table.loc[table["held"] != "", "client"]:
        messages[digest(native(client))]["statistics", multiplier] += 1
    return messages, list(dict.fromkeys(table["client"]))


def _of_rounds(model: Any) -> tuple[dict[bytes, Messages], Any]:
    """Count the messages of each client in an estimator's rounds, and return the clients."""
    keys = [digest(native(client)) for client in model.clients_]
    others = model.history_[~model.history_["round"].isin(model._server.private_rounds)]
    return _messages(model._server.messages, others, keys), model.clients_


def _total(messages: Messages, kind: str) -> int:
    return sum(n for (other, _), n in messages.items() if other == kind)


def _messages(
    recorded: Mapping[bytes, Mapping[tuple[str, float], int]],
    others: pd.DataFrame,
    keys: Sequence[bytes],
) -> dict[bytes, Messages]:
    """Count the messages of each client: as recorded in private rounds, in others without noise."""
    messages: dict[bytes, Messages] = defaultdict(Counter)
    for key, counts in recorded.items():
        messages[key].update(counts)
    for row in others.to_dict("records"):
        trained = [digest(client) for client in row["cohort"]]
        # Discarded updates are recorded by client in private rounds only; here all clients get one.
        trained += keys if row["n_trained"] > row["n_aggregated"] else []
        for key in trained:
            messages[key]["update", 0.0] += 1
        for key in (*trained, *map(digest, row["polled"])):
            messages[key]["loss", 0.0] += 1
    return messages


def _epsilon(messages: frozenset, delta: float) -> float:
    try:
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise ImportError(needs("privacy_spent", "privacy")) from error
    if not messages:
        return 0.0
    if any(multiplier == 0 for (_, multiplier), _ in messages):
        return np.inf
    # A Gaussian message costs alpha / (2 sigma^2) at the order alpha, with sigma in units of its
    # sensitivity, which is in units of clip.
    ratios = [(n, _SENSITIVITY[kind] / multiplier) for (kind, multiplier), n in messages]
    rho = sum(n * ratio * ratio / 2 for n, ratio in ratios)
    if rho > _NO_PRIVACY:
        return np.inf
    orders = _orders(rho, delta)
    epsilon, _ = rdp.get_privacy_spent(orders=orders, rdp=rho * orders, delta=delta)
    # With heavy noise the conversion gives a negative number, for which epsilon = 0 holds too.
    return max(0.0, float(epsilon))


def _orders(rho: float, delta: float) -> np.ndarray:
    """Return orders alpha around the one that gives the least epsilon.

    There the derivative of Opacus's bound (Balle et al. 2020, theorem 21), rho alpha -
    (log delta + log alpha) / (alpha - 1) + log(1 - 1 / alpha), is 0: -log(delta) - log(alpha) =
    rho (alpha - 1)^2.
    """
    budget, rho = -np.log(delta), max(rho, 1e-300)  # rho may underflow
    low, high = 0.0, min(np.sqrt(budget / rho), 2 * np.expm1(min(budget, 700.0)))
    for _ in range(60):
        above = (low + high) / 2
        if budget - np.log1p(above) > rho * above**2:
            low = above
        else:
            high = above
    return 1 + above * np.geomspace(0.5, 2, 101)
