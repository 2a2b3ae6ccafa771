"""Rounds over messages equal those of the simulation: cohorts, model, ledger, history."""

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Error, Message, MetricRecord
from local_grid import contents, is_kind, requests
from mishaps import node_of
from rules import BY_SECONDS, COMPARED, RULES, Admitting, Diverse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler
from torch import nn

from skfed import (
    FedAlignSelector,
    FederatedClassifier,
    FederatedRegressor,
    KVibSelector,
    PowerOfChoice,
    RandomSelector,
)
from skfed.aggregation import CoordinateMedian, Scaffold, ServerOptimizer
from skfed.availability import AlternatingHalves
from skfed.callbacks import RoundCallback
from skfed.devices import ConstantDevices
from skfed.flower import FederatedStrategy
from skfed.metrics import client_exchanges
from skfed.modules import LinearRegression
from skfed.schedules import ExponentialDecay, LinearDecay
from skfed.selection._past import SKETCH_SIZE


class Normed(nn.Sequential):
    """Has buffers, and a random layer."""

    def __init__(self):
        layers = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
        super().__init__(*layers)


def normed(**params):
    return NeuralNetClassifier(
        Normed, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=11, **params
    )


FEDALIGN = FedAlignSelector(eps=0.1, warmup=2)
POWD = PowerOfChoice(d=4, clients_per_round=2)
ESTIMATORS = {
    "FedALIGN": FederatedClassifier(selector=FEDALIGN, priority=["a", "b"]),
    "FedALIGN by accuracy": FederatedClassifier(
        selector=FedAlignSelector(eps=0.1, warmup=0, match="accuracy"), priority={"a": 1, "c": 0.5}
    ),
    "pow-d": FederatedClassifier(selector=POWD),
    "cpow-d": FederatedClassifier(
        selector=PowerOfChoice(d=LinearDecay(5, 2), clients_per_round=2, loss="batch"),
        local_steps=3,
    ),
    "rpow-d": FederatedClassifier(
        selector=PowerOfChoice(d=4, clients_per_round=2, loss="reported")
    ),
    "copies": FederatedClassifier(selector=RandomSelector(8)),
    "dropout and buffers": FederatedClassifier(normed(), selector=POWD, local_epochs=2),
    "SCAFFOLD": FederatedClassifier(selector=RandomSelector(4), aggregator=Scaffold()),
    "FedAdam, median, FedProx": FederatedClassifier(
        selector=RandomSelector(4),
        aggregator=CoordinateMedian(),
        server_optimizer=ServerOptimizer(torch.optim.Adam, lr=0.1),
        proximal_mu=0.1,
        lr_schedule=ExponentialDecay(0.1, 0.9),
    ),
    "availability": FederatedClassifier(selector=POWD, availability=AlternatingHalves()),
    "callbacks": FederatedClassifier(
        normed(callbacks=[("rate", LRScheduler("StepLR", step_size=2, gamma=0.5))])
    ),
    "parameter groups": FederatedClassifier(
        normed(
            optimizer__param_groups=[("0.*", {"lr": 0.01}), ("4.*", {"lr": 0.0})],
            callbacks=[("rate", LRScheduler("StepLR", step_size=2, gamma=0.5))],
        ),
        aggregator=Scaffold(),
    ),
    "parameter groups, scheduled": FederatedClassifier(
        normed(optimizer__param_groups=[("0.*", {"lr": 0.01}), ("4.*", {"lr": 0.0})]),
        lr_schedule=ExponentialDecay(0.1, 0.9),
        local_epochs=2,
    ),
    "class weights": FederatedClassifier(class_weight={0: 3.0, 2: 0.5}, selector=POWD),
    "regressor": FederatedRegressor(selector=POWD),
    **{type(rule).__name__: FederatedClassifier(selector=rule) for rule in RULES},
    **{repr(rule): FederatedClassifier(selector=rule) for rule in COMPARED},
    "SCAFFOLD in two phases": FederatedClassifier(selector=Admitting(), aggregator=Scaffold()),
    "rounds without a client": FederatedClassifier(selector=KVibSelector(1, 1e-3)),
    "sketches of a net": FederatedClassifier(normed(), selector=Diverse()),
    "standardised targets": FederatedRegressor(
        standardize_targets=True, selector=FedAlignSelector(eps=0.3, warmup=1), priority=["a", "b"]
    ),
}


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in map(repr, BY_SECONDS)])
def test_rounds_are_the_same(name, blobs, federate, same_model):
    X, y, clients = blobs
    estimator = ESTIMATORS[name].set_params(n_rounds=5, random_state=3, engine="loop")
    simulated = estimator.fit(X, y, clients=clients)
    strategy, grid = federate(estimator)
    result = strategy.start(grid)
    model = strategy.model_
    timeless = [c for c in simulated.history_ if not c.endswith("_seconds")]
    pd.testing.assert_frame_equal(model.history_[timeless], simulated.history_[timeless])
    assert same_model(model, simulated)
    np.testing.assert_array_equal(model.predict(X), simulated.predict(X))
    for name, tensor in model.net_.module_.state_dict().items():
        np.testing.assert_array_equal(result.arrays[f"module.{name}"].numpy(), tensor)


@pytest.mark.parametrize("rule", BY_SECONDS, ids=repr)
def test_rules_by_seconds_choose_as_among_devices_of_those_seconds(
    rule, blobs, federate, same_model
):
    X, y, clients = blobs
    estimator = FederatedClassifier(selector=rule, n_rounds=10, random_state=3, engine="loop")
    strategy, grid = federate(estimator)
    for name, delay in zip("abcdef", (2.0, 0.5, 3.0, 1.0, 2.5, 1.5), strict=True):
        kinds = "moments", "norms", "poll", "train"
        node_of(grid, name).delays.update(dict.fromkeys(kinds, delay))
    strategy.start(grid)
    model = strategy.model_
    seconds = client_exchanges(model).groupby("client")["seconds"].first()
    devices = ConstantDevices(1e300, np.inf, np.inf, latency=seconds.to_dict())
    simulated = clone(estimator).set_params(devices=devices).fit(X, y, clients=clients)
    timeless = [c for c in simulated.history_ if not c.endswith("_seconds")]
    pd.testing.assert_frame_equal(model.history_[timeless], simulated.history_[timeless])
    assert same_model(model, simulated)
    untimed = estimator.fit(X, y, clients=clients)
    assert untimed.history_["cohort"].tolist() != simulated.history_["cohort"].tolist()


class Records(RoundCallback):
    """Keeps the records, and raises after one round."""

    def __init__(self, fail_after=None):
        self.records, self.fail_after = [], fail_after

    def on_round_end(self, estimator, record):
        self.records.append(record)
        if record["round"] == self.fail_after:
            raise OSError("the disk is full")


def test_round_callbacks_get_each_round_once(federate, tmp_path):
    records = Records(fail_after=1)
    estimator = FederatedClassifier(n_rounds=3, checkpoint=tmp_path, random_state=0)
    strategy, grid = federate(estimator.set_callbacks(records))
    with pytest.raises(OSError, match="the disk is full"):
        strategy.start(grid)
    assert strategy.model_.n_rounds_ == 2
    again, grid = federate(estimator)
    again.start(grid)
    pd.testing.assert_frame_equal(pd.DataFrame(records.records), again.model_.history_)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_ledger_is_what_was_sent(name, federate):
    """Every model and scalar in a message is charged, and nothing else."""
    strategy, grid = federate(ESTIMATORS[name].set_params(n_rounds=5, random_state=3))
    strategy.start(grid)
    history = strategy.model_.history_

    def n_records(messages, *prefixes):
        return sum(key.startswith(prefixes) for m in messages for key in m.content)

    assert n_records(grid.sent, "state", "correction") == history["models_down"].sum()
    assert n_records(grid.received, "state-", "variate-") == history["models_up"].sum()
    bounds = [request for request in requests(grid.sent, "poll") if "at_most" in request]
    scaling = [m.content["scaling"] for m in grid.sent if "scaling" in m.content]
    n_scales = sum(array.numpy().size for record in scaling for array in record.values())
    n_seeds = len(requests(grid.sent, "sketch"))
    assert len(bounds) + n_scales + n_seeds == history["scalars_down"].sum()
    records = [
        record for m in grid.received for key, record in m.content.items() if "moments-" in key
    ]
    n_values = sum(array.numpy().size for record in records for array in record.values())
    n_values += 2 * n_records(grid.received, "norms") + SKETCH_SIZE * n_seeds
    reports = [m.content[key] for m in grid.received for key in m.content if "report-" in key]
    n_values += sum(len(report.keys() - {"loss", "n_samples"}) for report in reports)
    assert n_records(grid.received, "metrics") + n_values == history["scalars_up"].sum()
    assert len(requests(grid.sent, "poll")) == history["n_polled"].sum()


def test_in_doubt_two_models_are_polled(blobs, federate, same_model):
    """A client that was polled for the best model gets that of the round again, to train it."""
    X, y, clients = blobs
    torch.manual_seed(0)
    module = nn.Linear(X.shape[1], 1)
    estimator = FederatedRegressor(
        module, selector=POWD, local_steps=1, lr_schedule=0.3, n_rounds=12, random_state=3
    ).set_params(engine="loop")
    with pytest.warns(ConvergenceWarning, match="the fit ends with objective") as found:
        simulated = estimator.fit(X, y, clients=clients)
    strategy, grid = federate(estimator)
    with pytest.warns(ConvergenceWarning) as again:
        strategy.start(grid)
    history = strategy.model_.history_
    assert [str(w.message) for w in found] == [str(w.message) for w in again]
    timeless = [c for c in simulated.history_ if not c.endswith("_seconds")]
    pd.testing.assert_frame_equal(history[timeless], simulated.history_[timeless])
    assert same_model(strategy.model_, simulated)
    # 4 candidates; all 6 for the best model, and again for that of the round; 2 train it.
    last = history.iloc[-1]
    assert (last["n_polled"], last["models_down"], last["models_up"]) == (16, 16, 2)
    n_sent = sum("state" in message.content for message in grid.sent)
    assert n_sent == history["models_down"].sum()


def test_the_server_may_be_given_the_labels(blobs, federate):
    X, y, clients = blobs
    names = np.array(["cat", "dog", "eel", "fox"])
    estimator = FederatedClassifier(n_rounds=1, random_state=0)

    def load(context):
        rows = clients == context.node_config["client-name"]
        return pd.DataFrame(X[rows], columns=list("vwxyz")), names[y[rows]]

    strategy, grid = federate(estimator, load=load, classes=names)
    strategy.start(grid)
    assert strategy.model_.classes_.tolist() == names.tolist()
    assert strategy.model_.feature_names_in_.tolist() == list("vwxyz")
    assert not any("classes" in info for info in contents(grid.received, "info"))
    strategy, grid = federate(estimator, load=load)
    strategy.start(grid)
    assert strategy.model_.classes_.tolist() == names.tolist()[:3]  # what the clients have


def test_a_client_with_other_targets_refuses_their_moments(federate):
    server = FederatedRegressor(standardize_targets=True, n_rounds=1, random_state=0)
    strategy, grid = federate(server, at_client=FederatedRegressor(LinearRegression(5)))
    with pytest.raises(RuntimeError, match="no priority client has sent the mean and variance of"):
        strategy.start(grid)
    assert not any("moments-" in key for m in grid.received for key in m.content)


def test_a_failed_client_has_no_moments_of_targets(blobs, federate, caplog):
    _, y, clients = blobs
    server = FederatedRegressor(
        LinearRegression(5), standardize_targets=True, n_rounds=1, random_state=0
    )
    strategy, grid = federate(server)
    fails_in(grid, "b", "moments", lambda message: Message(Error(1, "x"), reply_to=message))
    strategy.start(grid)
    rest = y[clients != "b"]
    np.testing.assert_allclose(strategy.model_.target_mean_, [rest.mean()])
    assert strategy.model_.history_["scalars_up"].tolist() == [5 * 2]
    assert "client 'b' sends no moments of its targets: ConnectionError: no answer" in caplog.text


def fails_in(grid, name, kind, answer):
    node = node_of(grid, name)
    node.answer = lambda m: answer(m) if is_kind(m, kind) else node.app(m, node.context)


def test_a_client_with_other_parameter_groups_refuses(federate):
    own = FederatedClassifier(normed(optimizer__param_groups=[("0.*", {"lr": 0.01})]))
    server = FederatedClassifier(normed(), lr_schedule=0.1, n_rounds=1, random_state=0)
    strategy, grid = federate(server, at_client=own)
    with pytest.raises(RuntimeError, match="1 learning rates.* 2 parameter groups"):
        strategy.start(grid)


class Stops(LRScheduler):
    def on_epoch_end(self, net, **kwargs):
        super().on_epoch_end(net, **kwargs)
        if len(net.history) == 2:
            raise KeyboardInterrupt


def test_a_callback_stops_the_rounds(federate, tmp_path, monkeypatch):
    """The other rounds are not measured, and not begun when the run is started again."""
    net = normed(callbacks=[("stops", Stops("StepLR", step_size=9))])
    params = {"n_rounds": 5, "checkpoint": tmp_path, "random_state": 0}
    seen, begun, configure = [], [], FederatedStrategy.configure_train
    monkeypatch.setattr(
        FederatedStrategy,
        "configure_train",
        lambda strategy, t, *args: begun.append(t) or configure(strategy, t, *args),
    )
    for measured in ([0, 1, 2], [2]):
        strategy, grid = federate(FederatedClassifier(net, **params))
        strategy.start(grid, evaluate_fn=lambda t, arrays: seen.append(t) or MetricRecord({}))
        assert strategy.model_.n_rounds_ == 2
        assert seen == measured
        seen.clear()
    assert begun == [1, 2, 3, 4, 5]  # Flower runs the other rounds, but not when restarted


def test_the_server_measures_every_validate_every_rounds(federate):
    seen = []
    strategy, grid = federate(FederatedClassifier(n_rounds=5, validate_every=2, random_state=0))
    strategy.start(grid, evaluate_fn=lambda t, arrays: seen.append(t) or MetricRecord({}))
    assert seen == [0, 2, 4, 5]  # finished rounds: before the first, and after the last


@pytest.mark.parametrize("mixed", ["bool and numbers", "nullable"])
def test_tables_of_mixed_columns_train_as_in_the_simulation(mixed, blobs, federate, same_model):
    X, y, clients = blobs
    table = pd.DataFrame(X, columns=list("vwxyz"))
    table["z"] = table["z"] > 0
    table = table if mixed == "bool and numbers" else table.convert_dtypes()
    estimator = FederatedClassifier(n_rounds=2, random_state=0, engine="loop")
    simulated = estimator.fit(table, y, clients=clients)

    def load(context):
        rows = clients == context.node_config["client-name"]
        return table[rows], y[rows]

    strategy, grid = federate(estimator, load=load)
    strategy.start(grid)
    assert same_model(strategy.model_, simulated)
    assert strategy.model_.feature_names_in_.tolist() == list("vwxyz")


def test_columns_that_are_not_strings_have_no_names(blobs, federate):
    X, y, clients = blobs

    def load(context):
        rows = clients == context.node_config["client-name"]
        return pd.DataFrame(X[rows]), y[rows]

    strategy, grid = federate(FederatedClassifier(n_rounds=1, random_state=0), load=load)
    strategy.start(grid)
    assert not any("columns" in info for info in contents(grid.received, "info"))
    assert not hasattr(strategy.model_, "feature_names_in_")


def test_a_dtype_that_flower_cannot_send_is_an_error_before_the_training(federate):
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(5, 3)
            self.scale = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))

        def forward(self, x):
            return super().forward(x) * self.scale

    strategy, grid = federate(FederatedClassifier(Scaled, n_rounds=1, random_state=0))
    with pytest.raises(ValueError, match=r"scale has dtype torch.bfloat16, which Flower's arrays"):
        strategy.start(grid)
    assert not requests(grid.sent, "train")


@pytest.mark.parametrize("seed", range(6))
def test_ties_break_as_in_the_simulation(seed, blobs, federate):
    """The default net begins with equal losses; so do clients, by the engine of a simulation."""
    X, y, clients = blobs
    estimator = FederatedClassifier(selector=POWD, n_rounds=3, random_state=seed)
    simulated = estimator.fit(X, y, clients=clients)
    assert simulated.engine_.startswith("stacked")
    strategy, grid = federate(estimator)
    strategy.start(grid)
    cohorts = strategy.model_.history_["cohort"].tolist()
    assert cohorts == simulated.history_["cohort"].tolist()
    states = (m.net_.module_.state_dict().values() for m in (strategy.model_, simulated))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*states, strict=True))
