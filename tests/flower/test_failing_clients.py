"""Clients that stop, reply with something else, are late or come back."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from local_grid import Node, is_kind, late
from mishaps import at_round, estimator, node_of, reply

from skfed import FedAlignSelector, PowerOfChoice
from skfed.aggregation import Scaffold


def test_a_stopped_client_fails_until_it_is_back(federate):
    strategy, grid = federate(estimator(n_rounds=5))

    def stop(grid):
        node_of(grid, "c").online = False

    def come_back(grid):
        grid.add(Node(node_of(grid, "c").app, {"client-name": "c"}))

    at_round(1, stop)(grid)
    at_round(2, come_back)(grid)  # found in the next round
    strategy.start(grid)
    history = strategy.model_.history_
    assert history["failed"].tolist() == [(), ("c",), ("c",), (), ()]
    assert history["n_failed"].tolist() == [0, 1, 1, 0, 0]
    assert history["n_aggregated"].tolist() == [6, 5, 5, 6, 6]
    assert "error code 5" in history["causes"][1][0]


def _state(message):
    return message.content["state"]


def _with(arrays, name, array):
    return ArrayRecord({**arrays, name: array})


REPORT = {"loss": 0.5, "n_samples": 20}


INVALID = {
    "nothing": lambda m: reply(m),
    "another record": lambda m: reply(m, state=ConfigRecord({"x": 1})),
    "no report": lambda m: reply(m, **{"state-0": _state(m)}),
    "a config as report": lambda m: reply(
        m, **{"state-0": _state(m), "report-0": ConfigRecord({"loss": 1.0, "n_samples": 1})}
    ),
    "no loss": lambda m: reply(
        m, **{"state-0": _state(m), "report-0": MetricRecord({"n_samples": 3})}
    ),
    "too few arrays": lambda m: reply(
        m, **{"state-0": ArrayRecord({}), "report-0": MetricRecord(REPORT)}
    ),
    "another shape": lambda m: reply(
        m,
        **{
            "state-0": _with(_state(m), next(iter(_state(m))), Array(np.zeros(7, np.float32))),
            "report-0": MetricRecord(REPORT),
        },
    ),
    "bytes that are no array": lambda m: reply(
        m,
        **{
            "state-0": _with(
                _state(m),
                next(iter(_state(m))),
                Array(dtype="float32", shape=(3, 5), stype="numpy.ndarray", data=b"\x80\x04K\x01."),
            ),
            "report-0": MetricRecord(REPORT),
        },
    ),
    "not finite": lambda m: reply(
        m,
        **{
            "state-0": ArrayRecord(
                {k: Array(np.full_like(a.numpy(), np.nan)) for k, a in _state(m).items()}
            ),
            "report-0": MetricRecord(REPORT),
        },
    ),
    "other rows": lambda m: reply(
        m, **{"state-0": _state(m), "report-0": MetricRecord({"loss": 0.5, "n_samples": -5})}
    ),
    "a failure without a message": lambda m: reply(m, failure=ConfigRecord({"type": 7})),
    "no answer in time": late,
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_reply_is_a_failure_of_its_client(name, federate, blobs):
    strategy, grid = federate(estimator(n_rounds=2))

    def spoil(grid):
        node_of(grid, "b").answer = INVALID[name]

    at_round(0, spoil)(grid)
    strategy.start(grid)
    history = strategy.model_.history_
    assert history["failed"].tolist() == [("b",)] * 2
    assert history["n_aggregated"].tolist() == [5, 5]
    sent = 6 if name == "not finite" else 5  # it was sent, and is charged
    assert history["models_up"].tolist() == [sent, sent]
    assert np.isfinite(strategy.model_.predict_proba(blobs[0])).all()


INVALID_LOSSES = {
    "infinite": lambda m: reply(m, metrics=MetricRecord({"loss": float("inf")})),
    "another number": lambda m: reply(m, metrics=MetricRecord({"error": 0.1})),
    "a list": lambda m: reply(m, metrics=MetricRecord({"loss": [0.1]})),
    "no record": lambda m: reply(m, other=MetricRecord({"loss": 0.1})),
    "silence without a bound": lambda m: reply(m),
    "no answer in time": late,
}


@pytest.mark.parametrize("name", INVALID_LOSSES)
def test_an_invalid_loss_is_a_failure_too(name, federate):
    selector = PowerOfChoice(d=6, clients_per_round=2)
    strategy, grid = federate(estimator(selector=selector, n_rounds=2))
    node_of(grid, "d").answer = lambda m: (
        INVALID_LOSSES[name](m)
        if is_kind(m, "poll")
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
    node, trainings = node_of(grid, "c"), []

    def skip_polls(message):
        if is_kind(message, "poll"):
            return late(message)
        trainings.extend([message] if is_kind(message, "train") else [])
        return node.app(message, node.context)

    node.answer = skip_polls
    strategy.start(grid)
    history = strategy.model_.history_
    assert history["cohort"].tolist() == [("a", "b")] * 2
    assert history["failed"].tolist() == [("c",)] * 2
    assert history["n_trained"].tolist() == [2, 2]
    assert not trainings


def test_only_the_type_of_a_client_s_exception_is_sent(federate, blobs, caplog):
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
        if not is_kind(message, "hello"):
            node.context.state["x"] = ConfigRecord({})
        return app(message, node.context)

    node_of(grid, "e").answer = answer
    strategy.start(grid)
    assert strategy.model_.history_["failed"].tolist() == [("e",)] * 2
    assert "the client failed with 'KeyError'" in strategy.model_.history_["causes"][0][0]
    assert not any("Smith" in str(m.content) for m in grid.received)
    assert "Smith" in caplog.text  # in the client's own log


def test_the_first_failure_may_end_the_fit(federate):
    strategy, grid = federate(estimator(on_client_error="raise"))
    node_of(grid, "a").answer = lambda m: (
        late(m) if is_kind(m, "train") else node_of(grid, "a").app(m, node_of(grid, "a").context)
    )
    with pytest.raises(TimeoutError, match="no answer") as error:
        strategy.start(grid)
    assert "client 'a' in round 0" in error.value.__notes__


def test_when_everybody_fails_the_first_cause_is_raised(federate):
    strategy, grid = federate(estimator(n_rounds=2))
    for node in grid.nodes.values():
        node.answer = lambda m, n=node: late(m) if is_kind(m, "train") else n.app(m, n.context)
    with pytest.raises(TimeoutError, match="no answer"):
        strategy.start(grid)


def test_a_client_with_another_net_fails(federate):

    strategy, grid = federate(
        estimator(n_rounds=1), at_client=estimator(estimator=torch.nn.Linear(5, 3))
    )
    with pytest.raises(RuntimeError, match="ValueError"):
        strategy.start(grid)


def test_a_loss_above_the_bound_is_a_failure(federate):
    aligned = estimator(selector=FedAlignSelector(eps=0.1, warmup=0), priority=["a"], n_rounds=1)
    strategy, grid = federate(aligned)
    node = node_of(grid, "c")
    node.answer = lambda m: (
        reply(m, metrics=MetricRecord({"loss": 99.0}))
        if is_kind(m, "poll")
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
