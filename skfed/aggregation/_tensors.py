"""What has changed of a model: tensors of any dtype, compared, subtracted and added.

Differences are of float64, with complex numbers as pairs of real ones. Those of integers are exact
up to 2**53, however large the integers are.
"""

import math
from collections.abc import Collection

import torch

from skfed.nets import State


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a dtype that torch computes with: complex numbers become pairs."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def like(values: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Bring values, as ``real`` has them, to the dtype of ``w``; for integers they are rounded."""
    if w.is_complex():
        return torch.view_as_complex(values.to(real(w).dtype).contiguous())
    return (values if w.is_floating_point() else values.round()).to(w.dtype)


def changed_names(model: State, stack: State, with_nan: bool = True) -> frozenset[str]:
    """Name the tensors that some member has changed; NaN is equal to NaN, if there may be any.

    A tensor that the first member has changed, as one that is trained, is not looked at further.
    """
    return frozenset(
        name
        for name, w in model.items()
        if not all(_is_same(stack[name][k], w, with_nan) for k in range(len(stack[name])))
    )


def settled(model: State, aggregate: State, changed: Collection[str]) -> State:
    """Return an aggregate with what no member has changed as it is in ``model``.

    So is an element that neither is finite before nor after: a client has left it as it was.
    """
    if aggregate is model:
        return model
    return {
        name: _filled(aggregate[name], w) if name in changed else w for name, w in model.items()
    }


def difference(stack: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return how far tensors are from w; from 0 where w is not finite."""
    stack, w = real(stack), real(w)
    start = w.double()
    if w.is_floating_point():
        return stack.double() - torch.where(start.isfinite(), start, 0.0)
    step = stack.double() - start
    if w.itemsize < 8:
        return step
    # It wraps around where it is larger than int64.
    return torch.where(step.abs() < 2.0**62, (stack.long() - w.long()).double(), step)


def added(w: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Return w moved by a step, as ``difference`` has it, in the dtype of w."""
    start = real(w).double()
    total = torch.where(start.isfinite(), start, 0.0) + step
    if w.is_floating_point() or w.is_complex() or w.itemsize < 8:
        return like(total, w)
    limits = torch.iinfo(w.dtype)
    whole = total.round()
    exact = (w.long() + step.round().long()).to(w.dtype)
    near = whole.clamp(limits.min, math.nextafter(limits.max, 0.0)).to(w.dtype)
    return torch.where((whole.abs() < 2.0**53) | (step.abs() >= 2.0**53), near, exact)


def step_from(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return new - old in their dtype; 0 where both are the same infinity, or NaN."""
    step = new - old
    return step if all_finite(old) else step.masked_fill(_same(new, old), 0.0)


def all_finite(tensor: torch.Tensor) -> bool:
    """Tell whether all elements are finite; a sum is not if a term is not, and takes less time."""
    values = real(tensor)
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def finite_where_changed(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Tell whether all elements are finite, or as they were."""
    return all_finite(new) or bool((real(new).isfinite() | _same(real(new), real(old))).all())


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | ((one != one) & (other != other))


def _is_same(one: torch.Tensor, other: torch.Tensor, with_nan: bool) -> bool:
    one, other = real(one), real(other)
    if torch.equal(one, other):  # ends at the first difference
        return True
    return with_nan and bool(other.sum().isnan()) and bool(_same(one, other).all())


def _filled(new: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if all_finite(w):
        return new
    values, old = real(new), real(w)
    return like(torch.where(values.isfinite() | old.isfinite(), values, old), w)
