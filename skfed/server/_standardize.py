"""Layers that standardise X, set from clients' means and variances of columns."""

from collections.abc import Iterable

import numpy as np
import torch
from skorch import NeuralNet

from skfed._federation import Federation
from skfed.engines import ReplyTimes
from skfed.modules import Standardize
from skfed.nets import cast, to_tensors
from skfed.server._exchange import Exchange, statistics_exchange
from skfed.server._state import ServerState
from skfed.utils._warnings import warn

Moments = tuple[np.ndarray, np.ndarray]  # a client's mean and variance of each column

_CHUNK = 2**24  # bytes of rows that are read at once
_LARGE = 100.0  # values of X for which its columns should be scaled


def standardize(server: ServerState, federation: Federation, X: np.ndarray, private: bool) -> None:
    """Set the layers of a new net that standardise X, if it has any.

    Where updates are ``private``, clients do not send means and variances: the layers change
    nothing, and large values of X give a warning.
    """
    if not layers_of(server.net):
        return
    if not private:
        priority = np.flatnonzero(federation.priority)
        moments = (client_moments(X, federation.rows(int(k))) for k in priority)
        set_moments(server, federation, X.shape[1:], moments)
    elif max(X.max(), -X.min()) > _LARGE:  # without a copy of X
        warn(
            "update_privacy is set, so clients do not send the means and variances of their "
            f"columns, and the net takes X as it is; but X has values above {_LARGE:g}: scale "
            "its columns by bounds that are known without a look at the data."
        )


def set_moments(
    server: ServerState,
    federation: Federation,
    shape: tuple[int, ...],
    moments: Iterable[Moments | None],
    times: ReplyTimes | None = None,
) -> None:
    """Set the layers of a new net from the moments of the priority clients; round 0 has the cost.

    ``shape`` is that of a row of X. The moments of a client that failed are None; ``times`` are
    their seconds, if measured. A net in which such a layer is not the first is refused.
    """
    _check_first(server.net, shape)
    pooled, replied = _pool(moments, _weights(federation))
    if pooled is None:
        warn(
            "no priority client has sent the means and variances of its columns, so the net takes "
            "X as it is: see the clients' logs, and scale X by bounds that are known without a "
            "look at the data."
        )
        return
    _set(server.net, pooled)
    server.first_exchanges.append(moments_exchange(federation, len(pooled[0]), replied, times))


def moments_exchange(
    federation: Federation,
    n_columns: int,
    replied: np.ndarray | None = None,
    times: ReplyTimes | None = None,
) -> Exchange:
    """Return the exchange in which priority clients send moments; None: all have replied."""
    clients = np.flatnonzero(federation.priority)
    replied = np.ones(len(clients), dtype=bool) if replied is None else replied
    exchange = statistics_exchange(clients, replied, 2 * n_columns)
    exchange.add_times(np.arange(len(clients)), times)
    return exchange


def pooled_scale(
    federation: Federation, moments: Iterable[Moments | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and standard deviation (1 if it is 0) of targets over priority clients."""
    pooled, _ = _pool(moments, _weights(federation))
    if pooled is None:
        raise RuntimeError(
            "no priority client has sent the mean and variance of its targets, which "
            "standardize_targets needs: see the clients' logs, and start again."
        )
    mean, variance = pooled
    return mean, _deviation(mean, variance)


def layers_of(net: NeuralNet) -> list[Standardize]:
    """Return the layers of a net that standardise X."""
    return [layer for layer in net.module_.modules() if isinstance(layer, Standardize)]


def client_moments(X: np.ndarray, rows: np.ndarray) -> Moments:
    """Return the mean and variance of each column over some rows of X."""
    # In chunks: X may be a memory map larger than memory.
    size = max(1, _CHUNK // (8 * int(np.prod(X.shape[1:]))))
    chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
    mean = sum(_flat(X[chunk]).sum(axis=0) for chunk in chunks) / len(rows)
    squares = sum(np.square(_flat(X[chunk]) - mean).sum(axis=0) for chunk in chunks)
    return mean, squares / len(rows)


def _pool(
    moments: Iterable[Moments | None], weights: np.ndarray
) -> tuple[Moments | None, np.ndarray]:
    """Return the weighted mean and variance of all clients, and a mask of those that replied."""
    # Summed client by client, which needs no memory for a million clients, and around the first
    # client's mean, so that columns far from zero lose no digits.
    pivot, shift, squares, total = None, 0.0, 0.0, 0.0
    replied = np.zeros(len(weights), dtype=bool)
    for i, (client, weight) in enumerate(zip(moments, weights, strict=True)):
        if client is None:
            continue
        mean, variance = client
        pivot = mean if pivot is None else pivot
        shift = shift + weight * (mean - pivot)
        squares = squares + weight * (variance + np.square(mean - pivot))
        total, replied[i] = total + weight, True
    if pivot is None:
        return None, replied
    shift, squares = shift / total, squares / total
    return (pivot + shift, np.maximum(squares - np.square(shift), 0.0)), replied


def _check_first(net: NeuralNet, shape: tuple[int, ...]) -> None:
    """Check that the input of each layer is X, by a row of distinct numbers."""
    row = cast(net, np.linspace(1.0, 2.0, int(np.prod(shape))).reshape(1, *shape))

    def check(layer: Standardize, inputs: tuple[torch.Tensor, ...]) -> None:
        if not np.array_equal(inputs[0].detach().cpu().numpy().ravel(), row.ravel()):
            raise ValueError(
                f"estimator's module has Standardize(n_features={len(layer.mean)}) behind another "
                "layer, but it standardises X: make it the first layer."
            )

    hooks = [layer.register_forward_pre_hook(check) for layer in layers_of(net)]
    try:
        net.evaluation_step((*to_tensors(net, row), None))
    finally:
        for hook in hooks:
            hook.remove()


def _set(net: NeuralNet, moments: Moments) -> None:
    """Set the mean and the standard deviation of each column in a net's layers."""
    mean, variance = moments
    for layer in layers_of(net):
        layer.mean.copy_(torch.from_numpy(mean))
        layer.scale.copy_(torch.from_numpy(_deviation(mean, variance)))


def _deviation(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each column, 1 of constant ones."""
    deviation = np.sqrt(variance)
    # A column whose deviation float32 cannot represent is constant.
    constant = deviation <= np.finfo(np.float32).eps * np.abs(mean)
    return np.where(constant, 1.0, deviation)


def _weights(federation: Federation) -> np.ndarray:
    """Return the weight of each priority client's moments."""
    return (federation.priority_weights * federation.sizes)[federation.priority]


def _flat(X: np.ndarray) -> np.ndarray:
    return X.reshape(len(X), -1).astype(np.float64)
