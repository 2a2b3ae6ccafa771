"""
Quickstart: paying and free users
=================================

Forty users hold handwritten digits. Four of them pay and write the digits 0 to 4; the model is for
them. Of the 36 free users, a third write the same digits, a third write the digits 5 to 9, and a
third write the same digits with random labels.

FedALIGN finds those that improve the model: it is more accurate for the paying users than training
on them only, and far more than training on all users. It uses a free user's update only in rounds
in which the loss of the current model on that user's data is within eps of the paying users' loss.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.inspection import ConvergenceDisplay

N_ROUNDS = 60
N_SEEDS = 5
PAYING = [f"paying {i}" for i in range(4)]
HELPFUL = [f"free, same digits {i}" for i in range(12)]
NOISY = [f"free, random labels {i}" for i in range(12)]
OTHER = [f"free, other digits {i}" for i in range(12)]

SELECTORS = {
    # In the warm-up, here all rounds, only priority clients train.
    "paying users only": FedAlignSelector(warmup=1.0),
    # Random selection ignores priority; ignore_priority=True: no warning.
    "all users": RandomSelector(
        clients_per_round=1.0,
        probability="uniform",
        replace=False,
        ignore_priority=True,
    ),
    "FedALIGN": FedAlignSelector(eps=0.2, warmup=0.2),
}


def split_digits(seed):
    """Return the users' digits, and test data with those of paying users."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(
        X / 16, y, test_size=0.3, stratify=y, random_state=seed
    )
    rng = np.random.default_rng(seed)
    clients = np.where(
        y < 5,
        rng.permutation(np.resize(PAYING + HELPFUL + NOISY, len(y))),
        rng.permutation(np.resize(OTHER, len(y))),
    )
    noisy = np.isin(clients, NOISY)
    y[noisy] = rng.integers(0, 5, noisy.sum())
    return X, y, clients, X_test[y_test < 5], y_test[y_test < 5]


def train(selector, seed):
    """Return a model fitted on one split of the digits."""
    X, y, clients, X_test, y_test = split_digits(seed)
    # A class, not an instance, so that random_state sets the initial weights.
    net = NeuralNetClassifier(
        nn.Linear,
        module__in_features=64,
        module__out_features=10,
        criterion=nn.CrossEntropyLoss,
        lr=0.2,
        batch_size=10,
    )
    model = FederatedClassifier(
        net,
        selector=selector,
        priority=PAYING,
        n_rounds=N_ROUNDS,
        random_state=seed,
    )
    return model.fit(X, y, clients=clients, X_val=X_test, y_val=y_test)


def summarise(models):
    """Return a row of the table: means over the seeds."""
    rounds = pd.concat([model.history_ for model in models])
    final = rounds.groupby("round")["val_score"].agg(["mean", "std"]).iloc[-1]
    sent = rounds[["bytes_down", "bytes_up"]].sum() / 1e6 / len(models)
    return {
        "accuracy (paying)": f"{final['mean']:.3f} ± {final['std']:.3f}",
        "MB down": sent["bytes_down"],
        "MB up": sent["bytes_up"],
        "clients a round": rounds["n_aggregated"].mean(),
    }


def tabulate(fits):
    """Return the table of the fits as text."""
    rows = {name: summarise(models) for name, models in fits.items()}
    return pd.DataFrame(rows).T.to_string(float_format="{:.2f}".format)


def plot(fits):
    """Draw accuracy by round: the mean over the seeds, and a band."""
    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    ConvergenceDisplay.from_estimators(fits, ax=ax)
    ax.set(
        ylabel="test accuracy for the paying users\n"
        f"mean ± standard deviation of {N_SEEDS} seeds",
        title="FedALIGN is best for the paying users",
        ylim=(0.65, 1),
    )
    ax.legend(loc=(0.3, 0.4), frameon=False)
    return figure


if __name__ == "__main__":
    fits = {}
    for name, selector in SELECTORS.items():
        print(f"training: {name}, {N_SEEDS} seeds", flush=True)
        fits[name] = [train(selector, seed) for seed in range(N_SEEDS)]
    print(tabulate(fits))
    figure = plot(fits)
    figure.savefig("quickstart.png", dpi=110)
    print("picture: quickstart.png")
    plt.show()
