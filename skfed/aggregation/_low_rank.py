"""Weights of some members whose updates are products of a few rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from skfed.nets import State
from skfed.utils._large_products import fewest_rows, large_linear


@dataclass(frozen=True)
class LowRankStack:
    """The weights w_k = w + L_k^T R_k of some members, of which only the factors are kept.

    Parameters
    ----------
    w : Tensor of shape (out, in)
        The weights that all members began with.
    left : Tensor of shape (n_members, n_rows, out)
        L_k.
    right : Tensor of shape (n_members, n_rows, in)
        R_k, contiguous.
    """

    w: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, k: int) -> torch.Tensor:
        """Return w_k."""
        return torch.addmm(self.w, self.left[k].mT, self.right[k])

    def weighted_sum(self, weights: np.ndarray) -> torch.Tensor:
        """Return the sum of q_k w_k in float64: one product for all members."""
        q = torch.tensor(weights, dtype=self.w.dtype, device=self.w.device)
        left = (self.left * q[:, None, None]).flatten(0, 1)
        right = self.right.flatten(0, 1)
        # The product has as many multiplications as one of that many rows with w.
        is_large = len(right) >= fewest_rows(self.w)
        updates = large_linear(left.mT, right.mT) if is_large else left.mT.mm(right)
        return updates.double().add_(self.w.double(), alpha=float(weights.sum()))

    def may_overflow(self) -> bool:
        """Tell whether a w_k may be infinite though the weighted sum is not.

        Rows are presumed to be below 1e19: in float32 larger ones have no finite squares.
        """
        least, most = self.left.aminmax()
        return bool(torch.maximum(-least, most) > 1e18)

    def written_out(self) -> torch.Tensor:
        """Return w_k along a leading axis."""
        return torch.baddbmm(self.w.expand(len(self), *self.w.shape), self.left.mT, self.right)


#: States of some members by name: a tensor with a leading axis, or a ``LowRankStack``.
MemberStates = dict[str, Any]


def written_out(stack: MemberStates) -> State:
    """Return a stack whose tensors are all in memory."""
    return {
        name: tensor.written_out() if isinstance(tensor, LowRankStack) else tensor
        for name, tensor in stack.items()
    }
