"""
Several labels, of which each client has some
=============================================

A picture shows one or two of ten digits, and its labels say which: ``y`` is an indicator with a
column for each digit. Each of thirty clients has pictures of four digits only, and lacks six
labels. A net that a client trains alone gets fewer entries of the indicator right than one that
never finds a digit. The federated net finds all ten, though fewer than if pictures were dealt to
clients at random. Its ``score`` is lower than the fraction of entries that are right: it counts
rows whose labels are all right.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import recall_score
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, RandomSelector
from skfed.modules import MLP

N_CLIENTS, ROWS, N_OWN, N_ROUNDS = 30, 60, 4, 60
EMPTY = np.zeros((8, 8))

digits = load_digits()
rng = np.random.default_rng(0)
order = rng.permutation(len(digits.target))
known, held_out = order[:1200], order[1200:]


# %%
# Pictures of two digits side by side, or of one and nothing. Labels are an indicator.
def picture(rows, kinds):
    """Return a picture of one or two of some digits, and its labels."""
    labels = np.zeros(10, dtype=int)
    halves = [EMPTY, EMPTY]
    n_digits = rng.integers(1, 3)
    for side, digit in enumerate(rng.choice(kinds, n_digits, replace=False)):
        of_digit = rows[digits.target[rows] == digit]
        halves[side] = digits.images[rng.choice(of_digit)] / 16
        labels[digit] = 1
    return np.hstack(halves).ravel(), labels


def pictures(rows, kinds_of_pictures):
    """Return one picture of each of some sets of digits, and their labels."""
    pairs = [picture(rows, kinds) for kinds in kinds_of_pictures]
    X, y = map(np.array, zip(*pairs, strict=True))
    return X, y


own = [rng.choice(10, N_OWN, replace=False) for _ in range(N_CLIENTS)]
clients = np.repeat(np.arange(N_CLIENTS), ROWS)
X, y = pictures(known, [own[k] for k in clients])
X_new, y_new = pictures(held_out, [np.arange(10)] * 1000)
print("labels of a picture:", y[0])


# %%
# The net has one logit a label. The loss is the mean over labels, hence the large learning rate.
def fit(rows, clients, clients_per_round=10):
    """Return a model of some rows."""
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        MLP(128, [64], 10),
        criterion=nn.BCEWithLogitsLoss,
        lr=3.0,
        batch_size=10,
    )
    selector = RandomSelector(
        clients_per_round, probability="uniform", replace=False
    )
    model = FederatedClassifier(
        net,
        selector=selector,
        n_rounds=N_ROUNDS,
        local_epochs=2,
        random_state=0,
    )
    return model.fit(
        *(X[rows], y[rows], clients[rows]), X_val=X_new, y_val=y_new
    )


everyone = np.full(len(y), True)
alone = [fit(clients == k, clients, 1) for k in range(0, N_CLIENTS, 6)]
federated = fit(everyone, clients)
dealt = fit(everyone, rng.permutation(clients))
fits = {
    "a client alone": alone,
    "federated": [federated],
    "federated, dealt at random": [dealt],
}


# %%
# ``score`` is the fraction of new pictures whose labels are all right. Most
# entries are 0, which a model that finds no digit gets right.
def scores(model):
    """Return a model's scores, and how often it finds each digit."""
    predicted = model.predict(X_new)
    found = recall_score(y_new, predicted, average=None, zero_division=0)
    return {
        "rows right": model.score(X_new, y_new),
        "entries right": (predicted == y_new).mean(),
        "digits found": found.mean(),
        **dict(enumerate(found)),
    }


means = pd.DataFrame(
    {
        name: pd.DataFrame(map(scores, models)).mean()
        for name, models in fits.items()
    }
)
table = means.T[["rows right", "entries right", "digits found"]]
table.loc["no digit found"] = [0, (y_new == 0).mean(), 0]
print(table.to_string(float_format="{:.3f}".format))

# %%
# The score by rounds, and the fraction of the pictures with a digit in which it is found. None of
# the five clients that train alone here has pictures of a 4.
figure, (left, right) = plt.subplots(
    1, 2, figsize=(9.5, 3.8), layout="constrained"
)
for name, models in fits.items():
    curves = [model.history_["val_score"] for model in models]
    left.plot(np.mean(curves, axis=0), label=name)
left.set(
    xlabel="round",
    ylabel="rows whose labels are all right",
    title="Together, clients find more,",
    ylim=(0, 1),
)
left.legend(frameon=False, loc="upper left")
shown = means.loc[range(10), list(fits)[:2]]
shown.plot.bar(ax=right, width=0.7, rot=0, legend=False)
right.set(
    xlabel="digit",
    ylabel="found, of the pictures that show it",
    title="of each digit",
    ylim=(0, 1),
)
plt.show()
