"""Optimizers of the server.

Reddi et al.: Adaptive Federated Optimization, ICLR 2021.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skfed.aggregation._tensors import step_from
from skfed.nets import State
from skfed.utils._checks import check_params
from skfed.utils._sklearn import Interval

_MAX_LR = float(np.finfo(np.float32).max)  # larger ones overflow in torch


class ServerOptimizer(BaseEstimator):
    """Update the global model by a torch optimizer, with w - aggregate as the gradient.

    FedAvgM is ``ServerOptimizer(torch.optim.SGD, lr=1.0, options={"momentum": 0.9})``, FedAdam
    ``ServerOptimizer(torch.optim.Adam, lr=0.1)``; SGD with lr 1 is plain averaging. Buffers are
    taken from the aggregate. The optimizer's state is kept by the server between rounds.

    Parameters
    ----------
    optimizer : type, default=torch.optim.SGD
        Class of a torch optimizer that needs no closure.
    lr : float, default=1.0
        The server's learning rate.
    options : mapping of str to object, default=None
        Further arguments of the optimizer.
    """

    _parameter_constraints = {
        "optimizer": [type],
        "lr": [Interval(Real, 0, _MAX_LR, closed="right")],
        "options": [Mapping, None],
    }

    def __init__(self, optimizer=torch.optim.SGD, lr=1.0, options=None):
        self.optimizer = optimizer
        self.lr = lr
        self.options = options

    def step(
        self,
        model: State,
        aggregate: State,
        parameters: Collection[str],
        state: dict[str, Any] | None,
    ) -> tuple[State, dict[str, Any]]:
        """Take one step from ``model`` towards ``aggregate``; what is given stays as it is.

        Parameters
        ----------
        model, aggregate : dict of str to Tensor
            w, and the aggregate of the cohort's models.
        parameters : collection of str
            Names of the trained parameters; the other tensors are buffers.
        state : dict or None
            The optimizer's state after the last round; None before the first. It is not used if it
            is of another optimizer, or lacks entries that the options need, as ``amsgrad`` does.

        Returns
        -------
        model : dict of str to Tensor
            The next global model.
        state : dict
            The optimizer's state, for the next round.

        Raises
        ------
        ValueError
            If a parameter is out of range.
        """
        check_params(self)
        trained = {name: model[name].clone().requires_grad_() for name in parameters}
        # A group for each: what no client has trained has no weight decay.
        optimizer = self._build([{"params": [tensor]} for tensor in trained.values()])
        kind = self.optimizer.__qualname__
        if state is not None and state["optimizer"] == kind and self._fits(state["state"], trained):
            # Without its parameter groups: lr and options may have changed. A copy, since torch
            # steps in place, and the round may be dropped.
            kept = deepcopy(state["state"])
            optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})
        for (name, tensor), group in zip(trained.items(), optimizer.param_groups, strict=True):
            is_trained = not torch.equal(aggregate[name], model[name])
            if is_trained or tensor in optimizer.state:  # it may have momentum
                tensor.grad = step_from(aggregate[name], model[name])
            if not is_trained and "weight_decay" in group:
                group["weight_decay"] = 0.0
        optimizer.step()
        result = aggregate | {name: tensor.detach() for name, tensor in trained.items()}
        return result, {"optimizer": kind, "state": optimizer.state_dict()["state"]}

    def _fits(self, state: dict[Any, dict[str, Any]], trained: State) -> bool:
        """Return whether a state has all entries that the options need.

        torch adds entries in the first step, so this takes one with a gradient of 0.
        """
        tensor = next(iter(trained.values())).detach().clone().requires_grad_()
        tensor.grad = torch.zeros_like(tensor)
        optimizer = self._build([tensor])
        optimizer.step()
        needed = optimizer.state[tensor].keys()
        return all(needed <= entries.keys() for entries in state.values())

    def _build(self, parameters: list) -> torch.optim.Optimizer:
        if not issubclass(self.optimizer, torch.optim.Optimizer):
            raise ValueError(
                f"optimizer must be a subclass of torch.optim.Optimizer, got {self.optimizer!r}."
            )
        try:
            return self.optimizer(parameters, lr=self.lr, **(self.options or {}))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"options={self.options!r} are invalid for {self.optimizer.__name__}: {error}"
            ) from error
