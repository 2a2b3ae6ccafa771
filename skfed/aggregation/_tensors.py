"""Comparison, difference and sum of tensors of any dtype.

Differences are float64, with complex numbers as pairs of real ones. Differences of integers are
exact up to 2**53, also if the integers are larger.
"""

import math
from collections.abc import Collection

import torch

from skfed.nets import State


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a real dtype with arithmetic: complex numbers as pairs."""
    dtype = tensor.dtype  # not by methods of the tensor, which release the interpreter's lock
    if dtype.is_complex:
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if dtype.is_floating_point and dtype.itemsize == 1 else tensor


def like(values: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Convert values from the form of ``real`` to the dtype of ``w``; round them for integers."""
    if w.is_complex():
        return torch.view_as_complex(values.to(real(w).dtype).contiguous())
    return (values if w.is_floating_point() else values.round()).to(w.dtype)


def changed_names(state: State, stack: State, with_nan: bool = True) -> frozenset[str]:
    """Return the names of the tensors that differ from ``state`` in some member of a stack.

    NaN equals NaN, unless ``with_nan`` is false because there is none. Comparison ends at the first
    member that differs.
    """
    return frozenset(
        name
        for name, w in state.items()
        if not all(_is_same(stack[name][k], w, with_nan) for k in range(len(stack[name])))
    )


def settled(state: State, aggregate: State, changed: Collection[str]) -> State:
    """Return an aggregate whose unchanged tensors are those of ``state``.

    An element that is finite neither before nor after counts as unchanged too.
    """
    if aggregate is state:
        return state
    return {
        name: _filled(aggregate[name], w) if name in changed else w for name, w in state.items()
    }


def difference(stack: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return stack - w in float64; elements of w that are not finite count as 0."""
    stack, w = real(stack), real(w)
    start = w.double()
    if w.is_floating_point():
        return stack.double() - torch.where(start.isfinite(), start, 0.0)
    step = stack.double() - start
    if w.itemsize < 8:
        return step
    # The difference in int64 is exact, but overflows if it is large.
    return torch.where(step.abs() < 2.0**62, (stack.long() - w.long()).double(), step)


def added(w: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Return w plus a step from ``difference``, in the dtype of w."""
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
    """Return whether all elements are finite."""
    values = real(tensor)
    # A finite sum shows it in less time; the sum of finite elements may overflow.
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def finite_where_changed(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Return whether each element of ``new`` is finite or equal to that of ``old``."""
    return all_finite(new) or bool((real(new).isfinite() | _same(real(new), real(old))).all())


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | ((one != one) & (other != other))


def _is_same(one: torch.Tensor, other: torch.Tensor, with_nan: bool) -> bool:
    one, other = real(one), real(other)
    if torch.equal(one, other):  # stops at the first difference
        return True
    return with_nan and bool(other.sum().isnan()) and bool(_same(one, other).all())


def _filled(new: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if all_finite(w):
        return new
    values, old = real(new), real(w)
    return like(torch.where(values.isfinite() | old.isfinite(), values, old), w)
