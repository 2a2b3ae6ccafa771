"""
Compare selection rules as a researcher
=======================================

Which rule needs the fewest rounds on your problem, which the fewest bytes, which the fewest
seconds? This page trains a convolutional net of its own with three rules, over three seeds each,
and answers for each cost in turn.

- Power-of-choice without polls (*rpow-d*) reaches 75% in fewest rounds, bytes and seconds, on
  average over the seeds.
- Power-of-choice with polls (*pow-d*) polls 12 clients to train 3. To 75% it costs more than twice
  the bytes of random selection, and more seconds: here its choice does not make up for the polls.
- Seeds differ as much as some of the rules: compare means and bands of several.

These are results on 60 clients with few digits each. On your problem another rule may be best,
which is why the page is short enough to run on it.
"""

# %%
# A problem
# ---------
# 60 clients hold images of digits, with few classes each. The test images are nobody's.
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from skfed.datasets import partition_dirichlet

images, digits = load_digits(return_X_y=True)
images = (images / 16).reshape(-1, 1, 8, 8).astype("float32")
X, X_test, y, y_test = train_test_split(
    images, digits, test_size=0.3, stratify=digits, random_state=0
)
clients = partition_dirichlet(y, 60, alpha=0.1, min_size=3, random_state=0)

# %%
# A net of your own
# -----------------
# Any torch module that returns logits, in a skorch net that says how a client trains it. The
# module is a class, so that each seed has initial weights of its own.
from skorch import NeuralNetClassifier


class TinyConvNet(nn.Sequential):
    """Two convolutions and a linear layer, for images of 8 x 8 pixels."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 2 * 2, 10),
        )


net = NeuralNetClassifier(
    TinyConvNet,
    criterion=nn.CrossEntropyLoss,
    lr=0.2,
    batch_size=16,
    iterator_valid__batch_size=1000,
)

# %%
# Rules, seeds, devices
# ---------------------
# Only the selector differs. Devices give each client a speed, drawn once for each seed, and with
# them ``history_`` has simulated seconds: a round takes as long as its slowest client, and a poll
# is an exchange of its own.
from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.devices import LognormalDevices

rules = {
    "random": RandomSelector(3),
    "pow-d": PowerOfChoice(d=12, clients_per_round=3),
    "rpow-d": PowerOfChoice(d=30, clients_per_round=3, loss="reported"),
}


def make_model(selector, seed, **settings):
    """Return the estimator that is compared."""
    # Rows, bytes down and bytes up a second, and seconds before a message.
    devices = LognormalDevices(200.0, 1e5, 5e4, latency=0.1)
    given = {"n_rounds": 50, "local_steps": 5, "random_state": seed} | settings
    return FederatedClassifier(
        net, selector=selector, devices=devices, **given
    )


fits = {
    name: [
        make_model(rule, seed).fit(
            X, y, clients=clients, X_val=X_test, y_val=y_test
        )
        for seed in range(3)
    ]
    for name, rule in rules.items()
}

# %%
# Rounds, bytes, seconds
# ----------------------
# :func:`~skfed.metrics.cost_to` says what it cost to reach 75%; ``final`` is the mean score of the
# last ten rounds. Means over the seeds, and behind ± their standard deviation.
import pandas as pd

from skfed.metrics import cost_to

costs = pd.DataFrame(
    {"rule": name, "final": model.history_["val_score"].tail(10).mean()}
    | dict(cost_to(model.history_, "val_score", 0.75))
    for name, models in fits.items()
    for model in models
)
costs["MB"] = costs.pop("bytes") / 1e6
means, deviations = (
    getattr(costs.groupby("rule", sort=False), of)() for of in ("mean", "std")
)
means.round(2).astype(str) + " ± " + deviations.round(2).astype(str)

# %%
# The curves
# ----------
# A list of fits is drawn as its mean, with a band of one standard deviation on either side. The
# same fits by megabytes and by simulated seconds are other curves. There the fits of a rule end at
# different costs: the mean ends where the cheapest fit does, and each thin line is the rest of one
# of the others.
import matplotlib.pyplot as plt

from skfed.inspection import ConvergenceDisplay

figure, axes = plt.subplots(
    1, 3, figsize=(9.5, 3.5), sharey=True, layout="constrained"
)
for ax, x in zip(axes, ["round", "bytes", "elapsed"], strict=True):
    ConvergenceDisplay.from_estimators(fits, x=x, smooth=5, ax=ax)
    ax.get_legend().remove()
    ax.set(ylim=(0.3, 0.9), title="")
    if x != "round":
        ax.set_ylabel("")
figure.suptitle("rpow-d needs fewest rounds, megabytes and seconds")
axes[0].legend(loc="upper left", frameon=False)
plt.show()

# %%
# Stop early
# ----------
# skorch's callbacks see one epoch a round. EarlyStopping ends a fit when a value of ``history_``
# has not improved for some rounds; the rounds it saves are the saving in bytes.
from skorch.callbacks import EarlyStopping

patient = EarlyStopping(monitor="val_loss", patience=15, load_best=True)
net.set_params(callbacks=[patient])
stopped = make_model(rules["rpow-d"], 0, n_rounds=100)
stopped.fit(X, y, clients=clients, X_val=X_test, y_val=y_test)
net.set_params(callbacks=None)
print(
    f"stopped after {stopped.n_rounds_} of 100 rounds: "
    f"{stopped.score(X_test, y_test):.3f}"
)

# %%
# The rounds are chosen by the test images here, so that the score is too good: hold out other rows
# for ``X_val`` in a study.
#
# Resume
# ------
# With ``checkpoint`` a fit that is killed continues from its last round when it is called again,
# with the same result bit for bit. With ``warm_start`` it also goes on to more rounds. Each
# combination of parameters and data has a folder of its own, so that all fits of a study may share
# one directory.
import tempfile

import numpy as np

resume = {"checkpoint": tempfile.mkdtemp(), "warm_start": True}
make_model(rules["rpow-d"], 0, n_rounds=10, **resume).fit(
    X, y, clients=clients
)
resumed = make_model(rules["rpow-d"], 0, n_rounds=20, **resume).fit(
    X, y, clients=clients
)
whole = make_model(rules["rpow-d"], 0, n_rounds=20).fit(X, y, clients=clients)
same = np.array_equal(
    resumed.predict_proba(X_test), whole.predict_proba(X_test)
)
print(f"10 rounds and 10 more equal 20 rounds, bit for bit: {same}")

# %%
# Next
# ----
# - ``GridSearchCV`` over ``selector__d``: :doc:`../user_guide/searching`.
# - What is charged to whom: :doc:`../user_guide/ledger`. Seconds: :doc:`../user_guide/devices`.
# - Both papers' experiments again: :doc:`../papers`.
# - A rule of your own: :ref:`sphx_glr_auto_tutorials_plot_write_a_rule.py`.
