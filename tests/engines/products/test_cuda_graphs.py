"""Steps as CUDA graphs, with a graph that needs no GPU; tests/engines/test_gpu.py has real ones."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from families import OPTIMIZERS, build
from parity import assert_same, both, net

from skfed import RandomSelector
from skfed.engines._stacked_steps import ChunkTraining
from skfed.engines.products import _cuda_graphs
from skfed.engines.products._cuda_graphs import GraphedMethod, StepGraphs
from skfed.engines.products._targets import Target
from skfed.schedules import LinearDecay


class GraphOnCPU(_cuda_graphs._Graph):
    """Makes its call when it is launched, with the copy of the target that it was recorded with."""

    made = 0

    def _record(self, shares_with):
        GraphOnCPU.made += 1
        self.result = [torch.zeros(10)]  # 40 bytes

    def _replay(self):
        return self.call(self.target)


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    monkeypatch.setattr(_cuda_graphs, "_Graph", GraphOnCPU)
    monkeypatch.setattr(GraphOnCPU, "made", 0)


@pytest.fixture
def _no_recovery(monkeypatch):
    """Let no error of steps be hidden by training each member alone."""

    def recover(self, run, error):
        raise error

    monkeypatch.setattr(ChunkTraining, "recover", recover)


@pytest.mark.usefixtures("_no_recovery")
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("family", ["mlp", "gated", "convolutions", "recurrent"])
def test_steps_are_those_of_the_loop(ragged, monkeypatch, family, optimizer):
    monkeypatch.setattr(ChunkTraining, "_graphs", lambda self, memory: memory.graphs)
    estimator = net(build(family, 21, 6), **OPTIMIZERS[optimizer])
    # All take as many steps: here a call would have fewer members where some have ended.
    loop, stacked = both(
        ragged, estimator, selector=RandomSelector(5), local_steps=9, n_rounds=4,
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
    X, graphs, losses = torch.zeros(2), StepGraphs(), []
    for rate in (1.0, 2.0, 3.0, 4.0, 4.0, 5.0):
        bound = GraphedMethod(Descends(), [X], graphs)  # anew, as in each round
        losses.append(bound.descend(X, torch.ones(2), rate))
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


@pytest.mark.parametrize(
    "limit", [{"_MOST_GRAPHS": 2}, {"_MOST_BYTES": 100}], ids=["graphs", "bytes"]
)
def test_the_graphs_of_the_last_calls_are_kept(monkeypatch, limit):
    for name, value in limit.items():
        monkeypatch.setattr(_cuda_graphs, name, value)
    graphs, many = StepGraphs(), [torch.zeros(2) for _ in range(3)]

    def run(X, n_calls):
        for _ in range(n_calls):
            graphs.run(add, [], X, torch.ones(2))
        return GraphOnCPU.made

    assert [run(X, 3) for X in many] == [1, 2, 3]
    assert [run(X, 1) for X in many[1:]] == [3, 3]
    assert run(many[0], 3) == 4
    assert run(many[2], 1) == 4  # the first of the others was left out
    assert run(many[1], 3) == 5
    graphs.clear()
    assert run(many[1], 2) == 5


def test_the_counts_of_the_last_calls_are_kept(monkeypatch):
    monkeypatch.setattr(_cuda_graphs, "_MOST_COUNTED", 2)
    graphs, many = StepGraphs(), [torch.zeros(2) for _ in range(3)]
    for _ in range(5):
        for X in many:
            graphs.run(add, [], X, torch.ones(2))
    assert not GraphOnCPU.made


def test_each_thread_calls_before_it_records():
    graphs, X = StepGraphs(), torch.zeros(2)
    for _ in range(2):
        graphs.run(add, [], X, torch.ones(2))
    for n_made in (0, 0, 1):
        with ThreadPoolExecutor(1) as pool:  # a new thread
            for _ in range(3 if n_made else 2):
                pool.submit(graphs.run, add, [], X, torch.ones(2)).result()
        assert GraphOnCPU.made == n_made
    graphs.run(add, [], X, torch.ones(2))
    assert GraphOnCPU.made == 1
    assert X.tolist() == [10, 10]


def branch(X, target):
    """Depend on a value, for which the GPU has to be waited for."""
    return add(X, target if target.sum() > 0 else -target)


def add_constant(X, target):
    """Copy a number to where X is."""
    return add(X, torch.tensor([1.0, 1.0], device=X.device))


def take_positive(X, target):
    """Return as many elements as are positive."""
    add(X, target)
    return target[target > 0]


def read_elsewhere(X, target):
    """Use a tensor of another device."""
    torch.empty(2, device="meta")
    return add(X, target)


@pytest.mark.parametrize("function", [branch, add_constant, take_positive, read_elsewhere])
def test_a_call_that_waits_or_copies_is_not_recorded(caplog, function):
    caplog.set_level(logging.INFO, "skfed")
    graphs, X, other = StepGraphs(), torch.zeros(2), torch.zeros(2)
    for _ in range(6):
        graphs.run(function, [], X, torch.ones(2))
        graphs.run(function, [], other, torch.ones(2))
    assert X.tolist() == [6, 6]
    assert not GraphOnCPU.made
    (record,) = caplog.records
    assert "some steps are taken without CUDA graphs, because of aten." in record.message
    for _ in range(3):
        graphs.run(add, [], X, torch.ones(2))
    assert GraphOnCPU.made == 1


def test_after_a_recording_that_fails_there_is_no_other(monkeypatch, caplog):
    def fail(self, shares_with):
        GraphOnCPU.made += 1
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        finally:
            raise RuntimeError("at the end")

    monkeypatch.setattr(GraphOnCPU, "_record", fail)
    graphs, X, other = StepGraphs(), torch.zeros(2), torch.zeros(2)
    for _ in range(6):
        graphs.run(add, [], X, torch.ones(2))
        graphs.run(add, [], other, torch.ones(2))
    assert X.tolist() == [6, 6]
    assert GraphOnCPU.made == 1
    (record,) = caplog.records
    assert "from now on: operation not permitted" in record.message
