"""What clients send before the first round: as in the simulation, and what they refuse."""

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord
from local_grid import is_kind, requests
from mishaps import PowerCut, at_round, node_of, reply

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.modules import LinearRegression
from skfed.privacy import GaussianMechanism

EVERYBODY = RandomSelector(1.0, "uniform", False)
ALIGN = {"selector": FedAlignSelector(eps=np.inf, warmup=0), "priority": ["a", "b"]}


def rare(blobs):
    """A flag that is rare at a and b, and frequent elsewhere; regression targets."""
    X, _, clients = blobs
    X = X.astype(float)
    flag = np.arange(len(X)) % 2 == 0
    flag[np.isin(clients, ["a", "b"])] = False
    flag[3] = True
    X[:, 4] = flag
    return X, X @ [1.0, 2.0, 0.5, -1.0, 3.0], clients


def far(blobs):
    X, y, clients = blobs
    return X.astype(float) + 1e9, y, clients


def loader(data):
    X, y, clients = data

    def load(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows]

    return load


def assert_same(estimator, data, federate, same_model):
    """Fit an estimator over Flower and in a simulation; return the grid and the model."""
    X, y, clients = data
    estimator.set_params(n_rounds=4, random_state=3, engine="loop")
    simulated = estimator.fit(X, y, clients=clients)
    strategy, grid = federate(estimator, load=loader(data))
    strategy.start(grid)
    model = strategy.model_
    timeless = [c for c in simulated.history_ if not c.endswith("_seconds")]
    pd.testing.assert_frame_equal(model.history_[timeless], simulated.history_[timeless])
    assert same_model(model, simulated)
    np.testing.assert_array_equal(model.predict(X), simulated.predict(X))
    return grid, model


REGRESSORS = {
    "one rate for all": {},
    "with priority": ALIGN,
    "with weights of priority": {**ALIGN, "priority": {"a": 1.0, "b": 0.5}},
    "steps": {**ALIGN, "local_steps": 4},
    "FedProx": {**ALIGN, "proximal_mu": 0.3},
    "a schedule": {**ALIGN, "lr_schedule": 0.01},
    "standardised targets": {**ALIGN, "standardize_targets": True},
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_column_that_is_rare_at_the_priority_clients(name, blobs, federate, same_model):
    estimator = FederatedRegressor(**{"selector": EVERYBODY, **REGRESSORS[name]})
    grid, model = assert_same(estimator, rare(blobs), federate, same_model)
    n_asked = len(model.clients_[model.priority_])
    assert len(requests(grid.sent, "moments")) == n_asked
    assert len(requests(grid.sent, "norms")) == (0 if name == "a schedule" else n_asked)


@pytest.mark.parametrize("kind", ["classifier", "regressor", "own targets"])
def test_columns_and_targets_far_from_0(kind, blobs, federate, same_model):
    X, y, clients = far(blobs)
    estimator = FederatedClassifier(selector=EVERYBODY)
    if kind != "classifier":
        estimator, y = FederatedRegressor(selector=EVERYBODY), (X - 1e9) @ np.ones(5) + 1e8
    if kind == "own targets":
        estimator.set_params(estimator=LinearRegression(5), standardize_targets=True)
        X = X - 1e9
    _, model = assert_same(estimator, (X, y, clients), federate, same_model)
    if kind != "own targets":
        np.testing.assert_allclose(model.net_.module_.standardize.shift, X.mean(axis=0), rtol=1e-15)
    if kind != "classifier":
        np.testing.assert_allclose(model.target_mean_, [y.mean()])


def test_targets_with_one_that_is_far_from_the_others(blobs, federate, same_model):
    """Clients do not send its distance: neither may the simulation go by it.

    The mean is 4,600 deviations from 0, but 4,000 tenths of the largest.
    """
    X, _, clients = blobs
    y = 1e5 + X[:, 0].astype(float)
    y[7] += 255
    assert 1e5 / 4096 > y.std() and np.ptp(y) / 10 > 1e5 / 4096
    estimator = FederatedRegressor(selector=EVERYBODY)
    _, model = assert_same(estimator, (X, y, clients), federate, same_model)
    np.testing.assert_allclose(model.target_mean_, [y.mean()])


def test_tables_of_integers_and_numbers_far_from_0(blobs, federate, same_model):
    X, y, clients = far(blobs)
    table = pd.DataFrame(X, columns=list("vwxyz")).astype({"v": np.int64, "w": np.float32})
    table["z"] = table["z"] > 1e9
    estimator = FederatedClassifier(selector=EVERYBODY)
    for frame in (table, table.convert_dtypes()):
        assert_same(estimator, (frame, y, clients), federate, same_model)


@pytest.mark.parametrize(
    "own",
    [
        FederatedRegressor(update_privacy=GaussianMechanism()),
        FederatedRegressor(LinearRegression(5, standardize=True)),
    ],
    ids=["update_privacy", "another net"],
)
def test_a_client_with_another_estimator_refuses_norms(own, blobs, federate, caplog):
    server = FederatedRegressor(selector=EVERYBODY, n_rounds=1, random_state=0)
    strategy, grid = federate(server, at_client=own, load=loader(rare(blobs)))
    with pytest.warns(UserWarning, match="no priority client has sent"):
        strategy.start(grid)
    assert "its estimator needs no norms of rows, or it has update_privacy" in caplog.text
    assert not any("norms" in m.content for m in grid.received if m.has_content())


def fails_in(grid, name, kind, answer):
    node = node_of(grid, name)
    node.answer = lambda m: answer(m) if is_kind(m, kind) else node.app(m, node.context)


def norms(message, largest, eigenvalue):
    record = MetricRecord({"largest": largest, "eigenvalue": eigenvalue})
    return reply(message, norms=record)


FAILURES = {
    "no answer": lambda m: Message(Error(1, "x"), reply_to=m),
    "nothing": lambda m: reply(m),
    "another record": lambda m: reply(m, norms=ConfigRecord({"largest": 9.0, "eigenvalue": 2.0})),
    "one of them": lambda m: reply(m, norms=MetricRecord({"largest": 9.0})),
    "nan": lambda m: norms(m, float("nan"), 2.0),
    "infinite": lambda m: norms(m, float("inf"), 2.0),
    "negative": lambda m: norms(m, 9.0, -2.0),
    "below the intercept's": lambda m: norms(m, 9.0, 0.5),
    "an eigenvalue above the norm": lambda m: norms(m, 9.0, 10.0),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_client_has_no_norms(failure, blobs, federate, caplog):
    X, y, clients = rare(blobs)
    estimator = FederatedRegressor(selector=EVERYBODY, n_rounds=2, random_state=0)
    strategy, grid = federate(estimator, load=loader((X, y, clients)))
    fails_in(grid, "b", "norms", FAILURES[failure])
    strategy.start(grid)
    assert "client 'b' sends no norms of its rows" in caplog.text
    history = strategy.model_.history_
    # Of 5 columns and a target from six clients, and two norms from five.
    assert history["scalars_up"][0] == 6 * (3 * 5 + 2) + 5 * 2
    assert history["n_aggregated"].tolist() == [6, 6]


def test_its_rows_do_not_diverge_either(blobs, federate):
    """It lowers its rate itself."""
    X, y, clients = rare(blobs)
    X[clients == "b"] *= 30
    y = X @ [1.0, 2.0, 0.5, -1.0, 3.0]
    estimator = FederatedRegressor(selector=EVERYBODY, n_rounds=60, random_state=0)
    strategy, grid = federate(estimator, load=loader((X, y, clients)))
    fails_in(grid, "b", "norms", FAILURES["no answer"])
    strategy.start(grid)
    assert strategy.model_.score(X, y) > 0.9


def test_with_raise_a_failed_client_ends_the_fit(blobs, federate):
    estimator = FederatedRegressor(on_client_error="raise", n_rounds=1, random_state=0)
    strategy, grid = federate(estimator, load=loader(rare(blobs)))
    fails_in(grid, "b", "norms", FAILURES["nan"])
    with pytest.raises(ValueError, match="are not those of rows") as raised:
        strategy.start(grid)
    assert "client 'b' in round 0, asked for the norms of its rows" in raised.value.__notes__


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_a_restarted_server_asks_nothing_again(kind, blobs, federate, same_model, tmp_path):
    X, y, clients = far(blobs)
    make = FederatedClassifier
    if kind == "regressor":
        make, y = FederatedRegressor, (X - 1e9) @ np.ones(5) + 1e8
    params = {"n_rounds": 4, "random_state": 0, "engine": "loop", **ALIGN}
    load = loader((X, y, clients))
    strategy, grid = federate(make(**params, checkpoint=tmp_path), load=load)

    def cut(grid):
        raise PowerCut

    at_round(2, cut)(grid)
    with pytest.raises(PowerCut):
        strategy.start(grid)
    again, grid = federate(make(**params, checkpoint=tmp_path), load=load)
    again.start(grid)
    assert not requests(grid.sent, "moments") and not requests(grid.sent, "norms")
    whole = make(**params).fit(X, y, clients=clients)
    assert same_model(again.model_, whole)
    np.testing.assert_array_equal(again.model_.predict(X), whole.predict(X))
    assert again.model_.history_["scalars_up"].tolist() == whole.history_["scalars_up"].tolist()


def test_private_fits_clip_gradients_at_the_clients(blobs, federate):
    """Wild rows, whose gradients would be beyond float32 after some steps."""
    X, y, clients = blobs
    privacy = GaussianMechanism(clip=1.0, noise_multiplier=0.01)
    estimator = FederatedRegressor(update_privacy=privacy, n_rounds=5, random_state=0)
    data = X.astype(float) * 1e4, y * 1e7, clients
    strategy, grid = federate(estimator, load=loader(data))
    strategy.start(grid)
    assert {request["max_norm"] for request in requests(grid.sent, "train")} == {1.0}
    assert strategy.model_.history_["n_failed"].tolist() == [0] * 5
    assert not requests(grid.sent, "moments") and not requests(grid.sent, "norms")
