"""Whether a poll or training of the loop engine is shared among processes of this machine.

This is decided by what is computed, not by a clock: for a number of processes the same on each
machine and in each run.
"""

from dataclasses import dataclass

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from skfed.engines._layers import Recorder
from skfed.nets import model_bytes
from skfed.utils._seeding import torch_seeded

# Seconds of a core with 100 GFLOP/s and 10 GB/s.
_CALL, _OPERATION, _FLOP, _BYTE = 2e-4, 4e-6, 1e-11, 1e-10
# Seconds of joblib: to send tasks and wait for results, and a byte of a model there and back.
_ROUND_TRIP, _SENT_BYTE = 0.025, 1e-8
FORWARD, STEP = 1, 3  # passes: backward there are two products for each one forward

# What torch computes for them on a CPU is not counted in full.
_UNCOUNTED = nn.RNNBase | nn.MultiheadAttention


@dataclass(frozen=True)
class NetCost:
    """What a pass through a net costs on a CPU, at least.

    Parameters
    ----------
    model_bytes : int
        Bytes of a model.
    n_operations : int
        Calls of torch functions in a forward pass that return a tensor.
    row_flops : float
        Floating point operations for a row in a forward pass.
    """

    model_bytes: int
    n_operations: int
    row_flops: float

    @classmethod
    def of(cls, net: NeuralNet, X: torch.Tensor) -> "NetCost | None":
        """Return the cost of a net, found on a few rows; None if it is not known.

        The net may not be used afterwards.

        Parameters
        ----------
        net : NeuralNet
            A net with the settings of those that will train.
        X : Tensor of shape (n_rows, ...)
            A few rows of the data.
        """
        flops, recorder = FlopCounterMode(display=False), Recorder()
        try:
            if any(isinstance(module, _UNCOUNTED) for module in net.module_.modules()):
                return None
            with torch_seeded(np.random.default_rng(0), net.device), torch.no_grad():
                net._set_training(True)
                with flops, recorder:
                    net.module_(X)
        except Exception:  # the module's code raises, as it will for clients, or has another name
            return None
        if any(function is F.scaled_dot_product_attention for function, *_ in recorder.calls):
            return None
        return cls(model_bytes(net), len(recorder.calls), flops.get_total_flops() / len(X))

    def seconds(self, n_passes: int, n_calls: int, n_rows: int) -> float:
        """Return the least seconds of evaluations or trainings.

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
        return n_calls * call + n_passes * n_rows * self.row_flops * _FLOP

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
