"""Clients that die, lie, are late or come back; servers that are started again."""

import logging
import re

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from local_grid import Node, contents, late

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.aggregation import Scaffold
from skfed.flower import FederatedStrategy, client_app

EVERYBODY = RandomSelector(1.0, probability="uniform", replace=False)


def estimator(**params):
    params = {"selector": EVERYBODY, "n_rounds": 4, "random_state": 0, **params}
    return FederatedClassifier(**params)


def at_round(t, do):
    """Return a grid's carrier that does something before the messages of a round."""

    def watch(grid):
        carry = grid.send_and_receive

        def send_and_receive(messages, *, timeout=None):
            for order in contents(messages, "order")[:1]:
                if order["round"] == t:
                    do(grid)
            return carry(messages, timeout=timeout)

        grid.send_and_receive = send_and_receive

    return watch


def node_of(grid, name):
    return next(n for n in grid.nodes.values() if n.config["client-name"] == name)


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


def reply(message, **records):
    return Message(RecordDict(records), reply_to=message)


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
    with pytest.raises(TimeoutError, match="no answer within 5 s") as error:
        strategy.start(grid)
    assert "client 'a' in round 0" in error.value.__notes__


def test_when_everybody_fails_the_first_cause_is_raised(federate):
    strategy, grid = federate(estimator(n_rounds=2))
    for node in grid.nodes.values():
        node.answer = lambda m, n=node: late(m) if "order" in m.content else n.app(m, n.context)
    with pytest.raises(TimeoutError, match="no answer"):
        strategy.start(grid)


class PowerCut(Exception):
    pass


@pytest.mark.parametrize("t", [1, 3])
def test_a_server_that_is_started_again_goes_on(t, federate, same_model, tmp_path):
    params = {"selector": PowerOfChoice(d=5, clients_per_round=3), "n_rounds": 5}
    whole, grid = federate(estimator(**params))
    whole.start(grid)
    strategy, grid = federate(estimator(**params, checkpoint=tmp_path))

    def cut(grid):
        raise PowerCut

    at_round(t, cut)(grid)
    with pytest.raises(PowerCut):
        strategy.start(grid)
    again, grid = federate(estimator(**params, checkpoint=tmp_path))
    again.start(grid)
    assert min(order["round"] for order in contents(grid.sent, "order")) == t
    assert again.model_.history_["cohort"].tolist() == whole.model_.history_["cohort"].tolist()
    assert same_model(again.model_, whole.model_)
    once_more, grid = federate(estimator(**params, checkpoint=tmp_path))
    once_more.start(grid)  # all is done
    assert not contents(grid.sent, "order")
    assert same_model(once_more.model_, whole.model_)


def test_the_checkpoint_of_other_clients_is_left_alone(federate, tmp_path):
    strategy, grid = federate(estimator(checkpoint=tmp_path))
    strategy.start(grid)
    fewer, grid = federate(estimator(checkpoint=tmp_path), names="abc", clients=3)
    fewer.start(grid)
    assert fewer.model_.history_["n_aggregated"].tolist() == [3] * 4


def test_names_are_checked(federate, caplog):
    strategy, grid = federate(estimator(n_rounds=1), names="abcdef")
    app = grid.nodes[10].app
    grid.add(Node(app, {"client-name": "b"}))  # of one that is there
    grid.add(Node(app, {}))
    grid.nodes[12].registered = "someone else"
    grid.nodes[13].registered = "d"
    strategy.clients, strategy.timeout = ["a", "b", "c"], 0.2
    with pytest.raises(TimeoutError) as error, caplog.at_level(logging.WARNING):
        strategy.start(grid)
    told = str(error.value)
    assert "not connected: ['c']" in told and "raise timeout" in told
    assert "'b' is connected already" in told
    assert "it says that it is 'c', but is registered as 'someone else'" in told
    assert "its node has no client-name" in told
    grid.nodes[12].registered = ""
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == ["a", "b", "c"]  # the others are left alone


def test_who_comes_back_with_other_data_is_left_out(federate, blobs):
    X, y, _ = blobs
    strategy, grid = federate(estimator(n_rounds=3))

    def change(grid):
        node_of(grid, "f").online = False
        fewer = client_app(estimator(), lambda context: (X[:7], y[:7]))
        grid.add(Node(fewer, {"client-name": "f"}))
        grid.add(Node(fewer, {"client-name": "a newcomer"}))

    at_round(0, change)(grid)
    strategy.start(grid)
    assert strategy.model_.history_["failed"].tolist() == [("f",)] * 3
    refused = " ".join(strategy._nodes._refused.values())
    assert "'f' is back with other data: it has 7 rows now" in refused
    assert "'a newcomer' is none of the clients" in refused


def test_data_that_do_not_go_together_are_told(federate, blobs):
    X, y, clients = blobs

    def load(context):
        name = context.node_config["client-name"]
        columns = list("vwxyz") if name != "a" else list("vwxzy")
        return pd.DataFrame(X[clients == name], columns=columns), y[clients == name]

    strategy, grid = federate(estimator(), load=load, timeout=0.2)
    with pytest.raises(TimeoutError, match=re.escape("'a' has columns ('v', 'w', 'x', 'z', 'y')")):
        strategy.start(grid)


def test_a_client_with_another_net_fails(federate):
    import torch

    strategy, grid = federate(
        estimator(n_rounds=1), at_client=estimator(estimator=torch.nn.Linear(5, 3))
    )
    with pytest.raises(RuntimeError, match="ValueError"):
        strategy.start(grid)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"clients": 0}, ValueError, "clients=0 must be the number"),
        ({"clients": "site a"}, ValueError, "clients='site a'"),
        ({"clients": ["a", "a"]}, ValueError, "each once"),
        ({"clients": True}, ValueError, "clients=True"),
        ({"timeout": 0}, ValueError, "timeout=0"),
        ({"timeout": np.nan}, ValueError, "timeout=nan"),
        ({"estimator": "x"}, TypeError, "estimator must be a FederatedClassifier"),
    ],
)
def test_wrong_parameters(change, error, match):
    params = {"estimator": estimator(), "clients": 2, **change}
    with pytest.raises(error, match=match):
        FederatedStrategy(params.pop("estimator"), **params)


def test_dropouts_are_not_played():
    from skfed.availability import Dropout

    with pytest.raises(ValueError, match=r"availability=Dropout\(\) plays clients"):
        FederatedStrategy(estimator(availability=Dropout()), clients=2)


def test_unknown_priority_is_told(federate):
    strategy, grid = federate(
        estimator(selector=FedAlignSelector(), priority=["nobody"]), clients=list("abcdef")
    )
    with pytest.raises(ValueError, match="priority names 1 client"):
        strategy.start(grid)


def test_clients_are_all_that_there_are_and_those_with_priority(federate):
    aligned = estimator(selector=FedAlignSelector(warmup=0), priority=np.array(["e"]), n_rounds=1)
    strategy, grid = federate(aligned, clients=None, names="dab", timeout=3)
    look, app = grid.get_nodes, grid.nodes[10].app
    looks = []

    def get_nodes():
        looks.append(1)
        if len(looks) == 3:  # a priority client is late
            grid.add(Node(app, {"client-name": "e"}))
        return look()

    grid.get_nodes = get_nodes
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == list("abde")
    strategy, grid = federate(aligned, clients=2, names="ebda")
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == ["a", "e"]


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


@pytest.mark.parametrize("t", [None, 1])
def test_a_node_whose_first_word_is_lost_is_asked_again(t, federate):
    strategy, grid = federate(estimator(n_rounds=4), timeout=5)
    lost = []

    def lose(node):
        def answer(message):
            if "asked" in message.content and not lost:
                lost.append(message)
                return None
            return node.app(message, node.context)

        node.answer = answer

    def come_back(grid):
        node_of(grid, "c").online = False
        grid.add(Node(node_of(grid, "c").app, {"client-name": "c"}))
        lose(grid.nodes[max(grid.nodes)])

    if t is None:
        lose(node_of(grid, "c"))
    else:
        at_round(t, come_back)(grid)
    strategy.start(grid)
    assert lost
    failed = strategy.model_.history_["failed"].tolist()
    assert failed == [(), ("c",), ("c",), ()] if t else failed == [()] * 4


CARD = {"name": "c", "n_samples": 15, "shape": [5], "dtype": "float32", "classes": "[0, 1, 2]"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": 7},
        {"n_samples": 0},
        {"n_samples": 2**63 - 1},
        {"n_samples": 1.5},
        {"shape": []},
        {"shape": [5.0]},
        {"shape": [-5]},
        {"shape": [2**40]},
        {"shape": "five"},
        {"dtype": "garbage"},
        {"dtype": "object"},
        {"dtype": 3},
        {"columns": ["v", "w"]},
        {"columns": [1, 2, 3, 4, 5]},
        {"classes": "[null]"},
        {"classes": "[]"},
        {"classes": "[[1], [2, 3]]"},
        {"classes": '["x", 1]'},
        {"classes": "garbage"},
        {"classes": "7"},
    ],
    ids=str,
)
def test_a_garbage_card_is_no_client(wrong, federate):
    """And nothing is raised: the run goes on with the others."""
    strategy, grid = federate(estimator(n_rounds=1), clients=list("abdef"))
    spoiled = node_of(grid, "c")
    spoiled.answer = lambda m: reply(m, card=ConfigRecord(CARD | wrong))
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == list("abdef")
    if wrong != {"name": ""}:
        strategy.clients, strategy.timeout = 6, 0.2
        with pytest.raises(TimeoutError, match="ValueError|TypeError|'c' has"):
            strategy.start(grid)


def test_labels_of_another_kind_do_not_go_together(federate):
    strategy, grid = federate(estimator(), timeout=0.2)
    words = CARD | {"classes": '["x", "y"]'}
    node_of(grid, "c").answer = lambda m: reply(m, card=ConfigRecord(words))
    with pytest.raises(TimeoutError, match="'c' has kind_of_classes 'U'"):
        strategy.start(grid)


def test_a_stranger_does_not_come_before_those_that_are_named(federate, blobs):
    strategy, grid = federate(estimator(n_rounds=1), clients=["a", "b"])
    wide = client_app(estimator(), lambda context: (np.zeros((4, 9)), [0, 1, 2, 0]))
    grid.nodes = {1: Node(wide, {"client-name": "stranger"}), **grid.nodes}
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == ["a", "b"]


def test_columns_that_changed_begin_another_run(federate, blobs, tmp_path):
    X, y, clients = blobs

    def load(columns):
        def load_data(context):
            rows = clients == context.node_config["client-name"]
            return pd.DataFrame(X[rows], columns=list(columns)), y[rows]

        return load_data

    params = {"checkpoint": tmp_path, "n_rounds": 2}
    for columns, first in (("vwxyz", 0), ("vwxyz", None), ("vwxzy", 0)):
        strategy, grid = federate(estimator(**params), load=load(columns))
        strategy.start(grid)
        rounds = [order["round"] for order in contents(grid.sent, "order")]
        assert min(rounds, default=None) == first


def test_rounds_of_a_run_that_goes_on_are_counted_on(federate, tmp_path):
    params = {"n_rounds": 4, "checkpoint": tmp_path}
    strategy, grid = federate(estimator(**params))

    def cut(grid):
        raise PowerCut

    at_round(2, cut)(grid)
    with pytest.raises(PowerCut):
        strategy.start(grid)
    seen = []
    for expected in ([2, 3, 4], [4]):
        strategy, grid = federate(estimator(**params))
        result = strategy.start(
            grid, evaluate_fn=lambda t, arrays: seen.append(t) or MetricRecord({"t": t})
        )
        assert seen == expected
        assert result.evaluate_metrics_serverapp == {t: {"t": t} for t in expected}
        assert list(result.train_metrics_clientapp) == expected[1:]
        assert len(result.arrays) == 2
        seen.clear()


def test_what_is_no_estimator_is_told_to_the_client():
    with pytest.raises(TypeError, match="estimator must be a FederatedClassifier"):
        client_app("x", lambda context: None)
