"""The products of linear layers; which library multiplies is decided here, once a process.

torch multiplies on a CPU by MKL. On some processors another library is faster for matrices of some
sizes: ``_onednn`` for large ones, ``_openblas`` for small ones. Layers call ``PRODUCTS``, and know
neither.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from skfed.utils import _onednn, _openblas


class LayerProducts:
    """The products of a linear layer of some clients, by torch.

    Views are made once: one takes as long as a product.

    Parameters
    ----------
    weight : Tensor of shape (n_clients, out, in)
        The weights of each client.
    bias : Tensor of shape (n_clients, out) or None
        The biases of each.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        self.weight, self.weight_t, self.bias = weight, weight.mT, bias
        self._by_row: Callable[..., torch.Tensor] = torch.bmm
        self._by_column: Callable[..., torch.Tensor] = torch.bmm
        if bias is not None:
            self._by_row = partial(torch.baddbmm, bias.unsqueeze(1))
            self._by_column = partial(torch.baddbmm, bias.unsqueeze(2))

    def output(self, h: torch.Tensor, h_t: torch.Tensor) -> torch.Tensor:
        """Return the output (client, out, row) of inputs h (client, in, row), and their h.mT."""
        if _fills_better(self.weight.shape[1], h.shape[2]):
            return self._by_row(h_t, self.weight_t).mT
        return self._by_column(self.weight, h)

    def backward(self, slope: torch.Tensor, h_t: torch.Tensor) -> torch.Tensor:
        """Return the slope of the input, given that of the output (client, out, row).

        Its strides are those of the input, given as (client, row, in): elementwise functions of
        both are faster then.
        """
        if h_t.stride(2) == 1:
            return torch.bmm(slope.mT, self.weight).mT
        return torch.bmm(self.weight_t, slope)

    def gradient(self, slope: torch.Tensor, h_t: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the weights; it is valid until the next."""
        return torch.bmm(slope, h_t)

    def descend(self, slope: torch.Tensor, h_t: torch.Tensor, rate: float) -> None:
        """Subtract the rate times the gradient from the weights."""
        # A gradient by itself is written and read once more than a product into the weights.
        self.weight.baddbmm_(slope, h_t, alpha=-rate)


class _Small(LayerProducts):
    """The small ones by OpenBLAS."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__(weight, bias)
        self._small_output = _openblas.SmallProduct()
        self._small_gradient = _openblas.SmallProduct()

    def output(self, h: torch.Tensor, h_t: torch.Tensor) -> torch.Tensor:
        product = self._small_output(self.weight, h)
        if product is None:
            return super().output(h, h_t)
        return product if self.bias is None else product.add_(self.bias.unsqueeze(2))

    def gradient(self, slope: torch.Tensor, h_t: torch.Tensor) -> torch.Tensor:
        product = self._small_gradient(slope, h_t)
        return super().gradient(slope, h_t) if product is None else product

    def descend(self, slope: torch.Tensor, h_t: torch.Tensor, rate: float) -> None:
        many_rows = slope.shape[2] >= 2 * slope.shape[1]
        product = self._small_gradient(slope, h_t) if many_rows else None
        if product is None:
            super().descend(slope, h_t, rate)
        else:
            self.weight.sub_(product, alpha=rate)


class _Large(LayerProducts):
    """The large ones by oneDNN."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__(weight, bias)
        self._fewest_rows = _onednn.fewest_rows(weight)

    @cached_property
    def _each_weight(self) -> tuple[torch.Tensor, ...]:
        return self.weight.unbind()

    def output(self, h: torch.Tensor, h_t: torch.Tensor) -> torch.Tensor:
        if h.shape[2] < self._fewest_rows:
            return super().output(h, h_t)
        # The outputs are in memory twice for a moment, but there are no slopes yet.
        product = torch.stack([*map(_onednn.large_linear, self._each_weight, h_t.unbind())])
        return product if self.bias is None else product.add_(self.bias.unsqueeze(2))

    def backward(self, slope: torch.Tensor, h_t: torch.Tensor) -> torch.Tensor:
        if slope.shape[2] < self._fewest_rows:
            return super().backward(slope, h_t)
        # By rows, since columns take oneDNN 50% longer.
        below = _onednn.large_products(slope.mT, self.weight_t).mT
        return below if h_t.stride(2) == 1 else below.contiguous()

    def gradient(self, slope: torch.Tensor, h_t: torch.Tensor) -> torch.Tensor:
        if slope.shape[2] < self._fewest_rows:
            return super().gradient(slope, h_t)
        return _onednn.large_products(slope, h_t.mT)

    def descend(self, slope: torch.Tensor, h_t: torch.Tensor, rate: float) -> None:
        if slope.shape[2] < self._fewest_rows:
            super().descend(slope, h_t, rate)
            return
        factors = self._each_weight, slope.unbind(), h_t.mT.unbind()
        for weight, one, other in zip(*factors, strict=True):
            weight.sub_(_onednn.large_linear(one, other), alpha=rate)


class _LargeAndSmall(_Large, _Small):
    """The large ones by oneDNN, the small ones by OpenBLAS."""


class Products:
    """The products of linear layers, each by the library that is fastest for it here."""

    @cached_property
    def by_onednn(self) -> bool:
        """Whether oneDNN multiplies large matrices faster than MKL on this processor."""
        processor = _processor()
        return (
            _onednn.is_available()
            and torch.backends.mkl.is_available()
            and str(processor.get("cpu_name")).startswith("AMD")
            and bool(processor.get("avx512_f"))
            and bool(processor.get("avx_vnni"))  # Zen 5 has these instructions, Zen 4 has not
        )

    @cached_property
    def by_openblas(self) -> bool:
        """Whether OpenBLAS has kernels for small matrices, and torch none that are faster.

        A processor that torch does not name is taken for one of AMD.
        """
        is_intel = str(_processor().get("cpu_name")).startswith("Intel")
        return _openblas.has_kernels() and not (torch.backends.mkl.is_available() and is_intel)

    def of_layer(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LayerProducts:
        """Return the products of a layer (client, out, in) of some clients, in training."""
        kind = LayerProducts
        if weight.dtype == torch.float32 and weight.device.type == "cpu":
            kind = _KINDS[self.by_onednn, self.by_openblas and _openblas.is_wide(weight)]
        return kind(weight, bias)

    def linear(
        self, X: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, most_rows: int
    ) -> torch.Tensor:
        """Return the output of a layer (out, in) for rows of X, without gradients.

        The library depends on ``most_rows``, the rows of the largest call or more, not on those of
        X, so that a row is rounded alike in all calls.
        """
        is_large = self.by_onednn and most_rows >= _onednn.fewest_rows(weight)
        return (_onednn.large_linear_of_rows if is_large else F.linear)(X, weight, bias)

    def by_output(
        self, X: torch.Tensor, weight: torch.Tensor, most_rows: int, out: torch.Tensor
    ) -> None:
        """Write a weight (out, in) times rows of X into ``out``, of shape (out, n_rows).

        See ``linear``. Where there are few outputs it takes three quarters of the time of a product
        by rows.
        """
        if self.by_onednn and most_rows >= _onednn.fewest_rows(weight):
            out.copy_(_onednn.large_linear_of_rows(X, weight).T)
        else:
            torch.mm(weight, X.T, out=out)

    def evaluating(self, module: nn.Module, n_rows: int) -> AbstractContextManager:
        """Return a context in which a module evaluates batches of up to ``n_rows`` rows."""
        return _onednn.evaluating(module, n_rows) if self.by_onednn else nullcontext()


#: By whether large ones are computed by oneDNN, and small ones by OpenBLAS.
_KINDS: dict[tuple[bool, bool], type[LayerProducts]] = {
    (False, False): LayerProducts,
    (False, True): _Small,
    (True, False): _Large,
    (True, True): _LargeAndSmall,
}


PRODUCTS = Products()


def _processor() -> Mapping[str, Any]:
    """Return the processor's name and instructions; empty where torch does not tell them."""
    tell = getattr(torch.cpu, "get_capabilities", dict)  # some versions before 2.13 lack it
    return tell()


def _fills_better(one: int, other: int) -> bool:
    """Tell whether an axis fills vector registers of 16 floats better than another."""
    return -one % 16 * other < -other % 16 * one
