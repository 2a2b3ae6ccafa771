"""What is added to the gradients of local steps, in both engines."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from skfed.engines._requests import TrainRequest
from skfed.nets import State


@dataclass(frozen=True)
class LocalTerms:
    """FedProx's mu (w - w_t), and SCAFFOLD's c - c_k; a term of your own belongs here.

    Parameters
    ----------
    mu : float
        FedProx's.
    anchor : dict of str to Tensor
        The parameters of w_t, if mu is not 0.
    shifts : dict of str to Tensor
        c - c_k, of some clients along a leading axis, or of one; a missing name is zero.
    """

    mu: float
    anchor: State
    shifts: State

    def __bool__(self) -> bool:
        return bool(self.mu or self.shifts)

    def added(self, name: str, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of a parameter with these terms."""
        if self.mu:
            gradient = gradient + self.mu * (parameter - self.anchor[name])
        return gradient + self.shifts[name] if name in self.shifts else gradient

    def of_first(self, n_clients: int) -> "LocalTerms":
        """Return the terms of the first of stacked clients."""
        return replace(self, shifts={name: one[:n_clients] for name, one in self.shifts.items()})


def local_terms(request: TrainRequest, device: torch.device | str, *, stacked: bool) -> LocalTerms:
    """Return the terms of a request on a device, for one client unless they are ``stacked``."""
    corrections: Sequence[State] = [c for c in request.corrections or () if c]
    mu = request.training.proximal_mu
    anchor: State = {}
    shifts: State = {}
    if mu:
        anchor = {name: request.state[name].to(device) for name in request.parameters}
    if corrections and not stacked:
        shifts = {name: one.to(device) for name, one in corrections[0].items()}
    elif corrections:
        shifts = {
            name: torch.stack([c.get(name, nothing).to(device) for c in request.corrections or ()])
            for name in request.parameters
            for nothing in [torch.zeros_like(request.state[name])]
        }
    return LocalTerms(mu, anchor, shifts)
