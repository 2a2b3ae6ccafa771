"""What each rule asks of clients in a round, at 100 and at 10,000 clients.

``python -m benchmarks.rule_costs`` writes ``RULE_COSTS.md`` beside this file. All numbers are those
of the ledger, means over the rounds of a fit of a linear model whose clients have two rows each.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.results import table
from benchmarks.rules import RULES
from skfed import FedAlignSelector, FederatedClassifier
from skfed.devices import LognormalDevices
from skfed.modules import SoftmaxRegression
from skfed.selection import BaseSelector

PAGE = Path(__file__).parent / "RULE_COSTS.md"
COHORTS = {100: 10, 10_000: 100}  # m by K
N_ROUNDS = 50
N_FEATURES, N_CLASSES = 8, 4
TEXT = f"""# What each rule asks of clients

Made by `python -m benchmarks.rule_costs`. Means over {N_ROUNDS} rounds, from the ledger: the models
that the server sends and that clients send in a round, and the numbers that clients send for the
rule: answers to polls, norms, sketches, and what comes with an update beyond the loss that clients
of any rule report. With K = 100 clients m is 10, with 10,000 it is 100. FedALIGN's are those of a
federation in which nearly all free clients match.
"""
COLUMNS = "models down", "models up", "numbers up"


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
    """Yield a row for each rule."""
    for name, make in RULES.items():
        found = [cost for n, m in COHORTS.items() for cost in costs(make(m), n, m)]
        yield [name, *(f"{cost:,.0f}" for cost in found)]


def main() -> None:
    """Write the page."""
    header = ["rule", *(f"{name}, K = {n:,}" for n in COHORTS for name in COLUMNS)]
    PAGE.write_text("\n".join([TEXT, *table(header, rows())]), encoding="utf-8")


if __name__ == "__main__":
    main()
