"""
Hostile clients, and differential privacy
=========================================

With a mean, two hostile clients of 20 ruin the model. A trimmed mean or a median loses nothing to
four, and little to six. The cost of privacy is steep in a small federation: noise that gives a
strong guarantee takes most of the accuracy.

Hostile users send their update reversed and multiplied by ten, under several rules of aggregation.
The second part shows the cost in accuracy of ``update_privacy``, which limits the information that
an update has about its client. It needs Opacus: ``pip install "opacus>=1.5.4"``.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

from skfed import FederatedClassifier, RandomSelector
from skfed.aggregation import (
    BaseAggregator,
    CoordinateMedian,
    NormClipping,
    TrimmedMean,
    WeightedMean,
)
from skfed.inspection import STYLE
from skfed.modules import SoftmaxRegression
from skfed.privacy import GaussianMechanism, privacy_spent

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(
    X / 16, y, test_size=0.3, stratify=y, random_state=0
)
users = np.random.default_rng(0).integers(0, 20, len(y))

# %%
# The attack is simulated by an aggregator that changes the updates of some clients and then calls
# another aggregator.


class Attacked(BaseAggregator):
    """The first clients send w - 10 (w_k - w) in place of w_k."""

    def __init__(self, rule, n_hostile):
        self.rule = rule
        self.n_hostile = n_hostile

    def _aggregate(self, model, updates, cohort, parameters):
        hostile = torch.from_numpy(cohort.clients < self.n_hostile)
        sent = {name: tensor.clone() for name, tensor in updates.items()}
        for name in parameters:
            step = updates[name][hostile] - model[name]
            sent[name][hostile] = model[name] - 10 * step
        return self.rule._aggregate(model, sent, cohort, parameters)


def accuracy(**params):
    everybody = RandomSelector(1.0, probability="uniform", replace=False)
    model = FederatedClassifier(
        SoftmaxRegression(64, 10),
        selector=everybody,
        n_rounds=40,
        lr_schedule=0.5,
        validate_every=40,
        random_state=0,
        **params,
    )
    # A fit that diverges warns, and keeps its best model: this is the last.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y, clients=users, X_val=X_test, y_val=y_test)
    return model, model.history_["val_score"].iloc[-1]


rules = {
    "mean": WeightedMean(),
    "norm clipping, 0.2": NormClipping(0.2),
    "trimmed mean, 0.4": TrimmedMean(0.4),
    "median": CoordinateMedian(),
}
n_hostile = [0, 2, 4, 6, 8]
table = pd.DataFrame(
    {
        name: [accuracy(aggregator=Attacked(rule, n))[1] for n in n_hostile]
        for name, rule in rules.items()
    },
    index=pd.Index(n_hostile, name="hostile of 20"),
)
print(table.round(3))

# %%
# Honest clients clip their updates and add noise. Epsilon bounds the information in all 40 messages
# of a client. With 20 clients that each add noise of their own, a strong guarantee costs too much
# accuracy: the noise is averaged over too few.

noises = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
private = [
    accuracy(
        update_privacy=GaussianMechanism(clip=0.2, noise_multiplier=noise),
        loss_privacy=GaussianMechanism(clip=3.0, noise_multiplier=noise),
    )
    for noise in noises
]
scores = [score for _, score in private]
spent = [
    privacy_spent(model, delta=1e-3)["epsilon"].max() for model, _ in private
]
print(
    pd.DataFrame(
        {"noise multiplier": noises, "epsilon": spent, "accuracy": scores}
    ).round(2)
)

# %%
plt.style.use(STYLE)
figure, axes = plt.subplots(
    1, 2, figsize=(9, 3.6), layout="constrained", sharey=True
)
for (name, column), style in zip(
    table.items(), ["o-", "s--", "^-.", "v:"], strict=True
):
    axes[0].plot(column, style, label=name)
axes[0].set(
    xlabel="hostile clients of 20",
    ylabel="accuracy",
    xticks=n_hostile,
    ylim=(0, 1),
)
axes[0].set_title("Two ruin a mean, not a median")
axes[0].legend()
axes[1].plot(noises, scores, "o-")
axes[1].set(
    xlabel="noise multiplier of update_privacy",
    title="Noise for privacy costs accuracy",
)
plt.show()
