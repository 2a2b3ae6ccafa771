"""Products of large matrices by oneDNN; ``_products`` has where it is faster than MKL.

torch multiplies float32 matrices by MKL, which uses 256 bits at a time on processors of AMD. Those
of Zen 5 for servers and desktops have units of 512 bits. oneDNN, which torch uses for convolutions,
uses them: large products take it less time.
"""

from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# A call of oneDNN takes as long as a million multiplications.
_FEWEST_MULTIPLICATIONS = 2_000_000
_FEWEST_ROWS = 32  # with fewer, MKL is as fast
_ROWS_STEP = 64  # the rows of a call, where they are any number, are a multiple of it
# x @ w.T + bias, which code made by torch.compile calls as well; there is no public name for it.
_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_PLAIN = {torch.Tensor, nn.Parameter}  # types of tensors without code of their own
# In a TorchFunctionMode they leave their faster code, whose outputs at padded positions differ.
_CHANGED_BY_MODES = nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer


def is_available() -> bool:
    """Tell whether this version of torch has the operation."""
    return _LINEAR is not None


def fewest_rows(weight: torch.Tensor) -> float:
    """Return how many rows make products with a weight (..., out, in) large.

    This is where ``large_linear`` takes less time than MKL; infinity if it does not take them.
    """
    size = weight.shape[-1] * weight.shape[-2]
    if not size or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return inf
    return max(_FEWEST_ROWS, _FEWEST_MULTIPLICATIONS / size)


def large_linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return an input (m, k) times the transpose of a weight (p, k), plus a bias (p,), by oneDNN.

    All are strided tensors in float32 on the CPU, and the bias is contiguous: oneDNN does not check
    that.
    """
    assert _LINEAR is not None  # else no product is large
    return _LINEAR.default(input, weight, bias, "none", [], "")


def large_linear_of_rows(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return ``large_linear`` of any number of rows, with the same bits, by calls of few shapes.

    oneDNN compiles code for each new shape, which takes longer than most products, and keeps the
    code of many shapes in memory.
    """
    n_rows = len(input)
    whole = n_rows - n_rows % _ROWS_STEP
    if whole in (0, n_rows):
        return large_linear(input, weight, bias)
    output = input.new_empty(n_rows, len(weight))
    output[:whole] = large_linear(input[:whole], weight, bias)
    # Some rows a second time, since a call of the others alone would have one of many shapes.
    output[whole:] = large_linear(input[-_ROWS_STEP:], weight, bias)[whole - n_rows :]
    return output


def large_products(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return each of inputs (n, m, k) times the transpose of its weight, of (n, p, k)."""
    products = inputs.new_empty((*inputs.shape[:2], weights.shape[1]))
    for product, *factors in zip(products.unbind(), inputs.unbind(), weights.unbind(), strict=True):
        product.copy_(large_linear(*factors))
    return products


def evaluating(module: nn.Module, n_rows: int) -> AbstractContextManager:
    """Return a context in which linear layers of a module are evaluated by oneDNN.

    Only layers that are large with ``n_rows``, whatever the rows of a batch, so that a row is
    rounded alike in each; and not where gradients are recorded. In the context each function of
    torch takes a few microseconds more.
    """
    modules = list(module.modules())
    linear = [one for one in modules if type(one) is nn.Linear]
    none_is_large = all(n_rows < fewest_rows(one.weight) for one in linear)
    is_compiled = hasattr(module, "_orig_mod")  # and would be once more, for the context
    if none_is_large or is_compiled or any(isinstance(one, _CHANGED_BY_MODES) for one in modules):
        return nullcontext()
    return _LargeLayers(n_rows)


class _LargeLayers(TorchFunctionMode):
    """Replaces ``torch.nn.functional.linear``, which ``torch.nn.Linear`` calls."""

    def __init__(self, n_rows: int):
        super().__init__()
        self.n_rows = n_rows

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and _can_replace(*args, **kwargs):
            weight = kwargs["weight"] if "weight" in kwargs else args[1]
            if self.n_rows >= fewest_rows(weight):
                return large_linear_of_rows(*args, **kwargs)
        return func(*args, **kwargs)


def _can_replace(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> bool:
    """Tell whether ``large_linear`` returns what ``torch.nn.functional.linear`` does."""
    tensors = [input, weight] if bias is None else [input, weight, bias]
    return not (
        torch.compiler.is_compiling()
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch._C._functorch.maybe_current_level() is not None  # inside torch.func.vmap
        or any(type(one) not in _PLAIN for one in tensors)
        or any(one.dtype != torch.float32 or one.layout != torch.strided for one in tensors)
        or input.dim() != 2
        or weight.dim() != 2
        or input.shape[1] != weight.shape[1]
        or (bias is not None and (bias.shape != weight.shape[:1] or not bias.is_contiguous()))
    )
