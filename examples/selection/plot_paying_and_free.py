"""
FedALIGN on paying and free users
=================================

FedALIGN includes the free users whose labels agree with the paying users', and no others, if a
warm-up comes first and eps is moderate: without a warm-up wrong labels enter at once, with a large
eps they enter later, and with eps=0 nobody helps. This example varies each of its settings: the
warm-up, eps, the metric that is matched, and the weights of priority.

Two users pay and write the digits 0 to 4. Fourteen free users write the same digits, and some of
their labels are wrong: the digit after the right one, for no label of the first user and all labels
of the last. Four trial users write 5 to 9. The labels of the test data are right.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfed import FedAlignSelector, FederatedClassifier
from skfed.inspection import STYLE, ConvergenceDisplay, SelectionDisplay

plt.style.use(STYLE)

PAYING = [f"paying {i}" for i in range(2)]
# The share of wrong labels.
WRONG = {f"free {i:02d}": i / 13 for i in range(14)}
TRIAL = [f"trial {i}" for i in range(4)]

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(
    X / 16, y, test_size=0.5, stratify=y, random_state=0
)
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
    """Return a model, validated on the digits that paying users write."""
    model = FederatedClassifier(
        selector=selector,
        priority=priority,
        n_rounds=60,
        local_epochs=2,
        lr_schedule=0.3,
        random_state=0,
    )
    return model.fit(
        X, y, clients=users, X_val=X_test[of_paying], y_val=y_test[of_paying]
    )


# %%
# The warm-up
# -----------
# The loss of the first model is the same for all users, so all of them match. If wrong labels enter
# the mean, the paying users' loss stays high, and users with wrong labels match in later rounds
# too. After a warm-up, in which only paying users train, the model fits the paying users, and the
# same eps includes users whose labels agree with it.
warmups = {
    f"warmup={share}": train(FedAlignSelector(eps=0.4, warmup=share))
    for share in (0, 0.2)
}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
ConvergenceDisplay.from_estimators(warmups, ax=axes[0])
axes[0].set(
    ylabel="accuracy for paying users",
    title="With a warm-up the model is better",
)
axes[0].get_legend().remove()
ConvergenceDisplay.from_estimators(warmups, y="n_aggregated", ax=axes[1])
axes[1].set(ylabel="users that train, of 20", yticks=range(0, 21, 5))
axes[1].set_title("and fewer users train")
axes[1].legend(loc="upper right", frameon=False)


def included(model):
    """Return the users in the last round's cohort that do not pay."""
    cohort = model.history_["cohort"].iloc[-1]
    return [user for user in cohort if user not in PAYING]


def summarise(model):
    """Return a row of a table."""
    return {
        "accuracy": model.history_["val_score"].iloc[-1],
        "free users included": len(included(model)),
        "most wrong labels": max(
            (WRONG.get(user, 0.0) for user in included(model)), default=0.0
        ),
    }


def tabulate(models):
    """Print a row for each model."""
    rows = {name: summarise(model) for name, model in models.items()}
    print(pd.DataFrame(rows).T.to_string(float_format="{:.2g}".format))


# %%
# The accuracy for the paying users, the free users in the last round's cohort, and the largest
# share of wrong labels of one of them.
tabulate(warmups)

# %%
# eps, and the included users
# ---------------------------
# eps bounds the distance of a user's loss from that of the paying users. With 0 no free user is
# included; a larger eps includes more wrong labels; an infinite one trains on all users.
EPS = (0, 0.4, 0.8, 1.6, 2.0, np.inf)
by_eps = {eps: train(FedAlignSelector(eps=eps, warmup=0.2)) for eps in EPS}
tabulate({f"eps={eps}": model for eps, model in by_eps.items()})

# %%
# A user is black in the rounds in which it trained. Free users are sorted by their wrong labels.
figure, axes = plt.subplots(
    1, 2, figsize=(10, 4.6), layout="constrained", sharey=True
)
for ax, eps in zip(axes, (0.4, 2.0), strict=True):
    SelectionDisplay.from_estimator(by_eps[eps], kind="rounds", ax=ax)
axes[0].set_title("eps=0.4: wrong labels stay out")
axes[1].set(title="eps=2: they come in", ylabel="")
axes[0].get_legend().remove()

# %%
# Losses or accuracies
# --------------------
# ``match="accuracy"`` compares accuracies instead. Then eps is a share of the rows, so its values
# are smaller and do not depend on the scale of the loss. Here both include users with few wrong
# labels.
both = {
    "paying users only": by_eps[0],
    "loss, eps=0.4": by_eps[0.4],
    "accuracy, eps=0.2": train(
        FedAlignSelector(eps=0.2, warmup=0.2, match="accuracy")
    ),
    "all users": by_eps[np.inf],
}
tabulate(both)
display = ConvergenceDisplay.from_estimators(both)
display.ax_.set(ylabel="accuracy for paying users", ylim=(0.7, 1.0))
display.ax_.set_title("Losses and accuracies find the users that help")
display.ax_.legend(loc="lower right", frameon=False)

# %%
# Priority by weight
# ------------------
# ``priority`` may be a mapping that gives each user a weight in [0, 1] in the objective. Here the
# weight of the trial users varies from 0 (free) to 1 (paying); with eps=0, only the weights matter.
# They hold most of the data, so a small weight is enough for the model to learn their digits too,
# and with a weight of 1 they dominate the paying users.
weights = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
scores = []
for weight in weights:
    priority = dict.fromkeys(PAYING, 1.0) | dict.fromkeys(TRIAL, weight)
    model = train(FedAlignSelector(eps=0, warmup=0.2), priority)
    groups = of_paying, ~of_paying
    scores.append([model.score(X_test[who], y_test[who]) for who in groups])

groups = [f"digits of the {who} users" for who in ("paying", "trial")]
table = pd.DataFrame(
    scores, [f"weight={weight}" for weight in weights], groups
)
print(table.round(3).to_string())
figure, ax = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for group in groups:
    ax.plot(table[group].to_numpy(), "o-", label=group)
ax.set_xticks(range(len(weights)), weights)
ax.set(
    xlabel="weight of the trial users (a paying user has 1)",
    ylabel="test accuracy",
)
ax.set_title("A small weight is enough to learn the trial users' digits")
ax.legend()
plt.show()
