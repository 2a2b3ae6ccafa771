"""What trying a net has shown, kept for the next fit of the same net on the same rows.

Searches and studies fit the same net again and again. The key holds all that a trial looks at,
values included: the weights that the net begins with, the rows, every setting. So a kept verdict is
the one that another trial would give. Whatever cannot be told from its like is tried anew: the key
is then None.
"""

from collections.abc import Hashable
from threading import Lock
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch
from skorch import NeuralNet, NeuralNetClassifier, NeuralNetRegressor
from torch import nn

from skfed.checkpoint._contents import OF_MODULES, PLAIN
from skfed.checkpoint._descriptions import describe
from skfed.engines._sampling import batch_size

Verdict = TypeVar("Verdict")

# Of a module written elsewhere the code may use anything, which may change from fit to fit.
_TORCH_OR_OURS = "torch.nn.modules.", "skfed.modules"
_DTYPES = torch.float16, torch.float32, torch.float64, torch.int64, torch.bool


class Verdicts(Generic[Verdict]):
    """The latest verdicts, for any number of threads.

    Parameters
    ----------
    size : int
        How many are kept; those used longest ago go first.
    """

    def __init__(self, size: int):
        self.size = size
        self._kept: dict[Hashable, Verdict] = {}
        self._lock = Lock()

    def get(self, key: Hashable) -> Verdict | None:
        """Return the verdict of this key, or None."""
        with self._lock:
            if key in self._kept:
                self._kept[key] = self._kept.pop(key)  # to the end
            return self._kept.get(key)

    def keep(self, key: Hashable, verdict: Verdict) -> None:
        """Keep a verdict, unless its key is None."""
        if key is None:
            return
        with self._lock:
            self._kept[key] = verdict
            if len(self._kept) > self.size:
                del self._kept[next(iter(self._kept))]


def key_of(net: NeuralNet, X: torch.Tensor, y: torch.Tensor) -> str | None:
    """Return what a trial of a net on some rows depends on, in words; None if it cannot be told.

    Parameters
    ----------
    net : NeuralNet
        Initialised, and not used yet.
    X, y : Tensor
        The rows.
    """
    group = {k: v for k, v in net.optimizer_.param_groups[0].items() if k != "params"}
    plain = {
        "net": type(net),
        "optimizer": [type(net.optimizer_), group],
        "evaluation batch": batch_size(net, "iterator_valid"),
        "device": net.device,
        "default dtype": torch.get_default_dtype(),
    }
    kinds = NeuralNetClassifier, NeuralNetRegressor
    modules = [net.module_, net.criterion_]
    if type(net) not in kinds or not all(map(_is_known, [plain, *modules])):
        return None
    return describe([plain, modules, X, y])


def _is_known(value: Any) -> bool:
    """Tell whether a description of a value leaves nothing out."""
    if isinstance(value, nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
        return all(map(_is_known_tensor, tensors)) and all(map(_is_known_part, value.modules()))
    if isinstance(value, type | FunctionType):
        return value.__module__.startswith(("torch.", "skorch."))
    if type(value) is dict:
        return all(_is_known(item) for pair in value.items() for item in pair)
    if type(value) in (list, tuple, set):
        return all(map(_is_known, value))
    return type(value) in PLAIN


def _is_known_tensor(tensor: torch.Tensor) -> bool:
    """Tell whether it computes as torch's own do, and numpy can read it."""
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.dtype in _DTYPES


def _is_known_part(module: nn.Module) -> bool:
    """Tell whether a module, but for its tensors and submodules, is known."""
    own = {name: value for name, value in vars(module).items() if name not in OF_MODULES}
    return type(module).__module__.startswith(_TORCH_OR_OURS) and _is_known(own)
