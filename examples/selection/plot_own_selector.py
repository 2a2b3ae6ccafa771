"""
A selector of your own
======================

A selection rule of your own is ten lines. This one polls a few clients, like power-of-choice, and
trains those whose loss is not below the mean: many if the losses are similar, few if some are much
higher. Per byte it is about as good as power-of-choice, and both cost more than random selection.

A selector has one method, which takes a view of the round. It gets losses from ``round.poll``, so
that its polls are charged, and draws from ``round.rng``, so that the same seed repeats them.
``check_selector`` checks that it follows the rules.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.datasets import partition_dirichlet
from skfed.inspection import ConvergenceDisplay
from skfed.metrics import cost_to
from skfed.selection import BaseSelector, Cohort
from skfed.utils.selector_checks import check_selector


class AboveAverage(BaseSelector):
    """Train those of d clients whose loss is not below the mean of the d."""

    def __init__(self, d=6):
        self.d = d

    def _select(self, round):
        available = np.flatnonzero(round.available)
        candidates = round.rng.choice(
            available, min(self.d, len(available)), replace=False
        )
        losses = round.poll(candidates)
        known = np.isfinite(losses)  # NaN where a client failed
        if not known.any():
            return Cohort.by_size(candidates, round.sizes)
        chosen = candidates[known & (losses >= losses[known].mean())]
        return Cohort.by_size(chosen, round.sizes)


if __name__ == "__main__":
    check_selector(AboveAverage(d=6))
    print("AboveAverage passes every check")
    X, y = load_digits(return_X_y=True)
    clients = partition_dirichlet(y, 40, alpha=0.3, random_state=0)
    selectors = {
        "AboveAverage(d=6)": AboveAverage(d=6),
        "PowerOfChoice(d=6, m=3)": PowerOfChoice(d=6, clients_per_round=3),
        "RandomSelector(m=3)": RandomSelector(clients_per_round=3),
    }
    models = {
        name: FederatedClassifier(
            selector=selector,
            n_rounds=100,
            local_epochs=5,
            lr_schedule=0.2,
            random_state=0,
        ).fit(X / 16, y, clients=clients, X_val=X / 16, y_val=y)
        for name, selector in selectors.items()
    }
    rows = {}
    for name, model in models.items():
        history = model.history_
        sent = history[["bytes_down", "bytes_up"]].to_numpy().sum() / 1e6
        rows[name] = {
            "final accuracy": history["val_score"].tail(10).mean(),
            "MB": sent,
            "MB to 0.95": cost_to(history, "val_score", 0.95)["bytes"] / 1e6,
            "clients a round": history["n_trained"].mean(),
        }
    print(pd.DataFrame(rows).T.round(3).to_string())
    display = ConvergenceDisplay.from_estimators(models, x="bytes", smooth=10)
    display.ax_.set(
        title="Polls cost bytes: random selection is first", ylim=(0.8, 1.0)
    )
    plt.show()
