"""Clients evaluate models that the server has made of a round's updates."""

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from local_grid import Node, is_kind, late, requests
from mishaps import estimator, node_of, reply
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed._federation import make_federation
from skfed._fit import local_engine
from skfed.contribution import DataBanzhaf, GTGShapley
from skfed.engines import CombinationsRequest, EvaluateRequest, Late
from skfed.exchanges import Limits
from skfed.flower import _valuation
from skfed.nets import get_state
from skfed.privacy import GaussianMechanism

T = 7  # a round after the fit's
# Of w and three other models: two of them, w, one, a mean, and one that is no mean.
COEFFICIENTS = np.array(
    [[0, 0.5, 0.5, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0.2, 0.3, 0.5], [-1, 2, 0.5, -0.5]]
)
CLIENTS = np.array([0, 4, 2])  # a, e and c


class Normed(nn.Sequential):
    """Has buffers, and a random layer."""

    def __init__(self):
        super().__init__(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))


def normed():
    return NeuralNetClassifier(Normed, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=11)


@pytest.fixture
def started(federate):
    """Return a function that fits an estimator; it returns the strategy and the grid."""

    def start(model, **params):
        strategy, grid = federate(model, **params)
        strategy.start(grid)
        grid.sent.clear()
        grid.received.clear()
        return strategy, grid

    return start


def request_of(strategy, coefficients=COEFFICIENTS, metric="loss", clients=CLIENTS, t=T):
    """Return a request about the fitted model, and models near to it."""
    state, generator = get_state(strategy.model_.net_), torch.Generator().manual_seed(0)
    models = {
        name: torch.stack([w, *(w + torch.randn(w.shape, generator=generator) for _ in range(3))])
        for name, w in state.items()
        if w.is_floating_point() and "standardize" not in name and "running_var" not in name
    }
    return CombinationsRequest(t, state, models, np.asarray(coefficients), clients, metric)


def simulated(strategy, blobs, request):
    """Write each state, and poll clients for it in this process."""
    X, y, clients = blobs
    model = strategy.model_
    federation = make_federation(clients, len(X))
    weights = model._problem.row_weights(None, X, y, federation)
    engine = local_engine(
        *(model._problem, model.net_, X, y, weights, federation),
        seed=strategy._engine.batching.seed,
        memory_budget=2**30,
    )
    values = []
    for row in request.coefficients:
        state = dict(request.state)
        for name, stack in request.models.items():
            unit = np.flatnonzero(row).tolist() if np.isin(row, [0, 1]).all() else []
            total = torch.tensordot(torch.from_numpy(row), stack.double(), 1).to(stack.dtype)
            state[name] = stack[unit[0]] if len(unit) == 1 else total
        poll = EvaluateRequest(request.round, state, request.clients, request.metric)
        values.append(engine.evaluate(poll).values)
    return np.array(values).T


ESTIMATORS = {
    "default": FederatedClassifier(),
    "buffers and a random layer": FederatedClassifier(normed()),
    "class weights": FederatedClassifier(class_weight={0: 3.0, 2: 0.5}),
    "regressor": FederatedRegressor(standardize_targets=False, estimator=torch.nn.Linear(5, 1)),
}


CASES = [(name, metric) for name in ESTIMATORS for metric in ("loss", "error")]


@pytest.mark.parametrize(("name", "metric"), [c for c in CASES if c != ("regressor", "error")])
def test_values_are_those_of_the_simulation(name, metric, started, blobs):
    strategy, grid = started(ESTIMATORS[name].set_params(n_rounds=1, random_state=3, engine="loop"))
    request = request_of(strategy, metric=metric)
    evaluation = strategy._engine.evaluate_combinations(request)
    expected = simulated(strategy, blobs, request)
    np.testing.assert_array_equal(evaluation.values, expected)
    assert len(np.unique(expected)) > 5
    assert not evaluation.raised
    assert evaluation.n_samples.tolist() == [10, 25, 15]
    assert [m.content["request"]["client"] for m in grid.sent] == ["a", "e", "c"]  # one each


def test_the_clients_own_engine_may_be_another(started, blobs):
    strategy, _ = started(estimator(n_rounds=1))
    request = request_of(strategy)
    values = strategy._engine.evaluate_combinations(request).values
    np.testing.assert_allclose(values, simulated(strategy, blobs, request), rtol=1e-5)


def test_messages_have_only_the_tensors_that_may_differ_and_w_once(started):
    strategy, grid = started(FederatedClassifier(n_rounds=1, random_state=0))
    request = request_of(strategy)
    strategy._engine.evaluate_combinations(request)
    (first, *_) = grid.sent
    assert {"state", *(f"model-{j}" for j in range(5))} < set(first.content)
    assert set(first.content["model-0"]) == set(request.models) == set(first.content["state"])
    again = strategy._engine.evaluate_combinations(request)
    assert not any("state" in message.content for message in grid.sent[3:])
    other = request_of(strategy, t=T + 1)
    strategy._engine.evaluate_combinations(other)
    assert all("state" in message.content for message in grid.sent[6:])
    assert np.isfinite(again.values).all()


def test_the_same_question_has_the_same_answer(started):
    """Also in a round that has polled, and trained, the clients before."""
    strategy, grid = started(FederatedClassifier(normed(), n_rounds=1, random_state=0))
    engine, request = strategy._engine, request_of(strategy)
    first = engine.evaluate_combinations(request)
    poll = EvaluateRequest(T, request.state, CLIENTS)
    of_w = engine.evaluate(poll).values
    np.testing.assert_array_equal(engine.evaluate_combinations(request).values, first.values)
    np.testing.assert_array_equal(first.values[:, 1], of_w)
    assert sum("state" in message.content for message in grid.sent) == 3
    for node in grid.nodes.values():
        assert sum(name.startswith("skfed.state") for name in node.context.state) <= 1


def test_a_client_that_trains_keeps_the_model_where_a_valuation_follows(started, monkeypatch):
    from skfed.server import _requests

    make = _requests.TrainRequest
    for keeps in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(
                _requests,
                "TrainRequest",
                lambda keep=keeps, **kw: make(**{**kw, "keeps_models": keep}),
            )
            strategy, grid = started(estimator(n_rounds=1))
        held = [node.context.state.get("skfed.held current") for node in grid.nodes.values()]
        assert [one is not None and one["round"] == 0 for one in held] == [keeps] * 6
        engine, request = strategy._engine, request_of(strategy, t=0)
        # As of the round that was run, whose model each client has been sent.
        request = request._replace(state=engine._held["a", "current"])
        evaluation = engine.evaluate_combinations(request)
        assert not any("state" in message.content for message in grid.sent)
        assert np.isfinite(evaluation.values).all() == keeps
        if not keeps:
            assert "it has no model of round 0" in str(evaluation.raised[0])


def test_many_models_take_several_messages(started, monkeypatch):
    strategy, grid = started(estimator(n_rounds=1))
    request = request_of(strategy)
    whole = strategy._engine.evaluate_combinations(request)
    grid.sent.clear()
    n_bytes = sum(stack[0].nbytes for stack in request.models.values())
    monkeypatch.setattr(_valuation, "_MOST_BYTES", 2 * n_bytes)
    node_of(grid, "e").delays["valuation"] = 0.25
    node_of(grid, "c").delays["valuation"] = 0.05
    parts = strategy._engine.evaluate_combinations(request)
    np.testing.assert_array_equal(parts.values, whole.values)
    assert [r["n_models"] for r in requests(grid.sent, "valuation")] == [2] * 6 + [1] * 3
    assert parts.n_samples.tolist() == whole.n_samples.tolist()
    assert parts.times.seconds.tolist() == pytest.approx([0.0, 0.9, 0.3])
    assert parts.times.duration == pytest.approx(0.9)
    monkeypatch.setattr(_valuation, "_MOST_BYTES", 1)  # below one model
    parts = strategy._engine.evaluate_combinations(request)
    np.testing.assert_array_equal(parts.values, whole.values)


@pytest.mark.parametrize(("deadline", "late_ones"), [(0.5, [1]), (0.2, [1, 2]), (0.95, [])])
def test_the_deadline_is_of_all_messages_of_a_client(deadline, late_ones, started, monkeypatch):
    strategy, grid = started(estimator(n_rounds=1))
    request = request_of(strategy)
    n_bytes = sum(stack[0].nbytes for stack in request.models.values())
    monkeypatch.setattr(_valuation, "_MOST_BYTES", 2 * n_bytes)
    node_of(grid, "e").delays["valuation"] = 0.25
    node_of(grid, "c").delays["valuation"] = 0.05
    strategy._engine.limits = Limits(deadline, None)
    evaluation = strategy._engine.evaluate_combinations(request)
    assert sorted(evaluation.raised) == late_ones
    assert all(isinstance(cause, Late) for cause in evaluation.raised.values())
    assert np.isnan(evaluation.times.seconds).nonzero()[0].tolist() == late_ones
    assert np.isfinite(evaluation.values[0]).all()
    assert np.isnan(evaluation.values[late_ones]).all()


GOOD = [0.5] * 5
INVALID = {
    "too few values": lambda m: reply(m, metrics=MetricRecord({"loss": GOOD[1:]})),
    "too many values": lambda m: reply(m, metrics=MetricRecord({"loss": [*GOOD, 0.1]})),
    "one number": lambda m: reply(m, metrics=MetricRecord({"loss": 0.5})),
    "NaN": lambda m: reply(m, metrics=MetricRecord({"loss": [*GOOD[1:], np.nan]})),
    "infinite": lambda m: reply(m, metrics=MetricRecord({"loss": [*GOOD[1:], np.inf]})),
    "another metric": lambda m: reply(m, metrics=MetricRecord({"error": GOOD})),
    "another record": lambda m: reply(m, metrics=ConfigRecord({"loss": GOOD})),
    "nothing": lambda m: reply(m),
    "no answer in time": late,
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_reply_is_a_failure_of_its_client(name, started):
    strategy, grid = started(estimator(n_rounds=1))
    node_of(grid, "e").answer = INVALID[name]
    evaluation = strategy._engine.evaluate_combinations(request_of(strategy))
    assert list(evaluation.raised) == [1]
    assert np.isnan(evaluation.values[1]).all()
    assert np.isfinite(evaluation.values[[0, 2]]).all()


def test_who_fails_in_one_message_is_sent_no_other(started, monkeypatch):
    strategy, grid = started(estimator(n_rounds=1))
    monkeypatch.setattr(_valuation, "_MOST_BYTES", 1)
    for name in "ec":
        node_of(grid, name).answer = INVALID["nothing"]
    evaluation = strategy._engine.evaluate_combinations(request_of(strategy))
    names = [r["client"] for r in requests(grid.sent, "valuation")]
    assert names == ["a", "e", "c"] + ["a"] * 4
    assert sorted(evaluation.raised) == [1, 2]
    node_of(grid, "a").answer = INVALID["nothing"]
    grid.sent.clear()
    evaluation = strategy._engine.evaluate_combinations(request_of(strategy))
    assert len(grid.sent) == 3 and len(evaluation.raised) == 3
    assert evaluation.values.shape == (3, 5)


def test_a_model_whose_loss_is_not_finite_is_a_failure(started):
    strategy, _ = started(estimator(n_rounds=1))
    request = request_of(strategy)
    name = next(iter(request.models))
    request.models[name][3] = torch.nan
    evaluation = strategy._engine.evaluate_combinations(request)
    assert sorted(evaluation.raised) == [0, 1, 2]
    assert "the loss of a model is not finite" in str(evaluation.raised[0])


def test_a_client_that_was_restarted_fails(started):
    strategy, grid = started(estimator(n_rounds=1))
    request = request_of(strategy)
    strategy._engine.evaluate_combinations(request)
    node_of(grid, "e").start()
    evaluation = strategy._engine.evaluate_combinations(request)
    assert list(evaluation.raised) == [1]
    assert "it has no model of round 7" in str(evaluation.raised[1])


def test_nobody_is_asked_for_nothing(started):
    strategy, grid = started(estimator(n_rounds=1))
    request = request_of(strategy, clients=np.array([], dtype=int))
    evaluation = strategy._engine.evaluate_combinations(request)
    assert evaluation.values.shape == (0, 5)
    assert not grid.sent and not evaluation.raised


def test_a_client_with_loss_privacy_refuses(started):
    private = estimator(n_rounds=1, loss_privacy=GaussianMechanism(clip=5.0, noise_multiplier=1.0))
    strategy, _ = started(private, classes=[0, 1, 2])
    evaluation = strategy._engine.evaluate_combinations(request_of(strategy))
    assert sorted(evaluation.raised) == [0, 1, 2]
    assert "its loss_privacy does not cover" in str(evaluation.raised[0])


def test_a_client_that_was_silent_refuses(federate):
    align = FedAlignSelector(eps=1e-4, warmup=0)
    strategy, grid = federate(estimator(selector=align, priority=["f"], n_rounds=3))
    strategy.start(grid)
    polls = [m for m in grid.sent if is_kind(m, "poll")]
    (poll, *_) = [m for m in polls if m.content["request"]["round"] == 2 and "state" in m.content]
    content, seen = poll.content, 0
    for node in grid.nodes.values():
        held = node.context.state.get("skfed.held current")
        if held is not None and held["silent"] and held["round"] == 2:
            request = {**content["request"], "client": node.config["client-name"], "n_models": 1}
            request.pop("at_most", None)
            records = {"request": ConfigRecord(request), "model-0": content["state"]}
            message = Message(RecordDict(records), 1, "query.skfed_valuation")
            message.metadata.__dict__["_message_id"] = "x"
            failure = node.app(message, node.context).content["failure"]
            assert "it was silent in this round" in failure["message"]
            seen += 1
    assert seen


def test_a_client_that_is_gone_fails_and_one_in_its_place_answers(started):
    strategy, grid = started(estimator(n_rounds=1))
    gone = node_of(grid, "e")
    gone.online = False
    evaluation = strategy._engine.evaluate_combinations(request_of(strategy))
    assert list(evaluation.raised) == [1]
    grid.add(Node(gone.app, {"client-name": "e"}))
    evaluation = strategy._engine.evaluate_combinations(request_of(strategy, t=T + 1))
    assert not evaluation.raised


@pytest.mark.parametrize(
    ("selector", "method"),
    [
        (FedAlignSelector(eps=0.1, warmup=1), DataBanzhaf(every=2)),
        (RandomSelector(3, ignore_priority=True), DataBanzhaf(metric="accuracy")),
        (
            RandomSelector(3, ignore_priority=True),
            GTGShapley(min_permutations=6, max_permutations=6),
        ),
    ],
)
def test_a_run_has_the_contributions_of_the_simulation(
    selector, method, federate, blobs, same_model
):
    X, y, clients = blobs
    model = FederatedClassifier(
        selector=selector,
        priority=["a", "b"],
        contribution=method,
        n_rounds=4,
        engine="loop",
        random_state=3,
    )
    strategy, grid = federate(model)
    strategy.start(grid)
    model.fit(X, y, clients=clients)
    assert same_model(model, strategy.model_)
    pd.testing.assert_frame_equal(
        strategy.model_.contributions_, model.contributions_, check_exact=True
    )
    timeless = [name for name in model.history_ if not name.endswith("_seconds")]
    pd.testing.assert_frame_equal(strategy.model_.history_[timeless], model.history_[timeless])
    assert model.contributions_["value"].ne(0).sum() >= 2
