"""Digests of a fixed set of runs, by which a change of structure shows that results are the same.

    python tests/digests.py write before.json
    python tests/digests.py compare before.json

They hold on one machine with one set of packages, since the rounding of products depends on both.
"""

import json
import logging
import sys
import tempfile
import time
import warnings
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn

from skfed import (
    ActiveFLSelector,
    ClusteredSelector,
    DivFLSelector,
    FedAlignSelector,
    FedCorSelector,
    FedCSSelector,
    FederatedClassifier,
    FederatedRegressor,
    HicsFLSelector,
    KVibSelector,
    LossProportionalSelector,
    OortSelector,
    OptimalSelector,
    PowerOfChoice,
    RandomSelector,
    RoundRobinSelector,
    TiflSelector,
    UcbSelector,
)
from skfed.aggregation import CoordinateMedian, NormClipping, Scaffold, ServerOptimizer, TrimmedMean
from skfed.availability import AlternatingHalves, Dropout
from skfed.devices import LognormalDevices
from skfed.modules import MLP
from skfed.privacy import GaussianMechanism
from skfed.schedules import LinearDecay

torch.manual_seed(0)  # module instances are trained from the weights that they have

HELPERS = Path(__file__).parent / "helpers"
WHOLE = {"probability": "uniform", "replace": False}
DEVICES = LognormalDevices(100, 1e6, 1e6, public=True)
NOISE = GaussianMechanism(clip=0.5, noise_multiplier=0.1)
NET = NeuralNetClassifier(
    MLP(5, (8,), 3, dropout=0.3), criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=7
)
NORMED = NeuralNetClassifier(
    nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    criterion=nn.CrossEntropyLoss,
    lr=0.1,
    batch_size=10,
)
PRECISE = NeuralNetClassifier(
    nn.Linear(5, 3).double(), criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=2
)
RUNS = {
    "defaults": {},
    "random by size": {"selector": RandomSelector(3)},
    "random unbiased": {"selector": RandomSelector(3, **WHOLE, weighting="unbiased")},
    "pow-d": {"selector": PowerOfChoice(4, 2)},
    "cpow-d": {"selector": PowerOfChoice(4, 2, loss="batch"), "local_steps": 3},
    "rpow-d": {"selector": PowerOfChoice(4, 2, loss="reported")},
    "adapow-d": {"selector": PowerOfChoice(LinearDecay(6, 2), 2)},
    "afl": {"selector": ActiveFLSelector(3)},
    "round robin": {"selector": RoundRobinSelector(3)},
    "loss-proportional": {"selector": LossProportionalSelector(3)},
    "FedCS": {"selector": FedCSSelector(3), "devices": DEVICES},
    "UCB-CS": {"selector": UcbSelector(3)},
    "clustered by size": {"selector": ClusteredSelector("size", 3)},
    "clustered by updates": {"selector": ClusteredSelector("updates", 3)},
    "optimal": {"selector": OptimalSelector(3)},
    "Oort": {"selector": OortSelector(3, exploration=0.5), "devices": DEVICES},
    "DivFL": {"selector": DivFLSelector(3)},
    "FedCor": {"selector": FedCorSelector(3, warmup=1, interval=2)},
    "TiFL": {"selector": TiflSelector(2, interval=1), "devices": DEVICES},
    "HiCS-FL": {"selector": HicsFLSelector(3)},
    "K-Vib": {"selector": KVibSelector(3, 1e-3)},
    "FedALIGN": {"selector": FedAlignSelector(0.3, warmup=1), "priority": ["a", "b"]},
    "FedALIGN by weight": {"selector": FedAlignSelector(0.3), "priority": {"a": 1.0, "c": 0.5}},
    "FedALIGN in part": {"selector": FedAlignSelector(0.5, participation=0.5), "priority": ["a"]},
    "SCAFFOLD": {"aggregator": Scaffold(), "selector": RandomSelector(4)},
    "median": {"aggregator": CoordinateMedian()},
    "trimmed mean": {"aggregator": TrimmedMean(0.2)},
    "norm clipping": {"aggregator": NormClipping(0.1)},
    "FedAdam": {"server_optimizer": ServerOptimizer(torch.optim.Adam, lr=0.1)},
    "FedProx, schedule": {"proximal_mu": 0.1, "lr_schedule": LinearDecay(0.2), "local_epochs": 2},
    "dropouts": {"availability": Dropout(0.3), "min_clients": 2},
    "halves": {"availability": AlternatingHalves(), "selector": PowerOfChoice(3, 2)},
    "noise": {"estimator": NET, "update_privacy": NOISE, "loss_privacy": NOISE},
    "random layers": {"estimator": NET, "local_epochs": 2},
    "batch normalisation": {"estimator": NORMED, "selector": RandomSelector(3)},
    "float64, many steps": {"estimator": PRECISE, "selector": RandomSelector(3), "local_epochs": 9},
}


def blobs():
    """Return X, y and the clients of three classes over six clients."""
    rng = np.random.default_rng(0)
    clients = np.repeat(list("abcdef"), [10, 20, 15, 30, 25, 40])
    y = np.concatenate([np.arange(3), rng.integers(0, 3, len(clients) - 3)])
    X = rng.normal(size=(len(y), 5)) + np.eye(5)[y] * 2
    return X.astype(np.float32), y, clients


def digest(model, without=()):
    """Return a digest of a fitted estimator's model and history, without wall times."""
    return {
        "model": of_tensors(model.net_.module_.state_dict()),
        "history": of_rows(model.history_.to_dict("records"), without),
    }


def of_tensors(tensors):
    """Return a digest of named tensors."""
    whole = sha256()
    for name, tensor in sorted(tensors.items()):
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def of_rows(rows, without=()):
    """Return a digest of rows of a history."""

    def is_timeless(name):
        return not name.endswith("_seconds") and name not in without

    timeless = [{k: v for k, v in row.items() if is_timeless(k)} for row in rows]
    return sha256(repr(timeless).encode()).hexdigest()[:16]


def simulated(data):
    """Yield the digest of each run, in both engines."""
    for name, params in RUNS.items():
        for engine in ("auto", "loop"):
            model = FederatedClassifier(n_rounds=5, random_state=0, engine=engine)
            yield f"{name}, {engine}", digest(model.set_params(**params).fit(*data))
    X, y, clients = data
    regressor = FederatedRegressor(n_rounds=5, random_state=0).fit(X, X[:, 0] + y, clients=clients)
    yield "regressor", digest(regressor)
    again = FederatedClassifier(n_rounds=3, random_state=0)
    for _ in range(3):
        again.partial_fit(*data[:2], clients=clients)
    yield "partial_fit", digest(again)


def resumed(data):
    """Yield the digests of a run that is resumed from a checkpoint, and of what it has written."""
    X, y, clients = data
    with tempfile.TemporaryDirectory() as folder:
        settings = {"checkpoint": folder, "warm_start": True, "random_state": 0}
        for n_rounds in (3, 6):
            model = FederatedClassifier(
                selector=PowerOfChoice(4, 2), aggregator=Scaffold(), n_rounds=n_rounds, **settings
            ).fit(X, y, clients=clients)
        (state,) = Path(folder).glob("*/state.safetensors")
        (history,) = Path(folder).glob("*/history-*.jsonl")
        rows = [dict(json.loads(line)["dict"]) for line in history.read_text().splitlines()]
        written = {"tensors": of_tensors(load_file(state)), "rows": of_rows(rows)}
        yield "resumed", digest(model) | written


def over_flower(data):
    """Yield the digest of a run by messages, in this process."""
    sys.path.insert(0, str(HELPERS))
    from local_grid import LocalGrid, Node

    from skfed.flower import FederatedStrategy, client_app

    logging.getLogger("flwr").setLevel(logging.ERROR)
    X, y, clients = data

    def load(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows]

    for name in ("FedALIGN", "pow-d", "SCAFFOLD"):
        model = FederatedClassifier(n_rounds=4, random_state=0).set_params(**RUNS[name])
        nodes = [Node(client_app(clone(model), load), {"client-name": k}) for k in "abcdef"]
        strategy = FederatedStrategy(model, clients=6, timeout=5)
        strategy.start(LocalGrid(time, *nodes))
        yield f"{name}, Flower", digest(strategy.model_, without=("seconds", "elapsed", "slowest"))


def main(action, path):
    """Write the digests, or compare them with those that were written; return an exit status."""
    warnings.simplefilter("ignore")
    data = blobs()
    found = dict(simulated(data)) | dict(resumed(data)) | dict(over_flower(data))
    if action == "write":
        Path(path).write_text(json.dumps(found, indent=1))
        return 0
    before = json.loads(Path(path).read_text())
    differ = [name for name in before | found if before.get(name) != found.get(name)]
    for name in differ:
        print(f"{name}: {before.get(name)}, now {found.get(name)}")
    print(f"{len(before)} runs, {len(differ)} differ")
    return bool(differ)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "compare"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
