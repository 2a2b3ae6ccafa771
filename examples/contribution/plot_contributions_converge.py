"""
How soon contributions are exact
================================

Eight clients hold digits, each more of some classes than of others, and the labels of two of them
are random. In a round, each trains from the same model. What a client was worth is told by the
models of subsets of the clients, of which there are 255. :class:`~skfed.contribution.DataBanzhaf`
and :class:`~skfed.contribution.GTGShapley` look at some of them, drawn at random, and come as near
to the exact values as one pays for.

The distance is what the standard errors say, and DataBanzhaf's falls with the root of the number of
subsets. For as many models GTGShapley is nearer to the values that it estimates. But it cannot be
had for few: two permutations led by each client are the least, and ask for a third of all subsets.
Where it is near, it has asked for most of them, and :class:`~skfed.contribution.ExactShapley` costs
as much. Of more clients it does not: of twelve there are 4,095 subsets.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.special import log_softmax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfed.contribution import DataBanzhaf, ExactShapley, GTGShapley
from skfed.datasets import partition_dirichlet

N_CLIENTS = 8
WRONG = [6, 7]  # the clients whose labels are random
N_SEEDS = 100

rng = np.random.default_rng(0)
X, y = load_digits(return_X_y=True)
X, X_val, y, y_val = train_test_split(
    X / 16, y, test_size=0.25, stratify=y, random_state=0
)
clients = partition_dirichlet(y, N_CLIENTS, alpha=1.0, random_state=2)
y = np.where(np.isin(clients, WRONG), rng.permutation(y), y)


def train(X, y, n_steps=20, lr=1.0):
    """Return the weights of softmax regression after a few steps from 0."""
    weights = np.zeros((X.shape[1], 10))
    for _ in range(n_steps):
        probabilities = np.exp(log_softmax(X @ weights, axis=1))
        weights += lr * X.T @ (np.eye(10)[y] - probabilities) / len(X)
    return weights


updates = np.stack(
    [train(X[clients == k], y[clients == k]) for k in range(N_CLIENTS)]
)
sizes = np.bincount(clients)


def gains(subsets):
    """Return by how much the mean model of each subset lowers the loss."""
    weights = subsets * sizes
    weights = weights / weights.sum(axis=1, keepdims=True)
    models = np.einsum("sk,kdc->sdc", weights, updates)
    log_probabilities = log_softmax(X_val @ models, axis=2)
    losses = -log_probabilities[:, np.arange(len(y_val)), y_val].mean(axis=1)
    return np.log(10) - losses  # log(10) is the loss of the model of zeros


# %%
# The values by all subsets. Clients G and H, whose labels are random, do harm by either; only
# Shapley values sum to the gain of the round.
exact = {
    "Banzhaf": DataBanzhaf(n_subsets=2**N_CLIENTS),
    "Shapley": ExactShapley(),
}
exact = {
    name: method.values(gains, N_CLIENTS, rng).values
    for name, method in exact.items()
}
table = pd.DataFrame(exact, index=[f"client {k}" for k in "ABCDEFGH"])
table.loc["sum"] = table.sum()
print(table.round(3).to_string())
everyone = np.ones((1, N_CLIENTS), dtype=bool)
print(f"gain of the round: {gains(everyone)[0]:.3f}")

# %%
# With fewer subsets, drawn anew for each of 100 seeds. A distance is the root mean square over
# clients and seeds, in units of that of the exact values. That all gains are in a table here saves
# this page's time: what counts is for how many of them a method asks.
bits = 1 << np.arange(N_CLIENTS)
everything = np.arange(1, 2**N_CLIENTS)[:, None] & bits > 0
known = np.concatenate([[0.0], gains(everything)])


def tries(method, truth):
    """Return the models evaluated, the distance, and that by the errors."""
    rows = []
    for seed in range(N_SEEDS):
        n_models = []

        def look_up(subsets, n_models=n_models):
            n_models.append(len(subsets))
            return known[subsets @ bits]

        rng = np.random.default_rng(seed)
        worth = method.values(look_up, N_CLIENTS, rng)
        squares = np.square([worth.values - truth, worth.errors]).mean(axis=1)
        rows.append([sum(n_models), *squares])
    n_models, *squares = np.mean(rows, axis=0)
    scale = np.sqrt(np.square(truth).mean())
    return [n_models, *(np.sqrt(squares) / scale)]


def permutations(n):
    """Return GTG-Shapley of n permutations, none of them cut short."""
    return GTGShapley(0, 0, min_permutations=n, max_permutations=n)


COLUMNS = ["models", "distance", "by the errors"]
units = {"DataBanzhaf": "subsets", "GTGShapley": "permutations"}
budgets = {
    "DataBanzhaf": {n: DataBanzhaf(n) for n in (16, 32, 64, 128, 255)},
    "GTGShapley": {n: permutations(n) for n in (16, 32, 64, 128, 256)},
}
found = {
    name: pd.DataFrame(
        {
            f"{name}, {n} {units[name]}": tries(method, truth)
            for n, method in methods.items()
        },
        index=COLUMNS,
    ).T
    for (name, methods), truth in zip(
        budgets.items(), exact.values(), strict=True
    )
}
formats = ["{:.0f}".format, "{:.2f}".format, "{:.2f}".format]
print(
    pd.concat(found.values()).to_string(
        formatters=dict(zip(COLUMNS, formats, strict=True))
    )
)

# %%
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for (name, rows), colour in zip(found.items(), ("C0", "C1"), strict=True):
    x = rows["models"]
    ax.plot(x, rows["distance"], "o-", color=colour, label=name)
    ax.plot(x, rows["by the errors"], "--", color=colour)
ax.plot([], [], "--", color="grey", label="by the standard errors")
ax.axvline(2**N_CLIENTS - 1, color="grey", linewidth=1)
ax.annotate(
    "all subsets: exact",
    (2**N_CLIENTS - 1, 0.02),
    xycoords=("data", "axes fraction"),
    xytext=(-4, 0),
    textcoords="offset points",
    ha="right",
    color="grey",
)
ax.set(
    xscale="log",
    yscale="log",
    xlabel="models evaluated",
    ylabel="distance to exact values, relative",
)
ax.set_xticks([16, 32, 64, 128, 256], [16, 32, 64, 128, 256])
ax.set_yticks([0.05, 0.1, 0.2, 0.4, 0.8], [0.05, 0.1, 0.2, 0.4, 0.8])
ax.minorticks_off()
ax.legend(frameon=False)
ax.spines[["top", "right"]].set_visible(False)
plt.show()
