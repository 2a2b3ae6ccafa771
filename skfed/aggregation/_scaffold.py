"""SCAFFOLD: control variates against client drift.

Karimireddy et al.: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
Algorithm 1 with option II.
"""

from collections.abc import Mapping

import torch

from skfed.aggregation._mean import WeightedMean
from skfed.aggregation._tensors import step_from
from skfed.nets import State


class Scaffold(WeightedMean):
    """The cohort's weighted mean, where clients correct each local step by c - c_k.

    It needs a net that is trained by SGD without momentum. After training, c_k becomes
    c_k - c + (w_t - w_k) / (sum of the learning rates of its steps), and c changes by the sum of
    these changes over the number of all clients. c_k is kept only for clients that took part. Each
    parameter has the learning rates of its own group in the net's optimizer.
    """

    uses_variates = True


def new_variate(
    state: State, trained: State, correction: State, rate_sums: Mapping[str, float]
) -> State | None:
    """Return the new c_k, c_k - c + (w_t - w_k) / (sum of the learning rates), option II.

    ``correction`` is c - c_k, without names that are zero, and ``rate_sums`` are the sums of each
    parameter's learning rates. A parameter whose sum is 0 was not trained and is not in the result;
    the result is None if that holds for all.
    """
    gradients = {
        n: step_from(w, state[n]) / rate_sums[n] for n, w in trained.items() if rate_sums.get(n)
    }
    new = {n: g - correction[n] if n in correction else g for n, g in gradients.items()}
    return new or None


def correction(c: State, c_k: State) -> State:
    """Return c - c_k, what is added to the gradient of each local step; a missing name is zero."""
    return {name: value - c_k[name] if name in c_k else value for name, value in c.items()}


def updated_variates(
    c: State, old: Mapping[bytes, State], new: Mapping[bytes, list[State]], n_clients: int
) -> tuple[State, dict[bytes, State]]:
    """Return c after a round, and the c_k that have changed.

    ``old`` has each c_k by client digest, a missing one being zero; ``new`` has those of the
    clients that took part, one a copy in the cohort.
    """
    server, changed = dict(c), {}
    for client, copies in new.items():
        mean = {
            name: torch.stack([copy[name] for copy in copies]).mean(dim=0) for name in copies[0]
        }
        own = old.get(client, {})
        for name, value in mean.items():
            change = value - own[name] if name in own else value
            share = change / n_clients
            server[name] = server[name] + share if name in server else share
        changed[client] = {**own, **mean}
    return server, changed
