"""The first linear layer of clients that train on few rows: its steps are kept as products.

By plain SGD the weights of a client are w plus a product of slopes and rows. While these rows are
no more than the layer's outputs, it takes less time not to write the weights of each client. The
outputs of all rows by w are one product for all clients; what the earlier steps of a client change
in them follows from the products of its rows with each other; and the sum over clients is one
product again.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch

from skfed.aggregation import WeightedMean
from skfed.aggregation._low_rank import LowRankStack, MemberStates
from skfed.engines._data import Memory
from skfed.engines._linear import BoundLinear, Linear, LinearStack
from skfed.engines._requests import TrainRequest
from skfed.nets import State

_FEWEST_INPUTS = 256  # with fewer, the weights of a client take little time
_DTYPES = torch.float32, torch.float64


def most_rows(method: object, request: TrainRequest, plain_sgd: bool) -> int:
    """Return the most rows, of all steps as laid out, with which steps are kept as products.

    It is 0 for other optimizers, for rules that need each client's weights, and for layers with few
    inputs.

    Parameters
    ----------
    method : LinearStack or BatchedModule
        How losses and gradients are computed.
    request : TrainRequest
        A request to train.
    plain_sgd : bool
        Whether the net's optimizer is SGD without any other term.
    """
    if not isinstance(method, LinearStack) or not plain_sgd or request.training.proximal_mu:
        return 0
    is_sum = type(request.aggregator).collect is WeightedMean.collect
    if not is_sum or request.corrections is not None or request.privacy is not None:
        return 0
    w = request.state[f"module.{method.first_linear.weight}"]
    return min(w.shape) if w.shape[1] >= _FEWEST_INPUTS and w.dtype in _DTYPES else 0


def weight_bytes(method: object, request: TrainRequest) -> int:
    """Return the bytes of the first linear layer's weights."""
    assert isinstance(method, LinearStack)
    return request.state[f"module.{method.first_linear.weight}"].nbytes


class LowRankLinear(BoundLinear):
    """The first linear layer of some clients, for ``BoundLinearStack.descend`` alone.

    Nothing is below it, so that it has no ``backward``.

    Parameters
    ----------
    layer : Linear
        The names of its parameters.
    state : dict of str to Tensor
        Parameters that all clients begin with, by their names in the module.
    rows : Tensor of shape (n_clients, n_steps * width, in)
        The layer's inputs in all steps.
    width : int
        Rows of a step; not all need be used.
    memory : Memory
        Where the outputs and slopes are; valid until it is used again.

    Raises
    ------
    OverflowError
        If a product of two rows is not finite, as their products with weights may be.
    """

    #: Bytes of rows and other layers that are worth stacking on a CPU.
    cache_bytes: ClassVar[int] = 16 * 2**20

    def __init__(self, layer: Linear, state: State, rows: torch.Tensor, width: int, memory: Memory):
        self.layer = layer
        self.rows, self.width, self.n_done = rows.contiguous(), width, 0
        self.w = state[layer.weight]
        self.b = None if layer.bias is None else state[layer.bias]
        self.weight = self.w.unsqueeze(0)
        shape = (*rows.shape[:2], len(self.w))
        outputs, self.slopes = (
            memory.empty(name, shape, self.w.dtype, self.w.device) for name in ("outputs", "slopes")
        )
        flat, by_row = self.rows.flatten(0, 1), outputs.view(-1, len(self.w))
        if self.b is None:
            torch.mm(flat, self.w.mT, out=by_row)
        else:
            torch.addmm(self.b, flat, self.w.mT, out=by_row)
        self.outputs = outputs
        self.slopes.zero_()  # of rows that are not used
        # Of each row from the second step on with each row up to the last step but one.
        self.products = torch.bmm(self.rows[:, width:], self.rows[:, :-width].mT)
        if not self.products.sum().isfinite():
            raise OverflowError("the product of two rows is not finite")
        if self.b is not None:
            self.products += 1  # a bias is the weight of an input of 1

    def batches(self, n_steps: int, n_clients: int, width: int) -> Iterator[torch.Tensor]:
        """Yield the inputs (client, row, in) of the next steps of the first clients.

        The next step is that after those that ``descend`` has taken.
        """
        for _ in range(n_steps):
            yield self.rows[:n_clients, self.n_done : self.n_done + width]

    def faster_output(self, h: torch.Tensor) -> torch.Tensor:
        """Return the output (client, out, row) of the inputs of this step."""
        n, start, stop = len(h), self.n_done, self.n_done + h.shape[2]
        outputs = self.outputs[:n, start:stop]
        if start:
            products = self.products[:n, start - self.width : stop - self.width, :start]
            outputs = torch.baddbmm(outputs, products, self.slopes[:n, :start])
        return outputs.mT

    def descend(self, slope: torch.Tensor, h_t: torch.Tensor, rate: float) -> None:
        """Take a step of plain SGD."""
        taken = self.slopes[: len(h_t), self.n_done : self.n_done + h_t.shape[1]]
        torch.mul(slope.mT, -rate, out=taken)
        self.n_done += self.width

    def parameters(self) -> MemberStates:
        """Return the parameters of all clients by their names in the module."""
        found: MemberStates = {self.layer.weight: LowRankStack(self.w, self.slopes, self.rows)}
        if self.b is not None and self.layer.bias is not None:
            found[self.layer.bias] = self.b + self.slopes.sum(1)
        return found
