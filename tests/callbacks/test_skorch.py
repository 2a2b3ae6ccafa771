"""The wrapped net's epoch-level callbacks once a round, progress, and Ctrl-C."""

import threading

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from skorch.callbacks import (
    Callback,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    LRScheduler,
    PrintLog,
    TensorBoard,
)
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.aggregation import Scaffold
from skfed.devices import LognormalDevices
from skfed.privacy import GaussianMechanism
from skfed.server import _rounds

ALL_CLIENTS = RandomSelector(1.0, probability="uniform", replace=False)


class Softmax(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)


def fit(blobs, *callbacks, validate=True, lr=0.1, **params):
    X, y, clients = blobs
    net = NeuralNetClassifier(
        Softmax, criterion=nn.CrossEntropyLoss, lr=lr, callbacks=list(callbacks)
    )
    given = {"selector": ALL_CLIENTS, "n_rounds": 4, "random_state": 0} | params
    model = FederatedClassifier(net, **given)
    return model.fit(X, y, clients=clients, **({"X_val": X, "y_val": y} if validate else {}))


class Recorder(Callback):
    """Records its calls, and the weights after each round."""

    calls = []  # of the class, since skorch clones callbacks

    def on_train_begin(self, net, **kwargs):
        self.calls.append("begin")

    def on_epoch_begin(self, net, **kwargs):
        self.calls.append("round")

    def on_epoch_end(self, net, dataset_train, dataset_valid, **kwargs):
        self.calls.append(net.module_.weight.detach().clone())
        assert len(dataset_train) == len(dataset_valid)

    def on_train_end(self, net, **kwargs):
        self.calls.append("end")


def test_an_epoch_is_a_round_of_the_global_net(blobs):
    Recorder.calls = []
    model = fit(blobs, Recorder())
    calls = Recorder.calls
    assert calls[0] == "begin" and calls[-1] == "end"
    assert calls[1:-1:2] == ["round"] * 4
    assert torch.equal(calls[-2], model.net_.module_.weight)
    assert not torch.equal(calls[2], calls[4])
    assert model.engine_.startswith("stacked")  # not the loop, as for batch-level callbacks


def test_callbacks_do_not_change_the_result(blobs):
    plain = fit(blobs)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    observed = fit(blobs, EpochScoring("accuracy", on_train=True), Recorder(), PrintLog(sink=str))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(plain.net_.module_.weight, observed.net_.module_.weight)


def test_epoch_scoring_and_the_nets_history(blobs):
    X, y, _ = blobs
    model = fit(
        blobs,
        EpochScoring("accuracy", on_train=True, name="train_acc"),
        EpochScoring("neg_log_loss", lower_is_better=False, name="quality"),
    )
    net_history, rounds = model.net_.history, model.history_
    assert len(net_history) == 4
    np.testing.assert_allclose(net_history[:, "valid_loss"], rounds["val_loss"], rtol=1e-5)
    np.testing.assert_allclose(net_history[:, "valid_acc"], rounds["val_score"])
    np.testing.assert_allclose(net_history[:, "train_loss"], rounds["train_loss"])
    np.testing.assert_allclose(net_history[:, "quality"], -rounds["val_loss"], rtol=1e-4)
    assert net_history[-1, "train_acc"] == model.score(X, y)
    assert net_history[-1, "dur"] == rounds["round_seconds"].iloc[-1]


def test_early_stopping_stops_fit(blobs):
    stopper = EarlyStopping(monitor="val_loss", patience=2, threshold=10, threshold_mode="abs")
    model = fit(blobs, stopper, n_rounds=50)
    # No round improves by 10, so the first is the best, and two more are run.
    assert model.n_rounds_ == 2 or model.n_rounds_ == 3
    assert len(model.history_) == model.n_rounds_
    assert model.predict(blobs[0]).shape == blobs[1].shape


def test_early_stopping_restores_the_best_model(blobs):
    model = fit(blobs, EarlyStopping(patience=3, load_best=True), n_rounds=12, lr=5.0)
    X, y, _ = blobs
    output = model.net_.module_(torch.from_numpy(X.astype(np.float32)))
    loss = nn.functional.cross_entropy(output, torch.from_numpy(y)).item()
    assert loss == pytest.approx(model.history_["val_loss"].min(), rel=1e-4)


def test_checkpoint_and_print_log(blobs, tmp_path, capsys):
    model = fit(blobs, Checkpoint(dirname=tmp_path), PrintLog())
    assert {"params.pt", "history.json"} <= {path.name for path in tmp_path.iterdir()}
    out = capsys.readouterr().out
    assert "train_loss" in out and "val_score" in out
    assert len([line for line in out.splitlines() if line.strip()[:1].isdigit()]) == 4
    loaded = clone(model.net_).initialize()
    loaded.load_params(checkpoint=Checkpoint(dirname=tmp_path))
    assert torch.equal(loaded.module_.weight, model.net_.module_.weight)


class Writer:
    """A summary writer that, like torch's, cannot be copied."""

    def __init__(self):
        self.scalars, self.lock = [], threading.Lock()

    def add_scalar(self, tag, scalar_value, global_step):
        self.scalars.append((tag, scalar_value, global_step))

    def close(self):
        self.scalars.append("closed")


def test_tensorboard_gets_a_point_a_round(blobs):
    writer = Writer()
    model = fit(blobs, TensorBoard(writer))
    points = [point for point in writer.scalars if point[0] == "Loss/valid_loss"]
    assert [step for _, _, step in points] == [1, 2, 3, 4]
    np.testing.assert_allclose([v for _, v, _ in points], model.history_["val_loss"], rtol=1e-5)
    assert writer.scalars[-1] == "closed"


def test_tensorboard_gets_objective_cohort_size_and_bytes(blobs):
    writer = Writer()
    model = fit(blobs, TensorBoard(writer), selector=FedAlignSelector(), priority=["a", "b"])
    for column in ("objective", "n_aggregated", "bytes_down", "bytes_up"):
        points = [point for point in writer.scalars if point[0] == column]
        assert [value for _, value, _ in points] == model.history_[column].tolist()
        assert [step for _, _, step in points] == [1, 2, 3, 4]


def test_a_scheduler_of_epochs_sets_the_clients_rate(blobs):
    step = LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
    model = fit(blobs, step)
    assert model.history_["lr"].tolist() == [0.1, 0.1, 0.05, 0.05]
    assert model.engine_.startswith("stacked")
    by_hand = fit(blobs, lr_schedule=lambda t: 0.1 if t < 2 else 0.05)
    torch.testing.assert_close(model.net_.module_.weight, by_hand.net_.module_.weight)


def test_a_scheduler_continues_in_the_next_call(blobs):
    X, y, clients = blobs
    step = LRScheduler("StepLR", step_size=1, gamma=0.5)
    net = NeuralNetClassifier(Softmax, criterion=nn.CrossEntropyLoss, lr=0.1, callbacks=[step])
    warm = FederatedClassifier(net, n_rounds=2, warm_start=True, random_state=0)
    warm.fit(X, y, clients=clients).set_params(n_rounds=4).fit(X, y, clients=clients)
    one_by_one = FederatedClassifier(net, random_state=0)
    for _ in range(4):
        one_by_one.partial_fit(X, y, clients=clients)
    for model in (warm, one_by_one):
        assert model.history_["lr"].tolist() == [0.1, 0.05, 0.025, 0.0125]


def test_reduce_lr_on_plateau_lowers_the_rate(blobs):
    policy = LRScheduler(
        torch.optim.lr_scheduler.ReduceLROnPlateau, monitor="valid_loss", patience=0, threshold=10.0
    )
    rates = fit(blobs, policy).history_["lr"]
    assert rates.iloc[0] == 0.1 and rates.iloc[-1] < 0.1


def test_training_losses_are_recorded_without_validation_data(blobs):
    model = fit(blobs, EarlyStopping(monitor="train_loss", patience=99), validate=False)
    assert len(model.net_.history[:, "train_loss"]) == 4
    assert "valid_loss" not in model.net_.history[-1]


def test_nets_without_callbacks_keep_an_empty_history(blobs):
    assert len(fit(blobs).net_.history) == 0


def test_verbose_shows_a_bar(blobs, capsys):
    fit(blobs, verbose=1)
    err = capsys.readouterr().err
    assert "4/4" in err
    assert "cohort=6" in err and "MB=" in err and "train loss=" in err
    fit(blobs, verbose=1, selector=FedAlignSelector(warmup=0), priority=["a"])
    assert "objective=" in capsys.readouterr().err
    fit(blobs)
    assert capsys.readouterr().err == ""


class Interrupting(RandomSelector):
    """Raises KeyboardInterrupt in round 3."""

    def _select(self, round):
        if round.index == 3:
            raise KeyboardInterrupt
        return super()._select(round)


def test_ctrl_c_keeps_the_model_of_the_last_finished_round(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(selector=Interrupting(3), n_rounds=9, random_state=0)
    with (
        pytest.raises(KeyboardInterrupt),
        pytest.warns(UserWarning, match="last finished round, 3 of 9, is kept"),
    ):
        model.fit(X, y, clients=clients)
    three = FederatedClassifier(selector=RandomSelector(3), n_rounds=3, random_state=0)
    three.fit(X, y, clients=clients)
    assert model.n_rounds_ == 3
    np.testing.assert_array_equal(model.predict_proba(X), three.predict_proba(X))
    model.set_params(selector=RandomSelector(3), warm_start=True).fit(X, y, clients=clients)
    whole = FederatedClassifier(selector=RandomSelector(3), n_rounds=9, random_state=0)
    whole.fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.predict_proba(X), whole.predict_proba(X))


def test_ctrl_c_in_validation_undoes_the_round(blobs, monkeypatch):
    from skfed.server import _validation

    X, y, clients = blobs
    real, calls = _validation.evaluate, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(_validation, "evaluate", interrupted)
    model = FederatedClassifier(n_rounds=9, random_state=0)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="2 of 9"):
        model.fit(X, y, clients=clients, X_val=X, y_val=y)
    two = FederatedClassifier(n_rounds=2, random_state=0).fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.predict_proba(X), two.predict_proba(X))


def test_ctrl_c_in_the_update_of_variates_undoes_the_round(blobs, monkeypatch):
    X, y, clients = blobs
    real, calls = _rounds.updated_variates, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    model = FederatedClassifier(aggregator=Scaffold(), n_rounds=4, random_state=0)
    whole = clone(model).fit(X, y, clients=clients)
    with monkeypatch.context() as patch:
        patch.setattr(_rounds, "updated_variates", interrupted)
        with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="2 of 4"):
            model.fit(X, y, clients=clients)
    model.set_params(warm_start=True).fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.predict_proba(X), whole.predict_proba(X))


def test_ctrl_c_at_the_end_of_a_round_undoes_what_the_server_knows_of_clients(blobs, monkeypatch):
    noise = GaussianMechanism(clip=1.0, noise_multiplier=0.1)
    settings = {
        "aggregator": Scaffold(),
        "loss_privacy": noise,
        "devices": LognormalDevices(10.0, 1e3, 1e3),
        "validate": False,
    }
    two = fit(blobs, n_rounds=2, **settings)
    real = _rounds.make_row

    def interrupted(*, round, **columns):
        if round == 2:
            raise KeyboardInterrupt
        return real(round=round, **columns)

    X, y, clients = blobs
    model = clone(two).set_params(n_rounds=4)
    monkeypatch.setattr(_rounds, "make_row", interrupted)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="2 of 4"):
        model.fit(X, y, clients=clients)
    for name in ("messages", "private_rounds"):
        known = getattr(two._server, name)
        assert known and getattr(model._server, name) == known
    past, kept = two._server.past.to_columns(), model._server.past.to_columns()
    assert past["clients"] and {"reported", "waited", "n_chosen"} <= past.keys() == kept.keys()
    for name, values in past.items():
        np.testing.assert_array_equal(kept[name], values)
    assert two._server.variates
    torch.testing.assert_close(model._server.variates, two._server.variates, rtol=0, atol=0)


def test_ctrl_c_before_the_first_round_keeps_an_earlier_fit(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=2, random_state=0).fit(X, y, clients=clients)
    before = model.predict_proba(X)

    class InterruptingAtOnce(RandomSelector):
        def _select(self, round):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.set_params(selector=InterruptingAtOnce()).fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.predict_proba(X), before)
