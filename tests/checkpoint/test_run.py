"""A fit that was stopped is resumed, with the results of one that was not."""

import functools
import os
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import dateutil.tz
import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock
from joblib import parallel_config
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, EarlyStopping, LRScheduler
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.checkpoint._run import Run
from skfed.schedules import LinearDecay
from skfed.selection import Cohort


class Softmax(nn.Linear):
    """Starts the same in every fit."""

    def __init__(self):
        super().__init__(5, 3)


TIMES = ["select_seconds", "train_seconds", "round_seconds"]


def model(directory=None, **params):
    given = {"n_rounds": 8, "random_state": 0, "checkpoint": directory} | params
    return FederatedClassifier(**given)


def fit(blobs, directory=None, **params):
    X, y, clients = blobs
    return model(directory, **params).fit(X, y, clients=clients)


def stop_after(n_rounds, monkeypatch, fitting):
    """Interrupt a fit after the checkpoint of a round."""
    real = Run.keep

    def keep(self, server, last):
        real(self, server, last)
        if server.round == n_rounds:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "keep", keep)
        with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="interrupted"):
            fitting()


def same_run(one, other):
    a, b = (m.history_.drop(columns=TIMES) for m in (one, other))
    pd.testing.assert_frame_equal(a, b, check_exact=True)
    pairs = zip(one.net_.module_.parameters(), other.net_.module_.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


def folders(directory):
    return [path for path in Path(directory).iterdir() if path.is_dir()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has imported torch")
def test_killed_processes_go_on_bit_for_bit(tmp_path):
    """SKFED_KILLS=50 does it 50 times."""
    n_kills = int(os.environ.get("SKFED_KILLS", 4))
    script = Path(__file__).parents[1] / "helpers" / "killing.py"
    command = [sys.executable, script, tmp_path, str(n_kills), "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [verdict for _, verdict in lines] == ["same"] * n_kills, done.stdout + done.stderr
    assert any(0 < int(n_rounds) < 30 for n_rounds, _ in lines)


def test_callbacks_schedules_and_validation_go_on(blobs, tmp_path, monkeypatch):
    X, y, clients = blobs
    net = NeuralNetClassifier(
        nn.Linear(5, 3),
        criterion=nn.CrossEntropyLoss,
        lr=0.5,
        callbacks=[
            LRScheduler("StepLR", step_size=2, gamma=0.7),
            EarlyStopping(monitor="val_loss", patience=2, threshold=0.05, load_best=True),
        ],
    )
    eps = LinearDecay(2.0, 0.0)
    given = {"estimator": net, "selector": FedAlignSelector(eps=eps), "priority": ["a", "b"]}
    data = {"X": X, "y": y, "clients": clients, "X_val": X, "y_val": y, "clients_val": clients}
    whole = model(n_rounds=30, **given).fit(**data)
    assert 4 < whole.n_rounds_ < 30  # it stopped early
    stop_after(4, monkeypatch, lambda: model(tmp_path, n_rounds=30, **given).fit(**data))
    again = model(tmp_path, n_rounds=30, **given).fit(**data)
    assert same_run(again, whole)
    assert again.net_.history[:, "val_loss"] == whole.net_.history[:, "val_loss"]
    # A finished run is not trained again, and its best weights are loaded again.
    third = model(tmp_path, n_rounds=30, **given).fit(**data)
    assert third.history_.equals(again.history_)
    assert same_run(third, whole)


def test_regressors_go_on(blobs, tmp_path, monkeypatch):
    X, y, clients = blobs
    one = FederatedRegressor(n_rounds=6, random_state=0, checkpoint=tmp_path)
    stop_after(3, monkeypatch, lambda: clone(one).fit(X, y, clients=clients))
    whole = clone(one).set_params(checkpoint=None).fit(X, y, clients=clients)
    assert same_run(clone(one).fit(X, y, clients=clients), whole)


class Halves(nn.Linear):
    """Holds numbers of a dtype that NumPy lacks."""

    def __init__(self, scale):
        super().__init__(5, 3)
        self.register_buffer("scale", torch.full((2,), scale, dtype=torch.bfloat16))

    def forward(self, X):
        return super().forward(X) * self.scale.float().sum()


def test_bfloat16_goes_on(blobs, tmp_path, monkeypatch):
    one = {"estimator": Halves(0.5), "n_rounds": 4}
    stop_after(2, monkeypatch, lambda: fit(blobs, tmp_path, **one))
    assert same_run(fit(blobs, tmp_path, **one), fit(blobs, **one))
    fit(blobs, tmp_path, **one | {"estimator": Halves(0.25)})
    assert len(folders(tmp_path)) == 2


def test_every_n_rounds(blobs, tmp_path, monkeypatch, capsys):
    stop_after(6, monkeypatch, lambda: fit(blobs, tmp_path, checkpoint_every=4))
    again = fit(blobs, tmp_path, checkpoint_every=4, verbose=1)
    assert "resumes after round 4 of the run in" in capsys.readouterr().out
    assert same_run(again, fit(blobs))
    fit(blobs, tmp_path, checkpoint_every=5, verbose=1)
    assert "after round 8" in capsys.readouterr().out  # the last one is always written


def test_it_says_what_differs_and_keeps_runs_apart(blobs, tmp_path, capsys):
    X, y, clients = blobs
    fit(blobs, tmp_path, verbose=1)
    assert "a new run in" in capsys.readouterr().out
    fit(blobs, tmp_path, verbose=1, selector=RandomSelector(2))
    printed = capsys.readouterr().out
    assert "most similar run differs in selector" in printed and "now skfed.selection" in printed
    fit(blobs, tmp_path, selector=RandomSelector(3), verbose=1)
    assert "selector__clients_per_round (2, now 3)" in capsys.readouterr().out
    fit((X + 1, y, clients), tmp_path, verbose=1)
    assert "differs in X (float32 of shape (140, 5)" in capsys.readouterr().out
    fit((X, y, np.roll(clients, 1)), tmp_path, verbose=1)
    assert "differs in clients (6 clients" in capsys.readouterr().out
    fit(blobs, tmp_path, lr_schedule=lambda t: 0.1, verbose=1)
    fit(blobs, tmp_path, lr_schedule=lambda t: 0.2, verbose=1)
    assert capsys.readouterr().out.count("a new run in") == 2
    fit(blobs, tmp_path, lr_schedule=lambda t: 0.2, verbose=2, n_jobs=2, checkpoint_every=3)
    assert "resumes after round 8" in capsys.readouterr().out
    assert len(folders(tmp_path)) == 7


def test_rounds_may_be_added_with_warm_start(blobs, tmp_path):
    fit(blobs, tmp_path, n_rounds=5, warm_start=True)
    more = fit(blobs, tmp_path, n_rounds=8, warm_start=True)
    assert same_run(more, fit(blobs))
    X, y, clients = blobs
    more.set_params(n_rounds=10).fit(X, y, clients=clients)  # its own run
    assert len(folders(tmp_path)) == 1
    assert same_run(fit(blobs, tmp_path, n_rounds=6, warm_start=True), fit(blobs, n_rounds=6))
    assert len(folders(tmp_path)) == 2  # the longer run is left as it is


def test_a_script_that_adds_rounds_is_run_again(blobs, tmp_path, monkeypatch):
    X, y, clients = blobs

    def script(directory):
        step_by_step = fit(blobs, directory, n_rounds=3, warm_start=True)
        return step_by_step.set_params(n_rounds=8).fit(X, y, clients=clients)

    stop_after(6, monkeypatch, lambda: script(tmp_path))
    again = script(tmp_path)
    assert same_run(again, fit(blobs))
    third = script(tmp_path)
    assert third.history_.equals(again.history_)  # times and all: nothing was trained


def test_a_stopped_run_goes_on_for_more_rounds(blobs, tmp_path):
    X, y, clients = blobs
    stop = EarlyStopping(monitor="train_loss", patience=2, threshold=9, threshold_mode="abs")
    net = NeuralNetClassifier(Softmax, criterion=nn.CrossEntropyLoss, callbacks=[stop])
    given = {"estimator": net, "warm_start": True}
    one = fit(blobs, n_rounds=6, **given)
    done = one.n_rounds_
    assert done < 6
    with pytest.warns(UserWarning, match=f"a callback stopped after {done} of n_rounds=6"):
        one.fit(X, y, clients=clients)
    one.set_params(n_rounds=9).fit(X, y, clients=clients)
    fit(blobs, tmp_path, n_rounds=6, **given)
    other = fit(blobs, tmp_path, n_rounds=9, **given)
    assert same_run(other, one)
    assert one.partial_fit(X, y, clients=clients).n_rounds_ == other.n_rounds_ + 1


def test_a_warm_start_from_elsewhere_is_a_run_of_its_own(blobs, tmp_path, monkeypatch):
    X, y, clients = blobs

    def begun():
        first = fit((X + 1, y, clients), n_rounds=3, warm_start=True)
        return first.set_params(checkpoint=tmp_path, n_rounds=8)

    fit(blobs, tmp_path, warm_start=True)
    stop_after(5, monkeypatch, lambda: begun().fit(X, y, clients=clients))
    again = begun().fit(X, y, clients=clients)
    whole = begun().set_params(checkpoint=None).fit(X, y, clients=clients)
    assert same_run(again, whole)
    assert again.n_rounds_ == 8 and len(folders(tmp_path)) == 2


def test_candidates_of_a_search_share_a_directory(blobs, tmp_path):
    X, y, _ = blobs
    grid = {"selector__clients_per_round": [1, 3], "checkpoint": [tmp_path]}
    search = GridSearchCV(model(selector=RandomSelector()), grid, cv=2, n_jobs=2)
    with parallel_config("threading"):  # processes would take seconds to start
        search.fit(X, y, clients=np.arange(len(y)) % 3)
        assert len(folders(tmp_path)) == 2 * 2 + 1
        again = clone(search).fit(X, y, clients=np.arange(len(y)) % 3)
    # Times and all: nothing was trained.
    assert again.best_estimator_.history_.equals(search.best_estimator_.history_)
    np.testing.assert_array_equal(
        again.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"]
    )


def test_ids_of_many_types_come_back(blobs, tmp_path, monkeypatch):
    X, y, clients = blobs
    ids = [("a", 1), pd.Timestamp("2026-01-01", tz="UTC"), "a", 1, True, frozenset({1, "x"})]
    clients = [ids["abcdef".index(client)] for client in clients]
    stop_after(3, monkeypatch, lambda: fit((X, y, clients), tmp_path))
    assert same_run(fit((X, y, clients), tmp_path), fit((X, y, clients)))
    with pytest.raises(TypeError, match=r"clients has the id Decimal"):
        fit((X, y, [Decimal(str(client)) for client in np.arange(len(y)) % 3]), tmp_path)


@pytest.mark.skipif(
    pd.__version__.startswith("2."), reason="pandas 2 has no name for zones of dateutil"
)
def test_timestamps_with_zones_of_dateutil_go_on(blobs, tmp_path, monkeypatch):
    X, y, clients = blobs
    zone = dateutil.tz.gettz("Europe/Berlin")
    ids = [pd.Timestamp(2026, 1, "abcdef".index(client) + 1, tz=zone) for client in clients]
    stop_after(3, monkeypatch, lambda: fit((X, y, ids), tmp_path))
    assert same_run(fit((X, y, ids), tmp_path), fit((X, y, ids)))


def test_what_lies_behind_the_last_checkpoint_is_cut_off(blobs, tmp_path, monkeypatch):
    stop_after(3, monkeypatch, lambda: fit(blobs, tmp_path))
    (folder,) = folders(tmp_path)
    with open(folder / "history-0.jsonl", "ab") as log:
        log.write(b'{"dict": [["round"')
    (folder / ".state.safetensors.999").write_bytes(b"half of it")
    assert same_run(fit(blobs, tmp_path), fit(blobs))
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("name", ["state.safetensors", "history-0.jsonl"])
def test_damage_is_an_error(blobs, tmp_path, monkeypatch, name):
    stop_after(3, monkeypatch, lambda: fit(blobs, tmp_path))
    path = folders(tmp_path)[0] / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=rf"{name}.*damaged"):
        fit(blobs, tmp_path)
    path.unlink()
    if name == "history-0.jsonl":
        with pytest.raises(ValueError, match=r"is damaged: FileNotFoundError.*delete it"):
            fit(blobs, tmp_path)
    else:  # then there is no checkpoint, and the run starts anew
        assert same_run(fit(blobs, tmp_path), fit(blobs))


def test_a_full_disk_is_an_error_and_leaves_the_checkpoint_before(blobs, tmp_path, monkeypatch):
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(1)
        if len(calls) > 12:
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            fit(blobs, tmp_path)
    found = Run(folders(tmp_path)[0], 1).read()
    assert found is not None and 0 < len(found[1]) < 8
    assert same_run(fit(blobs, tmp_path), fit(blobs))


def test_directories_that_cannot_be(blobs, tmp_path):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(OSError, match="file"):
        fit(blobs, tmp_path / "file")
    with pytest.raises(ValueError, match="'checkpoint' parameter"):
        fit(blobs, 3)


def test_two_fits_do_not_write_one_run(blobs, tmp_path):
    fit(blobs, tmp_path)
    with (
        FileLock(folders(tmp_path)[0] / "lock"),
        pytest.raises(BlockingIOError, match="has the run in .* open"),
    ):
        fit(blobs, tmp_path)


class Overflowing(nn.Linear):
    """Its loss is not finite."""

    def __init__(self):
        super().__init__(5, 3)

    def forward(self, X):
        return super().forward(X) * torch.inf


def test_a_run_in_which_all_fail_is_not_written(blobs, tmp_path):
    for _ in range(2):
        with pytest.raises(ValueError, match="not finite"):
            fit(blobs, tmp_path, estimator=Overflowing)
    assert not list(tmp_path.glob("*/state.safetensors"))


class Hoarder(Callback):
    def on_epoch_end(self, net, **kwargs):
        self.things = Counter({"rounds": 1})


def test_callbacks_that_cannot_be_saved_are_named(blobs, tmp_path):
    net = NeuralNetClassifier(
        nn.Linear(5, 3), criterion=nn.CrossEntropyLoss, callbacks=[("hoarder", Hoarder())]
    )
    with pytest.warns(UserWarning, match=r"are reset.*hoarder\.things"):
        fit(blobs, tmp_path, estimator=net, n_rounds=1)


class Setting(nn.Linear):
    """Multiplies its output by a plain attribute."""

    def __init__(self, factor, frozen=False):
        super().__init__(5, 3)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self._factor = factor
        self.bias.requires_grad_(not frozen)

    def forward(self, X):
        return super().forward(X) * self._factor


def hooked(k):
    module = Setting(1)
    module.register_forward_hook(lambda module, inputs, output: output * k)
    return module


def edited(k):
    """Make a selector class whose code has been edited, but not its name."""

    class Mine(RandomSelector):
        def _select(self, round):
            return Cohort(np.array([k]), np.ones(1))

    return Mine()


def mutual(rate):
    def odd(t):
        return rate if t == 0 else even(t - 1)

    def even(t):
        return rate if t == 0 else odd(t - 1)

    return even


class Tensors:
    """A schedule that holds a tensor, whose pickle differs each time."""

    def __init__(self, rate):
        self.rates = torch.tensor([rate])

    def __call__(self, t):
        return float(self.rates[0])


@pytest.mark.parametrize(
    "made",
    [
        lambda k: {"estimator": Setting(k)},
        lambda k: {"estimator": Setting(1, frozen=k == 2)},
        lambda k: {"estimator": hooked(k)},
        lambda k: {"estimator": nn.Sequential(nn.Dropout(0.1 * k), Setting(1))},
        lambda k: {"selector": edited(k)},
        lambda k: {"lr_schedule": mutual(0.1 * k)},
        lambda k: {"lr_schedule": Tensors(0.1 * k)},
        lambda k: {"lr_schedule": functools.partial(np.multiply, 0.01 * k)},
        lambda k: {"lr_schedule": ([0.1 * k] * 3).__getitem__},
        lambda k: {"lr_schedule": LinearDecay(0.1 * k, 0)},
        lambda k: {"priority": {"a": 0.5, "b": 1 / k}},
        lambda k: {"random_state": np.random.RandomState(k)},
    ],
    ids=[
        *("plain attribute", "frozen weight", "hook", "nested module", "edited class"),
        *("recursion", "tensor", "partial", "bound builtin", "schedule", "mapping", "random state"),
    ],
)
def test_runs_differ_by_all_that_matters(blobs, tmp_path, made):
    first = fit(blobs, tmp_path, n_rounds=2, **made(1))
    other = fit(blobs, tmp_path, n_rounds=2, **made(2))
    assert len(folders(tmp_path)) == 2
    assert same_run(other, fit(blobs, n_rounds=2, **made(2)))
    again = fit(blobs, tmp_path, n_rounds=2, **made(1))
    assert len(folders(tmp_path)) == 2
    assert again.history_.equals(first.history_)


def test_modules_that_are_lazy_or_in_a_loop_are_described(blobs, tmp_path):
    for _ in range(2):
        fit(blobs, tmp_path, estimator=nn.Sequential(nn.LazyLinear(3)), n_rounds=1)
    assert len(folders(tmp_path)) == 1


def test_without_a_seed_the_runs_seed_is_taken_with_a_warning(blobs, tmp_path):
    one = fit(blobs, tmp_path, random_state=None)
    with pytest.warns(UserWarning, match="random_state=None, so this fit resumes with the seed"):
        assert same_run(fit(blobs, tmp_path, random_state=None), one)


def test_other_files_in_a_run_are_left_alone(blobs, tmp_path, capsys):
    fit(blobs, tmp_path)
    (folder,) = folders(tmp_path)
    (folder / ".notes").mkdir()
    (folder / "about.json").write_text("[]")
    fit(blobs, tmp_path)
    fit(blobs, tmp_path, n_rounds=9, verbose=1)
    assert (folder / ".notes").exists()
    assert "a new run in" in capsys.readouterr().out
    with pytest.raises(ValueError, match="checkpoint='' names no directory"):
        fit(blobs, "")


class Restarting(Callback):
    """Sets weights when training begins."""

    def on_train_begin(self, net, **kwargs):
        nn.init.zeros_(net.module_.weight)

    def on_epoch_end(self, net, **kwargs):
        self.n_rounds_ = len(net.history)


class Halving(Callback):
    """Halves the rate as no scheduler does."""

    def on_epoch_end(self, net, **kwargs):
        net.optimizer_.param_groups[0]["lr"] *= 0.5


def test_callbacks_that_touch_the_net_go_on(blobs, tmp_path, monkeypatch):
    net = NeuralNetClassifier(
        Softmax, criterion=nn.CrossEntropyLoss, lr=0.4, callbacks=[Restarting(), Halving()]
    )
    whole = fit(blobs, estimator=net)
    assert whole.history_["lr"].tolist() == [0.4 * 0.5**t for t in range(8)]
    plain = NeuralNetClassifier(
        Softmax, criterion=nn.CrossEntropyLoss, lr=0.4, callbacks=[Restarting()]
    )
    by_hand = fit(blobs, estimator=plain, lr_schedule=lambda t: 0.4 * 0.5**t)
    torch.testing.assert_close(whole.net_.module_.weight, by_hand.net_.module_.weight)
    stop_after(4, monkeypatch, lambda: fit(blobs, tmp_path, estimator=net))
    assert same_run(fit(blobs, tmp_path, estimator=net), whole)
