"""The workloads that every engine and every peer is timed on, their FLOPs and bytes.

It imports numpy alone, so that a peer's environment can import it too.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

N_ROWS, N_PIXELS = 60_000, 784
ROW_BYTES = 4 * N_PIXELS


@dataclass(frozen=True)
class Model:
    """A network, and the FLOPs of the products and convolutions of one image.

    A product of a row with an (in, out) matrix is 2 in out. ``torch_models`` makes the network.
    """

    name: str
    of_input: int  # of the image itself, whose gradient nobody needs
    of_hidden: int
    layers: tuple[int, ...] = ()  # widths with those of the image and the logits, where all linear


def linear_layers(*layers: int) -> Model:
    """Return linear layers with ReLU between them."""
    first, *others = (2 * a * b for a, b in pairwise(layers))
    return Model("linear layers", first, sum(others), layers)


MLP = linear_layers(784, 64, 30, 10)
# Two 5x5 convolutions of 1 to 8 and of 8 to 16 channels, each followed by a pooling that halves
# the image, and a linear layer.
CNN = Model("CNN", 2 * 25 * 8 * 28**2, 2 * 25 * 8 * 16 * 14**2 + 2 * 784 * 10)
# An image read row by row by 16 units of three gates, whose first state is 0, and a linear layer.
GRU = Model("GRU", 28 * 2 * 28 * 48, 27 * 2 * 16 * 48 + 2 * 16 * 10)


@dataclass(frozen=True)
class Workload:
    """One round: the clients that it polls and trains, and how they train.

    The data are Fashion-MNIST's 60,000 training images as rows of 784 floats.
    """

    n_clients: int
    model: Model
    clients_per_round: int  # m
    batch_size: int
    candidates: int | None = None  # d of power-of-choice; None: random selection without polls
    local_steps: int | None = None
    local_epochs: int = 1
    alpha: float | None = None  # of the Dirichlet partition; None: equal shares
    lr: float = 0.005
    optimizer: str = "SGD"  # of torch.optim, anew for each client

    def flops(self, n_polled_rows: int, n_trained_rows: int) -> int:
        """Return the FLOPs of the products that no implementation can leave out.

        Training takes one forward, one for the gradient of the weights, and one for that of the
        input, which the image does not need.
        """
        forward = self.model.of_input + self.model.of_hidden
        return n_polled_rows * forward + n_trained_rows * (3 * forward - self.model.of_input)

    def bytes_read(self, n_polled_rows: int, n_trained_rows: int, cache_bytes: int) -> int:
        """Return the bytes of the rows that a round has to read from memory.

        Where the rows of one client fit in the cache, each is read once a round; else at each use.
        Who trains is among those polled, if any are.
        """
        n_rows = n_polled_rows + n_trained_rows
        if ROW_BYTES * N_ROWS / self.n_clients <= cache_bytes:
            n_rows = n_polled_rows or n_trained_rows // self.local_epochs
        return ROW_BYTES * n_rows


WORKLOADS = {
    "W1": Workload(100, MLP, 3, 64, candidates=6, local_steps=30, alpha=0.3),
    "W2": Workload(60, linear_layers(784, 10), 60, 32, local_epochs=5),
    "W3": Workload(1000, MLP, 100, 20),
    "W4": Workload(100, CNN, 10, 32, lr=0.05),
    "W5": Workload(500, GRU, 12, 32, lr=0.01, optimizer="Adam"),
}


def equal_shares(n_samples: int, n_clients: int, seed: int = 0) -> np.ndarray:
    """Return the client of each row, at random, with equal numbers of rows."""
    clients = np.arange(n_samples) * n_clients // n_samples
    return np.random.default_rng(seed).permutation(clients)
