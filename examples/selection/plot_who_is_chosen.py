"""
Who is chosen, by each rule
===========================

Forty phones hold digits, each mostly of a few classes. They differ in size and in speed. Every rule
trains the same federation from the same model, four phones a round on average. A dot is a phone
that trained in a round: the largest phone is at the top.

Round robin and the draws by size look at neither losses nor speed: their dots are spread evenly in
time. FedCS trains the same four phones in every round, the quickest, which are among the smallest.
DivFL keeps some phones for many rounds, since their gradients stand for those of many others. Oort
tries all phones first, then prefers those that are quick and have a high loss.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfed import (
    ActiveFLSelector,
    ClusteredSelector,
    DivFLSelector,
    FedCorSelector,
    FedCSSelector,
    FederatedClassifier,
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
from skfed.datasets import partition_dirichlet
from skfed.devices import LognormalDevices

M = 4  # phones a round
N_ROUNDS = 60

X, y = load_digits(return_X_y=True)
X, X_val, y, y_val = train_test_split(
    X / 16, y, test_size=0.25, stratify=y, random_state=0
)
phones = partition_dirichlet(y, 40, alpha=0.2, min_size=2, random_state=0)

SELECTORS = {
    "random, by size": RandomSelector(M),
    "round robin": RoundRobinSelector(M),
    "clustered by size": ClusteredSelector("size", M),
    "clustered by updates": ClusteredSelector("updates", M),
    "optimal": OptimalSelector(M),
    "K-Vib": KVibSelector(M),
    "power-of-choice": PowerOfChoice(12, M),
    "loss-proportional": LossProportionalSelector(M),
    "AFL": ActiveFLSelector(M),
    "UCB-CS": UcbSelector(M),
    "Oort": OortSelector(M),
    "FedCS": FedCSSelector(M),
    "TiFL": TiflSelector(M),
    "DivFL": DivFLSelector(M),
    "FedCor": FedCorSelector(M, warmup=8),
    "HiCS-FL": HicsFLSelector(M),
}


def fit(selector):
    """Return a model that a rule has trained."""
    model = FederatedClassifier(
        selector=selector,
        devices=LognormalDevices(public=True),
        n_rounds=N_ROUNDS,
        lr_schedule=0.1,
        random_state=0,
    )
    return model.fit(X, y, clients=phones, X_val=X_val, y_val=y_val)


fits = {name: fit(selector) for name, selector in SELECTORS.items()}

# %%
# How many of the forty phones trained at all, how unequally they did (the largest number of rounds
# of a phone), and what came of it. The cohort is that of the uploads: with optimal sampling, all
# phones train in each round, and four of them upload on average.
sizes = pd.Series(phones).value_counts()
order = sizes.index.to_numpy()  # the largest first
chosen = {
    name: np.array(
        [np.isin(order, cohort) for cohort in model.history_["cohort"]]
    )
    for name, model in fits.items()
}
table = pd.DataFrame(
    {
        name: {
            "phones chosen": rounds.any(axis=0).sum(),
            "most rounds of one": rounds.sum(axis=0).max(),
            "accuracy": fits[name].score(X_val, y_val),
            "simulated seconds": fits[name].history_["elapsed"].iloc[-1],
        }
        for name, rounds in chosen.items()
    }
).T
print(
    table.to_string(
        formatters={
            "phones chosen": "{:.0f}".format,
            "most rounds of one": "{:.0f}".format,
            "accuracy": "{:.2f}".format,
            "simulated seconds": "{:.0f}".format,
        }
    )
)

# %%
n_columns = 4
figure, axes = plt.subplots(
    -(-len(chosen) // n_columns),
    n_columns,
    figsize=(9.5, 8),
    layout="constrained",
    sharex=True,
    sharey=True,
)
for ax in axes.flat[len(chosen) :]:
    ax.remove()
for ax, (name, rounds) in zip(axes.flat, chosen.items(), strict=False):
    t, k = np.nonzero(rounds)
    ax.scatter(t, k, s=4, color="black", linewidths=0)
    ax.set_title(name, fontsize=9)
axes[0, 0].invert_yaxis()
figure.supxlabel("round", fontsize=9)
figure.supylabel("phone, the largest at the top", fontsize=9)
plt.show()
