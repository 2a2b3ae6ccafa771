"""Optimizers of the server.

Reddi et al.: Adaptive Federated Optimization, ICLR 2021.
"""

from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skfed.aggregation._tensors import step_from
from skfed.nets import State
from skfed.utils._sklearn import Interval

_LARGEST_RATE = float(np.finfo(np.float32).max)  # of which torch takes a step


class ServerOptimizer(BaseEstimator):
    """Let a torch optimizer move the global model, with w - aggregate as its gradient.

    FedAvgM is ``ServerOptimizer(torch.optim.SGD, lr=1.0, options={"momentum": 0.9})``, FedAdam
    ``ServerOptimizer(torch.optim.Adam, lr=0.1)``; SGD with lr 1 is plain averaging. Buffers are
    taken from the aggregate. The optimizer's state lives with the server, over all rounds.

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
        "lr": [Interval(Real, 0, _LARGEST_RATE, closed="right")],
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
        """Take one step from ``model`` towards ``aggregate``.

        Parameters
        ----------
        model, aggregate : dict of str to Tensor
            w and what the aggregation rule made of the cohort.
        parameters : collection of str
            Names of the trained parameters; the other tensors are buffers.
        state : dict or None
            The optimizer's state after the last round; None before the first. That of another
            optimizer is not used, nor one that lacks what the options now need, as ``amsgrad``.

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
        self._validate_params()
        moved = {name: model[name].clone().requires_grad_() for name in parameters}
        optimizer = self._build(list(moved.values()))
        kind = self.optimizer.__qualname__
        if state is not None and state["optimizer"] == kind and self._fits(state["state"], moved):
            # Only what it remembers: lr and options are those of now.
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state["state"]})
        for name, parameter in moved.items():
            parameter.grad = step_from(aggregate[name], model[name])
        optimizer.step()
        result = aggregate | {name: p.detach() for name, p in moved.items()}
        return result, {"optimizer": kind, "state": optimizer.state_dict()["state"]}

    def _fits(self, state: dict[Any, dict[str, Any]], moved: State) -> bool:
        """Tell whether a state has all that these options remember, by a step that moves nothing.

        torch adds to a state only in its first step.
        """
        parameter = next(iter(moved.values())).detach().clone().requires_grad_()
        parameter.grad = torch.zeros_like(parameter)
        optimizer = self._build([parameter])
        optimizer.step()
        needed = optimizer.state[parameter].keys()
        return all(needed <= remembered.keys() for remembered in state.values())

    def _build(self, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        if not issubclass(self.optimizer, torch.optim.Optimizer):
            raise ValueError(
                f"optimizer must be a class of torch's optimizers, got {self.optimizer!r}."
            )
        try:
            return self.optimizer(parameters, lr=self.lr, **(self.options or {}))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"options={self.options!r} do not go with {self.optimizer.__name__}: {error}"
            ) from error
