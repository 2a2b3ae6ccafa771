"""A fit on a GPU gives what it gives on the CPU."""

import gc
import logging
import pickle
from functools import partial
from math import inf

import numpy as np
import pandas as pd
import pytest
import torch
from families import Convolutions, Gated, Recurrent, mlp, normalised
from joblib import parallel_config
from parity import assert_same, both, flat, net
from rules import COMPARED
from sklearn.base import clone
from skorch import NeuralNetRegressor
from torch import nn

from skfed import (
    ActiveFLSelector,
    FedAlignSelector,
    FederatedClassifier,
    FederatedRegressor,
    PowerOfChoice,
    RandomSelector,
)
from skfed.aggregation import CoordinateMedian, NormClipping, Scaffold, ServerOptimizer
from skfed.availability import IndependentAvailability
from skfed.engines._stacked_steps import ChunkTraining
from skfed.engines.products import _cuda_graphs
from skfed.metrics import personalised_scores
from skfed.privacy import GaussianMechanism
from skfed.schedules import LinearDecay

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ON_GPU = "cuda"


@pytest.fixture(autouse=True)
def _no_recovery(monkeypatch):
    """Let no error of steps be hidden by training each member alone."""

    def recover(self, run, error):
        raise error

    monkeypatch.setattr(ChunkTraining, "recover", recover)


@pytest.fixture
def launched(monkeypatch):
    """Return a list with an item for each launch of a CUDA graph."""
    launches, replay = [], _cuda_graphs._Graph._replay
    monkeypatch.setattr(
        _cuda_graphs._Graph, "_replay", lambda self: launches.append(1) or replay(self)
    )
    return launches


@pytest.fixture
def users():
    """Return X, y and clients of nine users with up to 50 rows."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(3, 50, 9)
    clients = rng.permutation(np.repeat(np.arange(9), sizes))
    y = rng.integers(0, 3, len(clients))
    return rng.normal(size=(len(y), 12)) + np.eye(12)[y], y, clients


def fit(data, module, device, precision=torch.float64, **params):
    X, y, clients = data
    torch.manual_seed(0)
    settings = params.pop("settings", {})
    estimator = net(module(12, 3).to(precision), device=device, **settings)
    others = params.pop("fit", {})
    params = {"selector": RandomSelector(5), "n_rounds": 4, "random_state": 0, **params}
    dtype = "float32" if precision == torch.float32 else "float64"
    model = FederatedClassifier(estimator, **params)
    return model.fit(X.astype(dtype), y, clients=clients, **others)


def weights(model):
    return flat(model.net_.module_).cpu()


OPTIONS = {
    "momentum": {"settings": {"optimizer__momentum": 0.9}},
    "adam": {"settings": {"optimizer": torch.optim.Adam, "lr": 0.01}},
    "schedule": {"lr_schedule": LinearDecay(0.2, 0.01)},
    "FedAlign": {"selector": FedAlignSelector(eps=0.3), "priority": [0, 1, 2]},
    "power-of-choice": {"selector": PowerOfChoice(6, 3)},
    "cpow-d": {"selector": PowerOfChoice(6, 3, loss="batch")},
    "active": {"selector": ActiveFLSelector(clients_per_round=3)},
    **{repr(rule): {"selector": rule} for rule in COMPARED},
    "unbiased": {"selector": RandomSelector(4, probability="uniform", replace=False)},
    "proximal": {"proximal_mu": 0.5, "local_epochs": 2},
    "SCAFFOLD": {"aggregator": Scaffold(), "local_epochs": 2},
    "median": {"aggregator": CoordinateMedian()},
    "clipping": {"aggregator": NormClipping(0.1)},
    "server optimizer": {"server_optimizer": ServerOptimizer(torch.optim.Adam, lr=0.1)},
    "privacy": {"update_privacy": GaussianMechanism(1.0, 0.1)},
    "availability": {"availability": IndependentAvailability(0.6)},
    "small chunks": {"memory_budget": 20_000},
    "two jobs": {"memory_budget": 20_000, "n_jobs": 2},
}


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("option", OPTIONS)
def test_each_option(users, option, engine):
    fit_on = partial(fit, users, mlp, engine=engine, **OPTIONS[option])
    on_cpu, on_gpu = fit_on("cpu"), fit_on(ON_GPU)
    assert on_gpu.engine_ == on_cpu.engine_
    torch.testing.assert_close(weights(on_gpu), weights(on_cpu), rtol=0, atol=1e-9)
    columns = ["cohort", "polled", "bytes_up", "samples_evaluated", "samples_trained"]
    assert on_gpu.history_[columns].equals(on_cpu.history_[columns])
    X, y, _ = users
    np.testing.assert_allclose(on_gpu.predict_proba(X), on_cpu.predict_proba(X), atol=1e-8)
    assert on_gpu.score(X, y) == on_cpu.score(X, y)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(
    "selector", [PowerOfChoice(6, 3), FedAlignSelector(eps=0.3, match="accuracy")]
)
def test_weights_of_rows_and_validation(users, selector, engine):
    X, y, _ = users
    sample_weight = np.random.default_rng(1).uniform(0.1, 1, len(y))
    own = {"sample_weight": sample_weight, "X_val": X, "y_val": y}
    fit_on = partial(fit, users, mlp, engine=engine, selector=selector, fit=own)
    on_cpu, on_gpu = fit_on("cpu"), fit_on(ON_GPU)
    torch.testing.assert_close(weights(on_gpu), weights(on_cpu), rtol=0, atol=1e-9)
    for column in ("val_loss", "val_score"):
        np.testing.assert_allclose(on_gpu.history_[column], on_cpu.history_[column], rtol=1e-9)


def test_a_regressor(users):
    X, _, clients = users

    def regress(device):
        torch.manual_seed(0)
        estimator = NeuralNetRegressor(nn.Linear(12, 1).double(), device=device)
        model = FederatedRegressor(estimator, n_rounds=4, random_state=0)
        return model.fit(X, 2 * X[:, :1], clients=clients)

    on_cpu, on_gpu = map(regress, ("cpu", ON_GPU))
    np.testing.assert_allclose(on_gpu.predict(X), on_cpu.predict(X), atol=1e-8)


def test_processes(users):
    params = {"memory_budget": 20_000, "n_jobs": 2}
    with parallel_config(backend="loky"):
        on_gpu = fit(users, mlp, ON_GPU, **params)
    torch.testing.assert_close(
        weights(on_gpu), weights(fit(users, mlp, "cpu", **params)), rtol=0, atol=1e-9
    )


def test_a_fit_goes_on_from_its_checkpoint(users, tmp_path):
    whole = fit(users, mlp, ON_GPU)
    fit(users, mlp, ON_GPU, n_rounds=2, checkpoint=tmp_path / "run")
    resumed = fit(users, mlp, ON_GPU, checkpoint=tmp_path / "run")
    assert torch.equal(weights(resumed), weights(whole))


def test_a_fitted_model_on_disk(users, tmp_path):
    X, _, _ = users
    model = fit(users, mlp, ON_GPU)
    copy = pickle.loads(pickle.dumps(model))
    assert copy.net_.device == ON_GPU
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    model.save(tmp_path / "model")
    loaded = clone(model).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_random_layers_draw_the_same_in_each_run(users, engine):
    def module(n_features, n_classes):
        layers = nn.Linear(n_features, 8), nn.Dropout(0.5), nn.Linear(8, n_classes)
        return nn.Sequential(*layers)

    before = torch.cuda.get_rng_state()
    one, other = (fit(users, module, ON_GPU, engine=engine, local_steps=9) for _ in range(2))
    assert torch.equal(weights(one), weights(other))
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_metrics_of_clients(users):
    X, y, clients = users
    on_cpu, on_gpu = (fit(users, mlp, device) for device in ("cpu", ON_GPU))
    scores = [
        personalised_scores(model, X, y, clients, X, y, clients, local_steps=3)
        for model in (on_cpu, on_gpu)
    ]
    pd.testing.assert_frame_equal(*scores)


@pytest.mark.parametrize("option", ["momentum", "adam", "schedule", "proximal", "SCAFFOLD"])
def test_each_option_by_graphs(users, launched, option):
    """A cohort of the same clients in each round, so that steps come again and again."""
    params = {**OPTIONS[option], "local_steps": 9, "engine": "stacked"}
    params["selector"] = RandomSelector(9, probability="uniform", replace=False)
    on_cpu, on_gpu = (fit(users, mlp, device, **params) for device in ("cpu", ON_GPU))
    assert launched
    torch.testing.assert_close(weights(on_gpu), weights(on_cpu), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "module, settings",
    [
        (mlp, {}),
        (mlp, {"optimizer__momentum": 0.9}),
        (Gated, {}),
        (Convolutions, {"optimizer__momentum": 0.9}),
        (Recurrent, OPTIONS["adam"]["settings"]),
    ],
)
def test_cuda_graphs_change_no_bit(users, monkeypatch, caplog, launched, module, settings):
    caplog.set_level(logging.INFO, "skfed")
    fit_it = partial(
        fit, users, module, ON_GPU, torch.float32, engine="stacked", settings=settings,
        local_steps=9, lr_schedule=LinearDecay(0.1, 0.01),
    )  # fmt: skip
    by_graphs = fit_it()
    assert launched
    assert "without CUDA graphs" not in caplog.text
    monkeypatch.setattr(_cuda_graphs, "_CALLS_BEFORE", inf)
    n_launched = len(launched)
    assert torch.equal(weights(fit_it()), weights(by_graphs))
    assert len(launched) == n_launched


@pytest.mark.parametrize("settings", [{}, {"optimizer__momentum": 0.9}])
def test_two_jobs_give_the_same_bits_by_graphs(users, launched, settings):
    one, two = (
        fit(
            users, mlp, ON_GPU, torch.float32, settings=settings, local_steps=9, n_rounds=6,
            memory_budget=20_000, n_jobs=n_jobs,
        )
        for n_jobs in (1, 2)
    )  # fmt: skip
    assert launched
    assert torch.equal(weights(one), weights(two))


@pytest.mark.parametrize("module", [Gated, normalised])
def test_fits_give_their_memory_back(users, module):
    reserved = []
    for _ in range(6):
        fit(users, module, ON_GPU, local_steps=9, engine="stacked")
        gc.collect()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[1]


class Copies(nn.Module):
    """A module with a copy to the GPU, which no graph can have."""

    def __init__(self, n_features, n_classes, non_blocking=False):
        super().__init__()
        self.out = nn.Linear(n_features, n_classes)
        self.non_blocking = non_blocking

    def forward(self, X):
        two = torch.tensor([2.0], dtype=X.dtype)
        return self.out(X) * two.to(X.device, non_blocking=self.non_blocking)


@pytest.mark.parametrize(
    "module", [Copies, partial(Copies, non_blocking=True), normalised], ids=["copy", "other", "BN"]
)
def test_steps_that_wait_for_the_gpu_are_taken_without_graphs(users, caplog, launched, module):
    """Batch normalisation does: clients of equal batch sizes are computed together."""
    caplog.set_level(logging.INFO, "skfed")
    params = {"local_steps": 9, "engine": "stacked", "settings": {"batch_size": 7}}
    on_cpu, on_gpu = (fit(users, module, device, **params) for device in ("cpu", ON_GPU))
    torch.testing.assert_close(weights(on_gpu), weights(on_cpu), rtol=0, atol=1e-7)
    assert caplog.text.count("without CUDA graphs, because of") == 1
    assert "from now on" not in caplog.text
    if module is not normalised:
        assert not launched
    torch.rand(1, device="cuda")
    torch.cuda.empty_cache()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("fits", [True, False], ids=["X moved once", "rows moved"])
def test_X_in_any_order_whether_it_fits_or_not(users, monkeypatch, launched, order, fits):
    X, y, clients = users
    params = {"local_steps": 9, "engine": "stacked", "selector": PowerOfChoice(6, 3)}
    on_cpu = fit(users, mlp, "cpu", **params)
    if not fits:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    on_gpu = fit((np.asarray(X, order=order), y, clients), mlp, ON_GPU, **params)
    assert launched
    torch.testing.assert_close(weights(on_gpu), weights(on_cpu), rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("module", [Convolutions, Recurrent])
def test_bits_are_the_same_in_each_run(users, monkeypatch, module, engine):
    """In float32 torch lets cuDNN round to TF32, and sum gradients in any order."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    one, other = (fit(users, module, ON_GPU, torch.float32, engine=engine) for _ in range(2))
    assert torch.equal(weights(one), weights(other))
    assert not torch.backends.cudnn.deterministic
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize("module", [Convolutions, Recurrent])
def test_modules_for_cudnn_are_stacked(users, module):
    assert fit(users, module, ON_GPU, torch.float32).engine_ == "stacked: torch.func"
    assert_same(*both(users, net(module(12, 3).double(), device=ON_GPU)), atol=1e-7)
