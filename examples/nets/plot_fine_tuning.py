"""
Fine-tuning sends the head
==========================

A convolutional net has learned seven classes of Fashion-MNIST in one place. Thirty shops have
pictures of the other three: sandals, bags and ankle boots. Where the layers before the head are
frozen, they are sent to a shop once, and after that the head alone travels: a small part of the
bytes that training all layers sends, for an accuracy that is a few points lower. Layers that have
learned nothing are as cheap, and worse.
"""

# sphinx_gallery_thumbnail_path = 'images/fine_tuning.png'
from copy import deepcopy

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, RandomSelector
from skfed.datasets import load_fashion_mnist

NEW = [5, 8, 9]  # sandal, bag, ankle boot
N_SHOPS, ROWS, N_ROUNDS = 30, 40, 20

data = load_fashion_mnist()
X, y = data.X[:, None].astype("float32") / 255, data.y.astype(int)
is_new = np.isin(y, NEW)
known, new = np.flatnonzero(~is_new)[:3000], np.flatnonzero(is_new)
mine, held_out = new[: N_SHOPS * ROWS], new[-1000:]
shops = np.arange(N_SHOPS * ROWS) % N_SHOPS

# %%
# The layers before the head learn the known classes in one place.
torch.manual_seed(0)
untrained = nn.Sequential(
    *(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU()),
    *(nn.Conv2d(16, 32, 5, stride=2), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU()),
)
learned = deepcopy(untrained)
NeuralNetClassifier(
    nn.Sequential(learned, nn.Linear(64, 10)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=1e-3,
    max_epochs=3,
    train_split=None,
    verbose=0,
).fit(X[known], y[known])


# %%
# Then ten shops a round train on their own pictures of the new classes.
def fit(layers, frozen):
    """Return a model of all shops; its head is new."""
    layers = deepcopy(layers).requires_grad_(not frozen)
    torch.manual_seed(1)
    net = NeuralNetClassifier(
        nn.Sequential(layers, nn.Linear(64, 3)),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=2e-3,
        batch_size=10,
    )
    selector = RandomSelector(10, probability="uniform", replace=False)
    model = FederatedClassifier(
        net,
        selector=selector,
        n_rounds=N_ROUNDS,
        local_epochs=2,
        random_state=0,
    )
    return model.fit(
        *(X[mine], y[mine], shops),
        X_val=X[held_out],
        y_val=y[held_out],
    )


fits = {
    "all of the learned net": fit(learned, frozen=False),
    "head of the learned net": fit(learned, frozen=True),
    "head of an untrained net": fit(untrained, frozen=True),
}

# %%
# The bytes of all rounds, and the accuracy after the last.
rows = {}
for name, model in fits.items():
    history = model.history_
    rows[name] = {
        "MB down": history["bytes_down"].sum() / 1e6,
        "MB up": history["bytes_up"].sum() / 1e6,
        "accuracy": history["val_score"].iloc[-1],
    }
table = pd.DataFrame(rows).T
print(table.to_string(float_format="{:.3f}".format))

# %%
# The accuracy by rounds, and what all rounds have sent.
figure, (left, right) = plt.subplots(
    1, 2, figsize=(9.5, 3.8), layout="constrained"
)
for name, model in fits.items():
    left.plot(model.history_["val_score"], label=name)
left.set(
    xlabel="round",
    ylabel="accuracy on the new classes",
    title="The head needs layers that have learned",
)
left.legend(frameon=False, loc="lower right")
table[["MB down", "MB up"]].iloc[::-1].plot.barh(ax=right, width=0.7)
sent = table[["MB down", "MB up"]].sum(axis=1)
share = sent["head of the learned net"] / sent["all of the learned net"]
right.set(
    xlabel="megabytes",
    title=f"and costs {share:.0%} of the bytes of all layers",
)
right.legend(frameon=False)
plt.show()
