"""What a selector returns: the clients of a round and their weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isclose
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Cohort:
    """The clients whose updates are aggregated this round, with their weights.

    Parameters
    ----------
    clients : ndarray of shape (n_chosen,), dtype=int
        Client indices; a client drawn twice is listed twice and trains twice.
    weights : ndarray of shape (n_chosen,)
        The weight of each update, summing to 1 unless ``unbiased``.
    unbiased : bool, default=False
        Aggregate as w + sum of q_k (w_k - w) (power-of-choice, appendix E), with the weights as
        the q_k, which need not sum to 1.
    objective : float, default=nan
        F(w_t) over the priority clients reached, if the rule polled them for it.
    memory : dict, default=None
        What the rule wants to see in the next round's ``round.memory``: numbers, strings, bools and
        arrays of numbers by name. None keeps what is there; ``{}`` empties it.
    """

    clients: np.ndarray
    weights: np.ndarray
    unbiased: bool = False
    objective: float = float("nan")
    memory: Mapping[str, Any] | None = None

    def keep(self, mask: np.ndarray) -> "Cohort":
        """Return the cohort of the clients in ``mask``; weights sum to 1 again unless unbiased.

        It is empty if all weights in the mask are 0: they define no mean.
        """
        if mask.all():
            return self
        clients, weights = self.clients[mask], self.weights[mask]
        if not self.unbiased:
            if not weights.any():
                clients, weights = clients[:0], weights[:0]
            weights = weights / max(weights.sum(), np.finfo(float).tiny)
        return replace(self, clients=clients, weights=weights)

    @classmethod
    def mean(cls, clients: np.ndarray) -> "Cohort":
        """Return a cohort of equal weights, 1/m (power-of-choice, equation 3)."""
        return cls(clients, np.full(len(clients), 1 / max(len(clients), 1)))

    @classmethod
    def by_size(cls, clients: np.ndarray, sizes: np.ndarray) -> "Cohort":
        """Return a cohort of weights D_k / sum of D over the cohort (FedALIGN, Algorithm 1)."""
        chosen = sizes[clients]
        return cls(clients, chosen / max(chosen.sum(), 1))


def copied_memory(memory: Any, caller: str) -> dict[str, Any]:
    """Return a copy of a rule's memory.

    Raises
    ------
    TypeError
        If it is no dict, a key is no string, or a value cannot be kept; the message names the key.
    """
    if not isinstance(memory, Mapping):
        raise TypeError(f"{caller} gave memory={memory!r}: give a dict of numbers and arrays.")
    copied = {}
    for key, value in memory.items():
        is_array = type(value) is np.ndarray
        value = value.item() if isinstance(value, np.generic) else value
        # What a file holds.
        is_valid = isinstance(value, str | bool | int | float)
        if is_array:
            dtype = value.dtype
            is_valid = dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.isnative
        if not (isinstance(key, str) and is_valid):
            raise TypeError(
                f"{caller} gave memory[{key!r}] = {value!r} ({type(value).__name__}): keys are "
                "strings, values are numbers, strings, bools or arrays of numbers."
            )
        copied[key] = value.copy() if is_array else value
    return copied


def checked_cohort(cohort: Cohort, available: np.ndarray, caller: str) -> Cohort:
    """Return a cohort sorted by client index, after checks of its clients, weights and memory.

    Raises
    ------
    ValueError
        If a client does not exist or is not available, or weights are not valid.
    TypeError
        If it is no Cohort, or its memory cannot be kept.
    """
    if not isinstance(cohort, Cohort):
        raise TypeError(
            f"{caller} gave {cohort!r:.80}: give a Cohort, such as Cohort.mean(clients)."
        )
    clients = client_indices(cohort.clients, available, caller)
    weights = np.asarray(cohort.weights, dtype=float)
    if weights.shape != clients.shape:
        raise ValueError(f"{caller} chose {len(clients)} clients with {weights.size} weights.")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError(f"{caller} gave weights that are negative or not finite: {weights}.")
    if len(weights) and not cohort.unbiased and not isclose(weights.sum(), 1, rel_tol=1e-5):
        raise ValueError(
            f"{caller} gave weights that sum to {weights.sum()}, not to 1: divide them by their "
            "sum, or use Cohort.mean or Cohort.by_size."
        )
    order = np.argsort(clients, kind="stable")
    memory = cohort.memory
    if memory is not None:
        memory = copied_memory(memory, caller)
    return replace(cohort, clients=clients[order], weights=weights[order], memory=memory)


def client_indices(clients: Any, available: np.ndarray, caller: str) -> np.ndarray:
    """Check that all are indices of available clients."""
    clients = np.asarray(clients)
    if clients.size == 0:
        return np.empty(0, dtype=np.intp)
    if clients.ndim != 1 or not np.issubdtype(clients.dtype, np.integer):
        raise ValueError(f"{caller} needs a list of client indices, got {clients!r}.")
    outside = clients[(clients < 0) | (clients >= len(available))]
    if len(outside):
        raise ValueError(f"{caller} names client {outside[0]}; indices go to {len(available) - 1}.")
    away = clients[~available[clients]]
    if len(away):
        raise ValueError(f"{caller} names client {away[0]}, which is not available in this round.")
    return clients.astype(np.intp)
