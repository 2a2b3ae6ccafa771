"""Whether a poll or training of the loop engine is shared among processes of this machine.

This is decided by what is computed, not by a clock: for a number of processes and a build of torch
the same on each machine and in each run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from skfed.nets import as_inferred, call_module, model_bytes
from skfed.utils._seeding import torch_seeded

# Seconds of a core with 100 GFLOP/s and 10 GB/s.
_CALL, _OPERATION, _FLOP, _BYTE = 1.9e-4, 2e-6, 1e-11, 1e-10
# Seconds of joblib: to send tasks and wait for results, and a byte of a model there and back.
_ROUND_TRIP, _SENT_BYTE = 0.025, 1e-8
FORWARD, STEP = 1, 3  # passes: backward there are two products for each one forward

Shape = Sequence[int]


@dataclass(frozen=True)
class NetCost:
    """An estimate of what a pass through a net and its criterion costs on a CPU.

    What they compute without torch is not counted.

    Parameters
    ----------
    model_bytes : int
        Bytes of a model.
    n_operations : int
        Operations of a forward pass that are more than a view.
    row_flops : float
        Floating point operations for a row in a forward pass.
    row_bytes : float
        Bytes that are written for a row in a forward pass.
    """

    model_bytes: int
    n_operations: int
    row_flops: float
    row_bytes: float

    @classmethod
    def of(cls, net: NeuralNet, X: Any, y: torch.Tensor) -> "NetCost | None":
        """Return the cost of a net, found on a batch; None if it is not known.

        The net may not be used afterwards.

        Parameters
        ----------
        net : NeuralNet
            A net with the settings of those that will train.
        X, y : Tensor of shape (n_rows, ...), or a dict of them
            A batch of the usual size, and its targets: where rows are compared with each other, a
            row costs more in a larger one.
        """
        flops = FlopCounterMode(display=False, custom_mapping=_FLOPS_ON_CPU)
        operations = _Operations()
        try:
            with torch_seeded(np.random.default_rng(0), net.device), torch.no_grad():
                net._set_training(True)
                with flops, operations:
                    output = as_inferred(net, call_module(net.module_, X))
                    net.get_loss(output, y, X=X, training=True)
        except Exception:  # the user's code needs gradients, or raises, as it may for clients
            return None
        return cls(
            model_bytes=model_bytes(net),
            n_operations=operations.count,
            row_flops=flops.get_total_flops() / len(y),
            row_bytes=operations.n_bytes / len(y),
        )

    def seconds(self, n_passes: int, n_calls: int, n_rows: int) -> float:
        """Return an estimate of the seconds of evaluations or trainings.

        Parameters
        ----------
        n_passes : int
            Passes of a call: ``FORWARD`` or ``STEP``.
        n_calls : int
            Evaluations, or steps and the starts of clients.
        n_rows : int
            Rows of all calls.
        """
        # A pass reads each weight and writes it or its gradient.
        call = _CALL + n_passes * (self.n_operations * _OPERATION + 2 * self.model_bytes * _BYTE)
        row = self.row_flops * _FLOP + self.row_bytes * _BYTE
        return n_calls * call + n_passes * n_rows * row

    def is_worth_sharing(self, seconds: float, n_workers: int) -> bool:
        """Tell whether processes save the time that it takes to send tasks and models.

        Parameters
        ----------
        seconds : float
            Of all evaluations or trainings in one process.
        n_workers : int
            Number of processes.
        """
        sending = _ROUND_TRIP + n_workers * self.model_bytes * _SENT_BYTE
        return seconds * (1 - 1 / n_workers) >= sending


class _Operations(TorchDispatchMode):
    """Counts torch's operations, and the bytes that they write."""

    def __init__(self):
        super().__init__()
        self.count = self.n_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.count += 1
            results = result if isinstance(result, tuple | list) else [result]
            self.n_bytes += sum(one.nbytes for one in results if torch.is_tensor(one))
        return result


def _attention_flops(query: Shape, key: Shape, value: Shape, *args, **kwargs) -> int:
    """Return the FLOPs of the products with the keys and with the values, from shapes."""
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _lstm_flops(rows: Shape, of_input: Shape, of_hidden: Shape, *args, **kwargs) -> int:
    """Return the FLOPs of the products with the two weights of an LSTM, from shapes."""
    return 2 * prod(rows[:-1]) * (prod(of_input) + prod(of_hidden))


# Products of a CPU that torch computes in one operation and does not count.
_FLOPS_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten.mkldnn_rnn_layer: _lstm_flops,
}
