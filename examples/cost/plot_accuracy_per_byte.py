"""
Accuracy per byte
=================

Power-of-choice converges in fewer rounds, but every poll sends the model to d candidates. Two
variants are cheaper: with cpow-d candidates evaluate one batch only, and rpow-d uses the losses
that clients reported with their last update, without a poll. The ledger counts what each of them
sends, so they can be compared by bytes as well as by rounds.
"""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

from skfed import ActiveFLSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.datasets import partition_dirichlet
from skfed.inspection import ConvergenceDisplay
from skfed.modules import SoftmaxRegression

X, y = load_digits(return_X_y=True)
X, X_val, y, y_val = train_test_split(X / 16, y, test_size=0.25, random_state=0)
clients = partition_dirichlet(y, 50, alpha=0.3, min_size=4, random_state=0)

SELECTORS = {
    "random": RandomSelector(3),
    "pow-d": PowerOfChoice(15, 3),
    "cpow-d": PowerOfChoice(15, 3, loss="batch"),
    "rpow-d": PowerOfChoice(25, 3, loss="reported"),
    "afl": ActiveFLSelector(3),
}
net = NeuralNetClassifier(
    SoftmaxRegression,
    module__n_features=64,
    module__n_classes=10,
    criterion=nn.CrossEntropyLoss,
    lr=0.1,
    batch_size=8,
)
models = {
    name: FederatedClassifier(
        net, selector=selector, n_rounds=100, local_epochs=2, random_state=0
    ).fit(X, y, clients=clients, X_val=X_val, y_val=y_val)
    for name, selector in SELECTORS.items()
}

# %%
# The cost of a round, and the rounds and megabytes to an accuracy of 80%.
rows = {}
for name, model in models.items():
    history = model.history_
    sent = (history["bytes_down"] + history["bytes_up"]).cumsum() / 1e6
    reached = history.index[history["val_score"] >= 0.8]
    rows[name] = {
        "models sent a round": (history["models_down"] + history["models_up"]).mean(),
        "rows evaluated a round": history["samples_evaluated"].mean(),
        "rounds to 80%": reached[0] + 1 if len(reached) else None,
        "MB to 80%": sent[reached[0]] if len(reached) else None,
    }
print(pd.DataFrame(rows).T.to_string(float_format="{:.2f}".format))

# %%
# The same curves by round and by megabyte.
figure, axes = plt.subplots(1, 2, figsize=(13, 4), layout="constrained", sharey=True)
ConvergenceDisplay.from_estimators(models, ax=axes[0])
ConvergenceDisplay.from_estimators(models, x="bytes", ax=axes[1])
axes[0].get_legend().remove()
plt.show()
