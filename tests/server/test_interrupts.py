"""A round is whole or was not: interrupts and errors at every point of one, and what goes on."""

import signal
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, EarlyStopping, EpochScoring, LRScheduler
from torch import nn

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.aggregation import Scaffold, ServerOptimizer
from skfed.callbacks import RoundCallback
from skfed.callbacks._progress import Progress
from skfed.callbacks._sklearn import SklearnCallbacks
from skfed.callbacks._skorch import RoundCallbacks
from skfed.checkpoint._run import Run
from skfed.devices import LognormalDevices
from skfed.exchanges import PastRecords
from skfed.server._last_round import LastRound
from skfed.server._rounds import Rounds
from skfed.server._validation import Validation

TIMES = ["select_seconds", "train_seconds", "round_seconds"]
N_ROUNDS, FAILS_IN = 6, 3  # rounds, and the index of the one that fails
FIELDS = "optimizer_state", "variate", "variates", "memory", "stopped"


class Failing:
    """Where a fit fails, and by what."""

    point = error = t = None

    @classmethod
    def at(cls, point, error):
        cls.point, cls.error, cls.t = point, error, None

    @classmethod
    def is_interrupted(cls, point):
        """Return whether a fit is interrupted at a point; raise another error there."""
        if point != cls.point or cls.t != FAILS_IN:
            return False
        cls.point = None  # once
        if cls.error is not KeyboardInterrupt:
            raise cls.error("injected")
        return True


class Softmax(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class Drifting(Callback):
    """Remembers numbers, lists and tensors, and changes the model; Ctrl-C arrives in its frame."""

    def __init__(self, place):
        self.place = place

    def on_train_begin(self, net, **kwargs):
        self.n_, self.lengths_, self.best_ = 0, [], None

    def on_epoch_begin(self, net, **kwargs):
        self.n_ += 1
        net.module_.weight.data += 0.01 * self.n_
        if Failing.is_interrupted(f"{self.place} begins"):
            signal.raise_signal(signal.SIGINT)

    def on_epoch_end(self, net, **kwargs):
        self.lengths_.append(len(net.history))
        self.best_ = {"weight": net.module_.weight.detach().clone()}
        net.module_.bias.data -= 0.01
        if Failing.is_interrupted(f"{self.place} ends"):
            signal.raise_signal(signal.SIGINT)


def score(net, X, y):
    if Failing.is_interrupted("scorer"):
        signal.raise_signal(signal.SIGINT)
    return net.score(X, y)


CALLBACKS = [
    ("first", Drifting("first")),
    ("halve", LRScheduler("StepLR", step_size=1, gamma=0.5)),
    ("score", EpochScoring(score, lower_is_better=False, name="quality")),
    ("middle", Drifting("middle")),
    ("stop", EarlyStopping(monitor="val_loss", patience=50, load_best=True)),
    ("last", Drifting("last")),
]


def model(callbacks=CALLBACKS, **params):
    net = NeuralNetClassifier(
        Softmax, criterion=nn.CrossEntropyLoss, lr=0.2, callbacks=list(callbacks)
    )
    given = {
        "selector": RandomSelector(3),
        "aggregator": Scaffold(),
        "server_optimizer": ServerOptimizer(torch.optim.SGD, options={"momentum": 0.9}),
        "devices": LognormalDevices(10.0, 1e3, 1e3),
        "n_rounds": N_ROUNDS,
        "random_state": 0,
        "warm_start": True,
    }
    return FederatedClassifier(net, **given | params)


@pytest.fixture(scope="module")
def data(blobs):
    X, y, clients = blobs
    return {"X": X, "y": y, "clients": clients, "X_val": X, "y_val": y}


@pytest.fixture(scope="module", params=["callbacks", "none"])
def callbacks(request):
    return CALLBACKS if request.param == "callbacks" else []


@pytest.fixture(scope="module")
def whole(callbacks, data):
    """A fit without interrupts."""
    return model(callbacks).fit(**data)


def without_end(n_rounds, callbacks, data, **params):
    """Return a fit as it is after some rounds, before ``on_train_end``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundCallbacks, "end", lambda self, complete: None)
        return model(callbacks, n_rounds=n_rounds, **params).fit(**data)


@pytest.fixture(scope="module")
def stopped(callbacks, data):
    """Fits as they are after the rounds before the one that fails, and after it."""
    return {n: without_end(n, callbacks, data) for n in (FAILS_IN, FAILS_IN + 1)}


def content(value):
    """Return what is in an object, with tensors as lists of their values."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: content(one) for key, one in value.items() if key != "dur"}
    return [content(one) for one in value] if isinstance(value, list | tuple) else value


def assert_same(one, other):
    """Assert that two fits have the same rounds, and all that the next ones depend on."""
    a, b = (fitted.history_.drop(columns=TIMES) for fitted in (one, other))
    pd.testing.assert_frame_equal(a, b, check_exact=True)
    assert state_of(one) == state_of(other)


def state_of(fitted):
    server, net = fitted._server, fitted.net_
    groups = net.optimizer_.param_groups
    known = {name: getattr(server, name) for name in FIELDS}
    known |= {"model": net.module_.state_dict(), "history": list(net.history)}
    known |= {"callbacks": server.current_callback_state(), "past": server.past.to_columns()}
    return content(known | {"rates": [{**group, "params": None} for group in groups]})


# Points of a round: a method, and whether it fails before or after it; or None in a callback.
UNDONE = {
    "begun": (RoundCallbacks, "begin_round", "after"),
    "begun by scikit-learn": (SklearnCallbacks, "begin_round", "after"),
    "model": (Rounds, "_apply_server_optimizer", "after"),
    "variates": (Rounds, "_update_variates", "after"),
    "past": (PastRecords, "add", "after"),
    "costs": (PastRecords, "add_costs", "after"),
    "validation": (Validation, "after_round", "before"),
    "row": (Rounds, "_append_row", "after"),
    "callbacks": (RoundCallbacks, "end_round", "after"),
    "ended by scikit-learn": (SklearnCallbacks, "end_round", "before"),
    "after callbacks": (Rounds, "_after_callbacks", "after"),
    "not kept": (LastRound, "keep", "before"),
}
FINISHED = {
    "kept": (LastRound, "keep", "after"),
    "checkpoint": (Run, "keep", "before"),
    "checkpoint written": (Run, "keep", "after"),
    "progress": (Progress, "update", "before"),
}
IN_CALLBACKS = ["first begins", "last begins", "first ends", "scorer", "middle ends", "last ends"]
POINTS = [*UNDONE, *FINISHED, *IN_CALLBACKS]


@pytest.fixture
def point(request, monkeypatch, callbacks):
    """A point of a round at which a fit may fail."""
    point, run_round = request.param, Rounds.run_round
    if point in IN_CALLBACKS and not callbacks:
        pytest.skip("there are no callbacks")

    def counted(self):
        Failing.t = self.server.round
        run_round(self)

    monkeypatch.setattr(Rounds, "run_round", counted)
    if point not in IN_CALLBACKS:
        kind, name, when = (UNDONE | FINISHED)[point]
        monkeypatch.setattr(kind, name, failing(getattr(kind, name), point, when))
    return point


def failing(real, point, when):
    def step(*arguments, **keywords):
        if when == "before" and Failing.is_interrupted(point):
            signal.raise_signal(signal.SIGINT)
        result = real(*arguments, **keywords)
        if when == "after" and Failing.is_interrupted(point):
            signal.raise_signal(signal.SIGINT)
        return result

    return step


@pytest.mark.parametrize("point", POINTS, indirect=True)
def test_an_interrupted_fit_goes_on_as_if_there_had_been_none(
    point, callbacks, whole, stopped, data, tmp_path
):
    """With warm_start and, as another process would, from the checkpoint."""
    Failing.at(point, KeyboardInterrupt)
    one, n_rounds = model(callbacks, checkpoint=tmp_path), FAILS_IN + (point in FINISHED)
    with (
        pytest.warns(UserWarning, match=f"last finished round, {n_rounds} of {N_ROUNDS}, is kept"),
        pytest.raises(KeyboardInterrupt),
    ):
        one.fit(**data)
    assert_same(one, stopped[n_rounds])
    assert_same(model(callbacks, checkpoint=tmp_path).fit(**data), whole)
    assert_same(one.set_params(checkpoint=None).fit(**data), whole)


@pytest.mark.parametrize("point", POINTS[::4], indirect=True)
def test_after_an_error_a_warm_start_goes_on_from_the_last_whole_round(
    point, callbacks, whole, stopped, data, tmp_path
):
    one = without_end(FAILS_IN, callbacks, data, checkpoint=tmp_path)
    Failing.at(point, OSError)
    with pytest.raises(OSError, match="injected"):
        one.set_params(n_rounds=N_ROUNDS).fit(**data)
    n_rounds = FAILS_IN + (point in FINISHED)
    assert_same(one, stopped[n_rounds])
    assert_same(one.fit(**data), whole)


def test_a_scheduler_that_begins_in_an_interrupted_round_begins_once(data, monkeypatch):
    """Its first step scales the rate by 1/2, and the rate is that of the net when it begins."""
    warm_up = LRScheduler(torch.optim.lr_scheduler.LinearLR, start_factor=0.5, total_iters=9)
    one = model([], n_rounds=2).fit(**data)
    one.set_params(estimator__callbacks=[("warm_up", warm_up)], n_rounds=4)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="injected"):
        patch.setattr(Rounds, "_append_row", failing(Rounds._append_row, "row", "before"))
        Failing.at("row", OSError)
        Failing.t = FAILS_IN
        one.fit(**data)
    assert one.history_["lr"].tolist() == [0.2, 0.2] and not one.net_.history
    rates = one.fit(**data).history_["lr"].tolist()
    assert rates == pytest.approx([0.2, 0.2, 0.1, 0.2 * (0.5 + 0.5 / 9)])


class Interrupted(EpochScoring):
    """Begins to score the net in on_train_begin, and is interrupted there once."""

    def on_train_begin(self, net, X, y, **kwargs):
        super().on_train_begin(net, X, y, **kwargs)
        if Failing.is_interrupted("fit begins"):
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_before_the_first_round_of_a_fit_keeps_the_nets_history(data):
    one = model(n_rounds=2).fit(**data)
    given = [*CALLBACKS, ("new", Interrupted("accuracy", name="new"))]
    one.set_params(estimator__callbacks=given, n_rounds=4)
    Failing.at("fit begins", KeyboardInterrupt)
    Failing.t = FAILS_IN
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="2 of 4, is kept"):
        one.fit(**data)
    assert len(one.net_.history) == 2
    one.fit(**data)
    assert len(one.net_.history) == 4
    assert ["new" in epoch for epoch in one.net_.history] == [False, False, True, True]


class Stops(Callback):
    """Stops the rounds after the second, as EarlyStopping does, in a method of its own."""

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 2:
            self.stop()

    def stop(self):
        raise KeyboardInterrupt


class StopsEarly(EarlyStopping):
    """EarlyStopping of a user."""

    def on_epoch_end(self, net, **kwargs):
        super().on_epoch_end(net, **kwargs)


class Delegates(Callback):
    def on_train_begin(self, net, **kwargs):
        self.other_ = Stops()

    def on_epoch_end(self, net, **kwargs):
        self.other_.on_epoch_end(net, **kwargs)


@pytest.mark.parametrize(
    "stopper",
    [
        EarlyStopping("val_loss", patience=1, threshold=9.0, threshold_mode="abs", sink=str),
        StopsEarly("val_loss", patience=1, threshold=9.0, threshold_mode="abs"),
        Stops(),
        Delegates(),
    ],
    ids=lambda stopper: type(stopper).__name__,
)
def test_a_callback_stops_the_rounds_in_silence(stopper, data):
    fitted = model([stopper]).fit(**data)
    assert fitted.n_rounds_ == fitted._server.round == 2 and fitted._server.stopped == N_ROUNDS


class HitByASignal(Callback):
    """Gets Ctrl-C where a callback would stop the rounds: in the frame of its method."""

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 2:
            signal.raise_signal(signal.SIGINT)
            raise KeyboardInterrupt  # not reached


def passed_on(text):
    """Raise what a library does that passes on the interrupt of a worker."""
    raise KeyboardInterrupt


def by_hand(number, frame):
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [signal.default_int_handler, by_hand])
@pytest.mark.parametrize(
    "callback",
    [
        HitByASignal(),
        EarlyStopping("val_loss", 1, 9.0, "abs", sink=lambda text: signal.raise_signal(2)),
        EarlyStopping("val_loss", 1, 9.0, "abs", sink=passed_on),
    ],
    ids=["signal in a frame", "signal in EarlyStopping", "passed on"],
)
def test_an_interrupt_in_a_callback_is_no_stop(callback, handler, data):
    default = signal.signal(signal.SIGINT, handler)
    one = model([callback])
    try:
        with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="1 of 6, is kept"):
            one.fit(**data)
    finally:
        signal.signal(signal.SIGINT, default)
    assert one._server.stopped == 0


class Recorder(RoundCallback):
    def __init__(self):
        self.rounds = []

    def on_round_end(self, estimator, record):
        self.rounds.append(record["round"])


@pytest.mark.parametrize("point", ["row", "ended by scikit-learn", "scorer"], indirect=True)
def test_a_round_that_was_undone_is_reported_once(point, callbacks, data):
    one, recorder = model(callbacks), Recorder()
    one.set_callbacks(recorder)
    Failing.at(point, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="is kept"):
        one.fit(**data)
    one.fit(**data)
    assert recorder.rounds == list(range(N_ROUNDS))


def test_what_clients_sent_before_an_interrupted_round_is_charged_once():
    """The round is run again by a later fit, in which they have nothing new to send."""
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(60, 2)), np.arange(60) % 3
    y = X.sum(axis=1)
    costs = []
    for interrupted in (False, True):
        model = FederatedRegressor(n_rounds=2, warm_start=True, random_state=0)
        model.fit(X, y, clients=clients).set_params(n_rounds=4)
        if interrupted:
            failing = patch.object(Rounds, "_select", side_effect=OSError)
            with failing, pytest.raises(OSError):
                model.fit(2 * X, y, clients=clients)
        model.fit(2 * X, y, clients=clients)
        costs.append(model.history_[["scalars_up", "scalars_down"]].to_numpy())
    np.testing.assert_array_equal(*costs)
    assert costs[0][2].tolist() == [3 * (3 * 2 + 2 + 2), 3 * 2 * 2]
