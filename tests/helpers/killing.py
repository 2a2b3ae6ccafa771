"""Kill a training process at random moments and resume it in another, for checkpoint/test_run.py.

``python tests/helpers/killing.py FOLDER N SEED`` prints, for each of N kills, the rounds that were
on disk and whether the run then ended as one that was never stopped.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # as the first optimizer would, in each fork anew, which takes a second
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from skorch.callbacks import LRScheduler
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice
from skfed.aggregation import Scaffold, ServerOptimizer
from skfed.availability import Dropout
from skfed.checkpoint._run import Run

N_ROUNDS, RESULT = 30, "result.txt"
TIMES = ["select_seconds", "train_seconds", "round_seconds"]
MODELS = (
    FederatedClassifier(
        NeuralNetClassifier(
            nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10)),
            criterion=nn.CrossEntropyLoss,
            lr=0.1,
            callbacks=[LRScheduler("StepLR", step_size=4, gamma=0.9)],
        ),
        selector=FedAlignSelector(eps=0.5, warmup=0.2),
        priority=[0, 1],
        server_optimizer=ServerOptimizer(torch.optim.Adam, lr=0.05),
        n_rounds=N_ROUNDS,
        engine="stacked",
        random_state=0,
    ),
    FederatedClassifier(
        selector=PowerOfChoice(d=6, clients_per_round=3, loss="reported"),
        aggregator=Scaffold(),
        availability=Dropout(0.3),
        n_rounds=N_ROUNDS,
        engine="stacked",
        random_state=1,
    ),
)


def train(which: int, directory: Path) -> None:
    """Fit, and write history and model to a file, without the times."""
    X, y = load_digits(return_X_y=True)
    model = MODELS[which].set_params(checkpoint=directory)
    model.fit(X[:300] / 16, y[:300], clients=np.arange(300) % 12)
    history = repr(model.history_.drop(columns=TIMES).to_dict("records"))
    state = model.net_.module_.state_dict()
    tensors = [f"{name} {tensor.numpy().tobytes().hex()}" for name, tensor in state.items()]
    (directory / RESULT).write_text("\n".join([history, *tensors]))


def start(which: int, directory: Path) -> int:
    """Train in a fork: a process of its own would spend its time on imports."""
    child = os.fork()
    if child == 0:
        try:
            train(which, directory)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


def bytes_logged(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*/history-*.jsonl"))


def has_ended(child: int) -> bool:
    """Return whether a child has ended; it may be killed and waited for all the same."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_until(child: int, directory: Path, n_bytes: float) -> None:
    """Wait until a child has logged so much, or has ended: not all runs log equally many bytes."""
    while bytes_logged(directory) < n_bytes and not has_ended(child):
        time.sleep(1e-3)


def rounds_on_disk(directory: Path) -> int:
    found = [Run(path.parent, 1).read() for path in directory.glob("*/state.safetensors")]
    return len(found[0][1]) if found and found[0] else 0


def main(folder: Path, n_kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    for which in range(len(MODELS)):
        whole, started = folder / f"whole-{which}", time.perf_counter()
        os.waitpid(start(which, whole), 0)
        a_round = (time.perf_counter() - started) / N_ROUNDS
        for i in range(which, n_kills, len(MODELS)):
            directory = folder / f"run-{i}"
            child = start(which, directory)
            wait_until(child, directory, rng.uniform(0, 1) * bytes_logged(whole))
            time.sleep(rng.uniform(0, a_round))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            done = rounds_on_disk(directory)
            os.waitpid(start(which, directory), 0)
            same = (directory / RESULT).read_text() == (whole / RESULT).read_text()
            print(done, "same" if same else "differs", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
