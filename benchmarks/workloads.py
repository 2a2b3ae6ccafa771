"""The workloads that every engine and every peer is timed on, and their FLOPs.

It imports numpy alone, so that a peer's environment can import it too.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Workload:
    """One round: the clients that it polls and trains, and how they train.

    The data are Fashion-MNIST's 60,000 training images as rows of 784 floats.
    """

    n_clients: int
    layers: tuple[int, ...]  # widths, with those of the input and the logits
    clients_per_round: int  # m
    batch_size: int
    candidates: int | None = None  # d of power-of-choice; None: random selection without polls
    local_steps: int | None = None
    local_epochs: int = 1
    alpha: float | None = None  # of the Dirichlet partition; None: equal shares
    lr: float = 0.005

    def flops(self, n_polled_rows: int, n_trained_rows: int) -> int:
        """Return the FLOPs of the matrix products that no implementation can leave out.

        A product of a row with an (in, out) matrix is 2 in out. Training takes one forward, one
        for the gradient of the weights, and one for that of the input, which the first layer's
        input does not need.
        """
        products = [2 * a * b for a, b in zip(self.layers, self.layers[1:], strict=False)]
        forward = sum(products)
        return n_polled_rows * forward + n_trained_rows * (3 * forward - products[0])


MLP = (784, 64, 30, 10)
WORKLOADS = {
    "W1": Workload(100, MLP, 3, 64, candidates=6, local_steps=30, alpha=0.3),
    "W2": Workload(60, (784, 10), 60, 32, local_epochs=5),
    "W3": Workload(1000, MLP, 100, 20),
}


def gemm_peak(seconds: float = 1.0) -> float:
    """Return the highest measured FLOP/s of a float32 matrix product, on torch's threads."""
    import time

    import torch

    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return 2 * 1024**3 / best


def equal_shares(n_samples: int, n_clients: int, seed: int = 0) -> np.ndarray:
    """Return the client of each row, at random, with equal numbers of rows."""
    clients = np.arange(n_samples) * n_clients // n_samples
    return np.random.default_rng(seed).permutation(clients)
