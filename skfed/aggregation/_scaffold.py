"""SCAFFOLD: control variates against client drift.

Karimireddy et al.: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020,
Algorithm 1 with option II.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

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


@dataclass(frozen=True)
class Variates:
    """What SCAFFOLD remembers between rounds; missing variates are zero."""

    server: State = field(default_factory=dict)  # c
    clients: dict[bytes, State] = field(default_factory=dict)  # c_k, by client digest

    def correction(self, client: bytes) -> State:
        """Return c - c_k, what is added to the gradient of each local step."""
        if client not in self.clients:
            return dict(self.server)
        own = self.clients[client]
        return {name: c - own[name] if name in own else c for name, c in self.server.items()}

    def moved(self, new: dict[bytes, list[State]], n_clients: int) -> Self:
        """Return them with the new c_k of a round (one a copy of a client), and c moved."""
        server, clients = dict(self.server), dict(self.clients)
        for client, copies in new.items():
            mean = {
                name: torch.stack([copy[name] for copy in copies]).mean(dim=0) for name in copies[0]
            }
            old = clients.get(client, {})
            for name, value in mean.items():
                change = value - old[name] if name in old else value
                share = change / n_clients
                server[name] = server[name] + share if name in server else share
            clients[client] = old | mean
        return type(self)(server, clients)
