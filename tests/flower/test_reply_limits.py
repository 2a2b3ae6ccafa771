"""Replies that have, or declare, far more than was asked for: the site is named, at little cost."""

import io
import json
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
import torch._dynamo  # a first step imports it, which is not what is measured
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from local_grid import LocalGrid, Node, is_kind
from mishaps import at_round, estimator, node_of, reply
from sklearn.pipeline import make_pipeline

from skfed import FederatedClassifier, OortSelector, PowerOfChoice, RandomSelector
from skfed.flower import FederatedStrategy, client_app
from skfed.flower._messages import to_state
from skfed.flower._nodes import Nodes
from skfed.preprocessing import FederatedOneHotEncoder, FederatedStandardScaler

MEGABYTE = 10**6
MOST = 100 * MEGABYTE
POWD = PowerOfChoice(d=6, clients_per_round=2)


def header(shape, dtype="<f4"):
    """Return the header of an array, without its values."""
    file = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


def stored(data):
    return Array(dtype="float32", shape=(3, 5), stype="numpy.ndarray", data=data)


def zipped():
    file = io.BytesIO()
    np.savez_compressed(file, w=np.zeros(10**7, dtype=np.float32))
    return file.getvalue()


@pytest.fixture
def memory():
    """Return a function that tells how many bytes were allocated at most since this one."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()


def run(federate, model, name, kind, answer, memory, **options):
    """Fit with a client that answers to one kind of message; return the history, and the bytes."""
    strategy, grid = federate(model, **options)
    node = node_of(grid, name)
    app = node.app
    node.answer = lambda m: (
        answer(m, app(m, node.context)) if is_kind(m, kind) else app(m, node.context)
    )
    tracemalloc.reset_peak()
    strategy.start(grid)
    return strategy.model_, memory()


BYTES = {
    "a declared shape of 10 GB": header((50_000, 50_000)),
    "values without any bytes": header((10**12,), "|V0"),
    "a text of 2 GB": header((1,), "<U500000000"),
    "a negative length": header((-1, -4)) + bytes(16),
    "a compressed archive": zipped(),
    "a header of 60 kB": b"\x93NUMPY\x01\x00\x60\xea" + b"(" * 60_000,
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_declare_another_array_are_refused_before_it_is_allocated(name, memory):
    like = {"w": torch.zeros(3, 5)}
    tracemalloc.reset_peak()
    with pytest.raises(ValueError, match="cannot be read: ValueError"):
        to_state(ArrayRecord({"w": stored(BYTES[name])}), like)
    assert memory() < MEGABYTE


def with_array(answer, array):
    first = next(iter(answer.content["state-0"]))
    answer.content["state-0"] = ArrayRecord({**answer.content["state-0"], first: array})
    return answer


def with_record(answer, name, record):
    answer.content[name] = record
    return answer


LONG = "x" * MEGABYTE
FLOOD = Array(np.zeros(16 * MEGABYTE, dtype=np.uint8))
MANY = [0.5] * 1_000_000
TRAININGS = {
    "a declared shape": lambda m, a: with_array(a, stored(header((50_000, 50_000)))),
    "a large array": lambda m, a: with_array(a, FLOOD),
    "one record more": lambda m, a: with_record(a, "more", ArrayRecord({"w": FLOOD})),
    "many numbers": lambda m, a: with_record(a, "report-0", MetricRecord({"loss": MANY})),
    "many texts": lambda m, a: with_record(a, "more", ConfigRecord({"a": [LONG] * 10})),
    "long names of records": lambda m, a: reply(
        m, **{LONG + str(i): ConfigRecord({}) for i in range(10)}
    ),
    "long names of arrays": lambda m, a: reply(
        m, **{"state-0": ArrayRecord({LONG + str(i): stored(b"") for i in range(10)})}
    ),
    "long dtypes": lambda m, a: with_array(
        a, Array(dtype=LONG * 10, shape=(3, 5), stype="numpy.ndarray", data=b"")
    ),
    "a long failure": lambda m, a: reply(
        m, failure=ConfigRecord({"type": LONG * 10, "message": LONG * 10})
    ),
    "a loss that is no number": lambda m, a: with_record(
        a, "report-0", MetricRecord({**a.content["report-0"], "loss": float("nan")})
    ),
    "an answer to a poll": lambda m, a: reply(m, metrics=MetricRecord({"loss": 0.5})),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_site_that_floods_a_training_is_named(name, federate, memory):
    model, n_bytes = run(federate, estimator(n_rounds=1), "b", "train", TRAININGS[name], memory)
    assert model.history_["failed"].tolist() == [("b",)]
    assert model.history_["n_aggregated"].tolist() == [5]
    assert n_bytes < MOST


POLLS = {
    "many numbers": lambda m, a: reply(m, metrics=MetricRecord({"loss": MANY})),
    "a large array": lambda m, a: with_record(a, "more", ArrayRecord({"w": FLOOD})),
    "no number": lambda m, a: reply(m, metrics=MetricRecord({"loss": float("nan")})),
}


@pytest.mark.parametrize("name", POLLS)
def test_a_site_that_floods_a_poll_is_named(name, federate, memory):
    model, n_bytes = run(
        federate, estimator(selector=POWD, n_rounds=2), "b", "poll", POLLS[name], memory
    )
    assert model.history_["failed"].tolist() == [("b",)] * 2
    assert n_bytes < MOST


def test_the_cause_says_how_much_was_sent_and_is_taken(federate, memory):
    answer = TRAININGS["a large array"]
    model, _ = run(federate, estimator(n_rounds=1), "b", "train", answer, memory)
    (cause,) = model.history_["causes"][0]
    assert "its reply has 16,000,268 bytes" in cause
    assert "of arrays, where at most 1,049,920 are taken" in cause


def test_a_client_that_is_drawn_often_may_send_an_update_for_each_time(federate):
    net = torch.nn.Sequential(torch.nn.Linear(5, 100_000), torch.nn.Linear(100_000, 3))
    often = RandomSelector(6, probability="uniform", replace=True)
    strategy, grid = federate(estimator(estimator=net, selector=often, n_rounds=1), names="abcdef")
    strategy.start(grid)
    (cohort,) = strategy.model_.history_["cohort"]
    assert len(set(cohort)) < len(cohort) == 6
    assert strategy.model_.history_["failed"].tolist() == [()]


def test_a_site_with_too_many_rows_costs_nothing_and_is_named(federate, memory):
    def answer(message, answered):
        info = ConfigRecord({**answered.content["info"], "n_samples": 2**40})
        return reply(message, info=info)

    model, n_bytes = run(federate, estimator(n_rounds=2), "b", "hello", answer, memory)
    assert model.history_["failed"].tolist() == [("b",)] * 2
    assert n_bytes < MOST


COLUMNS = {
    "texts of 2 GB": {"dtypes": ["<U500000000"] * 5},
    "bytes of 2 GB": {"dtypes": ["V2000000000"] * 5},
    "numbers that are times": {"dtypes": ["datetime64[ns]"] * 5},
    "numbers that are periods": {"dtypes": ["period[D]"] * 5},
    "fewer contents": {"contents": ["numbers"]},
    "more dtypes": {"dtypes": ["float64"] * 10**6},
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_site_whose_columns_cannot_be_is_left_out(name, blobs, grid_time, memory):
    X, y, clients = blobs

    def load(context):
        rows = clients == context.node_config["client-name"]
        return pd.DataFrame(X).set_axis(list("vwxyz"), axis=1)[rows], y[rows]

    model = FederatedClassifier(n_rounds=1, random_state=0)
    pipeline = make_pipeline(FederatedStandardScaler(), model)
    app = client_app(pipeline, load)
    grid = LocalGrid(grid_time, *(Node(app, {"client-name": name}) for name in "bac"))

    def answer(message):
        own = app(message, node_of(grid, "b").context)
        if not is_kind(message, "hello"):
            return own
        return with_record(own, "info", ConfigRecord({**own.content["info"], **COLUMNS[name]}))

    node_of(grid, "b").answer = answer
    strategy = FederatedStrategy(pipeline, clients=2, timeout=5)
    tracemalloc.reset_peak()
    strategy.start(grid)
    assert strategy.model_[-1].clients_.tolist() == ["a", "c"]
    assert memory() < MOST


def test_a_client_may_send_all_columns_of_a_wide_table(blobs, grid_time):
    rng, names = np.random.default_rng(0), [f"cg{j:08d}" for j in range(20_000)]
    X = pd.DataFrame(rng.normal(size=(8, len(names))), columns=names)

    def load(context):
        return X, np.arange(8) % 2

    model = FederatedClassifier(n_rounds=1, random_state=0)
    grid = LocalGrid(grid_time, Node(client_app(model, load), {"client-name": "a"}))
    FederatedStrategy(model, timeout=5).start(grid)
    assert len(grid.received[0].content["info"]["columns"]) == 20_000


@pytest.mark.parametrize("number", [float("nan"), -1.0])
def test_a_spread_that_is_no_number_is_a_failure(number, federate, memory):
    def answer(message, answered):
        report = MetricRecord({**answered.content["report-0"], "loss_rms": number})
        return with_record(answered, "report-0", report)

    oort = estimator(selector=OortSelector(clients_per_round=6), n_rounds=2)
    model, _ = run(federate, oort, "b", "train", answer, memory)
    assert model.history_["failed"].tolist() == [("b",)] * 2


def statistics(*pairs):
    return json.dumps({"dict": [list(pair) for pair in pairs]})


TEXTS, WIDE = [LONG, *["a"] * 1000], "\U0001f600"
STATISTICS = {
    "many values": statistics(("values", [{"objects": ["a"] * 1_200_000}])),
    "a long value": statistics(("values", [{"strings": TEXTS}])),
    "a tuple": statistics(("values", [{"tuple": TEXTS}])),
    "a flag": statistics(("values", []), ("suppressed", {"tuple": TEXTS})),
    "lists": json.dumps([[]] * 1_200_000),
    "a text of wide characters": statistics(("values", [{"strings": [WIDE + LONG * 7, "b"]}])),
    "more of it": statistics(("values", [{"strings": [WIDE + LONG * 16, "b"]}])),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_site_that_floods_a_transformer_is_named(name, blobs, grid_time, memory):
    _, y, clients = blobs
    X = pd.DataFrame({"job": np.array(["cook", "nurse"], dtype=object)[np.arange(len(y)) % 2]})

    def load(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows]

    model = FederatedClassifier(n_rounds=1, random_state=0)
    pipeline = make_pipeline(FederatedOneHotEncoder(sparse_output=False), model)
    app = client_app(pipeline, load)
    grid = LocalGrid(grid_time, *(Node(app, {"client-name": name}) for name in "abc"))
    flood = ConfigRecord({"json": STATISTICS[name]})

    def answer(message):
        own = app(message, node_of(grid, "b").context)
        return with_record(own, "statistics", flood) if is_kind(message, "steps") else own

    node_of(grid, "b").answer = answer
    strategy = FederatedStrategy(pipeline, timeout=5)
    tracemalloc.reset_peak()
    strategy.start(grid)
    exchange = strategy.model_[0].exchange_
    assert exchange.loc[exchange["client"] == "b", "result"].tolist() == ["failed"]
    assert memory() < MOST


def test_a_node_that_floods_is_not_asked_until_it_connects_again(federate):
    strategy, grid = federate(estimator(n_rounds=4))
    node = node_of(grid, "b")

    def answer(message):
        own = node.app(message, node.context)
        return with_array(own, FLOOD) if is_kind(message, "train") else own

    def come_back(grid):
        node.online = False
        grid.add(Node(node.app, {"client-name": "b"}))

    node.answer = answer
    at_round(2, come_back)(grid)
    strategy.start(grid)
    history = strategy.model_.history_
    assert history["failed"].tolist() == [("b",)] * 3 + [()]
    n_asked = sum(
        is_kind(m, "train") and grid.nodes[m.metadata.dst_node_id] is node for m in grid.sent
    )
    assert n_asked == 1
    assert "of arrays, where at most" in history["causes"][0][0]
    assert "it has sent far too much, and is not asked until it connects" in history["causes"][1][0]


def test_what_flower_cannot_read_does_not_end_the_run(federate):
    strategy, grid = federate(estimator(n_rounds=3))
    pull, others = grid.pull_messages, [grid.nodes[i] for i in (12, 13, 15)]
    for node in others:
        node.delays["train"] = 1.0

    def pull_messages(message_ids):
        replies = pull(message_ids)
        for one in replies:
            if one.metadata.src_node_id == 14 and is_kind(one, "train"):
                raise ValueError("Unexpected set of `children`")
        return replies

    grid.pull_messages = pull_messages
    strategy.start(grid)
    history, name = strategy.model_.history_, grid.nodes[14].config["client-name"]
    with_it = {grid.nodes[i].config["client-name"] for i in (10, 11, 14)}
    assert set(history["failed"][0]) == with_it  # their replies came at once
    assert history["failed"].tolist()[1:] == [(name,)] * 2
    assert "Flower cannot read its reply: ValueError" in history["causes"][1][0]


def test_an_answer_to_the_question_of_another_round_is_none(federate, memory):
    kept = []

    def answer(message, answered):
        kept.append(answered)
        return kept[0]  # to the message of round 0

    model, n_bytes = run(federate, estimator(n_rounds=3), "b", "train", answer, memory)
    assert model.history_["failed"].tolist() == [(), ("b",), ("b",)]
    assert n_bytes < MOST


HELLOS = {
    "ten million labels": {"classes": "[" + "0," * (10**7 - 1) + "0]"},
    "two million labels": {"classes": "[" + "0," * (2 * 10**6 - 1) + "0]"},
    "more labels than are taken": {"classes": json.dumps(list(range(10_001)))},
    "long labels": {"classes": json.dumps([LONG, "a"])},
    "texts in an array": {"classes": json.dumps({"strings": [LONG, *["a"] * 10_000]})},
    "lists in lists": {"classes": "[" * 10**6},
    "labels that are no number": {"classes": "[NaN, 1.0]"},
    "a huge label": {"classes": "[1" + "0" * 4000 + ", 1]"},
    "a shape": {"shape": [2**27]},
    "a shape of 10 GB": {"shape": [10**10]},
    "a shape, and a column": {"shape": [2**26], "columns": ["a"]},
    "a shape of many dimensions": {"shape": [1] * 10**6},
    "targets": {"target_shape": [10**10]},
    "a long name": {"name": LONG},
    "long names of columns": {"columns": [LONG, *map(str, range(99))], "shape": [100]},
    "lengths that are no number": {"shape": [True]},
    "many columns": {"columns": [""] * 10**7},
    "arrays of 10 GB": {"arrays": statistics(("a", {"tuple": ["float64", {"tuple": [10**10]}]}))},
    "rows": {"n_samples": 2**62},
    "a name whose repr is longer": {"name": "\0" * 9 * MEGABYTE},
    "a version whose repr is longer": {"protocol": b"\0" * 9 * MEGABYTE},
    "labels whose repr is longer": {"classes": b"\0" * 9 * MEGABYTE},
    "a label of wide characters": {"classes": json.dumps([WIDE + LONG * 8])},
    "more of it": {"classes": json.dumps([WIDE + LONG * 9])},
    "names of columns": {"columns": [*map(str, range(10**6))], "shape": [10**6]},
    "far too much": {"name": "\0" * 65 * MEGABYTE},
}


HELLO_CAUSES = {
    "ten million labels": "characters, where at most 9,437,184 are taken",
    "two million labels": "its text has 2,000,000 values, and at most 1,048,576 are read",
    "more labels than are taken": "10,001 labels, and at most 10,000 are taken: pass all labels",
    "texts in an array": "an array of its 10,001 texts would take 40,004,000,000 bytes",
    "lists in lists": "is not the JSON of labels",
    "long names of columns": "an array of its 100 texts would take 400,000,000 bytes",
    "many columns": "its reply has 10,000,005 values, where at most 1,114,112 are taken",
    "arrays of 10 GB": "its info has arrays=",
    "a version whose repr is longer": "different versions of skfed",
    "labels whose repr is longer": "is not the JSON of labels: a text is needed, not a bytes",
    "more of it": "its text has 9,000,016 characters, and at most 8,388,608 are read",
    "names of columns": "'b' has shape (1000000,), ",
    "far too much": "characters, where at most 9,437,184 are taken",
}
#: What has no valid name.
NAMELESS = ["a long name", "a name whose repr is longer", "far too much"]


@pytest.mark.parametrize("name", HELLOS)
def test_a_site_that_declares_too_much_is_left_out_by_name(name, federate, memory, caplog):
    _, grid = federate(estimator())
    node = node_of(grid, "b")

    def answer(message):
        info = node.app(message, node.context).content["info"]
        return reply(message, info=ConfigRecord({**info, **HELLOS[name]}))

    node.answer = answer
    tracemalloc.reset_peak()
    found = Nodes(grid, ask_classes=False, timeout=5).wait_for_clients(5)
    assert memory() < MOST
    assert sorted(found) == ["a", "c", "d", "e", "f"]
    (warned,) = {one.getMessage() for one in caplog.records if "left out" in one.getMessage()}
    assert ("'b'" in warned) == (name not in NAMELESS)
    assert HELLO_CAUSES.get(name, "its info has") in warned and len(warned) < 700
