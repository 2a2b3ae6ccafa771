"""
Accuracy per byte
=================

Counted in rounds, power-of-choice (pow-d) reaches an accuracy first. Counted in bytes it is last,
since every poll sends the model to d candidates. rpow-d polls nobody: it takes the losses that
clients reported with their last update, needs fewer rounds than random selection, and fewer bytes
than any. cpow-d sends what pow-d sends, but its candidates evaluate one batch only, so it saves
their time. The ledger counts what each of them costs.
"""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.datasets import partition_dirichlet
from skfed.inspection import ConvergenceDisplay
from skfed.modules import SoftmaxRegression

N_SEEDS = 5
TARGET = 0.85
SMOOTH = 5  # rounds of the running mean

X, y = load_digits(return_X_y=True)
X = StandardScaler().fit_transform(X)
X, X_val, y, y_val = train_test_split(
    X, y, test_size=0.25, stratify=y, random_state=0
)

SELECTORS = {
    "random": RandomSelector(3),
    "pow-d": PowerOfChoice(12, 3),
    "cpow-d": PowerOfChoice(12, 3, loss="batch"),
    "rpow-d": PowerOfChoice(12, 3, loss="reported"),
}
net = NeuralNetClassifier(
    SoftmaxRegression,
    module__n_features=64,
    module__n_classes=10,
    criterion=nn.CrossEntropyLoss,
    lr=0.05,
    batch_size=8,
)


def fit(selector, seed):
    """Return a model of fifty clients, whose digits the seed deals out."""
    clients = partition_dirichlet(
        y, 50, alpha=0.2, min_size=1, random_state=seed
    )
    model = FederatedClassifier(
        net, selector=selector, n_rounds=30, random_state=seed
    )
    return model.fit(X, y, clients=clients, X_val=X_val, y_val=y_val)


fits = {
    name: [fit(rule, seed) for seed in range(N_SEEDS)]
    for name, rule in SELECTORS.items()
}


# %%
# The rounds and megabytes to an accuracy of 85%, and the rows that candidates evaluate in a round.
def costs(model):
    """Return the costs of a fit."""
    history = model.history_
    sent = (history["bytes_down"] + history["bytes_up"]).cumsum() / 1e6
    score = history["val_score"].rolling(SMOOTH, min_periods=1).mean()
    reached = (score >= TARGET).idxmax()  # every fit reaches it
    return {
        "rounds to 85%": reached + 1,
        "MB to 85%": sent[reached],
        "rows evaluated a round": history["samples_evaluated"].mean(),
    }


rows = {
    name: pd.DataFrame(map(costs, models)).mean()
    for name, models in fits.items()
}
table = pd.DataFrame(rows).T
print(table.to_string(float_format="{:.2f}".format))

# %%
# The same curves by round and by megabyte. The grey line is an accuracy of 85%.
figure, axes = plt.subplots(
    1, 2, figsize=(9.5, 3.8), layout="constrained", sharey=True
)
first = table.idxmin()
titles = {
    "round": f"By rounds, {first['rounds to 85%']} is first",
    "bytes": f"By bytes, {first['MB to 85%']} is first",
}
for ax, (x, title) in zip(axes, titles.items(), strict=True):
    ConvergenceDisplay.from_estimators(fits, x=x, smooth=SMOOTH, ax=ax)
    ax.axhline(TARGET, color="grey", linewidth=0.8)
    ax.set(title=title, ylim=(0.4, 1.0))
    ax.legend(loc="lower right", frameon=False)
axes[1].set(xlim=(0, 0.6), ylabel="")
plt.show()
