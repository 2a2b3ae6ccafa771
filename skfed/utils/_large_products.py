"""Products of large matrices by oneDNN, on processors on which it is faster than MKL.

torch multiplies float32 matrices by MKL, which uses 256 bits at a time on processors of AMD. From
Zen 5 on these multiply 512 bits at a time, and oneDNN, which torch uses for convolutions, does so:
a large product takes it less than half as long.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from math import inf
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# A call of oneDNN takes as long as a million multiplications.
_FEWEST_MULTIPLICATIONS = 2_000_000
_FEWEST_ROWS = 32  # with fewer, MKL is as fast
# x @ w.T + bias, which code made by torch.compile calls as well; there is no public name for it.
_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_PLAIN = {torch.Tensor, nn.Parameter, type(None)}  # types of tensors without code of their own


@cache
def onednn_is_faster() -> bool:
    """Tell whether oneDNN multiplies large matrices faster than MKL on this processor."""
    tell = getattr(torch.cpu, "get_capabilities", dict)  # torch 2.6 has no such function
    of_processor: dict[str, Any] = tell()
    return (
        _LINEAR is not None
        and torch.backends.mkl.is_available()
        and str(of_processor.get("cpu_name")).startswith("AMD")
        and bool(of_processor.get("avx512_f"))
        and bool(of_processor.get("avx_vnni"))  # Zen 5 has these instructions, Zen 4 has not
    )


def fewest_rows(weight: torch.Tensor) -> float:
    """Return how many rows make products with a weight (..., out, in) large.

    This is where ``large_linear`` takes less time than MKL; infinity if it does nowhere.
    """
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or not onednn_is_faster():
        return inf
    return max(_FEWEST_ROWS, _FEWEST_MULTIPLICATIONS / (weight.shape[-1] * weight.shape[-2]))


def large_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x (m, k) times the transpose of a weight (p, k), plus a bias (p,), by oneDNN."""
    assert _LINEAR is not None
    return _LINEAR.default(x, weight, bias, "none", [], "")


def with_large_products() -> AbstractContextManager:
    """Return a context in which large linear layers are evaluated by what is faster.

    Where gradients are recorded they are left to torch.
    """
    return _LargeLayers() if onednn_is_faster() else nullcontext()


class _LargeLayers(TorchFunctionMode):
    """Replaces ``torch.nn.functional.linear``, which ``torch.nn.Linear`` calls."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and _is_large(*args, **kwargs):
            return large_linear(*args, **kwargs)
        return func(*args, **kwargs)


def _is_large(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    """Tell whether ``large_linear`` can be called for ``torch.nn.functional.linear``."""
    return not (
        torch.compiler.is_compiling()
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch._C._functorch.maybe_current_level() is not None  # inside torch.func.vmap
        or any(type(one) not in _PLAIN for one in (input, weight, bias))
        or input.dtype != torch.float32
        or input.dim() != 2
        or weight.dim() != 2
        or len(input) < fewest_rows(weight)
    )
