"""Callbacks that monitor a value are called in the rounds that have it; batch scoring."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier
from skorch.callbacks import (
    BatchScoring,
    Callback,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    LRScheduler,
    PrintLog,
)
from skorch.utils import noop
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.selection import Cohort

ALL_CLIENTS = RandomSelector(1.0, probability="uniform", replace=False)


class Softmax(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)


def fit(blobs, *callbacks, validate=True, **params):
    X, y, clients = blobs
    net = NeuralNetClassifier(
        Softmax, criterion=nn.CrossEntropyLoss, lr=0.1, callbacks=list(callbacks)
    )
    given = {"selector": ALL_CLIENTS, "n_rounds": 4, "random_state": 0} | params
    model = FederatedClassifier(net, **given)
    return model.fit(X, y, clients=clients, **({"X_val": X, "y_val": y} if validate else {}))


ALIGNED = {"selector": FedAlignSelector(eps=9.0, warmup=3), "priority": ["a", "b"], "n_rounds": 6}
STOPPER = {
    "patience": 2,
    "threshold": 100,
    "threshold_mode": "abs",
    "sink": noop,
}  # no gain is enough


def test_rounds_without_an_objective_do_not_count_against_patience(blobs):
    """The warm-up has none. After it the first round is the best, and two more are run."""
    model = fit(blobs, EarlyStopping(monitor="objective", **STOPPER), **ALIGNED)
    assert model.n_rounds_ == 6
    assert len(model.net_.history[:, "objective"]) == 3


@pytest.mark.parametrize(
    "monitor", ["objective", lambda net: net.history[-1, "objective"]], ids=["name", "function"]
)
def test_reduce_lr_on_plateau_skips_rounds_without_an_objective(blobs, monitor):
    policy = LRScheduler(
        "ReduceLROnPlateau", monitor=monitor, patience=0, threshold=99, threshold_mode="abs"
    )
    rates = fit(blobs, policy, **ALIGNED).history_["lr"]
    assert rates.tolist() == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1, 0.01])


def test_checkpoint_skips_rounds_without_the_monitored_value(blobs, tmp_path):
    checkpoint = Checkpoint(
        monitor=lambda net: net.history[-1, "objective"] < 9,
        f_params="{last_epoch[epoch]}.pt",
        dirname=tmp_path,
    )
    model = fit(blobs, checkpoint, **ALIGNED)
    assert {path.name for path in tmp_path.glob("*.pt")} >= {"4.pt", "5.pt", "6.pt"}
    assert not {path.name for path in tmp_path.glob("*.pt")} & {"1.pt", "2.pt", "3.pt"}
    assert model.net_.history[:, "event_cp"] == [False] * 3 + [True] * 3
    # Checkpoint finds the files that it saved last by these events.
    assert dict(model.net_.callbacks_)["Checkpoint"].get_formatted_files(model.net_)[
        "f_params"
    ] == str(tmp_path / "6.pt")


@pytest.mark.parametrize("monitor", ["valid_loss", "val_loss", "quality"])
def test_rounds_without_validation_do_not_count_against_patience(blobs, monitor):
    quality = EpochScoring("neg_log_loss", name="quality")
    model = fit(
        blobs, quality, EarlyStopping(monitor=monitor, **STOPPER), n_rounds=20, validate_every=3
    )
    # Rounds 2, 5 and 8 are validated: the first is the best, and two are no better.
    assert model.n_rounds_ == 9
    assert len(model.net_.history[:, "quality"]) == 3


class DatasetRecorder(Callback):
    """Records whether a round had validation data."""

    rounds = []

    def on_epoch_end(self, net, dataset_valid, **kwargs):
        self.rounds.append(dataset_valid is not None)


def test_callbacks_without_a_monitor_are_called_in_each_round(blobs):
    DatasetRecorder.rounds = []
    model = fit(blobs, DatasetRecorder(), n_rounds=5, validate_every=3)
    assert DatasetRecorder.rounds == [False, False, True, False, True]
    assert len(model.net_.history[:, "train_loss"]) == 5
    assert model.net_.history[:, "valid_loss_best"] == [True, True]
    np.testing.assert_allclose(
        model.net_.history[:, "valid_loss"], model.history_["val_loss"].dropna(), rtol=1e-5
    )


def test_a_scheduler_steps_in_each_round_whatever_its_monitor(blobs):
    """Its default monitor, train_loss, is not used."""

    class EmptyRound(RandomSelector):
        def _select(self, round):
            return super()._select(round) if round.index != 1 else Cohort.mean(np.array([], int))

    step = LRScheduler("StepLR", step_size=1, gamma=0.5)
    model = fit(blobs, step, EarlyStopping("train_loss", **STOPPER), selector=EmptyRound(1.0))
    assert model.history_["lr"].tolist() == [0.1, 0.05, 0.025, 0.0125]
    assert np.isnan(model.history_["train_loss"][1])
    assert len(model.net_.history[:, "train_loss"]) == 3


def test_an_infinite_validation_loss_counts_against_patience(blobs, monkeypatch):
    from skfed.server import _validation

    real, calls = _validation.evaluate, []

    def diverging(*given):
        calls.append(1)
        loss, outputs = real(*given)
        return (loss if len(calls) == 1 else np.inf), outputs

    monkeypatch.setattr(_validation, "evaluate", diverging)
    stopper = EarlyStopping("val_loss", patience=2, sink=noop)
    with pytest.warns(ConvergenceWarning, match="val_loss was .* and inf in round 2"):
        assert fit(blobs, stopper, n_rounds=9).n_rounds_ == 3


@pytest.mark.parametrize(
    ("callback", "match"),
    [
        (EarlyStopping(), "EarlyStopping monitors 'valid_loss'.*pass X_val and y_val to fit"),
        (EarlyStopping("val_score"), "EarlyStopping monitors 'val_score'.*pass X_val"),
        (Checkpoint(), "Checkpoint monitors 'valid_loss_best'.*pass X_val"),
        (LRScheduler("ReduceLROnPlateau", monitor="valid_acc"), "'valid_acc'.*pass X_val"),
        (EarlyStopping("val_los"), "'val_los', which no callback before it records.*'train_loss'"),
    ],
)
def test_a_monitor_that_no_round_can_have_is_an_error_before_the_first_round(
    blobs, callback, match
):
    with pytest.raises(ValueError, match=match):
        fit(blobs, callback, validate=False, selector=NeverSelecting())


class NeverSelecting(RandomSelector):
    def _select(self, round):
        pytest.fail("a round was run")


def test_a_score_is_recorded_before_it_is_monitored(blobs):
    score = EpochScoring("accuracy", on_train=True, name="train_acc")
    stopper = EarlyStopping("train_acc", lower_is_better=False, **STOPPER)
    assert fit(blobs, score, stopper, validate=False).n_rounds_ == 3
    with pytest.raises(ValueError, match="no callback before it records"):
        fit(blobs, stopper, score, validate=False)


def test_a_user_callback_may_record_what_another_monitors(blobs):
    class Recorder(Callback):
        def on_epoch_end(self, net, **kwargs):
            net.history.record("norm", net.module_.weight.norm().item())

    model = fit(blobs, Recorder(), EarlyStopping("norm", **STOPPER), validate=False)
    assert model.n_rounds_ == 3


def test_a_monitor_that_no_round_had_warns_at_the_end(blobs):
    """It is not known before which rounds poll."""
    stopper = EarlyStopping("objective", **STOPPER)
    with pytest.warns(UserWarning, match=r"EarlyStopping \(monitor='objective'\).*FedAlign"):
        model = fit(blobs, stopper)
    assert model.n_rounds_ == 4


class Reader(Callback):
    """Reads the scores of the clients' batches."""

    scores = []

    def on_batch_end(self, net, training, **kwargs):
        self.scores.append(net.history[-1, "batches", -1, "acc"])


def test_batch_scoring_is_called_at_the_clients(blobs):
    Reader.scores = []
    scoring = BatchScoring("accuracy", on_train=True, name="acc")
    model = fit(blobs, scoring, Reader(), validate=False, n_rounds=2)
    assert model.history_["n_failed"].tolist() == [0, 0]
    assert len(Reader.scores) == 2 * 6  # a batch per client and round
    assert all(0 <= score <= 1 for score in Reader.scores)


@pytest.mark.parametrize("on_train", [False, True])
def test_batch_scoring_without_effect_warns(blobs, on_train):
    scoring = BatchScoring("accuracy", on_train=on_train)
    with pytest.warns(UserWarning, match="BatchScoring.*use EpochScoring"):
        model = fit(blobs, scoring, n_rounds=1)
    assert model.history_["n_failed"][0] == 0


def test_print_log_prints_a_header_when_the_columns_change(blobs):
    lines = []
    fit(blobs, PrintLog(sink=lines.append), validate_every=2, n_rounds=3)
    headers = [line for line in lines if "epoch" in line]
    assert ["val_score" in line for line in headers] == [False, True]
