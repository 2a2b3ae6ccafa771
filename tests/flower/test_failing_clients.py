"""Clients that die, lie, are late or come back."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from local_grid import Node, late
from mishaps import at_round, estimator, node_of, reply

from skfed import FedAlignSelector, PowerOfChoice
from skfed.aggregation import Scaffold


def test_a_dead_client_fails_until_it_is_back(federate):
    strategy, grid = federate(estimator(n_rounds=5))

    def die(grid):
        node_of(grid, "c").online = False

    def come_back(grid):
        grid.add(Node(node_of(grid, "c").app, {"client-name": "c"}))

    at_round(1, die)(grid)
    at_round(2, come_back)(grid)  # seen in the next round
    strategy.start(grid)
    history = strategy.model_.history_
    assert history["failed"].tolist() == [(), ("c",), ("c",), (), ()]
    assert history["n_failed"].tolist() == [0, 1, 1, 0, 0]
    assert history["n_aggregated"].tolist() == [6, 5, 5, 6, 6]
    assert "error code 5" in history["causes"][1][0]


def _model(message):
    return message.content["model"]


def _with(arrays, name, array):
    return ArrayRecord({**arrays, name: array})


REPORT = {"loss": 0.5, "n_samples": 20}


GARBAGE = {
    "nothing": lambda m: reply(m),
    "another record": lambda m: reply(m, model=ConfigRecord({"x": 1})),
    "no report": lambda m: reply(m, **{"model-0": _model(m)}),
    "a config as report": lambda m: reply(
        m, **{"model-0": _model(m), "report-0": ConfigRecord({"loss": 1.0, "n_samples": 1})}
    ),
    "words for a loss": lambda m: reply(
        m, **{"model-0": _model(m), "report-0": MetricRecord({"n_samples": 3})}
    ),
    "too few arrays": lambda m: reply(
        m, **{"model-0": ArrayRecord({}), "report-0": MetricRecord(REPORT)}
    ),
    "another shape": lambda m: reply(
        m,
        **{
            "model-0": _with(_model(m), next(iter(_model(m))), Array(np.zeros(7, np.float32))),
            "report-0": MetricRecord(REPORT),
        },
    ),
    "bytes that are no array": lambda m: reply(
        m,
        **{
            "model-0": _with(
                _model(m),
                next(iter(_model(m))),
                Array(dtype="float32", shape=(3, 5), stype="numpy.ndarray", data=b"\x80\x04K\x01."),
            ),
            "report-0": MetricRecord(REPORT),
        },
    ),
    "not finite": lambda m: reply(
        m,
        **{
            "model-0": ArrayRecord(
                {k: Array(np.full_like(a.numpy(), np.nan)) for k, a in _model(m).items()}
            ),
            "report-0": MetricRecord(REPORT),
        },
    ),
    "other rows": lambda m: reply(
        m, **{"model-0": _model(m), "report-0": MetricRecord({"loss": 0.5, "n_samples": -5})}
    ),
    "a failure without words": lambda m: reply(m, failure=ConfigRecord({"kind": 7})),
    "no answer in time": late,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_a_failure_of_its_client(name, federate, blobs):
    strategy, grid = federate(estimator(n_rounds=2))

    def spoil(grid):
        node_of(grid, "b").answer = GARBAGE[name]

    at_round(0, spoil)(grid)
    strategy.start(grid)
    history = strategy.model_.history_
    assert history["failed"].tolist() == [("b",)] * 2
    assert history["n_aggregated"].tolist() == [5, 5]
    sent = 6 if name == "not finite" else 5  # it came, and was charged
    assert history["models_up"].tolist() == [sent, sent]
    assert np.isfinite(strategy.model_.predict_proba(blobs[0])).all()


POLL_GARBAGE = {
    "infinite": lambda m: reply(m, answer=MetricRecord({"loss": float("inf")})),
    "another number": lambda m: reply(m, answer=MetricRecord({"error": 0.1})),
    "a list": lambda m: reply(m, answer=MetricRecord({"loss": [0.1]})),
    "no record": lambda m: reply(m, said=MetricRecord({"loss": 0.1})),
    "silence without a bound": lambda m: reply(m),
    "no answer in time": late,
}


@pytest.mark.parametrize("name", POLL_GARBAGE)
def test_garbage_for_a_loss_is_a_failure_too(name, federate):
    selector = PowerOfChoice(d=6, clients_per_round=2)
    strategy, grid = federate(estimator(selector=selector, n_rounds=2))
    node_of(grid, "d").answer = lambda m: (
        POLL_GARBAGE[name](m)
        if "question" in m.content
        else node_of(grid, "d").app(m, node_of(grid, "d").context)
    )
    strategy.start(grid)
    history = strategy.model_.history_
    assert history["failed"].tolist() == [("d",)] * 2
    assert not any("d" in cohort for cohort in history["cohort"])
    assert history["scalars_up"].tolist() == [5, 5]


def test_a_client_whose_poll_failed_is_not_asked_to_train(federate):
    selector = FedAlignSelector(eps=0.0, warmup=0)
    aligned = estimator(selector=selector, priority=["a", "b", "c"], n_rounds=2)
    strategy, grid = federate(aligned)
    node, orders = node_of(grid, "c"), []

    def evade(message):
        if "question" in message.content:
            return late(message)
        orders.extend(name for name in message.content if name == "order")
        return node.app(message, node.context)

    node.answer = evade
    strategy.start(grid)
    history = strategy.model_.history_
    assert history["cohort"].tolist() == [("a", "b")] * 2
    assert history["failed"].tolist() == [("c",)] * 2
    assert history["n_trained"].tolist() == [2, 2]
    assert not orders


def test_an_exception_of_a_client_tells_its_kind_alone(federate, blobs, caplog):
    X, y, clients = blobs

    def load(context):
        name = context.node_config["client-name"]
        if name == "e" and context.state:  # not at the hello
            raise KeyError("the diagnosis of John Smith")
        return X[clients == name], y[clients == name]

    strategy, grid = federate(
        estimator(selector=PowerOfChoice(d=6, clients_per_round=5), n_rounds=2), load=load
    )
    node_of(grid, "e").context.state["x"] = ConfigRecord({})
    for node in grid.nodes.values():
        node.start()
    app = node_of(grid, "e").app

    def answer(message):
        node = node_of(grid, "e")
        if "asked" not in message.content:
            node.context.state["x"] = ConfigRecord({})
        return app(message, node.context)

    node_of(grid, "e").answer = answer
    strategy.start(grid)
    assert strategy.model_.history_["failed"].tolist() == [("e",)] * 2
    assert "it failed with 'KeyError'" in strategy.model_.history_["causes"][0][0]
    assert not any("Smith" in str(m.content) for m in grid.received)
    assert "Smith" in caplog.text  # in the client's own log


def test_the_first_failure_may_end_the_fit(federate):
    strategy, grid = federate(estimator(on_client_error="raise"))
    node_of(grid, "a").answer = lambda m: (
        late(m) if "order" in m.content else node_of(grid, "a").app(m, node_of(grid, "a").context)
    )
    with pytest.raises(TimeoutError, match="no answer") as error:
        strategy.start(grid)
    assert "client 'a' in round 0" in error.value.__notes__


def test_when_everybody_fails_the_first_cause_is_raised(federate):
    strategy, grid = federate(estimator(n_rounds=2))
    for node in grid.nodes.values():
        node.answer = lambda m, n=node: late(m) if "order" in m.content else n.app(m, n.context)
    with pytest.raises(TimeoutError, match="no answer"):
        strategy.start(grid)


def test_a_client_with_another_net_fails(federate):

    strategy, grid = federate(
        estimator(n_rounds=1), at_client=estimator(estimator=torch.nn.Linear(5, 3))
    )
    with pytest.raises(RuntimeError, match="ValueError"):
        strategy.start(grid)


def test_an_answer_above_the_bound_is_none(federate):
    aligned = estimator(selector=FedAlignSelector(eps=0.1, warmup=0), priority=["a"], n_rounds=1)
    strategy, grid = federate(aligned)
    node = node_of(grid, "c")
    node.answer = lambda m: (
        reply(m, answer=MetricRecord({"loss": 99.0}))
        if "question" in m.content
        else node.app(m, node.context)
    )
    strategy.start(grid)
    row = strategy.model_.history_.iloc[0]
    assert row["failed"] == ("c",)
    assert row["scalars_up"] == 5


def test_a_variate_must_come_with_a_scaffold_update(federate):
    strategy, grid = federate(estimator(aggregator=Scaffold(), n_rounds=1))
    node = node_of(grid, "b")

    def without(message):
        answer = node.app(message, node.context)
        return reply(message, **{k: v for k, v in answer.content.items() if k != "variate-0"})

    node.answer = without
    strategy.start(grid)
    row = strategy.model_.history_.iloc[0]
    assert row["failed"] == ("b",)
    assert row["models_up"] == 10
