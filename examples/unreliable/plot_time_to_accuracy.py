"""
Time to accuracy, on devices that differ
========================================

A round takes as long as its slowest client. Here 60 clients have speeds drawn from lognormal
distributions. Power-of-choice needs fewer rounds than random selection, by more than the seconds of
its polls. A deadline makes rounds shorter; the price is that the slowest clients are never heard.
"""

import warnings

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.datasets import partition_dirichlet
from skfed.devices import LognormalDevices
from skfed.inspection import ConvergenceDisplay, TimelineDisplay
from skfed.metrics import cost_to

N_SEEDS = 3
TARGET = 0.8

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(
    X / 16, y, test_size=0.3, stratify=y, random_state=0
)

# %%
# The median client trains on 40 rows a second and sends 10 kB a second. A client that computes
# slowly tends to send slowly too.

devices = LognormalDevices(
    40,
    1e5,
    1e4,
    latency=0.1,
    rows_sigma=1.0,
    bytes_up_sigma=1.0,
    correlation=0.5,
)
SELECTORS = {
    "random": RandomSelector(6),
    "pow-d": PowerOfChoice(d=20, clients_per_round=6),
}
DEADLINES = {"": None, ", deadline of 6 s": 6}


def fit(selector, deadline, seed):
    """Return a model of 60 clients, whose digits and speeds the seed sets."""
    clients = partition_dirichlet(y, 60, alpha=0.3, random_state=seed)
    model = FederatedClassifier(
        selector=selector,
        devices=devices,
        deadline=deadline,
        n_rounds=60,
        local_steps=5,
        lr_schedule=0.003,
        random_state=seed,
    )
    with warnings.catch_warnings():
        # fit warns of clients that are late each time: they are counted below.
        warnings.filterwarnings("ignore", message=".* never replied")
        return model.fit(X, y, clients=clients, X_val=X_test, y_val=y_test)


fits = {
    rule + text: [fit(selector, deadline, seed) for seed in range(N_SEEDS)]
    for rule, selector in SELECTORS.items()
    for text, deadline in DEADLINES.items()
}


# %%
# What it took to reach 80%, and how many of the 60 clients have trained: means over the seeds.
def summarise(model):
    """Return what a fit has cost, and whom it has heard."""
    costs = cost_to(model.history_, "val_score", TARGET)
    return dict(costs[["rounds", "seconds"]]) | {
        "clients that trained": model.history_["cohort"].explode().nunique()
    }


rows = {
    name: pd.DataFrame(map(summarise, models)).mean(skipna=False)
    for name, models in fits.items()
}
table = pd.DataFrame(rows).T
print(table.round(1).to_string(na_rep="not reached"))

# %%
# Accuracy by the second.
figure, ax = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
ConvergenceDisplay.from_estimators(fits, x="elapsed", smooth=5, ax=ax)
ax.set(
    xlim=(0, 300), title=f"First at {TARGET:.0%}: {table['seconds'].idxmin()}"
)
ax.legend(loc="lower right", frameon=False)
plt.show()

# %%
# One round of pow-d, without and with the deadline: 20 clients are polled, and 6 of them train.
# It is the first in which the deadline makes a client late.

names = ["pow-d", "pow-d, deadline of 6 s"]
timed = fits[names[1]][0].history_
late = int((timed["n_failed"] > 0).idxmax())
figure, axes = plt.subplots(
    2, figsize=(7.5, 8.0), layout="constrained", sharex=True
)
for ax, name in zip(axes, names, strict=True):
    TimelineDisplay.from_estimator(fits[name][0], round=late, ax=ax)
    seconds = fits[name][0].history_["seconds"].iloc[late]
    ax.set_title(f"{name}: the round takes {seconds:.1f} s")
axes[0].set_xlabel("")
plt.show()
