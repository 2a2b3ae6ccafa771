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
import numpy as np
from fedjax.core import metrics
from jax.example_libraries import stax

# Of 64 rows in one bucket to 2048 in six, the fastest for clients of 64 to 1393 rows.
POLL = fedjax.PaddedBatchHParams(batch_size=128, num_batch_size_buckets=2)


def make_model(layers: tuple[int, ...]) -> fedjax.Model:
    """Return the linear layers with ReLU between them."""
    modules = [module for width in layers[1:] for module in (stax.Relu, stax.Dense(width))][1:]
    init, apply = stax.serial(*modules)
    return fedjax.create_model_from_stax(
        init,
        apply,
        sample_shape=(-1, layers[0]),
        train_loss=lambda batch, logits: metrics.unreduced_cross_entropy_loss(batch["y"], logits),
    )


class Rounds:
    """Rounds of federated averaging over the clients' data sets."""

    def __init__(self, federation: common.Federation):
        self.federation, work = federation, federation.workload
        X, y = federation.X, federation.y
        self.clients = [fedjax.ClientDataset({"x": X[r], "y": y[r]}) for r in federation.rows]
        self.polled = [c.padded_batch(POLL) for c in self.clients]
        model = make_model(work.layers)
        epochs = None if work.local_steps else work.local_epochs
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            fedjax.model_grad(model),
            fedjax.optimizers.sgd(work.lr),
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
        layers = [tuple(map(np.asarray, layer)) for layer in self.state.params if layer]
        return common.mean_loss(layers, self.federation)


if __name__ == "__main__":
    federation = common.read_federation()
    rounds = Rounds(federation)
    before = rounds.loss()
    seconds = common.time_rounds(rounds.one_round, federation.rounds)
    common.report("fedjax", "fedjax", federation, seconds, [before, rounds.loss()])
