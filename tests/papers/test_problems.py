"""The papers' problems have the properties that the papers state."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.papers.fedalign._images import softmax_regression
from benchmarks.papers.local_models import LOCAL, WithLocalModels, held_labels
from benchmarks.papers.power_of_choice._quadratic import FEW
from benchmarks.papers.power_of_choice.fig3 import EXPERIMENT as SKEWS
from benchmarks.papers.power_of_choice.fig4 import softmax_regression as without_bias
from benchmarks.runs.problems import (
    Problem,
    dirichlet,
    noisy_synthetic,
    quadratic_data,
    redrawn_dirichlet,
    shards,
    synthetic,
)
from benchmarks.runs.settings import evaluate, to_tensors


def test_fedalign_on_fashion_mnist(data_home):
    problem = shards(3, name="fashion-mnist", n_priority=2)
    assert len(problem.priority) == 2
    assert np.bincount(problem.clients).tolist() == [1000] * 60
    assert max(len(set(problem.y[problem.clients == k])) for k in range(60)) <= 2
    labels = set(problem.y[problem.in_objective])
    assert set(problem.y_test) == labels
    assert len(problem.y_test) == 1000 * len(labels)
    other = shards(4, name="fashion-mnist", n_priority=2)
    assert (other.clients != problem.clients).any()


def test_emnists_set_up_on_mnist(data_home):
    problem = shards(0, name="mnist", n_priority=4, n_shards=600, shards_per_client=5)
    assert np.bincount(problem.clients).tolist() == [500] * 60
    few = shards(0, name="mnist", n_priority=2, n_shards=600, rows_per_client=50, tested="all")
    assert np.bincount(few.clients).tolist() == [50] * 60
    assert len(few.y_test) == 10_000


def test_a_thinned_problem_keeps_all_clients():
    clients = np.repeat([0, 1, 2], [5, 1, 20])
    rows = np.arange(26)
    whole = Problem(rows, rows, clients, rows, rows, np.array([1]))
    thinned = whole.thinned(10)
    assert thinned.X.tolist() == thinned.y.tolist() == [0, 5, 6, 16]
    assert thinned.clients.tolist() == [0, 1, 2, 2]
    assert thinned.X_test.tolist() == [0, 10, 20]
    assert thinned.in_objective.tolist() == [False, True, False, False]


def test_power_of_choice_has_one_partition_for_all_seeds(data_home):
    data = {"name": "fashion-mnist", "n_clients": 100, "alpha": 0.3}
    first, second = (dirichlet(seed, **data) for seed in (0, 1))
    assert (first.clients == second.clients).all()
    assert first.priority is None and first.in_objective.all()
    assert len(first.y_test) == 10_000
    assert (redrawn_dirichlet(0, **data).clients == first.clients).all()
    assert (redrawn_dirichlet(1, **data).clients != first.clients).any()


def test_no_copy_of_a_test_row_is_trained_on():
    problem = noisy_synthetic(0, skew=0.5)
    trained = {row.tobytes() for row in problem.X}
    assert not any(row.tobytes() in trained for row in problem.X_test)
    own = np.isin(problem.clients, problem.priority).sum()
    assert len(problem.y_test) / (own + len(problem.y_test)) == pytest.approx(0.2, abs=0.05)


def test_synthetic_starts_at_zero_without_bias():
    net = without_bias().initialize()
    assert [tuple(p.shape) for p in net.module_.parameters()] == [(10, 60)]
    problem = synthetic(0)
    loss, _ = evaluate(net, *to_tensors(problem.X, problem.y, "cpu"))
    assert loss == pytest.approx(np.log(10), rel=1e-5)


def test_synthetic_draws_with_a_very_large_client_can_be_left_out():
    sizes = [np.bincount(synthetic(seed, largest=0.25).clients) for seed in (0, 1)]
    assert all(s.max() <= 0.25 * s.sum() for s in sizes)
    assert sizes[0].sum() != sizes[1].sum()


def test_the_gap_of_a_quadratic_is_its_definition():
    data = quadratic_data(30)
    net = FEW.net().initialize()
    w = torch.arange(5.0, dtype=torch.double)
    net.module_.w.data = w
    measured = FEW.measures(FEW.problem(0), "cpu")(net)["global_gap"]
    h, e = data.X[:, :1], data.X[:, 1:]
    losses = (h / 2 * (w.numpy() - e / h) ** 2).sum(axis=1)
    assert measured == pytest.approx(losses.mean() - data.minimum)
    net.module_.w.data = torch.from_numpy(data.optimum)
    assert FEW.measures(FEW.problem(0), "cpu")(net)["global_gap"] == pytest.approx(0, abs=1e-12)


def test_all_rows_of_a_quadratic_client_are_equal():
    data = quadratic_data(30)
    for k in range(30):
        assert (data.X[data.clients == k] == data.X[data.clients == k][0]).all()


def test_skews_have_one_row_for_each_point():
    setting = replace(SKEWS.panels[0].setting, n_rounds=5)
    run = setting.run("rand", 0)
    assert len(run) == 5
    # Random selection by size is unbiased.
    assert run["at_optimum"].to_numpy() == pytest.approx(1, abs=0.1)


X = np.eye(4, dtype=np.float32)
TINY = Problem(
    X[[0, 1, 2, 3, 0, 3]],
    np.array([0, 1, 2, 3, 0, 3]),
    np.array([0, 0, 1, 1, 2, 2]),
    X,
    np.arange(4),
    priority=np.array([0]),
)


def tiny(seed):
    return TINY


def test_free_clients_are_tested_on_their_own_labels():
    assert held_labels(TINY).tolist() == [
        [True, True, False, False], [False, False, True, True], [True, False, False, True],
    ]  # fmt: skip
    net = softmax_regression(4, 4).initialize()
    with torch.no_grad():  # predicts labels 0 and 2 only
        net.module_.linear.weight[:] = torch.diag(torch.tensor([1.0, 0, 1, 0]))
        net.module_.linear.bias[3] = -1
    setting = WithLocalModels(
        name="", problem=tiny, net=None, training={}, strategies={}, n_rounds=1
    )
    measured = setting.measures(TINY, "cpu")(net)
    # Row 1 is a tie of labels 0, 1 and 2; the first is taken. Free clients: a half each.
    assert measured["local_accuracy"] == 0.5
    assert measured["test_accuracy"] == 0.5


def test_local_models_learn_only_their_own_labels():
    setting = WithLocalModels(
        name="", problem=tiny, net=lambda: softmax_regression(4, 4), training={"local_steps": 50},
        strategies={LOCAL: {}}, n_rounds=14, loss_every=3,
    )  # fmt: skip
    ticks = []
    run = setting.run(LOCAL, 0, tick=lambda: ticks.append(1))
    assert len(ticks) == 14
    assert run["local_accuracy"].notna().tolist() == [True, False, False] + [True] * 11
    assert run["local_accuracy"].iloc[-1] == 1
    assert run["test_accuracy"].iloc[-1] == 0.5
