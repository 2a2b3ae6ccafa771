import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.diagnostics import (
    alignment,
    fedalign_bound,
    heterogeneity,
    inclusion_trace,
    optima,
    power_of_choice_bound,
    power_of_choice_bound_fixed,
    selection_frequency,
    selection_skew,
    skew_range,
)
from skfed.schedules import InverseTimeDecay

ALL = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)


def fit(blobs, **params):
    X, y, clients = blobs
    return FederatedClassifier(random_state=0, **params).fit(X, y, clients=clients)


def test_the_inclusion_trace_and_the_frequencies(blobs):
    model = fit(
        blobs, selector=RandomSelector(4, ignore_priority=True), priority=["a", "f"], n_rounds=25
    )
    trace = inclusion_trace(model)
    assert trace.shape == (25, 6)
    for t, cohort in enumerate(model.history_["cohort"]):
        assert set(trace.columns[trace.loc[t]]) == set(cohort)
    table = selection_frequency(model)
    assert table["n_selected"].sum() == 100
    assert table["selected_share"].sum() == pytest.approx(1)
    assert table["n_polled"].sum() == 0
    assert table["data_share"].to_dict() == pytest.approx(
        {"a": 1 / 14, "b": 2 / 14, "c": 1.5 / 14, "d": 3 / 14, "e": 2.5 / 14, "f": 4 / 14}
    )
    assert table["priority"].tolist() == [True, False, False, False, False, True]


MIXED = [1, 1.0, True, "1", (1,), (1.0,)]


def test_clients_are_told_apart_by_type_and_value(blobs):
    """1, 1.0 and True are three clients, as they are in the federation."""
    X, y, _ = blobs
    rows = np.arange(len(y)) % 6
    clients = [MIXED[row] for row in rows]
    everyone = fit((X, y, clients), selector=FedAlignSelector(), priority=[True], n_rounds=4)
    model = fit((X, y, clients), selector=RandomSelector(1), n_rounds=12)
    names = [*map(repr, model.clients_)]
    assert sorted(names) == sorted(map(repr, MIXED))

    trace = inclusion_trace(model)
    assert [*map(repr, trace.columns)] == names
    expected = [[repr(cohort[0]) == name for name in names] for cohort in model.history_["cohort"]]
    assert trace.to_numpy().tolist() == expected

    table = selection_frequency(model)
    assert [*map(repr, table.index)] == names
    assert table["n_selected"].tolist() == np.sum(expected, axis=0).tolist()
    assert table["selected_share"].sum() == pytest.approx(1)
    assert selection_frequency(everyone)["n_polled"].tolist() == [4] * 6
    found = optima(model, X, y, clients, l2=0.1, tol=1e-4)
    assert [*map(repr, found.index)] == names


def test_clients_of_earlier_calls_are_not_counted(blobs):
    X, y, clients = blobs
    model = fit(blobs, selector=ALL, n_rounds=1)
    model.partial_fit(X[:30], y[:30], clients=clients[:30])
    assert inclusion_trace(model).to_numpy().tolist() == [[True] * 2] * 2
    assert selection_frequency(model)["n_selected"].tolist() == [2, 2]


@pytest.mark.parametrize("E", [1, 5])
def test_theta_without_included_clients_follows_the_formula(blobs, E):
    model = fit(
        blobs, selector=FedAlignSelector(warmup=1.0), priority=["a"], n_rounds=8, local_steps=E
    )
    table = alignment(model, L=2.0, mu=0.5)
    T, gamma = E * np.arange(1, 9), 32
    assert table["T"].tolist() == T.tolist()
    np.testing.assert_allclose(table["theta"], (T - 1) / (T + gamma - 2))
    assert table["rho"].isna().all()


def test_theta_and_rho_by_hand(blobs):
    """2 rounds of 3 iterations, a and b of 30 rows have priority, all others join in round 1:
    sum of p_k = 110 / 30. i = 1, 2 in round 0 and i = 3, 4, 5 in round 1; gamma = 8."""
    model = fit(
        blobs,
        selector=FedAlignSelector(eps=np.inf, warmup=1),
        priority=["a", "b"],
        n_rounds=2,
        local_steps=3,
    )
    gaps = np.array([0.0, 0.0, 0.1, 0.2, 0.3, 0.4])
    table = alignment(model, L=1.0, mu=1.0, gaps=gaps)
    joined = 110 / 30
    assert table["theta"].iloc[1] == pytest.approx((2 + 3 / (1 + joined)) / (6 + 8 - 2))
    bias = (15 * 0.1 + 30 * 0.2 + 25 * 0.3 + 40 * 0.4) / 30 / (1 + joined)
    assert table["rho"].tolist() == pytest.approx([0.0, 2 * 3 * bias / 12])


# Optima


def test_optima_of_softmax_regression_equal_another_solvers(blobs):
    X, y, clients = blobs
    net = NeuralNetClassifier(nn.Linear, module__in_features=5, module__out_features=3,
                              module__bias=False, criterion=nn.CrossEntropyLoss,
                              optimizer__weight_decay=0.1)  # fmt: skip
    model = fit(blobs, estimator=net, priority=["a", "b"], n_rounds=1)
    table = optima(model, X, y, clients)
    assert table["attained"].all()

    def other(rows):
        solver = LogisticRegression(C=1 / (0.1 * rows.sum()), fit_intercept=False, tol=1e-10)
        w = solver.fit(X[rows].astype(float), y[rows]).coef_
        return w, lambda of: loss(w, of)

    def loss(w, rows):
        z = X[rows].astype(float) @ w.T
        logsum = np.log(np.exp(z).sum(axis=1))
        return (logsum - z[np.arange(len(z)), y[rows]]).mean() + 0.05 * (w**2).sum()

    _, at_optimum = other(np.isin(clients, ["a", "b"]))
    for client in "abcdef":
        own = clients == client
        _, at_own = other(own)
        assert table.loc[client, "minimum"] == pytest.approx(at_own(own), rel=1e-6)
        assert table.loc[client, "loss"] == pytest.approx(at_optimum(own), rel=1e-5)
    expected = (10 * table.loc["a", "gap"] + 20 * table.loc["b", "gap"]) / 30
    assert heterogeneity(table) == pytest.approx(expected)
    assert (table["gap"] >= -1e-9).all()


def test_without_a_minimiser_the_minimum_is_not_attained(blobs):
    X, y, clients = blobs
    y = y.copy()
    y[clients == "a"] = np.arange(10) % 2  # no class 2: its bias decreases without bound
    y[clients == "f"] = np.arange(40) % 3  # not separable
    model = fit((X, y, clients), n_rounds=1)
    table = optima(model, X, y, clients, l2=0.0)
    assert not table.loc["a", "attained"]
    assert table.loc["f", "attained"]
    assert table["minimum"].drop(["a", "f"]).between(0, 1e-6).all()  # separable: towards 0
    assert 0 <= table.loc["a", "minimum"] < table.loc["a", "loss"]
    separable = (y == 0).astype(int)
    X_separable = np.where(separable[:, None] == 1, np.abs(X) + 1, -np.abs(X) - 1)
    model = fit((X_separable, separable, clients), n_rounds=1)
    with pytest.raises(ValueError, match="no minimiser.*Pass l2 > 0"):
        optima(model, X_separable, separable, clients)


# Skews


def test_the_skew_of_unbiased_selection_is_1_within_its_error():
    rng = np.random.default_rng(0)
    sizes, losses, gaps = rng.integers(5, 50, 20), rng.random(20) * 3, rng.random(20)
    for selector in (
        RandomSelector(3),
        RandomSelector(3, "uniform", replace=False, weighting="unbiased"),
    ):
        skew = selection_skew(selector, losses, gaps, sizes=sizes, n_draws=4000, random_state=0)
        rho, error = skew.iloc[0]
        assert 0 < error < 0.05
        assert abs(rho - 1) < 4 * error


def test_a_larger_d_gives_a_larger_skew():
    losses = np.random.default_rng(0).random(20) * 3
    skews = [
        selection_skew(
            PowerOfChoice(d=d, clients_per_round=2), losses, losses, n_draws=1000, random_state=0
        )["rho"].item()
        for d in (2, 4, 8, 20)
    ]
    assert skews == sorted(skews)
    assert skews[0] == pytest.approx(1, abs=0.05)
    assert skews[-1] == pytest.approx(np.sort(losses)[-2:].mean() / losses.mean())


def test_the_range_of_the_skew():
    rng = np.random.default_rng(0)
    losses, minima = 1 + rng.random((6, 10)), np.ones(10) * 0.5
    table = skew_range(PowerOfChoice(d=6, clients_per_round=2), losses, minima, losses[0],
                       n_draws=500, random_state=0)  # fmt: skip
    assert table.attrs["rho_bar"] == table.min(axis=None) <= table.attrs["rho_tilde"]
    unbiased = skew_range(
        RandomSelector(2), losses, minima, losses[0], n_draws=1500, random_state=0
    )
    np.testing.assert_allclose(unbiased, 1, atol=0.05)


# Bounds


class Quadratic(nn.Module):
    """F_k(w) = h_k/2 ||w - e_k||^2, h_k and e_k being the one row of client k."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), 4.0, dtype=torch.double))

    def forward(self, X):
        loss = X[:, 0] / 2 * (self.w - X[:, 1:]).square().sum(dim=1)
        return torch.stack([loss, loss], dim=1)


class ReadLoss(nn.Module):
    def forward(self, output, target):
        return output[:, 0].mean()


@pytest.fixture(scope="module")
def quadratic():
    rng = np.random.default_rng(1)
    h, e = rng.uniform(1, 4, 12), rng.normal(size=(12, 3))
    optimum = (h[:, None] * e).mean(axis=0) / h.mean()
    F = lambda w: (h / 2 * ((w - e) ** 2).sum(axis=1)).mean()  # noqa: E731
    # For learning rates below 1 / L, all iterates are in the hull of the start and the e_k.
    points = np.vstack([e, np.full(3, 4.0)])
    reach = max(np.linalg.norm(a - b) for a in points for b in e)
    return h, e, optimum, F, {"L": h.max(), "mu": h.min(), "sigma": 0.0, "G": h.max() * reach}


def errors(quadratic, selector, lr_schedule, tau, n_rounds=25):
    h, e, optimum, F, _ = quadratic
    X, y = np.column_stack([h, e]), np.arange(12) % 2
    net = NeuralNetClassifier(Quadratic, criterion=ReadLoss, batch_size=-1)
    model = FederatedClassifier(
        net, selector=selector, local_steps=tau, lr_schedule=lr_schedule, random_state=0
    )
    found = []
    for _ in range(n_rounds):
        model.partial_fit(X, y, clients=np.arange(12))
        found.append(F(model.net_.module_.w.detach().numpy()) - F(optimum))
    return np.array(found)


@pytest.mark.parametrize("d", [2, 6, 12])
def test_power_of_choice_stays_under_theorem_3_1(quadratic, d):
    h, e, optimum, F, constants = quadratic
    tau, m = 3, 2
    schedule = InverseTimeDecay(1, constants["mu"], 4 * constants["L"] / constants["mu"])
    selector = PowerOfChoice(d=d, clients_per_round=m)
    found = errors(quadratic, selector, schedule, tau)
    grid = np.random.default_rng(0).normal(size=(10, 3)) * 2
    losses = np.array([h / 2 * ((w - e) ** 2).sum(axis=1) for w in grid])
    at_optimum = h / 2 * ((optimum - e) ** 2).sum(axis=1)
    skews = skew_range(selector, losses, np.zeros(12), at_optimum, n_draws=200, random_state=0)
    bound = power_of_choice_bound(
        tau * np.arange(1, 26),
        tau=tau,
        m=m,
        distance=np.linalg.norm(4 - optimum),
        Gamma=F(optimum),
        **constants,
        **skews.attrs,
    )
    assert (found <= bound["bound"]).all()
    assert (bound["vanishing"].diff().dropna() < 0).all()
    assert bound["bias"].iloc[0] >= 0


def test_power_of_choice_stays_under_theorem_A_1(quadratic):
    _, _, optimum, F, constants = quadratic
    lr = 1 / (4 * constants["L"])
    found = errors(quadratic, RandomSelector(2), lr, tau=2)
    bound = power_of_choice_bound_fixed(
        2 * np.arange(1, 26), lr=lr, tau=2, m=2, initial_error=F(4.0) - F(optimum),
        Gamma=F(optimum), **constants,
    )  # fmt: skip
    assert (found <= bound["bound"]).all()
    with pytest.raises(ValueError, match=r"lr=1 must be in \(0, 0.0"):
        power_of_choice_bound_fixed(1, lr=1, tau=2, m=2, initial_error=1, Gamma=1, **constants)


def test_fedalign_stays_under_theorem_1(quadratic):
    _, _, optimum, F, constants = quadratic
    E = 3
    gamma = max(8 * constants["L"] / constants["mu"], E)
    found = errors(quadratic, ALL, InverseTimeDecay(2, constants["mu"], gamma), E)
    T = E * np.arange(1, 26)
    common = {"E": E, "distance": np.linalg.norm(4 - optimum), "Gamma": F(optimum), **constants}
    bound = fedalign_bound(T, theta=(T - 1) / (T + gamma - 2), **common)
    assert (found <= bound["bound"]).all()
    assert found[-1] < 0.1 * found[0]
    partial = fedalign_bound(T, n_draws=2, **common)
    assert (partial["bound"] > fedalign_bound(T, **common)["bound"]).all()


def one_bound(frame):
    return frame[["vanishing", "bias", "bound"]].iloc[0].tolist()


def test_theorem_1_and_A_9_by_hand():
    """C1 = 2 (1 + 8 * 4 * 9) + 4 * 25 = 678 and, with 8 * 9 * 9 / 2 more, 1326; C2 = 12."""
    common = {"L": 1, "mu": 1, "sigma": 1, "G": 3, "E": 3, "distance": 5, "Gamma": 2}
    full = fedalign_bound(12, theta=0.5, rho=0.1, **common)
    assert one_bound(full) == pytest.approx([(678 + 12) / 20, 0.1, 34.6])
    partial = fedalign_bound(12, theta=0.5, rho=0.1, n_draws=2, **common)
    assert one_bound(partial) == pytest.approx([(1326 + 12) / 20, 0.1, 67.0])


def test_gamma_is_a_maximum_in_theorem_1_only():
    """E = 10 > 8 L / mu: C1 = 2 * 8 * 81 + 100 over 10 + 10, and 200 more over 10 + 8."""
    common = {"L": 1, "mu": 1, "sigma": 0, "G": 1, "E": 10, "distance": 5, "Gamma": 0}
    assert one_bound(fedalign_bound(10, **common))[0] == pytest.approx(1396 / 20)
    assert one_bound(fedalign_bound(10, n_draws=8, **common))[0] == pytest.approx(1596 / 18)


POWER = {"L": 2, "mu": 1, "sigma": 2, "G": 3, "tau": 2, "m": 4, "Gamma": 1.5}
SKEWS = {"rho_bar": 1.5, "rho_tilde": 3}


def test_theorem_3_1_by_hand():
    """gamma = 8: 8 (32 * 4 * 9 + 1) / 4.5 + 8 * 4 * 1.5 + 2 * 8 * 25 / 2, over 20; 16 * 1.5 / 3."""
    expected = (8 * 1153 / 4.5 + 48 + 200) / 20
    bound = power_of_choice_bound(12, distance=5, **POWER, **SKEWS)
    assert one_bound(bound) == pytest.approx([expected, 8, expected + 8])


def test_theorem_A_1_by_hand():
    """B = 1.5625; noise 0.1 (1152 + 1 + 27) = 118, skew 4.5, floor 4 * 122.5 / 12.5 = 39.2."""
    bound = power_of_choice_bound_fixed(2, lr=0.1, initial_error=100, **POWER, **SKEWS)
    vanishing = 2 * (1 - 0.15625) ** 2 * (100 - 39.2)
    assert one_bound(bound) == pytest.approx([vanishing, 78.4, vanishing + 78.4])


def test_a_regularised_optimum_that_is_not_reached_warns(blobs):
    X, y, clients = blobs
    model = fit(blobs, n_rounds=1)
    with pytest.warns(ConvergenceWarning, match="not to tol=1e-30: scale X"):
        table = optima(model, X, y, clients, l2=0.1, tol=1e-30)
    assert table["attained"].all()


def test_no_skew_without_heterogeneity():
    with pytest.raises(ValueError, match="all gaps are 0"):
        selection_skew(RandomSelector(1), np.ones(3), np.zeros(3))


def test_one_draw_has_no_standard_error():
    with pytest.raises(ValueError, match=r"'n_draws'.*\[2, inf\). Got 1"):
        selection_skew(RandomSelector(), [1.0, 2.0], [0.1, 0.2], n_draws=1)
