"""torch's settings of the caller, applied in the threads and processes of clients' work."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock, local
from typing import Self

import torch

#: Attributes of a module that hold its hooks.
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


@dataclass(frozen=True)
class TorchContext:
    """The state of ``torch.autocast``, which each thread has its own of, and the default dtype."""

    device_type: str  # to which autocast applies
    autocast: bool  # whether it is on
    autocast_dtype: torch.dtype  # that it casts to
    default_dtype: torch.dtype  # of new tensors

    @classmethod
    def current(cls, device: str) -> Self:
        """Return the state of this thread, for a device."""
        device_type = torch.device(device).type
        dtype = torch.get_autocast_dtype(device_type)
        enabled = torch.is_autocast_enabled(device_type)
        return cls(device_type, enabled, dtype, torch.get_default_dtype())

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context manager that sets the state of the current thread."""
        before = torch.get_default_dtype()
        with _autocast(self.device_type, self.autocast_dtype, self.autocast):
            torch.set_default_dtype(self.default_dtype)
            try:
                yield
            finally:
                torch.set_default_dtype(before)


def without_autocast(device: str) -> AbstractContextManager:
    """Return a context without autocast, so that sums of clients' states are not rounded."""
    device_type = torch.device(device).type
    return _autocast(device_type, torch.get_autocast_dtype(device_type), enabled=False)


def _autocast(device_type: str, dtype: torch.dtype, enabled: bool) -> AbstractContextManager:
    if not (enabled or torch.is_autocast_enabled(device_type)):
        return nullcontext()
    # Its cache would keep casts of weights that the next step, or the next client, changes.
    return torch.autocast(device_type, dtype, enabled, cache_enabled=False)


class _CudnnSettings:
    """Settings of cuDNN, which all threads share, with other values while any is inside."""

    def __init__(self, **values: bool):
        self._values = values
        self._lock = Lock()
        self._n_inside = 0  # threads
        self._before = values  # as they were when the first of them came

    @contextmanager
    def set(self) -> Iterator[None]:
        with self._lock:
            if not self._n_inside:
                self._before = {name: getattr(torch.backends.cudnn, name) for name in self._values}
            self._put(self._values)
            self._n_inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_inside -= 1
                if not self._n_inside:
                    self._put(self._before)

    def _put(self, values: dict[str, bool]) -> None:
        for name, value in values.items():
            setattr(torch.backends.cudnn, name, value)


_DISABLED = _CudnnSettings(enabled=False)
# With benchmark=True it would choose among deterministic algorithms by their time.
_DETERMINISTIC = _CudnnSettings(deterministic=True, benchmark=False)


def without_cudnn(device: str) -> AbstractContextManager:
    """Return a context in which a GPU computes without cuDNN, which rounds factors to TF32.

    So do other threads meanwhile.
    """
    return _DISABLED.set() if torch.device(device).type == "cuda" else nullcontext()


def deterministic_cudnn(device: str) -> AbstractContextManager:
    """Return a context in which a GPU computes convolutions with the same bits in each run."""
    return _DETERMINISTIC.set() if torch.device(device).type == "cuda" else nullcontext()


class _OneTorchThread:
    """What all threads inside ``one_torch_thread`` know."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.n_inside = 0  # threads
        self.n_before = 1  # torch threads of the first of them
        self.own = local()  # has "inside" in such a thread


_ONE = _OneTorchThread()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Compute with one torch thread: a product split over threads rounds in another order.

    So the result is the same whatever n_jobs; cores are used by clients side by side. A second
    thread of a sum or a copy would also keep its core busy for milliseconds after it. Each thread
    has a number of its own, but MKL's is that of the process.
    """
    if getattr(_ONE.own, "inside", False):
        torch.set_num_threads(1)  # again, since a thread that has left has set MKL's number
        yield
        return
    with _ONE.lock:
        n_threads = torch.get_num_threads()
        if not _ONE.n_inside:
            _ONE.n_before = n_threads
        elif n_threads == 1:  # a new thread begins with what another inside has set
            n_threads = _ONE.n_before
        _ONE.n_inside += 1
    torch.set_num_threads(1)
    _ONE.own.inside = True
    try:
        yield
    finally:
        _ONE.own.inside = False
        with _ONE.lock:
            _ONE.n_inside -= 1
            torch.set_num_threads(n_threads)


def stay_at_one_torch_thread() -> None:
    """Give this thread one torch thread until it ends."""
    _ONE.own.inside = True
    torch.set_num_threads(1)
