"""
FedALIGN on paying and free users
=================================

The quickstart shows that FedALIGN gains on training with the paying users only, and with all. Here
each of its settings is turned by itself: the warm-up, eps, what is matched, and the weights of
priority.

Two users pay and write the digits 0 to 4. Fourteen free users write the same digits, and some of
their labels are wrong: the digit after the right one, for no label of the first user and all labels
of the last. Four users are on trial; they write 5 to 9. The labels of the test data are right.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfed import FedAlignSelector, FederatedClassifier
from skfed.inspection import ConvergenceDisplay, SelectionDisplay

PAYING = [f"paying {i}" for i in range(2)]
WRONG = {f"free {i:02d}": i / 13 for i in range(14)}  # the share of wrong labels
TRIAL = [f"trial {i}" for i in range(4)]

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=0.5, stratify=y, random_state=0)
rng = np.random.default_rng(0)
users = np.where(
    y < 5,
    rng.permutation(np.resize([*PAYING, *WRONG], len(y))),
    rng.permutation(np.resize(TRIAL, len(y))),
)
for user, share in WRONG.items():
    rows = rng.permutation(np.flatnonzero(users == user))
    wrong = rows[: round(share * len(rows))]
    y[wrong] = (y[wrong] + 1) % 5
of_paying = y_test < 5


def train(selector, priority=PAYING):
    """Train a federation; its validation data are what paying users write."""
    model = FederatedClassifier(
        selector=selector,
        priority=priority,
        n_rounds=60,
        local_epochs=2,
        lr_schedule=0.3,
        random_state=0,
    )
    return model.fit(X, y, clients=users, X_val=X_test[of_paying], y_val=y_test[of_paying])


# %%
# The warm-up
# -----------
# The first model knows nothing, so its loss is the same everywhere and everybody matches. Whom it
# then learns from decides what matches next: with wrong labels in the mean, the paying users' loss
# stays high, and wrong labels go on to match it. After a warm-up, in which only paying users train,
# the model is theirs, and the same eps takes in those who agree with it.
warmups = {f"warmup={share}": train(FedAlignSelector(eps=0.4, warmup=share)) for share in (0, 0.2)}
figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
ConvergenceDisplay.from_estimators(warmups, ax=axes[0])
axes[0].set_ylabel("accuracy for paying users")
axes[0].get_legend().remove()
ConvergenceDisplay.from_estimators(warmups, y="n_aggregated", ax=axes[1])
axes[1].set(ylabel="users that train, of 20", yticks=range(0, 21, 5))

# %%
# eps, and who is taken in
# ------------------------
# eps is how far a user's loss may be from that of the paying users. At 0 nobody is taken in; the
# larger it is, the more wrong labels come along; without bound it is training on all.
EPS = (0, 0.2, 0.4, 0.8, 1.2, np.inf)
by_eps = {eps: train(FedAlignSelector(eps=eps, warmup=0.2)) for eps in EPS}


def taken_in(model):
    """Return the users besides those who pay in the last round's cohort."""
    return [user for user in model.history_["cohort"].iloc[-1] if user not in PAYING]


def summarise(model):
    """Return a row of the table."""
    worst = [WRONG[user] for user in taken_in(model) if user in WRONG]
    return {
        "accuracy for paying": model.history_["val_score"].iloc[-1],
        "taken in at the end": len(taken_in(model)),
        "largest share of wrong labels": max(worst, default=np.nan),
    }


table = pd.DataFrame({f"eps={eps}": summarise(model) for eps, model in by_eps.items()}).T
print(table.to_string(float_format="{:.2g}".format))

# %%
# Round by round, black is who trained. Free users are in the order of their wrong labels.
figure, axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained", sharey=True)
for ax, eps in zip(axes, (0.4, 1.2), strict=True):
    SelectionDisplay.from_estimator(by_eps[eps], kind="rounds", ax=ax)
    ax.set_title(f"eps={eps}")
axes[0].get_legend().remove()

# %%
# Losses or accuracies
# --------------------
# ``match="accuracy"`` compares how often the model is right instead. Then eps is a share of the
# rows, so its values are smaller, and a value means the same whatever the loss. Here both take in
# users with few wrong labels.
both = {
    "paying users only": by_eps[0],
    "loss, eps=0.4": by_eps[0.4],
    "accuracy, eps=0.2": train(FedAlignSelector(eps=0.2, warmup=0.2, match="accuracy")),
    "all users": by_eps[np.inf],
}
for name, model in both.items():
    print(f"{name}: {len(taken_in(model))} taken in")
display = ConvergenceDisplay.from_estimators(both)
display.ax_.set(ylabel="accuracy for paying users", ylim=(0.7, 1.0))

# %%
# Priority by weight
# ------------------
# Priority need not be all or nothing: a mapping gives each user a weight in [0, 1], by which its
# loss counts in the objective. Here the trial users go from free to fully paying; with eps=0, only
# the weights matter. They hold most of the data, so a small weight is enough for the model to learn
# their digits too, and a full one drowns the paying users.
weights = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
scores = []
for weight in weights:
    priority = dict.fromkeys(PAYING, 1.0) | dict.fromkeys(TRIAL, weight)
    model = train(FedAlignSelector(eps=0, warmup=0.2), priority)
    scores.append([model.score(X_test[rows], y_test[rows]) for rows in (of_paying, ~of_paying)])

figure, ax = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for column, (who, colour) in enumerate({"paying": "#0072B2", "trial": "#D55E00"}.items()):
    ax.plot([row[column] for row in scores], "o-", color=colour, label=f"digits of the {who} users")
ax.set_xticks(range(len(weights)), weights)
ax.set(xlabel="weight of the trial users (a paying user has 1)", ylabel="test accuracy")
ax.legend(frameon=False)
plt.show()
