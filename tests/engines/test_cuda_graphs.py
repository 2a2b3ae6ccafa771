"""Steps as CUDA graphs, with a graph that needs no GPU; tests/test_gpu.py has real ones."""

import logging

import pytest
import torch
from families import OPTIMIZERS, build
from parity import assert_same, both, net

from skfed import RandomSelector
from skfed.engines import _cuda_graphs
from skfed.engines._cuda_graphs import GraphedMethod, StepGraphs
from skfed.engines._stacked_steps import ChunkTraining
from skfed.engines._targets import Target
from skfed.schedules import LinearDecay


class GraphOnCPU(_cuda_graphs._Graph):
    """Computes when it is launched, with what it was recorded with, as a CUDA graph does."""

    made = 0

    def _record(self, other):
        GraphOnCPU.made += 1

    def _replay(self):
        return self.call(self.target)


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    monkeypatch.setattr(_cuda_graphs, "_Graph", GraphOnCPU)
    monkeypatch.setattr(GraphOnCPU, "made", 0)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("family", ["mlp", "gated", "batch normalisation"])
def test_steps_are_those_of_the_loop(ragged, monkeypatch, family, optimizer):
    monkeypatch.setattr(ChunkTraining, "_graphs", lambda self, memory: memory.graphs)
    estimator = net(build(family, 21, 6), **OPTIMIZERS[optimizer])
    loop, stacked = both(
        ragged, estimator, selector=RandomSelector(5), local_epochs=3, n_rounds=4,
        lr_schedule=LinearDecay(0.1, 0.01),
    )  # fmt: skip
    assert_same(loop, stacked, atol=1e-7)
    assert GraphOnCPU.made


def add(X, target, *others):
    """Add to X in place, as a step changes weights in place."""
    X += target.y if isinstance(target, Target) else target
    for other in others:
        X += other
    return X.sum()


def test_a_call_is_recorded_the_third_time():
    graphs, X = StepGraphs(), torch.zeros(2)
    for i in range(5):
        result = graphs.run(add, [], X, torch.ones(2) * i)
        assert GraphOnCPU.made == int(i >= 2)
    assert result == X.sum() == 2 * (0 + 1 + 2 + 3 + 4)


class Descends:
    """A bound method whose step adds the rate times the target to X."""

    def descend(self, X, target, rate):
        X += rate * target
        return X.sum()


def test_a_graph_reads_the_rate_of_each_step():
    X, rate = torch.zeros(2), torch.empty(())
    bound = GraphedMethod(Descends(), [], rate, StepGraphs())
    losses = [bound.descend(X, torch.ones(2), rate) for rate in (1.0, 2.0, 3.0, 4.0, 4.0, 5.0)]
    assert GraphOnCPU.made == 1
    assert X.tolist() == [19, 19]
    assert [float(loss) for loss in losses] == [2, 6, 12, 20, 28, 38]


@pytest.mark.parametrize(
    "other",
    [
        {"X": torch.zeros(2)},
        {"used": [torch.zeros(2)]},
        {"target": torch.ones(1)},
        {"target": Target(torch.ones(2), None, None)},
        {"target": Target(torch.ones(2), torch.ones(2), None)},
        {"others": [torch.ones(())]},
    ],
    ids=str,
)
def test_another_address_or_form_is_another_graph(other):
    graphs = StepGraphs()
    call = {"used": [torch.zeros(3)], "X": torch.zeros(2), "target": torch.ones(2), "others": []}

    def run(used, X, target, others):
        graphs.run(add, used, X, target, *others)

    for n_made, arguments in enumerate((call, {**call, **other}), 1):
        for _ in range(3):
            run(**arguments)
        assert GraphOnCPU.made == n_made
    run(**call)  # whose graph is still there
    assert GraphOnCPU.made == 2


def test_large_steps_are_not_recorded(monkeypatch):
    monkeypatch.setattr(_cuda_graphs, "_LARGEST_STEP", 100)
    graphs = StepGraphs()
    for size in (26, 25):  # 104 and 100 bytes
        X = torch.zeros(size)
        for _ in range(5):
            graphs.run(add, [], X, torch.ones(()))
        assert GraphOnCPU.made == int(size == 25)


def test_the_graphs_of_the_last_calls_are_kept(monkeypatch):
    monkeypatch.setattr(_cuda_graphs, "_MOST_CALLS", 2)
    graphs, many = StepGraphs(), [torch.zeros(2) for _ in range(3)]
    for X in many:
        for _ in range(3):
            graphs.run(add, [], X, torch.ones(2))
    assert GraphOnCPU.made == 3
    for X in many[1:]:
        graphs.run(add, [], X, torch.ones(2))
    assert GraphOnCPU.made == 3
    for _ in range(3):
        graphs.run(add, [], many[0], torch.ones(2))
    assert GraphOnCPU.made == 4
    graphs.clear()
    graphs.run(add, [], many[0], torch.ones(2))
    assert GraphOnCPU.made == 4


def test_what_cannot_be_recorded_is_called(monkeypatch, caplog):
    def fail(self, other):
        GraphOnCPU.made += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(GraphOnCPU, "_record", fail)
    caplog.set_level(logging.INFO, "skfed")
    graphs, X = StepGraphs(), torch.zeros(2)
    for _ in range(6):
        graphs.run(add, [], X, torch.ones(2))
    assert X.tolist() == [6, 6]
    assert GraphOnCPU.made == 1
    (record,) = caplog.records
    assert "without CUDA graphs: operation not permitted" in record.message
