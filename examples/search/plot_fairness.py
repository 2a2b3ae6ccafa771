"""
For whom is the model good?
===========================

The mean accuracy hides clients for which the model is bad. Power-of-choice trains the clients with
the highest loss, and this raises the lowest accuracy, by more than it moves the mean.

``client_scores`` returns the scores of each client, and ``usefulness`` compares the common model
with the best that each client could train alone; a client gains from taking part if the common
model is better (FedALIGN's notion of fairness).
"""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.datasets import partition_dirichlet
from skfed.inspection import ClientsDisplay
from skfed.metrics import client_scores, summarise_clients, usefulness
from skfed.model_selection import WithinClientKFold

X, y = load_digits(return_X_y=True)
X = X / 16
clinics = partition_dirichlet(y, 20, alpha=0.3, random_state=1)
train, test = next(
    WithinClientKFold(3, random_state=0).split(X, groups=clinics)
)

models = {
    name: FederatedClassifier(
        selector=selector,
        n_rounds=25,
        local_epochs=2,
        lr_schedule=0.2,
        random_state=0,
    ).fit(X[train], y[train], clients=clinics[train])
    for name, selector in {
        "random": RandomSelector(3),
        "power-of-choice": PowerOfChoice(20, 3),
    }.items()
}

# %%
# The spread over clinics: the lowest accuracy, quartiles, the highest.
spread = {}
for name, model in models.items():
    scores = client_scores(model, X[test], y[test], clinics[test])
    spread[name] = summarise_clients(scores).loc["all", "accuracy"]
print(pd.DataFrame(spread).T.to_string(float_format="{:.3f}".format))

# %%
# The accuracy of each clinic. Both pictures have the clinics in the same order.
figure, axes = plt.subplots(
    2, 1, figsize=(7.5, 5), layout="constrained", sharex=True
)
for ax, (name, model) in zip(axes, models.items(), strict=True):
    drawn = ClientsDisplay.from_estimator(
        model, X[test], y[test], clinics[test], ax=ax
    )
    lowest = drawn.table["accuracy"].min()
    ax.axhline(lowest, color="black", linestyle=":")
    ax.set(title=f"{name}: the lowest accuracy is {lowest:.2f}", ylim=(0, 1))
axes[0].set_xlabel("")

# %%
# The share of clinics for which the common model is better than the best they could train alone.
alone = usefulness(
    models["power-of-choice"],
    X[train],
    y[train],
    clinics[train],
    X[test],
    y[test],
    clinics[test],
)
print(f"useful to {alone['useful'].mean():.0%} of the clinics")
plt.show()
