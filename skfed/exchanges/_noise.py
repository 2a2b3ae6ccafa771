"""The noise of ``loss_privacy`` on the losses that clients send."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from skfed._mechanism import GaussianMechanism
from skfed.exchanges._failures import NOT_FINITE
from skfed.utils._seeding import Purpose


@dataclass
class LossPrivatizer:
    """Adds noise to the losses of one round."""

    mechanism: GaussianMechanism | None = None  # None adds no noise
    # Of a purpose, client and copy; needed for noise.
    stream: Callable[[Purpose, int, int], np.random.Generator] | None = None
    sent: Counter[tuple[Purpose, int]] = field(default_factory=Counter)  # by purpose and client

    def add(self, purpose: Purpose, clients: np.ndarray, losses: np.ndarray) -> np.ndarray:
        """Return losses with noise, other noise each time that a client sends one."""
        if self.mechanism is None:
            return losses
        assert self.stream is not None
        noisy = losses.copy()
        for i, k in enumerate(clients.tolist()):
            rng = self.stream(purpose, k, self.sent[purpose, k])
            noisy[i] = self.mechanism.of_loss(losses[i], rng)
            self.sent[purpose, k] += 1
        return noisy

    def not_finite(self, what: str, loss: float) -> ValueError:
        """Return the error of a loss or update that is not finite; with noise, without the loss."""
        value = f" (loss {loss})" if self.mechanism is None else ""
        return ValueError(f"its {what} {NOT_FINITE}{value}: lower the learning rate.")
