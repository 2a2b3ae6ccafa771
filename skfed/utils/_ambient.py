"""The caller's state of torch, in whatever thread or process a client's work is done."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Self

import torch


@dataclass(frozen=True)
class Ambient:
    """``torch.autocast``, of which each thread has its own, and the default dtype of a process.

    Parameters
    ----------
    device_type : str
        The kind of device that autocast is for.
    autocast : bool
        Whether it is on.
    autocast_dtype : torch.dtype
        What it casts to.
    default_dtype : torch.dtype
        That of new tensors.
    """

    device_type: str
    autocast: bool
    autocast_dtype: torch.dtype
    default_dtype: torch.dtype

    @classmethod
    def here(cls, device: str) -> Self:
        """Return the state in this thread, for a device."""
        kind = torch.device(device).type
        dtype = torch.get_autocast_dtype(kind)
        return cls(kind, torch.is_autocast_enabled(kind), dtype, torch.get_default_dtype())

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Bring the thread that enters to this state."""
        before = torch.get_default_dtype()
        with _autocast(self.device_type, self.autocast_dtype, self.autocast):
            torch.set_default_dtype(self.default_dtype)
            try:
                yield
            finally:
                torch.set_default_dtype(before)


def without_autocast(device: str) -> AbstractContextManager:
    """Return a context without autocast: what sums up clients' models is not to be rounded."""
    kind = torch.device(device).type
    return _autocast(kind, torch.get_autocast_dtype(kind), enabled=False)


def _autocast(kind: str, dtype: torch.dtype, enabled: bool) -> AbstractContextManager:
    if not (enabled or torch.is_autocast_enabled(kind)):
        return nullcontext()
    # Its cache would keep casts of weights that the next step, or the next client's, changes.
    return torch.autocast(kind, dtype, enabled, cache_enabled=False)
