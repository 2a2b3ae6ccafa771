"""Random streams keyed by (seed, round, client, copy).

A draw does not depend on the order of clients, on the process, or on other draws.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from threading import RLock

import numpy as np
import torch
from sklearn.utils import check_random_state

from skfed.utils._seed_sequence import generate_states, seeded_pcg64

_NO_CLIENT = bytes(16)

#: torch has one generator a process for random layers and initialisers.
TORCH_GENERATOR = RLock()


class Purpose(IntEnum):
    """Purpose of a stream. Results depend on the numbers, so they never change."""

    MODULE_INIT = 0
    SELECTION = 1
    MINIBATCHES = 2
    RANDOM_LAYERS = 3
    POLL = 4
    AVAILABILITY = 5
    FIXED_AVAILABILITY = 6
    ANSWERS = 7
    EVALUATION_LAYERS = 8
    UPDATE_NOISE = 9
    POLL_NOISE = 10
    LOSS_NOISE = 11
    DEVICES = 12
    DEVICE_JITTER = 13
    STATISTICS_NOISE = 14
    TRIAL_MINIBATCHES = 15
    TRIAL_LAYERS = 16
    TRIAL_UPDATE_NOISE = 17
    TRIAL_LOSS_NOISE = 18
    PROJECTION = 19
    CONTRIBUTION = 20


#: Seed, purpose, round, digest of the client and copy: the arguments of ``stream``.
StreamKey = tuple[int, Purpose, int, bytes, int]


def draw_seed(random_state: int | np.random.RandomState | None) -> int:
    """Draw the seed of all streams of a fit from scikit-learn's ``random_state``."""
    return int(check_random_state(random_state).randint(2**32, dtype=np.uint64))


def stream(
    seed: int, purpose: Purpose, round: int = 0, client: bytes = _NO_CLIENT, copy: int = 0
) -> np.random.Generator:
    """Return the generator of a purpose, round, client (its digest) and copy."""
    # Each entry is a 32-bit word, so that different keys have different entropy.
    words = np.concatenate([[seed, purpose, round, copy], np.frombuffer(client, dtype="<u4")])
    return np.random.default_rng(np.random.SeedSequence(words.astype(np.uint32)))


def stream_states(
    seed: int, purpose: Purpose, round: int, clients: Sequence[bytes], copies: Sequence[int]
) -> np.ndarray:
    """Return what ``streams`` needs for many clients, an array of shape (n_clients, 4)."""
    words = np.empty((len(clients), 8), dtype=np.uint32)
    words[:, :3] = seed, purpose, round
    words[:, 3] = copies
    words[:, 4:] = np.frombuffer(b"".join(clients), dtype="<u4").reshape(-1, 4)
    return generate_states(words)


def streams(states: np.ndarray) -> Iterator[np.random.Generator]:
    """Yield what ``stream`` returns for each client; each is valid until the next.

    It is one generator whose state is set, which takes a fifth of the time of a new one.
    """
    bits = np.random.PCG64(0)  # with any seed, which is not asked of the system
    rng = np.random.Generator(bits)
    for state in states.tolist():
        bits.state = seeded_pcg64(*state)
        yield rng


@contextmanager
def torch_seeded(rng: np.random.Generator, device: str = "cpu") -> Iterator[None]:
    """Context manager that seeds torch's global generators and restores them.

    It holds a lock: threads share these generators.
    """
    cuda = torch.device(device).type == "cuda"
    seed = int(rng.integers(2**63))
    with TORCH_GENERATOR, torch.random.fork_rng([torch.device(device)] if cuda else []):
        # torch.manual_seed would seed every device, also those that are not restored.
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
