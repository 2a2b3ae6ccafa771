"""Accuracy by rule, attack and share of hostile clients, on Fashion-MNIST.

``python -m benchmarks.hostile`` (with SKFED_DATA; about 10 minutes) writes ``HOSTILE.md``
beside this file.
"""

import itertools
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier
from torch import nn
from tqdm import tqdm

from benchmarks.results import table
from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.aggregation import (
    BaseAggregator,
    CoordinateMedian,
    NormClipping,
    TrimmedMean,
    WeightedMean,
)
from skfed.datasets import load_fashion_mnist, partition_dirichlet
from skfed.modules import MLP

N_CLIENTS, N_ROWS, N_TRUSTED, N_SEEDS = 40, 4000, 4, 3
SHARES = 0.0, 0.1, 0.2, 0.3, 0.4
ATTACKS = {
    "flipped labels": "trains on labels 9 - y",
    "flipped sign": "sends w - (w_k - w)",
    "scaled": "trains on flipped labels and sends w + 10 (w_k - w)",
    "garbage": "sends w + N(0, 1) in each coordinate",
}
EVERYBODY = RandomSelector(1.0, probability="uniform", replace=False, ignore_priority=True)
RULES = {
    "mean": (WeightedMean(), EVERYBODY),
    "median": (CoordinateMedian(), EVERYBODY),
    "trimmed mean, 0.4": (TrimmedMean(0.4), EVERYBODY),
    "norm clipping, 0.5": (NormClipping(0.5), EVERYBODY),
    "FedALIGN, eps 0.3, mean": (WeightedMean(), FedAlignSelector(eps=0.3, warmup=0.2)),
    "FedALIGN, eps 0.3, median": (CoordinateMedian(), FedAlignSelector(eps=0.3, warmup=0.2)),
}


class Attacked(BaseAggregator):
    """Replaces the updates of hostile clients before a rule aggregates them.

    Parameters
    ----------
    rule : BaseAggregator
        The server's aggregator.
    hostile : sequence of int
        The indices of hostile clients.
    attack : str
        One of ``ATTACKS``.
    """

    def __init__(self, rule, hostile, attack):
        self.rule = rule
        self.hostile = hostile
        self.attack = attack

    def _aggregate(self, model, updates, cohort, parameters):
        bad = torch.from_numpy(np.isin(cohort.clients, self.hostile))
        sent = {name: tensor.clone() for name, tensor in updates.items()}
        for i, name in enumerate(parameters):
            step = sent[name][bad] - model[name]
            generator = torch.Generator().manual_seed(hash((float(model[name].sum()), i)))
            if self.attack == "flipped sign":
                step = -step
            elif self.attack == "scaled":
                step = 10 * step
            elif self.attack == "garbage":
                step = torch.randn(step.shape, generator=generator)
            sent[name][bad] = model[name] + step
        return self.rule._aggregate(model, sent, cohort, parameters)


@cache
def images(subset: str) -> tuple[np.ndarray, np.ndarray]:
    data = load_fashion_mnist(subset=subset)
    return data.X.reshape(len(data.X), -1) / np.float32(255), data.y


def accuracy(rule: str, attack: str, share: float, seed: int) -> float:
    """Return the test accuracy with a share of hostile clients, none of them trusted."""
    (X, y), test = images("train"), images("test")
    rows = np.random.default_rng(seed).choice(len(y), N_ROWS, replace=False)
    X, y = X[rows], y[rows]
    clients = partition_dirichlet(y, N_CLIENTS, alpha=1.0, random_state=seed)
    hostile = np.arange(N_TRUSTED, N_TRUSTED + round(share * N_CLIENTS))
    if attack in ("flipped labels", "scaled"):
        flipped = np.isin(clients, hostile)
        y[flipped] = 9 - y[flipped]
    aggregator, selector = RULES[rule]
    net = NeuralNetClassifier(
        MLP,
        module__n_features=784,
        module__hidden=(32,),
        module__n_classes=10,
        criterion=nn.CrossEntropyLoss,
        lr=0.1,
        batch_size=32,
    )
    model = FederatedClassifier(
        net,
        selector=selector,
        priority=range(N_TRUSTED),
        aggregator=Attacked(aggregator, hostile, attack),
        n_rounds=30,
        validate_every=30,
        random_state=seed,
    )
    # Of the last model: a fit that has diverged keeps the best, and warns.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y, clients=clients, X_val=test[0], y_val=test[1])
    return model.history_["val_score"].iloc[-1]


def main() -> None:
    """Write HOSTILE.md."""
    cases = list(itertools.product(RULES, ATTACKS, SHARES))
    found = {}
    for rule, attack, share in tqdm(cases):
        if share == 0 and attack != next(iter(ATTACKS)):
            found[rule, attack, share] = found[rule, next(iter(ATTACKS)), share]
            continue
        scores = [accuracy(rule, attack, share, seed) for seed in range(N_SEEDS)]
        found[rule, attack, share] = f"{100 * np.mean(scores):.1f}"
    lines = [
        "# Hostile clients",
        "",
        "Test accuracy, %, after 30 rounds on Fashion-MNIST (`python -m benchmarks.hostile`): "
        f"{N_CLIENTS} clients, {N_ROWS} rows partitioned by Dirichlet(1), MLP 784-32-10, all "
        f"clients every round, mean of {N_SEEDS} seeds. {N_TRUSTED} clients are trusted, and "
        "FedALIGN's priority clients. A hostile client answers FedALIGN's poll with the loss on "
        "its own data, whatever update it sends.",
        "",
    ]
    for attack, what in ATTACKS.items():
        lines += [f"## {attack.capitalize()}", "", f"A hostile client {what}.", ""]
        header = ["rule", *(f"{share:.0%} hostile" for share in SHARES)]
        rows = [[rule, *(found[rule, attack, share] for share in SHARES)] for rule in RULES]
        lines += table(header, rows)
    Path(__file__).with_name("HOSTILE.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
