"""
Time to accuracy, on devices that differ
========================================

A round takes as long as its slowest client. Here 60 clients have speeds drawn from lognormal
distributions. Power-of-choice needs fewer rounds than random selection, and each of its rounds a
poll; a deadline makes rounds shorter, and the slowest clients are never heard.
"""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.datasets import partition_dirichlet
from skfed.devices import LognormalDevices
from skfed.inspection import ConvergenceDisplay, TimelineDisplay
from skfed.metrics import cost_to

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=0.3, stratify=y, random_state=0)
clients = partition_dirichlet(y, 60, alpha=0.3, random_state=0)

# %%
# The median client trains on 40 rows a second and sends 10 kB a second. A client that computes
# slowly tends to send slowly too.

devices = LognormalDevices(
    40, 1e5, 1e4, latency=0.1, rows_sigma=1.0, bytes_up_sigma=1.0, correlation=0.5
)
selectors = {"random": RandomSelector(6), "pow-d": PowerOfChoice(d=20, clients_per_round=6)}
models = {
    name + f", deadline of {deadline} s" * (deadline is not None): FederatedClassifier(
        selector=selector,
        devices=devices,
        deadline=deadline,
        n_rounds=60,
        local_steps=5,
        lr_schedule=0.003,
        random_state=0,
    ).fit(X, y, clients=clients, X_val=X_test, y_val=y_test)
    for name, selector in selectors.items()
    for deadline in (None, 6)
}

# %%
# Accuracy by the second, and what it took to reach 90%, NaN where that was not reached.

ConvergenceDisplay.from_estimators(models, x="elapsed")
costs = {name: cost_to(model.history_, "val_score", 0.9) for name, model in models.items()}
print(pd.DataFrame(costs).T.round())

# %%
# One round of pow-d, without and with the deadline: 20 clients are polled, and 6 of them train.
# It is the first in which the deadline makes a client late.

timed = models["pow-d, deadline of 6 s"].history_
late = int((timed["n_failed"] > 0).idxmax())
figure, axes = plt.subplots(2, figsize=(7.5, 8.0), layout="constrained")
for ax, name in zip(axes, ["pow-d", "pow-d, deadline of 6 s"], strict=True):
    TimelineDisplay.from_estimator(models[name], round=late, ax=ax)
    ax.set_title(name)
plt.show()
