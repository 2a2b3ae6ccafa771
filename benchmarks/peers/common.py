"""Helpers of every peer's ``run.py``. Import it first: it confines the process to one core.

It does so before it imports anything but the standard library, since numpy, jax and torch count the
cores when they are imported.
"""

# ruff: noqa: E402
import os
import sys
from pathlib import Path

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
for _variable in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
    os.environ[f"{_variable}_NUM_THREADS"] = "1"
sys.path.append(str(Path(__file__).resolve().parent.parent))

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from workloads import WORKLOADS, Workload


@dataclass
class Federation:
    """A workload, its data, and the rows of each client."""

    name: str
    workload: Workload
    data: Path
    X: np.ndarray
    y: np.ndarray
    rows: list[np.ndarray]

    def __post_init__(self):
        self.sizes = np.array([len(rows) for rows in self.rows])
        self.rng = np.random.default_rng(0)

    def draw(self, n: int, by_size: bool = False) -> np.ndarray:
        """Return n different clients, drawn uniformly or by their share of the data."""
        p = self.sizes / self.sizes.sum() if by_size else None
        return self.rng.choice(len(self.rows), n, replace=False, p=p)

    def highest(self, candidates: np.ndarray, losses: Sequence[float]) -> np.ndarray:
        """Return the candidates of highest loss, as many as a round trains."""
        return candidates[np.argsort(losses)[::-1][: self.workload.clients_per_round]]


def read_federation(argv: Sequence[str] | None = None) -> Federation:
    """Return the federation that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="X.npy, y.npy, clients.npy")
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    args = parser.parse_args(argv)
    X, y, clients = (np.load(args.data / f"{name}.npy") for name in ("X", "y", "clients"))
    workload = WORKLOADS[args.workload]
    rows = [np.flatnonzero(clients == k) for k in range(workload.n_clients)]
    return Federation(args.workload, workload, args.data.resolve(), X, y, rows)


class Stopwatch:
    """Times rounds on demand: each line of the input is a number of rounds, its end the end."""

    def __init__(self):
        self.wanted, self.seconds = 0, []

    def another(self) -> bool:
        """End the round under way, if any, and begin the next; False when no more are wanted."""
        now = time.perf_counter()
        if self.wanted:
            self.seconds.append(now - self.started)
        if len(self.seconds) == self.wanted:
            if self.wanted:
                print(json.dumps({"seconds": self.seconds}), flush=True)
            self.wanted, self.seconds = int(sys.stdin.readline() or 0), []
        self.started = time.perf_counter()
        return self.wanted > 0


def mean_loss(logits: Callable[[np.ndarray], np.ndarray], federation: Federation) -> float:
    """Return the cross entropy of the logits of the first 10,000 images."""
    X, y = federation.X[:10_000], federation.y[:10_000]
    scores = logits(X)
    scores = scores - scores.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]))


def torch_loss(model, federation: Federation) -> float:
    """Return ``mean_loss`` of a torch module."""
    import torch

    with torch.no_grad():
        return mean_loss(lambda X: model(torch.from_numpy(X)).numpy(), federation)


def report(peer: str, package: str, federation: Federation, losses: list[float]) -> None:
    """Print the last line that ``peers.py`` reads; its losses show whether the model learns."""
    print(f"{peer}: loss {losses[0]:.4f} before, {losses[-1]:.4f} after", file=sys.stderr)
    line = {"peer": peer, "version": version(package), "python": platform.python_version()}
    print(json.dumps({**line, "workload": federation.name, "loss": losses}), flush=True)
