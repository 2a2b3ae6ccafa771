"""What each rule asks of clients in a round, at 100 and at 10,000 clients.

``python -m benchmarks.rule_costs`` writes ``rule_costs.csv`` beside this file: means over the
rounds of a fit of a linear model whose clients have two rows each, from the ledger.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.rules import RULES
from skfed import FedAlignSelector, FederatedClassifier
from skfed.devices import LognormalDevices
from skfed.modules import SoftmaxRegression
from skfed.selection import BaseSelector

TABLE = Path(__file__).parent / "rule_costs.csv"
COHORTS = {100: 10, 10_000: 100}  # m by K
N_ROUNDS = 50
N_FEATURES, N_CLASSES = 8, 4


def costs(selector: BaseSelector, n_clients: int, m: int) -> list[float]:
    """Return the models sent and received, and the other numbers received, in a mean round."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * n_clients, N_FEATURES)).astype(np.float32)
    y = rng.integers(0, N_CLASSES, len(X))
    net = NeuralNetClassifier(
        SoftmaxRegression,
        module__n_features=N_FEATURES,
        module__n_classes=N_CLASSES,
        criterion=nn.CrossEntropyLoss,
        lr=0.05,
        batch_size=2,
    )
    model = FederatedClassifier(
        net,
        selector=selector,
        priority=range(m) if isinstance(selector, FedAlignSelector) else None,
        devices=LognormalDevices(public=True),
        n_rounds=N_ROUNDS,
        random_state=0,
    )
    history = model.fit(X, y, clients=np.arange(len(X)) % n_clients).history_
    model_bytes = 4 * N_CLASSES * (N_FEATURES + 1)
    # Losses travel as float64, sketches as float32: of each, the numbers.
    others = history["bytes_up"] - model_bytes * history["models_up"] - 8 * history["scalars_up"]
    numbers = history["scalars_up"] + others / 4
    return [history["models_down"].mean(), history["models_up"].mean(), numbers.mean()]


def rows() -> Iterator[list[str]]:
    """Yield a row for each rule: by K, models down / models up / numbers up."""
    for name, make in RULES.items():
        found = [costs(make(m), n_clients, m) for n_clients, m in COHORTS.items()]
        yield [name, *(" / ".join(f"{cost:,.0f}" for cost in one) for one in found)]


def main() -> None:
    """Write the table."""
    header = ["rule", *(f"K = {n_clients:,}, m = {m}" for n_clients, m in COHORTS.items())]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows()])


if __name__ == "__main__":
    main()
