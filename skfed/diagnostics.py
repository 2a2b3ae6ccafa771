"""What the theory says of a fit: who was included, how heterogeneous the clients are, the bounds.

FedALIGN: Ravi, Shomorony, TMLR 2024. Power-of-choice: Cho, Wang, Joshi, 2020 (arXiv:2010.01243).
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNetClassifier

from skfed._federation import make_federation
from skfed._nets import Workbench, to_tensors
from skfed.selection import BaseSelector
from skfed.selection._imagined import imagine_round


def inclusion_trace(model: Any) -> pd.DataFrame:
    """Return who was aggregated in which round: I_{k,t} of FedALIGN's Theorem 1.

    Parameters
    ----------
    model : FederatedClassifier
        A fitted model.

    Returns
    -------
    DataFrame of bool, of shape (n_rounds, n_clients)
        One column a client, in the order of ``clients_``.
    """
    check_is_fitted(model)
    names = model.clients_.tolist()
    rows = [[name in set(cohort) for name in names] for cohort in model.history_["cohort"]]
    return pd.DataFrame(rows, columns=pd.Index(names, name="client", tupleize_cols=False))


def selection_frequency(model: Any) -> pd.DataFrame:
    """Return how often each client was polled and aggregated, beside its share of the data.

    Parameters
    ----------
    model : FederatedClassifier
        A fitted model.

    Returns
    -------
    DataFrame of shape (n_clients, 5)
        ``priority``, ``data_share`` (D_k / sum of D), ``n_polled``, ``n_selected`` (a repeated
        draw counts twice) and ``selected_share`` (of all updates).
    """
    check_is_fitted(model)
    names = model.clients_.tolist()
    counts = {}
    for column in ("polled", "cohort"):
        flat = [name for names in model.history_[column] for name in names]
        counts[column] = pd.Series(flat, dtype=object).value_counts()
    selected = counts["cohort"].reindex(names, fill_value=0).to_numpy()
    return pd.DataFrame(
        {
            "priority": model.priority_,
            "data_share": model.sizes_ / model.sizes_.sum(),
            "n_polled": counts["polled"].reindex(names, fill_value=0).to_numpy(),
            "n_selected": selected,
            "selected_share": selected / max(selected.sum(), 1),
        },
        index=pd.Index(names, name="client", tupleize_cols=False),
    )


def alignment(
    model: Any, *, L: float, mu: float, gaps: ArrayLike | None = None, gamma: float | None = None
) -> pd.DataFrame:
    """Return theta_T and rho_T of FedALIGN's Theorem 1 after each round (equations 7 and 8).

    Parameters
    ----------
    model : FederatedClassifier
        A fitted model; its inclusion trace stands in for the expectation.
    L, mu : float
        Smoothness and strong convexity of the local objectives.
    gaps : array-like of shape (n_clients,), default=None
        Gamma_k = F_k(w*) - F_k* in the order of ``clients_``, as :func:`optima` finds them; None
        leaves ``rho`` NaN.
    gamma : float, default=None
        None is the theorem's max(8 L / mu, E).

    Returns
    -------
    DataFrame of shape (n_rounds, 3)
        ``T``, local iterations so far; ``theta``, in [0, 1]; ``rho``, in units of the loss.
    """
    E = model.local_epochs if model.local_steps is None else model.local_steps
    gamma = max(8 * L / mu, E) if gamma is None else gamma
    included = inclusion_trace(model).to_numpy() & ~model.priority_
    joined = included @ model.fractions_
    # Round r holds the iterations rE to (r + 1)E - 1; the sums begin at i = 1.
    n_iterations = np.full(len(joined), E)
    n_iterations[0] -= 1
    T = E * np.arange(1, len(joined) + 1)
    theta = np.cumsum(n_iterations / (1 + joined)) / (T + gamma - 2)
    rho = np.full(len(joined), np.nan)
    if gaps is not None:
        bias = (included * np.asarray(gaps, float)) @ model.fractions_ / (1 + joined)
        rho = 2 * L / mu * np.cumsum(n_iterations * bias) / (T + gamma - 2)
    return pd.DataFrame({"T": T, "theta": theta, "rho": rho})


def optima(
    model: Any, X: Any, y: Any, clients: Any, *, l2: float | None = None, tol: float = 1e-8
) -> pd.DataFrame:
    """Find the minimum of each client's loss, and each client's loss at the global optimum.

    For convex objectives F_k(w) = mean loss + l2/2 ||w||^2, minimised in float64 by L-BFGS from
    fixed initial weights. The global optimum w* is that of F = sum of s_k p_k F_k.

    Parameters
    ----------
    model : FederatedClassifier
        A fitted model; its net says module and criterion, its parameters who has priority.
    X : array-like of shape (n_samples, n_features, ...)
        Training data.
    y : array-like of shape (n_samples,)
        Targets.
    clients : array-like of shape (n_samples,)
        The id of the client that holds each row.
    l2 : float, default=None
        None takes the weight decay of the net's optimizer, 0 where it has none.
    tol : float, default=1e-8
        Largest entry of the gradient at a minimum.

    Returns
    -------
    DataFrame of shape (n_clients, 5)
        ``weight`` (s_k p_k), ``loss`` (F_k(w*)), ``minimum`` (F_k*), ``gap`` (Gamma_k =
        F_k(w*) - F_k*) and ``attained``: False where there is no minimiser (a client of separable
        data without l2), so that ``minimum`` is an infimum, approached from above.

    Raises
    ------
    ValueError
        If F itself has no minimiser, so that no w* exists.
    """
    X, y = model._check_X(X), model._encode(y)
    federation = make_federation(clients, len(X), model.priority)
    objective = _Objective(model.net_, X, y, l2, tol)
    weights = federation.priority_weights * federation.fractions
    everyone = range(len(federation))
    w_star, _, attained = objective.minimise(
        [(weights[k], federation.rows(k)) for k in everyone if weights[k]]
    )
    if not attained:
        raise ValueError(
            f"the global objective has no minimiser within tol={tol} (l2={objective.l2}): its loss "
            "falls without end, as on separable data. Pass l2 > 0, or train with weight decay."
        )
    rows = []
    for k in everyone:
        _, minimum, attained = objective.minimise([(1.0, federation.rows(k))])
        rows.append((weights[k], objective.value(w_star, federation.rows(k)), minimum, attained))
    index = pd.Index(federation.names(everyone), name="client", tupleize_cols=False)
    frame = pd.DataFrame(rows, columns=["weight", "loss", "minimum", "attained"], index=index)
    frame.insert(3, "gap", frame["loss"] - frame["minimum"])
    return frame


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
    """
    return float((optima["weight"] * optima["gap"]).sum())


def fedalign_bound(
    T: ArrayLike,
    *,
    L: float,
    mu: float,
    sigma: float,
    G: float,
    E: int,
    distance: float,
    Gamma: float,
    theta: ArrayLike = 1.0,
    rho: ArrayLike = 0.0,
    n_draws: int | None = None,
) -> pd.DataFrame:
    """Return the right-hand side of FedALIGN's Theorem 1, or A.9 in partial participation.

    Parameters
    ----------
    T : array-like of int
        Local iterations.
    L, mu : float
        Smoothness and strong convexity.
    sigma, G : float
        Bounds on the standard deviation and the norm of stochastic gradients.
    E : int
        Local iterations a round.
    distance : float
        ||w_0 - w*||.
    Gamma : float
        Heterogeneity, as :func:`heterogeneity` returns it.
    theta, rho : array-like, default=1.0, 0.0
        As :func:`alignment` returns them.
    n_draws : int, default=None
        K of equation 56, the priority clients drawn a round; None is full participation.

    Returns
    -------
    DataFrame
        ``T``, ``vanishing``, ``bias`` and their sum ``bound`` on E[F(w_T)] - F*.
    """
    T = np.atleast_1d(np.asarray(T, float))
    gamma = max(8 * L / mu, E)
    variance = sigma**2 + 8 * (E - 1) ** 2 * G**2
    if n_draws is not None:
        variance += 8 * E**2 * G**2 / n_draws
    C1 = 2 * L / mu**2 * variance + 4 * L**2 / mu * distance**2
    C2 = 12 * L**2 / mu**2
    return _bound(T, (C1 + C2 * np.asarray(theta) * Gamma) / (T + gamma), np.asarray(rho))


def power_of_choice_bound(
    T: ArrayLike,
    *,
    L: float,
    mu: float,
    sigma: float,
    G: float,
    tau: int,
    m: int,
    distance: float,
    Gamma: float,
    rho_bar: float = 1.0,
    rho_tilde: float = 1.0,
) -> pd.DataFrame:
    """Return the right-hand side of power-of-choice's Theorem 3.1 (decaying learning rate).

    Parameters
    ----------
    T : array-like of int
        Local iterations.
    L, mu, sigma, G, distance, Gamma
        As in :func:`fedalign_bound`.
    tau, m : int
        Local iterations and clients a round.
    rho_bar, rho_tilde : float, default=1.0
        Selection skews, as :func:`skew_range` estimates them; 1 for unbiased selection.

    Returns
    -------
    DataFrame
        ``T``, ``vanishing``, ``bias`` and their sum ``bound`` on E[F(w_T)] - F*.
    """
    T = np.atleast_1d(np.asarray(T, float))
    gamma = 4 * L / mu
    vanishing = (
        4 * L * (32 * tau**2 * G**2 + sigma**2 / m) / (3 * mu**2 * rho_bar)
        + 8 * L**2 * Gamma / mu**2
        + L * gamma * distance**2 / 2
    ) / (T + gamma)
    return _bound(T, vanishing, 8 * L * Gamma / (3 * mu) * (rho_tilde / rho_bar - 1))


def power_of_choice_bound_fixed(
    T: ArrayLike,
    *,
    lr: float,
    L: float,
    mu: float,
    sigma: float,
    G: float,
    tau: int,
    m: int,
    initial_error: float,
    Gamma: float,
    rho_bar: float = 1.0,
    rho_tilde: float = 1.0,
) -> pd.DataFrame:
    """Return the right-hand side of power-of-choice's Theorem A.1 (fixed learning rate).

    Parameters
    ----------
    T : array-like of int
        Local iterations.
    lr : float
        eta, at most min(1 / (2 mu B), 1 / (4 L)) with B = 1 + 3 rho_bar / 8.
    L, mu, sigma, G, tau, m, Gamma, rho_bar, rho_tilde
        As in :func:`power_of_choice_bound`.
    initial_error : float
        F(w_0) - F*.

    Returns
    -------
    DataFrame
        ``T``, ``vanishing``, ``bias`` and their sum ``bound`` on F(w_T) - F*.

    Raises
    ------
    ValueError
        If the learning rate is above what the theorem allows.
    """
    T = np.atleast_1d(np.asarray(T, float))
    B = 1 + 3 * rho_bar / 8
    largest = min(1 / (2 * mu * B), 1 / (4 * L))
    if not 0 < lr <= largest:
        raise ValueError(f"lr={lr} must be in (0, {largest}], else the theorem says nothing.")
    noise = lr * (32 * tau**2 * G**2 + sigma**2 / m + 6 * rho_bar * L * Gamma)
    skew = 2 * Gamma * (rho_tilde - rho_bar)
    floor = 4 * (noise + skew) / (8 + 3 * rho_bar)
    vanishing = L / mu * (1 - lr * mu * B) ** T * (initial_error - floor)
    return _bound(T, vanishing, L / mu * floor)


def selection_skew(
    selector: BaseSelector,
    losses: ArrayLike,
    gaps: ArrayLike,
    *,
    sizes: ArrayLike | None = None,
    n_draws: int = 1000,
    random_state: Any = None,
) -> tuple[float, float]:
    """Estimate rho(S(pi, w), w'), the skew of a selection (power-of-choice, Definition 3.2).

    The selector is asked ``n_draws`` times. Updates count by the cohort's weights, 1/m for
    power-of-choice and as in equation 76 otherwise.

    Parameters
    ----------
    selector : BaseSelector
        pi.
    losses : array-like of shape (n_clients,)
        F_k(w), what the clients say when they are polled and have reported.
    gaps : array-like of shape (n_clients,)
        F_k(w') - F_k*.
    sizes : array-like of int of shape (n_clients,), default=None
        D_k; None is one sample each.
    n_draws : int, default=1000
        Cohorts drawn.
    random_state : int, RandomState instance or None, default=None
        Seed of the draws.

    Returns
    -------
    rho : float
        The estimate; 1 for unbiased selection.
    standard_error : float
        Of the estimate.
    """
    weights = _draw_weights(selector, losses, sizes, n_draws, random_state)
    gaps = np.asarray(gaps, float)
    samples = weights @ gaps / (_shares(sizes, len(gaps)) @ gaps)
    return float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(n_draws))


def skew_range(
    selector: BaseSelector,
    losses: ArrayLike,
    minima: ArrayLike,
    optimum_losses: ArrayLike,
    *,
    sizes: ArrayLike | None = None,
    n_draws: int = 1000,
    random_state: Any = None,
) -> pd.DataFrame:
    """Estimate rho-bar and rho-tilde over a grid of points (power-of-choice, equation 6).

    Parameters
    ----------
    selector : BaseSelector
        pi.
    losses : array-like of shape (n_points, n_clients)
        F_k at each point w of the grid.
    minima : array-like of shape (n_clients,)
        F_k*.
    optimum_losses : array-like of shape (n_clients,)
        F_k(w*).
    sizes, n_draws, random_state
        As in :func:`selection_skew`.

    Returns
    -------
    DataFrame of shape (n_points, 2)
        For each w that governs the selection, ``lowest``: the least rho(S(pi, w), w') over the
        grid of w', and ``at_optimum``: rho(S(pi, w), w*). Rho-bar is the least of both columns,
        rho-tilde the largest of ``at_optimum``; ``attrs`` has them as "rho_bar", "rho_tilde".
    """
    losses = np.atleast_2d(np.asarray(losses, float))
    shares = _shares(sizes, losses.shape[1])
    gaps = losses - np.asarray(minima, float)
    optimum_gaps = np.asarray(optimum_losses, float) - np.asarray(minima, float)
    rng = check_random_state(random_state)
    rows = []
    for at_w in losses:
        mean = _draw_weights(selector, at_w, sizes, n_draws, rng).mean(axis=0)
        elsewhere = (gaps @ mean) / (gaps @ shares)
        rows.append((elsewhere.min(), mean @ optimum_gaps / (shares @ optimum_gaps)))
    frame = pd.DataFrame(rows, columns=["lowest", "at_optimum"])
    frame.attrs = {"rho_bar": frame.to_numpy().min(), "rho_tilde": frame["at_optimum"].max()}
    return frame


def _draw_weights(selector, losses, sizes, n_draws, random_state) -> np.ndarray:
    """Return each draw's weight of each client, of shape (n_draws, n_clients)."""
    rng = check_random_state(random_state)
    losses = np.asarray(losses, float)
    weights = np.zeros((n_draws, len(losses)))
    for draw, seed in zip(weights, rng.randint(2**31, size=n_draws), strict=True):
        view = imagine_round(
            losses,
            sizes=None if sizes is None else np.asarray(sizes),
            reported=losses,
            rng=np.random.default_rng(seed),
        )
        cohort = selector.select(view)
        np.add.at(draw, cohort.clients, cohort.weights)
    return weights


def _shares(sizes: ArrayLike | None, n_clients: int) -> np.ndarray:
    given = np.ones(n_clients) if sizes is None else np.asarray(sizes, float)
    return given / given.sum()


def _bound(T: np.ndarray, vanishing: ArrayLike, bias: ArrayLike) -> pd.DataFrame:
    total = np.asarray(vanishing) + np.asarray(bias)
    columns = {"T": T, "vanishing": vanishing, "bias": bias, "bound": total}
    return pd.DataFrame({name: np.broadcast_to(c, T.shape) for name, c in columns.items()})


class _Objective:
    """Weighted sums of clients' regularised losses, in float64, and their minima."""

    def __init__(self, net: NeuralNetClassifier, X, y, l2: float | None, tol: float):
        self.net = Workbench(net, X[:1]).net
        for name in self.net._modules + self.net._criteria:
            if isinstance(part := getattr(self.net, f"{name}_"), torch.nn.Module):
                part.double().eval()
        self.X, self.y = to_tensors(self.net, X, y)
        if self.X.is_floating_point():
            self.X = self.X.double()
        self.l2 = net.optimizer_.param_groups[0].get("weight_decay", 0.0) if l2 is None else l2
        self.tol = tol
        self.parameters = [parameter for _, parameter in self.net.get_all_learnable_params()]
        self.start = self._copy()

    def value(self, at: list[torch.Tensor], rows: np.ndarray) -> float:
        """Return the loss over some rows at given parameters."""
        self._set(at)
        with torch.no_grad():
            return float(self._loss([(1.0, torch.from_numpy(rows))]))

    def minimise(
        self, groups: list[tuple[float, np.ndarray]]
    ) -> tuple[list[torch.Tensor], float, bool]:
        """Minimise a weighted sum of losses; return where, its value, and if it is attained.

        Without a minimiser the weights grow, like the logarithm, as the tolerance falls.
        """
        parts = [(weight, torch.from_numpy(rows)) for weight, rows in groups]
        lengths = []
        for tol in (1e3 * self.tol, self.tol):
            self._set(self.start)
            slope = self._descend(parts, tol)
            lengths.append(self._length())
        grows = lengths[1] > 1.05 * lengths[0] + 1e-6
        with torch.no_grad():
            value = float(self._loss(parts))
        return self._copy(), value, slope <= self.tol and (self.l2 > 0 or not grows)

    def _descend(self, parts: list[tuple[float, torch.Tensor]], tol: float) -> float:
        """Run L-BFGS; return the largest entry of the gradient where it ended."""
        solver = torch.optim.LBFGS(
            self.parameters,
            max_iter=10_000,
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
        penalty = self.l2 / 2 * sum(p.square().sum() for p in self.parameters)
        total = torch.zeros((), dtype=torch.double)
        for weight, rows in parts:
            X, y = self.X[rows], self.y[rows]
            loss = self.net.get_loss(self.net.infer(X), y, X=X, training=False)
            total = total + weight * (loss + penalty)
        return total

    def _copy(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.parameters]

    def _set(self, values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)

    def _length(self) -> float:
        return float(torch.cat([p.detach().flatten() for p in self.parameters]).norm())
