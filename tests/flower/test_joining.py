"""Sites that join a run after its start, and those that hang and are left alone, as simulated."""

import numpy as np
import pandas as pd
import pytest
from local_grid import Node, is_kind, late, requests
from mishaps import EVERYBODY, PowerCut, at_round, estimator, node_of
from sklearn.base import clone

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice
from skfed.availability import BackOff, Dropout, LateJoin
from skfed.devices import TraceDevices
from skfed.evaluation import FederatedEvaluation
from skfed.flower import client_app

ALL = list("abcdef")
COLUMNS = ["objective", "train_loss", "cohort", "polled", "not_joined", "bytes_down", "bytes_up"]


@pytest.fixture
def joining(federate, blobs):
    """Return a function that fits an estimator; sites join while the trainings of a round run."""
    X, y, clients = blobs

    def load(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows], X[rows][:5], y[rows][:5]

    def start(model, joins, watch=lambda grid: None, **params):
        names = [name for name in ALL if name not in joins]
        params = {"clients": ALL, "classes": [0, 1, 2], "join": True, **params}
        strategy, grid = federate(model, load=load, names=names, **params)
        app = client_app(model, load)
        for name, t in joins.items():
            node = Node(app, {"client-name": name})
            at_round(t - 1, lambda grid, node=node: grid.add(node))(grid)
        watch(grid)
        strategy.start(grid)
        return strategy.model_, grid

    return start


def simulated(model, blobs, availability, **devices):
    X, y, clients = blobs
    model = clone(model).set_params(availability=availability, engine="loop", **devices)
    kept = np.concatenate([np.flatnonzero(clients == name)[:5] for name in ALL])
    val = {"X_val": X[kept], "y_val": y[kept], "clients_val": clients[kept]}
    return model.fit(X, y, clients=clients, **val)


MODELS = {
    "everybody": estimator(n_rounds=4),
    "FedALIGN": estimator(
        n_rounds=5, selector=FedAlignSelector(eps=0.5, warmup=1), priority=["a", "b", "c"]
    ),
    # Losses are equal in round 0 but for rounding, by which the engines differ.
    "power-of-choice": estimator(
        n_rounds=5, selector=PowerOfChoice(d=4, clients_per_round=2), engine="loop"
    ),
    "scaled, evaluated": FederatedClassifier(
        selector=EVERYBODY, evaluation=FederatedEvaluation(), n_rounds=4, random_state=0
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_cohorts_ledger_and_history_are_those_of_the_simulation(name, joining, blobs):
    joins = {"b": 1, "f": 3}
    model, _ = joining(MODELS[name], joins)
    expected = simulated(MODELS[name], blobs, LateJoin(joins))
    columns = [*COLUMNS, *(c for c in expected.history_ if c.startswith(("eval_", "n_")))]
    pd.testing.assert_frame_equal(model.history_[columns], expected.history_[columns], rtol=1e-6)
    assert model.history_["not_joined"].tolist()[:4] == [("b", "f"), ("f",), ("f",), ()]
    assert model.sizes_.tolist() == expected.sizes_.tolist() == [10, 20, 15, 30, 25, 40]


def test_a_run_starts_when_as_many_are_there_as_it_needs(joining):
    with pytest.raises(TimeoutError, match=r"3 connected: \['a', 'b', 'c'\]"):
        joining(estimator(), dict.fromkeys("def", 9), min_sites=4, timeout=0.2)
    model, _ = joining(estimator(n_rounds=2), dict.fromkeys("def", 9), min_sites=3)
    assert model.history_["cohort"].tolist() == [("a", "b", "c")] * 2
    assert model.history_["not_joined"].tolist() == [("d", "e", "f")] * 2
    assert model.sizes_.tolist() == [10, 20, 15, 0, 0, 0]


def test_who_is_not_named_does_not_join(joining, blobs):
    X, y, _ = blobs
    other = Node(client_app(estimator(), lambda context: (X, y)), {"client-name": "g"})
    watch = at_round(0, lambda grid: grid.add(other))
    model, _ = joining(estimator(n_rounds=3), {"f": 1}, watch)
    assert model.clients_.tolist() == ALL


def test_a_late_site_with_other_columns_is_left_out(joining, blobs, caplog):
    X, y, _ = blobs
    wrong = Node(client_app(estimator(), lambda context: (X[:9, :4], y[:9])), {"client-name": "f"})
    watch = at_round(0, lambda grid: grid.add(wrong))
    model, _ = joining(estimator(n_rounds=3), {"f": 99}, watch)
    assert model.history_["not_joined"].tolist() == [("f",)] * 3
    assert "'f' has shape (4,)" in caplog.text


def test_a_site_that_hangs_is_left_alone_for_longer_and_longer(joining, blobs):
    """In the simulation d takes very long in the same rounds."""
    hangs = range(1, 7)

    def watch(grid):
        node = node_of(grid, "d")

        def answer(message):
            request = message.content.get("request", {})
            if is_kind(message, "train") and request["round"] in hangs:
                return late(message)
            return node.app(message, node.context)

        node.answer = answer

    model, _ = joining(estimator(n_rounds=12), {"f": 2}, watch, timeout=3)
    speeds = pd.DataFrame(
        [
            (name, t, 1e9, 1e9, 1e9, 1e9 if name == "d" and t in hangs else 0.0)
            for name in ALL
            for t in range(12)
        ],
        columns=[
            *("client", "round", "rows_per_second", "bytes_down_per_second"),
            *("bytes_up_per_second", "latency"),
        ],
    )
    expected = simulated(
        *(estimator(n_rounds=12), blobs, BackOff(LateJoin({"f": 2}))),
        devices=TraceDevices(speeds),
        deadline=3.0,
    )
    assert model.history_["cohort"].tolist() == expected.history_["cohort"].tolist()
    assert model.history_["failed"].tolist() == expected.history_["failed"].tolist()
    missed = [t for t, failed in enumerate(model.history_["failed"]) if "d" in failed]
    assert missed == [1, 3, 6]
    back = [t for t, cohort in enumerate(model.history_["cohort"]) if "d" in cohort]
    assert back == [0, 11]


def test_a_restarted_server_continues_with_those_who_have_joined(joining, tmp_path):
    def cut(grid):
        raise PowerCut

    model = estimator(n_rounds=5, checkpoint=tmp_path)
    with pytest.raises(PowerCut):
        joining(model, {"b": 1, "f": 9}, at_round(2, cut))
    again, grid = joining(model, {"f": 3})
    assert min(request["round"] for request in requests(grid.sent, "train")) == 2
    whole, _ = joining(estimator(n_rounds=5), {"b": 1, "f": 3})
    for column in ("cohort", "not_joined", "train_loss"):
        assert again.history_[column].tolist() == whole.history_[column].tolist()
    np.testing.assert_array_equal(again.coef_, whole.coef_)


def test_who_comes_while_another_hangs_joins_too(joining):
    """It is asked for its name in an exchange of the round, as the server looks for d."""

    def watch(grid):
        node = node_of(grid, "d")
        node.answer = lambda message: (
            late(message) if is_kind(message, "train") else node.app(message, node.context)
        )

    model = estimator(n_rounds=4, evaluation=FederatedEvaluation())
    model, _ = joining(model, {"f": 2}, watch, timeout=3)
    assert model.history_["not_joined"].tolist() == [("f",), ("f",), (), ()]
    assert model.history_["failed"].tolist() == [("d",), (), ("d",), ()]
    # Who has not answered in a round is not asked again in it.
    assert model.history_["n_evaluated"].tolist() == [4, 4, 5, 5]


def test_one_with_priority_is_there_at_the_start(joining):
    model = estimator(n_rounds=2, priority=["e", "f"], selector=FedAlignSelector())
    with pytest.raises(
        TimeoutError, match=r"none of these with priority is connected: \['e', 'f'\]"
    ):
        joining(model, {"e": 9, "f": 9}, timeout=0.2)


def test_models_are_asked_of_those_who_have_joined(federate, blobs):
    X, y, clients = blobs

    def load(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows], X[rows], y[rows]

    strategy, grid = federate(
        estimator(n_rounds=1), load=load, names="abcd", clients=ALL, classes=[0, 1, 2], join=True
    )
    strategy.start(grid)
    scores = strategy.cross_client_scores()
    there = list("abcd")
    assert scores.loc[["global", *there], there].notna().all(axis=None)
    assert scores[["e", "f"]].isna().all(axis=None)
    assert scores.loc[["e", "f"]].isna().all(axis=None)


@pytest.mark.parametrize("priority", [None, ["a", "b"]])
def test_late_join_of_an_estimator_holds_over_flower(priority, federate, blobs):
    """Nobody asks b for its moments before round 0."""
    X, y, clients = blobs
    model = FederatedClassifier(
        availability=LateJoin({"b": 2}),
        priority=priority,
        selector=EVERYBODY if priority is None else FedAlignSelector(eps=1.0),
        n_rounds=3,
        random_state=0,
        engine="loop",
    )
    strategy, grid = federate(model)
    strategy.start(grid)
    expected = clone(model).fit(X, y, clients=clients)
    found = strategy.model_.history_[COLUMNS]
    pd.testing.assert_frame_equal(found, expected.history_[COLUMNS], rtol=1e-6)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"clients": 3}, "clients=3 must be a list of names"),
        ({"clients": None}, "join=True needs the names of all sites"),
        ({"min_sites": 7}, "min_sites=7 must be an int from 1 to 6"),
        ({"min_sites": 0}, "min_sites=0"),
        ({"join": 1}, "join=1 must be True or False"),
        ({"join": False, "min_sites": 2}, "pass join=True too"),
        ({"classes": None}, "pass all labels as classes"),
        ({"model": estimator(min_clients=3), "min_sites": 2}, "below min_clients=3"),
    ],
)
def test_what_it_refuses(params, message, joining):
    with pytest.raises(ValueError, match=message):
        joining(params.pop("model", estimator()), {}, **params)


def test_back_off_alone_is_taken_over_flower(federate):
    federate(estimator(availability=BackOff()))
    with pytest.raises(ValueError, match="simulates clients that do not reply"):
        federate(estimator(availability=BackOff(Dropout(0.5))))
