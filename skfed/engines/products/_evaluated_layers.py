"""Stacks of linear layers as they are evaluated: on rows of many clients, all with one state."""

from dataclasses import dataclass

import torch

from skfed.engines.products._linear import Layers, Linear, WithBuffer
from skfed.nets import State
from skfed.utils._products import PRODUCTS


@dataclass(frozen=True)
class EvaluatedLayers:
    """The layers of a module in evaluation mode, without the calls of its submodules.

    Parameters
    ----------
    layers : list of Linear, WithBuffer or callable
        From the rows of X to the module's output; at least one is linear.
    """

    layers: Layers

    def output(self, state: State, X: torch.Tensor, most_rows: int) -> torch.Tensor:
        """Return the module's output for rows of X; it is no view of X.

        Parameters
        ----------
        state : dict of str to Tensor
            Of the net, on the device of X.
        X : Tensor of shape (n_rows, ...)
            The rows.
        most_rows : int
            Rows of the largest call, or more, so that a row is rounded alike in all calls.
        """
        h = X.flatten(1)
        for layer in self.layers:
            if isinstance(layer, Linear):
                bias = None if layer.bias is None else state[f"module.{layer.bias}"]
                h = PRODUCTS.linear(h, state[f"module.{layer.weight}"], bias, most_rows)
            elif isinstance(layer, WithBuffer):
                h = layer.function(h, state[f"module.{layer.buffer}"])
            else:
                h = layer(h)
        return h
