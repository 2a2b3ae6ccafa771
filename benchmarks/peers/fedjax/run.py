"""FedJAX: its federated averaging, on its default ``jit`` backend for each client."""

# ruff: noqa: E402
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

import common
import jax

# FedJAX 0.0.17 uses this name, which newer versions of JAX do not have.
jax.tree_map = jax.tree_util.tree_map

import fedjax
import haiku as hk
import numpy as np
from fedjax.core import metrics
from jax.example_libraries import stax
from workloads import Model

# Of 64 rows in one bucket to 2048 in six, the fastest for clients of 64 to 1393 rows.
POLL = fedjax.PaddedBatchHParams(batch_size=128, num_batch_size_buckets=2)


def make_model(network: Model) -> fedjax.Model:
    """Return the workload's network: of stax, and of haiku where stax has no such layer."""
    if network.name == "GRU":
        images = {"x": np.zeros((1, 784), np.float32)}
        return fedjax.create_model_from_haiku(
            hk.transform(recurrent), images, train_loss=train_loss
        )
    modules = convolutions() if network.name == "CNN" else linear_layers(network.layers)
    init, apply = stax.serial(*modules)
    return fedjax.create_model_from_stax(init, apply, sample_shape=(-1, 784), train_loss=train_loss)


def train_loss(batch, logits):
    return metrics.unreduced_cross_entropy_loss(batch["y"], logits)


def linear_layers(layers: tuple[int, ...]) -> list:
    """Return linear layers with ReLU between them."""
    return [module for width in layers[1:] for module in (stax.Relu, stax.Dense(width))][1:]


def convolutions() -> list:
    """Return the CNN for images (n, 28, 28, 1), as stax has them."""
    images = (lambda _, shape: ((-1, 28, 28, 1), ())), (lambda _, X, **kw: X.reshape(-1, 28, 28, 1))
    pool = stax.MaxPool((2, 2), strides=(2, 2))
    return [
        images,
        *(stax.Conv(8, (5, 5), padding="SAME"), stax.Relu, pool),
        *(stax.Conv(16, (5, 5), padding="SAME"), stax.Relu, pool),
        *(stax.Flatten, stax.Dense(10)),
    ]


def recurrent(batch) -> jax.Array:
    """Return the logits of images read row by row."""
    X, unit = batch["x"].reshape(-1, 28, 28), hk.GRU(16)
    start = unit.initial_state(X.shape[0])
    _, last = hk.dynamic_unroll(unit, X.swapaxes(0, 1), start, return_all_states=False)
    return hk.Linear(10)(last)


class Rounds:
    """Rounds of federated averaging over the clients' data sets."""

    def __init__(self, federation: common.Federation):
        self.federation, work = federation, federation.workload
        X, y = federation.X, federation.y
        self.clients = [fedjax.ClientDataset({"x": X[r], "y": y[r]}) for r in federation.rows]
        self.polled = [c.padded_batch(POLL) for c in self.clients]
        self.model = model = make_model(work.model)
        epochs = None if work.local_steps else work.local_epochs
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            fedjax.model_grad(model),
            getattr(fedjax.optimizers, work.optimizer.lower())(work.lr),
            fedjax.optimizers.sgd(1.0),
            # The last partial batch is filled from the next epoch, so shapes never change.
            fedjax.ShuffleRepeatBatchHParams(work.batch_size, epochs, work.local_steps),
        )
        self.evaluator = fedjax.AverageLossEvaluator(fedjax.model_per_example_loss(model))
        self.state = self.algorithm.init(model.init(jax.random.PRNGKey(0)))
        self.round = 0

    def one_round(self):
        keys = jax.random.split(jax.random.PRNGKey(self.round), len(self.federation.rows))
        cohort = [(k, self.clients[k], keys[k]) for k in self._choose(keys)]
        self.state, _ = self.algorithm.apply(self.state, cohort)
        jax.block_until_ready(self.state.params)
        self.round += 1

    def _choose(self, keys) -> np.ndarray:
        work = self.federation.workload
        if work.candidates is None:
            return self.federation.draw(work.clients_per_round)
        candidates = self.federation.draw(work.candidates, by_size=True)
        asked = [(k, self.polled[k], keys[k]) for k in candidates]
        losses = dict(self.evaluator.evaluate_global_params(self.state.params, asked))
        return self.federation.highest(candidates, [float(losses[k]) for k in candidates])

    def loss(self) -> float:
        def logits(X: np.ndarray) -> np.ndarray:
            return np.asarray(self.model.apply_for_eval(self.state.params, {"x": X}))

        return common.mean_loss(logits, self.federation)


if __name__ == "__main__":
    federation = common.read_federation()
    rounds = Rounds(federation)
    before = rounds.loss()
    stopwatch = common.Stopwatch()
    while stopwatch.another():
        rounds.one_round()
    common.report("fedjax", "fedjax", federation, [before, rounds.loss()])
