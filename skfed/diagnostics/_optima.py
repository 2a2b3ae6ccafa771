"""Local and global optima, and the heterogeneity of a federation.

Gamma of Li et al.: On the Convergence of FedAvg on Non-IID Data, ICLR 2020, as both papers use it.
"""

from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet

from skfed._federation import make_federation
from skfed.nets import NetPool, by_array, select_rows, to_tensors
from skfed.utils._checks import check_columns, naming, numbers, validated
from skfed.utils._ids import client_index
from skfed.utils._sklearn import Interval
from skfed.utils._warnings import warn


@validated(
    l2=[Interval(Real, 0, None, closed="left"), None],
    tol=[Interval(Real, 0, None, closed="neither")],
)
def optima(
    model: Any, X: Any, y: Any, clients: Any, *, l2: float | None = None, tol: float = 1e-8
) -> pd.DataFrame:
    """Return the minimum of each client's loss, and each client's loss at the global optimum.

    For convex objectives F_k(w) = mean loss + l2/2 ||w||^2, minimised in float64 by L-BFGS from
    fixed initial weights. The global optimum w* is that of F = sum of s_k p_k F_k. All rows have
    equal weight, whatever ``sample_weight`` or ``class_weight`` the model was fitted with.

    Parameters
    ----------
    model : FederatedClassifier
        A fitted model, of which the module, the criterion and ``priority`` are used.
    X : array-like of shape (n_samples, n_features, ...), or dict of array-like
        Training data.
    y : array-like of shape (n_samples,)
        Targets.
    clients : array-like of shape (n_samples,)
        The id of the client that holds each row.
    l2 : float, default=None
        None is the weight decay of the net's optimizer, by parameter group; 0 if it has none.
    tol : float, default=1e-8
        Largest entry of the gradient at a minimum.

    Returns
    -------
    DataFrame of shape (n_clients, 5)
        ``weight`` (s_k p_k), ``loss`` (F_k(w*)), ``minimum`` (F_k*), ``gap`` (Gamma_k =
        F_k(w*) - F_k*) and ``attained``: False if F_k has no minimiser (a client of separable data
        without l2); ``minimum`` is then an upper bound on the infimum.

    Raises
    ------
    ValueError
        If F has no minimiser, so that there is no w*.

    Warns
    -----
    ConvergenceWarning
        If a minimum of a regularised loss was not reached to ``tol``.
    """
    check_is_fitted(model)
    X = model._check_X(X)[:]
    with naming("y"):
        problem = model._problem
        y = problem.encode(problem.check_targets(y, "y"))
        y = problem.for_criterion(model.net_, X, y)
    with naming("X", "y"):
        check_consistent_length(X, y)
    federation = make_federation(clients, len(X), model.priority)
    objective = _Objective(model.net_, X, y, l2, tol)
    weights = federation.priority_weights * federation.fractions
    everyone = range(len(federation))
    w_star, _, attained = objective.minimise(
        [(weights[k], federation.rows(k)) for k in everyone if weights[k]]
    )
    if not attained:
        raise ValueError(
            f"the global objective has no minimiser within tol={tol} (l2={min(objective.l2)}): the "
            "weights grow without bound, as on separable data. Pass l2 > 0, or train with weight "
            "decay."
        )
    rows = []
    for k in everyone:
        _, minimum, attained = objective.minimise([(1.0, federation.rows(k))])
        rows.append((weights[k], objective.value(w_star, federation.rows(k)), minimum, attained))
    index = client_index(federation.ids)
    frame = pd.DataFrame(rows, columns=["weight", "loss", "minimum", "attained"], index=index)
    frame.insert(3, "gap", frame["loss"] - frame["minimum"])
    return frame


@validated(optima=[pd.DataFrame])
def heterogeneity(optima: pd.DataFrame) -> float:
    """Return Gamma = F* - sum of p_k F_k* over the priority clients (FedALIGN, equation 2).

    Parameters
    ----------
    optima : DataFrame
        As :func:`optima` returns it.

    Returns
    -------
    float
        Gamma, at least 0.

    Raises
    ------
    ValueError
        If the columns ``weight`` and ``gap`` are missing or hold other than finite numbers.
    """
    check_columns(optima, ["weight", "gap"], "optima")
    return float(numbers(optima["weight"], "optima") @ numbers(optima["gap"], "optima"))


class _Objective:
    """Weighted sums of clients' regularised losses, in float64."""

    def __init__(self, net: NeuralNet, X, y, l2: float | None, tol: float):
        self.net = NetPool(net, X[:1]).set_up()
        for name in self.net._modules + self.net._criteria:
            if isinstance(part := getattr(self.net, f"{name}_"), torch.nn.Module):
                part.double().eval()
        self.X, self.y = (
            by_array(lambda one: one.double() if one.is_floating_point() else one, given)
            for given in to_tensors(self.net, X, y)
        )
        self.tol = tol
        self.parameters = [parameter for _, parameter in self.net.get_all_learnable_params()]
        decays = {
            parameter: float(group.get("weight_decay", 0.0))
            for group in self.net.optimizer_.param_groups
            for parameter in group["params"]
        }
        self.l2 = [decays[p] if l2 is None else l2 for p in self.parameters]
        self.start = self._copy()

    def value(self, point: list[torch.Tensor], rows: np.ndarray) -> float:
        """Return the loss over some rows at given parameters."""
        self._set(point)
        with torch.no_grad():
            return float(self._loss([(1.0, torch.from_numpy(rows))]))

    def minimise(
        self, groups: list[tuple[float, np.ndarray]]
    ) -> tuple[list[torch.Tensor], float, bool]:
        """Minimise a weighted sum of losses; return point, value, and whether it is a minimum.

        Without a minimiser, the norm of the weights grows as the tolerance decreases.
        """
        parts = [(weight, torch.from_numpy(rows)) for weight, rows in groups]
        coarse = np.inf
        if not all(self.l2):
            self._descend(parts, 1e3 * self.tol)
            coarse = self._norm()
        gradient = self._descend(parts, self.tol)
        point = self._copy()
        with torch.no_grad():
            value = float(self._loss(parts))
        if not all(self.l2):
            grows = self._norm() > 1.05 * coarse + 1e-6
            return point, value, gradient <= self.tol and not grows
        if gradient > self.tol:  # strongly convex: there is a minimiser, and it was not reached
            warn(
                f"a minimum was found to a gradient of {gradient:.1g}, not to tol={self.tol}: "
                "scale X, or raise l2 or tol.",
                ConvergenceWarning,
            )
        return point, value, True

    def _descend(self, parts: list[tuple[float, torch.Tensor]], tol: float) -> float:
        """Run L-BFGS from the start; return the largest entry of the last gradient."""
        self._set(self.start)
        solver = torch.optim.LBFGS(
            self.parameters,
            max_iter=5_000,
            history_size=50,
            tolerance_grad=tol,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def closure():
            solver.zero_grad()
            loss = self._loss(parts)
            loss.backward()
            return loss

        solver.step(closure)
        closure()
        return max(float(p.grad.abs().max()) for p in self.parameters if p.grad is not None)

    def _loss(self, parts: list[tuple[float, torch.Tensor]]) -> torch.Tensor:
        decays = zip(self.l2, self.parameters, strict=True)
        penalty = sum(l2 / 2 * p.square().sum() for l2, p in decays)
        total = torch.zeros((), dtype=torch.double)
        for weight, rows in parts:
            X, y = select_rows(self.X, rows), self.y[rows]
            loss = self.net.get_loss(self.net.infer(X), y, X=X, training=False)
            total = total + weight * (loss + penalty)
        return total

    def _copy(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.parameters]

    def _set(self, values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)

    def _norm(self) -> float:
        return float(torch.cat([p.detach().flatten() for p in self.parameters]).norm())
