"""The global random generators of numpy, Python and torch."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def global_generators_restored() -> Iterator[None]:
    """Context manager that leaves them as they were."""
    before = np.random.get_state(), random.getstate(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before[0])  # noqa: NPY002
        random.setstate(before[1])
        torch.set_rng_state(before[2])


def seed_global_generators(seed: int) -> None:
    """Seed all of them."""
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    torch.manual_seed(seed)


def global_states() -> tuple:
    """Return their states, which can be compared."""
    numpy_state = repr(np.random.get_state(legacy=False))  # noqa: NPY002
    return numpy_state, random.getstate(), torch.get_rng_state().tolist()
