"""The noise that clients add to what they send; public in :mod:`skfed.privacy`."""

from collections.abc import Collection, Sequence
from numbers import Real

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skfed.aggregation._robust import clipped
from skfed.nets import State
from skfed.utils._sklearn import Interval


class GaussianMechanism(BaseEstimator):
    """Clip what a client sends, and add Gaussian noise to it.

    As ``update_privacy``, the update w_k - w_t is scaled down to an L2 norm of ``clip`` over all
    parameters, and each of its coordinates gets noise of standard deviation ``noise_multiplier *
    clip``. As ``loss_privacy``, a loss (or error) is clipped to [0, clip] and gets such noise: each
    answer to a poll, and the training loss that is sent with an update. A client that compares its
    loss with a bound, as in FedALIGN, compares the noisy one. As ``privacy`` of a transformer in
    :mod:`skfed.preprocessing`, the vector of averages that a client sends is scaled down to a norm
    of ``clip`` and gets such noise.

    With both set, the updates and losses that a client sends are (epsilon, delta)-differentially
    private for all its data, with the epsilon of :func:`privacy_spent`. Not protected are a
    client's name, its size D_k, the number of rows that it trained on, the shape and dtype of a
    row, the names of its columns, and which clients take part or fail. The labels in its data are
    not sent: a simulation takes the set of labels from the data of all clients, and
    :class:`skfed.flower.FederatedStrategy` takes it as ``classes``. In a simulation the noise is
    from a seeded generator that is not cryptographically secure: it shows the cost of privacy, and
    protects no data. Floating-point effects are not accounted for.

    Parameters
    ----------
    clip : float, default=1.0
        The largest norm of an update, or the largest loss.
    noise_multiplier : float, default=1.0
        Standard deviation of the noise in units of ``clip``; 0 only clips.
    """

    _parameter_constraints = {
        "clip": [Interval(Real, 0, None, closed="neither")],
        "noise_multiplier": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(self, clip=1.0, noise_multiplier=1.0):
        self.clip = clip
        self.noise_multiplier = noise_multiplier

    def of_updates(
        self,
        model: State,
        stack: State,
        parameters: Collection[str],
        rngs: Sequence[np.random.Generator],
    ) -> State:
        """Return the models that clients send: clipped updates with noise.

        Parameters
        ----------
        model : dict of str to Tensor
            w_t.
        stack : dict of str to Tensor
            w_k along a leading axis, one a client.
        parameters : collection of str
            Names of the trained parameters; the other tensors stay as they are.
        rngs : sequence of numpy.random.Generator
            The generator of each client's noise.

        Returns
        -------
        dict of str to Tensor
            The stack of noisy models.
        """
        result = clipped(model, stack, parameters, self.clip)
        deviation = self.noise_multiplier * self.clip
        for name in sorted(parameters) if deviation else ():
            shape = stack[name].shape[1:]
            noise = np.stack([rng.normal(0, deviation, shape) for rng in rngs])
            tensor = result[name]
            result[name] = tensor + torch.from_numpy(noise).to(tensor)
        return result

    def of_statistics(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a vector of statistics, scaled to a norm of at most ``clip``, with noise."""
        norm = float(np.linalg.norm(values))
        deviation = abs(self.noise_multiplier * self.clip)  # numpy takes no -0.0
        return values * min(1.0, self.clip / max(norm, 1e-300)) + rng.normal(
            0, deviation, values.shape
        )

    def of_loss(self, loss: float, rng: np.random.Generator) -> float:
        """Return a clipped loss with noise; a loss that is not finite is returned as it is."""
        if not np.isfinite(loss):
            return loss
        deviation = abs(self.noise_multiplier * self.clip)  # numpy takes no -0.0
        return float(np.clip(loss, 0, self.clip) + rng.normal(0, deviation))
