"""The first linear layer of clients that train on few rows: its steps are kept as products.

By plain SGD the weights of a client are w plus a product of slopes and rows. While these rows are
no more than the layer's outputs, it takes less time not to write the weights of each client. The
outputs of all rows by w are one product for many clients; what the earlier steps of a client change
in them follows from the products of its rows with each other; and the sum over clients is one
product again.
"""

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch

from skfed.aggregation import WeightedMean
from skfed.aggregation._low_rank import LowRankStack, MemberStates
from skfed.engines._data import Memory
from skfed.engines._linear import BoundLinear, Linear, LinearStack
from skfed.engines._requests import TrainRequest
from skfed.nets import State
from skfed.utils._large_products import fewest_rows, large_linear_of_rows

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
    if request.training.max_norm is not None:
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
    shape : tuple of int
        Clients, the steps of each, and the rows of a step; not all rows need be used.
    memory : Memory
        Where rows, outputs, slopes and products are; valid until it is used again.

    Attributes
    ----------
    rows : Tensor of shape (n_clients, n_steps * width, in)
        The layer's inputs in all steps; written by ``begin``.
    """

    #: Bytes of rows and other layers that are worth stacking on a CPU.
    cache_bytes: ClassVar[int] = 16 * 2**20
    #: Bytes of rows that are multiplied where they have just been taken, while a core's own cache
    #: has much of them.
    part_bytes: ClassVar[int] = 2 * 2**20

    def __init__(self, layer: Linear, state: State, shape: tuple[int, int, int], memory: Memory):
        self.layer = layer
        n_clients, n_steps, self.width = shape
        n_rows, n_later, self.n_done = n_steps * self.width, (n_steps - 1) * self.width, 0
        self.w = state[layer.weight]
        self.b = None if layer.bias is None else state[layer.bias]
        self.weight = self.w.unsqueeze(0)
        n_outputs, n_inputs = self.w.shape

        def empty(name: str, *shape: int) -> torch.Tensor:
            return memory.empty(name, (n_clients, *shape), self.w.dtype, self.w.device)

        self.rows = empty("rows", n_rows, n_inputs)
        self.outputs = empty("outputs", n_rows, n_outputs)
        self.slopes = empty("slopes", n_rows, n_outputs).zero_()  # of rows that are not used
        # Of each row from the second step on with each row up to the last step but one.
        self.products = empty("products", n_later, n_later)

    def begin(self, fill: Callable[[slice, torch.Tensor], object]) -> None:
        """Compute what the steps need of all rows.

        Parameters
        ----------
        fill : callable
            Is called with some clients and their part of ``rows``, to write their inputs there.
            These are multiplied while a core's own cache still has most of them.

        Raises
        ------
        OverflowError
            If a product of two rows is not finite, as their products with weights may be.
        """
        w_t, later, earlier = self.w.mT, self.rows[:, self.width :], self.rows[:, : -self.width].mT
        for part in self._parts():
            fill(part, self.rows[part])
            rows, outputs = self.rows[part].flatten(0, 1), self.outputs[part].flatten(0, 1)
            if len(rows) >= fewest_rows(self.w):
                outputs.copy_(large_linear_of_rows(rows, self.w, self.b))
            elif self.b is None:
                torch.mm(rows, w_t, out=outputs)
            else:
                torch.addmm(self.b, rows, w_t, out=outputs)
            torch.bmm(later[part], earlier[part], out=self.products[part])
        if not self.products.sum().isfinite():
            raise OverflowError("the product of two rows is not finite")
        if self.b is not None:
            self.products += 1  # a bias is the weight of an input of 1

    def _parts(self) -> list[slice]:
        """Return the clients of each part, of which all have much the same number."""
        n = len(self.rows)
        n_parts = min(n, -(-self.rows.nbytes // self.part_bytes))
        ends = [n * i // n_parts for i in range(n_parts + 1)]
        return list(map(slice, ends, ends[1:]))

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
