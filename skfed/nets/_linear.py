"""Coefficients of nets that are linear in X, as scikit-learn's linear models have them."""

from typing import Any

import torch
from skorch import NeuralNet
from torch import nn

from skfed.modules import LinearRegression, SoftmaxRegression

NAMES = "coef_", "intercept_"


def linear_attributes(net: NeuralNet, output_shape: tuple[int, ...]) -> dict[str, Any]:
    """Return ``coef_`` and ``intercept_`` by name; none if the net is not known to be linear.

    Parameters
    ----------
    net : NeuralNet
        Holds the global model.
    output_shape : tuple of int
        Shape of the outputs for one row; () for a single target.
    """
    found = _coefficients(net.module_)
    if found is None:
        return {}
    coef, intercept = (tensor.detach().cpu().double().numpy() for tensor in found)
    # Copied, since the net's weights change in place. Of a single target, a plain number.
    values = coef.reshape(*output_shape, -1).copy(), intercept.reshape(output_shape).copy()[()]
    return dict(zip(NAMES, values, strict=True))


def _coefficients(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the weights (n_outputs, n_features) and intercepts (n_outputs,), in units of X."""
    forward = type(module).forward  # of a subclass that overrides it nothing is known
    if isinstance(module, nn.Sequential) and forward is nn.Sequential.forward:
        layers = [layer for layer in module if not isinstance(layer, nn.Flatten | nn.Identity)]
        return _coefficients(layers[0]) if len(layers) == 1 else None
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        weight, bias = module.weight, module.bias
        return weight, weight.new_zeros(len(weight)) if bias is None else bias
    if forward in (SoftmaxRegression.forward, LinearRegression.forward):
        assert isinstance(module, SoftmaxRegression | LinearRegression)
        return module.coefficients()
    return None
