"""Fits of the workloads, for the benchmarks and for the processes that they start."""

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.machine import Floor, gpu_cache_bytes
from benchmarks.torch_models import make_module
from benchmarks.workloads import Workload
from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.engines.products import _cuda_graphs


def make_classifier(work: Workload, device="cpu", **params) -> FederatedClassifier:
    """Return a classifier whose rounds are those of a workload."""
    torch.manual_seed(0)
    selector = RandomSelector(work.clients_per_round, probability="uniform", replace=False)
    if work.candidates is not None:
        selector = PowerOfChoice(work.candidates, work.clients_per_round)
    net = NeuralNetClassifier(
        make_module(work.model),
        criterion=nn.CrossEntropyLoss,
        optimizer=getattr(torch.optim, work.optimizer),
        lr=work.lr,
        batch_size=work.batch_size,
        device=device,
    )
    params = {"local_steps": work.local_steps, "local_epochs": work.local_epochs, **params}
    return FederatedClassifier(net, selector=selector, random_state=0, **params)


def fit_rounds(work: Workload, data: Sequence[np.ndarray], n_rounds: int, **params) -> pd.DataFrame:
    """Return the history of ``n_rounds`` rounds, after two that fill caches."""
    X, y, clients = data
    model = make_classifier(work, n_rounds=n_rounds + 2, **params).fit(X, y, clients=clients)
    return model.history_.iloc[2:]


@lru_cache(maxsize=1)
def load(folder: Path) -> tuple[np.ndarray, ...]:
    """Return X, y and clients."""
    return tuple(np.load(folder / f"{name}.npy") for name in ("X", "y", "clients"))


def fit_files(work: Workload, folder: Path, n_rounds: int, **params) -> pd.DataFrame:
    """Return ``fit_rounds`` of the arrays in a folder, which a process reads once."""
    return fit_rounds(work, load(folder), n_rounds, **params)


def fit_on_gpu(
    work: Workload, folder: Path, n_before: int, n_rounds: int, graphs: bool = True, **params
) -> tuple[list[float], dict]:
    """Return the seconds of rounds, after ``n_before`` others, of a fit on a GPU, and about it.

    ``graphs`` tells whether steps that are taken again become CUDA graphs.
    """
    X, y, clients = load(folder)
    with patch.object(_cuda_graphs, "_CALLS_BEFORE", _cuda_graphs._CALLS_BEFORE if graphs else inf):
        model = make_classifier(work, "cuda", n_rounds=n_before + n_rounds, **params)
        rounds = model.fit(X, y, clients=clients).history_[n_before:]
    floor, cache = Floor(on_gpu=True), gpu_cache_bytes()
    done = rounds[["samples_evaluated", "samples_trained"]].to_numpy()
    floor.add((work.flops(*n), work.bytes_read(*n, cache)) for n in done)
    info = {"auto": model.engine_, "card": torch.cuda.get_device_name(), **floor.info()}
    return rounds["round_seconds"].tolist(), info
