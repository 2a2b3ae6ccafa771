"""
Whose statistics scale the rows: all clients', the priority clients', or their own
==================================================================================

Where all phones measure alike, statistics of all clients and of the paying ones do equally well
for the paying users, and each client's own do worse. Where instruments differ, each client's own
statistics are far better for the paying users, and better for the others in fit; but people who
were not in fit may do badly with a net that was trained on such rows.

Thirty-six people carried a phone, and twelve of them have priority: they pay. The same linear net
is trained on rows that are scaled in three ways, and tested on new rows of the twelve, on new rows
of the others, and on people who were not in fit. The data are taken as they are, and as they would
be if the phones of those who do not pay, or every second phone, measured in other units.

The data are read from ``$SKFED_DATA``; the docstring of ``load_wisdm`` lists the files that it
needs.
"""

# sphinx_gallery_thumbnail_path = 'images/whose_statistics.png'

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, RandomSelector, make_pipeline
from skfed.datasets import load_wisdm
from skfed.inspection import STYLE
from skfed.model_selection import WithinClientKFold
from skfed.modules import SoftmaxRegression
from skfed.preprocessing import FederatedSimpleImputer, FederatedStandardScaler

wisdm = load_wisdm()
users, y, clients = np.unique(wisdm.clients), wisdm.y, wisdm.clients
paying = users[::3].tolist()
is_free = ~np.isin(clients, paying)
tables = {
    "as they are": wisdm.X,
    "free phones in other units": wisdm.X.mul(
        np.where(is_free, 9.81, 1.0), axis=0
    ),
    "every second phone in other units": wisdm.X.mul(
        np.where(clients % 2, 1.0, 9.81), axis=0
    ),
}
SCALED_BY = {
    "all clients": {},
    "priority clients": {"priority": paying},
    "each client": {"scope": "client"},
}

# %%
# Some of these fits end with a warning, that the loss of the paying users is above that of a guess:
# their rows are scaled by what does not fit them, as is to be shown.
warnings.simplefilter("ignore", ConvergenceWarning)

# %%
# A net without layers that standardise X by themselves, as the default net has. All users train, so
# that only the scaling differs. Six free users are left out of fit.
net = NeuralNetClassifier(
    SoftmaxRegression,
    module__n_features=wisdm.X.shape[1],
    module__n_classes=len(np.unique(y)),
    criterion=nn.CrossEntropyLoss,
    lr=0.1,
    batch_size=32,
)
selector = RandomSelector(1.0, "uniform", False, ignore_priority=True)


def scores(X, scaling, seed):
    """Return the accuracy on rows of paying, free and unseen users."""
    train, test = next(
        WithinClientKFold(4, random_state=seed).split(X, groups=clients)
    )
    unseen = np.random.default_rng(seed).choice(
        np.setdiff1d(users, paying), 6, replace=False
    )
    train, test = (
        rows[~np.isin(clients[rows], unseen)] for rows in (train, test)
    )
    scaler = FederatedStandardScaler(**scaling)
    model = FederatedClassifier(
        net, priority=paying, selector=selector, n_rounds=20, random_state=seed
    )
    pipe = make_pipeline(FederatedSimpleImputer(), scaler, model)
    pipe.fit(X.iloc[train], y[train], clients=clients[train])
    groups = {
        "paying": test[~is_free[test]],
        "free": test[is_free[test]],
        "not in fit": np.flatnonzero(np.isin(clients, unseen)),
    }
    ids = {"clients": clients} if scaler.scope == "client" else {}
    predicted = pipe.predict(X, **ids)
    return {
        name: (predicted[rows] == y[rows]).mean()
        for name, rows in groups.items()
    }


found = pd.DataFrame(
    {"data": data, "scaled by": name, **scores(X, scaling, seed)}
    for data, X in tables.items()
    for name, scaling in SCALED_BY.items()
    for seed in range(3)
)
means = found.groupby(["data", "scaled by"], sort=False).mean()
shown = means.set_axis(means.index.map(", ".join))
print(shown.round(3).to_string())

# %%
# Users who do not pay gain by their own statistics in all three cases. Those of the priority
# clients alone are at no point clearly the best here. People who were not in fit are scaled by the
# statistics of all clients: with instruments of both sorts in use, a net that was trained on rows
# scaled by their owners' statistics does badly on them.
plt.style.use(STYLE)
fig, ax = plt.subplots(figsize=(8, 4), layout="constrained")
drawn = means["paying"].unstack()
drawn.loc[list(tables), list(SCALED_BY)].plot.bar(ax=ax, rot=0)
ax.set(
    xlabel="",
    ylabel="accuracy on paying users' new rows",
    title="Each client's own statistics are best where instruments differ",
)
ax.set_ylim(0, 0.95)
ax.legend(title="scaled by", loc="upper center", ncols=3)
plt.show()
