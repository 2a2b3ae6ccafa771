"""Names and descriptions of clients, and nodes that connect, leave and use others' names."""

import logging
import re

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord
from local_grid import Node, is_kind
from mishaps import at_round, estimator, node_of, reply

from skfed import FedAlignSelector, FederatedClassifier
from skfed.availability import Dropout
from skfed.devices import ConstantDevices
from skfed.flower import FederatedStrategy, client_app
from skfed.flower._messages import PROTOCOL


def test_names_are_checked(federate, caplog):
    strategy, grid = federate(estimator(n_rounds=1), names="abcdef")
    app = grid.nodes[10].app
    grid.add(Node(app, {"client-name": "b"}))  # of a connected client
    grid.nodes[12].registered = "someone else"
    grid.nodes[13].registered = "d"
    strategy.clients, strategy.timeout = ["a", "b", "c"], 0.2
    with pytest.raises(TimeoutError) as error, caplog.at_level(logging.WARNING):
        strategy.start(grid)
    message = str(error.value)
    assert "not connected: ['c']" in message and "raise timeout" in message
    assert "'b' is already connected" in message
    assert "it reports the name 'c', but is registered as 'someone else'" in message
    grid.add(nameless := Node(app, {}))
    with pytest.raises(ValueError, match="its node has no client-name.* Mend what these clients"):
        strategy.start(grid)
    nameless.online = False
    with pytest.raises(TimeoutError):
        strategy.start(grid)
    grid.nodes[12].registered = ""
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == ["a", "b", "c"]  # the others are not used


def test_a_client_that_comes_back_with_other_data_is_left_out(federate, blobs):
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
    refused = " ".join(strategy._nodes._rejected.values())
    assert "'f' has come back with other data: it has 7 rows now" in refused
    assert "'a newcomer' is not one of the clients" in refused


def test_incompatible_data_are_named(federate, blobs):
    X, y, clients = blobs

    def load(context):
        name = context.node_config["client-name"]
        columns = list("vwxyz") if name != "a" else list("vwxzy")
        return pd.DataFrame(X[clients == name], columns=columns), y[clients == name]

    strategy, grid = federate(estimator(), load=load, timeout=0.2)
    with pytest.raises(ValueError, match=re.escape("'a' has columns ('v', 'w', 'x', 'z', 'y')")):
        strategy.start(grid)


def test_incompatible_data_may_be_mended_while_the_server_waits(federate, blobs):
    X, y, clients = blobs
    columns = {name: list("vwxyz") for name in "abcdef"} | {"a": list("vwxzy")}

    def load(context):
        name = context.node_config["client-name"]
        return pd.DataFrame(X[clients == name], columns=columns[name]), y[clients == name]

    strategy, grid = federate(estimator(n_rounds=1), load=load)
    wrong = node_of(grid, "a")

    def mend(message):
        reply = wrong.app(message, wrong.context)
        columns["a"] = list("vwxyz")
        wrong.online = False
        grid.add(Node(wrong.app, {"client-name": "a"}))
        return reply

    wrong.answer = mend
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == list("abcdef")


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


def test_simulated_devices_are_an_error():
    with pytest.raises(ValueError, match=r"(?s)devices=Const.* leave them out.*TraceDevices what"):
        FederatedStrategy(estimator(devices=ConstantDevices(1, 1, 1)))


def test_simulated_dropouts_are_an_error():

    with pytest.raises(ValueError, match=r"availability=Dropout\(\) simulates clients"):
        FederatedStrategy(estimator(availability=Dropout()), clients=2)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_rounds": 0}, "n_rounds"),
        ({"priority": "abc"}, "priority must be a collection of client ids"),
        ({"priority": 7}, "priority"),
        ({"priority": []}, "priority is empty"),
        ({"priority": {"a": 2}}, "priority gives client 'a' the weight 2"),
        ({"deadline": -1}, "deadline"),
        ({"deadline": 6}, "deadline=6 is above timeout=5, .*: raise timeout, or lower deadline"),
        ({"report_goal": 1.5}, "report_goal"),
    ],
    ids=str,
)
def test_the_estimators_parameters_are_checked_before_clients_are_waited_for(
    change, match, federate
):
    strategy, grid = federate(estimator(**change))
    with pytest.raises(ValueError, match=match):
        strategy.start(grid)
    assert not grid.sent


def test_unknown_priority_is_an_error(federate):
    strategy, grid = federate(
        estimator(selector=FedAlignSelector(), priority=["nobody"]), clients=list("abcdef")
    )
    with pytest.raises(ValueError, match="priority names 1 client"):
        strategy.start(grid)


def test_by_default_clients_are_all_that_are_connected_and_those_with_priority(federate):
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


@pytest.fixture
def soon(monkeypatch):
    """Let nodes get a new request at once."""
    for name in ("_RETRY_AFTER", "_REPEAT_AFTER"):
        monkeypatch.setattr(f"skfed.flower._discovery.{name}", 0.0)


@pytest.mark.parametrize("t", [None, 1])
def test_a_node_whose_first_reply_is_lost_gets_a_new_request(t, federate, soon):
    strategy, grid = federate(estimator(n_rounds=4), timeout=5)
    lost = []

    def lose(node):
        def answer(message):
            if is_kind(message, "hello") and not lost:
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


def test_a_node_that_was_left_out_and_restarted_gets_a_new_request(federate, soon):
    """With keys it has the same node id as before."""
    strategy, grid = federate(estimator(n_rounds=1))
    node, look, looks = node_of(grid, "a"), grid.get_nodes, []
    right, node.config = node.config, {"client-name": "b"}
    node.start()

    def get_nodes():
        looks.append(node.config["client-name"])
        if len(looks) == 3:
            node.config = right
            node.start()
        return look()

    grid.get_nodes = get_nodes
    strategy.start(grid)
    assert looks[:3] == ["b"] * 3
    assert strategy.model_.clients_.tolist() == list("abcdef")


def test_a_node_that_comes_back_gets_a_new_request_at_once(federate):
    strategy, grid = federate(estimator(n_rounds=1))
    node, look, looks = grid.nodes[10], grid.get_nodes, []
    right, node.config = node.config, {}
    node.start()

    def get_nodes():
        looks.append(node.online)
        node.online = len(looks) != 2
        if len(looks) == 2:
            node.config = right
            node.start()
        return look()

    grid.get_nodes = get_nodes
    strategy.start(grid)
    assert strategy.model_.history_["n_aggregated"].tolist() == [6]


def test_others_do_not_wait_for_a_node_that_hangs(federate, grid_time, monkeypatch):
    """A node that connects meanwhile is found before the wait for the other ends."""
    monkeypatch.setattr("skfed.flower._discovery._RETRY_AFTER", 1.0)
    strategy, grid = federate(estimator(n_rounds=4), names="abcdef", timeout=30)
    hellos = hang_until(grid, "f")
    began = grid_time.now
    at_round(1, lambda grid: setattr(node_of(grid, "c"), "online", False))(grid)
    strategy.start(grid)
    assert grid_time.now - began < 15
    assert strategy.model_.clients_.tolist() == list("abcdef")
    assert strategy.model_.history_["failed"].tolist() == [(), *[("c",)] * 3]
    assert 1 <= len(hellos) <= 3


@pytest.mark.parametrize("clients", [2, ["a", "b"]], ids=["number", "names"])
def test_a_node_that_hangs_leaves_time_for_others(clients, federate):
    strategy, grid = federate(estimator(n_rounds=1), clients=clients, names="ab", timeout=4)
    hang_until(grid, "b")
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == ["a", "b"]


def hang_until(grid, name):
    """Add a node that never replies; the named one connects after the first message to it.

    Returns the messages to the new node.
    """
    late_one, look, asked = node_of(grid, name), grid.get_nodes, []
    late_one.online = False
    hung = Node(late_one.app, {"client-name": "hangs"})
    hung.answer = asked.append
    grid.add(hung)

    def get_nodes():
        late_one.online = late_one.online or bool(asked)
        return look()

    grid.get_nodes = get_nodes
    return asked


def test_a_node_that_is_not_registered_cannot_have_a_registered_name(federate):
    strategy, grid = federate(estimator(n_rounds=3))
    node_of(grid, "c").registered = "c"

    def impersonate(grid):
        node_of(grid, "c").online = False
        grid.add(Node(node_of(grid, "c").app, {"client-name": "c"}))

    at_round(0, impersonate)(grid)
    strategy.start(grid)
    assert strategy.model_.history_["failed"].tolist() == [("c",)] * 3
    refused = " ".join(strategy._nodes._rejected.values())
    assert "it reports the name 'c', as which another node is registered" in refused


INFO = {
    "protocol": PROTOCOL,
    "name": "c",
    "n_samples": 15,
    "shape": [5],
    "dtype": "float32",
    "classes": "[0, 1, 2]",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": 7},
        {"name": "c\0"},
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
def test_an_invalid_info_is_no_client(wrong, federate):
    """Nothing is raised: the run continues with the others."""
    strategy, grid = federate(estimator(n_rounds=1), clients=list("abdef"))
    spoiled = node_of(grid, "c")
    spoiled.answer = lambda m: reply(m, info=ConfigRecord(INFO | wrong))
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == list("abdef")
    if wrong != {"name": ""}:
        strategy.clients, strategy.timeout = 6, 0.2
        with pytest.raises(ValueError, match="ValueError|TypeError|Refusal|'c' has"):
            strategy.start(grid)


@pytest.mark.parametrize("at_server", [False, True])
def test_different_versions_are_named_as_the_cause(at_server, federate, monkeypatch):
    """Either side may have the other version."""
    strategy, grid = federate(estimator(), timeout=0.2)
    changed = "_discovery" if at_server else "_client"
    monkeypatch.setattr(f"skfed.flower.{changed}.PROTOCOL", 7)
    with pytest.raises(ValueError, match=f"have different versions of skfed .* {PROTOCOL} and 7"):
        strategy.start(grid)


def test_labels_of_different_types_are_incompatible(federate):
    strategy, grid = federate(estimator(), timeout=0.2)
    strings = INFO | {"classes": '["x", "y"]'}
    node_of(grid, "c").answer = lambda m: reply(m, info=ConfigRecord(strings))
    with pytest.raises(ValueError, match="'c' has label_type 'string'"):
        strategy.start(grid)


def test_integers_and_other_numbers_are_labels_of_one_type(federate):
    strategy, grid = federate(estimator(n_rounds=1))
    node = node_of(grid, "c")
    node.answer = lambda m: (
        reply(m, info=ConfigRecord(INFO | {"classes": "[0.0, 1.0, 2.0]"}))
        if is_kind(m, "hello")
        else node.app(m, node.context)
    )
    strategy.start(grid)
    assert strategy.model_.history_["failed"].tolist() == [()]


def test_a_client_without_a_given_name_is_not_admitted_first(federate, blobs):
    strategy, grid = federate(estimator(n_rounds=1), clients=["a", "b"])
    wide = client_app(estimator(), lambda context: (np.zeros((4, 9)), [0, 1, 2, 0]))
    grid.nodes = {1: Node(wide, {"client-name": "stranger"}), **grid.nodes}
    strategy.start(grid)
    assert strategy.model_.clients_.tolist() == ["a", "b"]


def test_class_weights_that_need_all_clients_labels_are_refused():
    balanced = FederatedClassifier(class_weight="balanced")
    with pytest.raises(ValueError, match="needs the label counts of all clients.*pass a dict"):
        client_app(balanced, lambda context: None)
    with pytest.raises(ValueError, match="needs the label counts of all clients.*pass a dict"):
        FederatedStrategy(balanced)


def test_a_client_app_needs_an_estimator():
    with pytest.raises(TypeError, match="estimator must be a FederatedClassifier"):
        client_app("x", lambda context: None)
