"""
Intermittent availability
=========================

Phones train while they charge at night. When those of two time zones can be reached in turns and
one in five does not reply, every rule needs more rounds. Power-of-choice loses least: it is then
still faster than random selection with all phones there, since whoever can be reached, it trains
the phones that the model is worst for (its appendix G.3).

An availability determines the available clients of a round and the clients that reply; any selector
works with any availability.
"""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.availability import AlternatingHalves, Dropout
from skfed.datasets import partition_dirichlet
from skfed.inspection import ConvergenceDisplay

N_SEEDS = 5
TARGET = 0.85

X, y = load_digits(return_X_y=True)
X, X_val, y, y_val = train_test_split(
    X / 16, y, test_size=0.25, stratify=y, random_state=0
)

SELECTORS = {
    "random": RandomSelector(2),
    "power-of-choice": PowerOfChoice(10, 2),
}
AVAILABILITIES = {
    "always there": None,
    "in turns, 1 of 5 silent": Dropout(
        0.2, availability=AlternatingHalves(removed=0.1)
    ),
}


def fit(selector, availability, seed):
    """Return a model of forty phones, whose digits the seed deals out."""
    phones = partition_dirichlet(
        y, 40, alpha=0.1, min_size=1, random_state=seed
    )
    model = FederatedClassifier(
        selector=selector,
        availability=availability,
        n_rounds=40,
        local_epochs=2,
        lr_schedule=0.1,
        random_state=seed,
    )
    return model.fit(X, y, clients=phones, X_val=X_val, y_val=y_val)


fits = {
    f"{rule}, {name}": [
        fit(selector, availability, seed) for seed in range(N_SEEDS)
    ]
    for rule, selector in SELECTORS.items()
    for name, availability in AVAILABILITIES.items()
}


# %%
# The rounds to an accuracy of 85%, the accuracy at the end, and the chosen phones a round that were
# silent, as they did not reply: means over the seeds.
def summarise(model):
    """Return what it took until the running mean has reached the target."""
    score = model.history_["val_score"].rolling(5, min_periods=1).mean()
    return {
        "rounds to 85%": (score >= TARGET).idxmax() + 1,  # all reach it
        "accuracy": model.score(X_val, y_val),
        "silent": model.history_["n_failed"].mean(),
    }


rows = {
    name: pd.DataFrame(map(summarise, models)).mean()
    for name, models in fits.items()
}
table = pd.DataFrame(rows).T
print(table.to_string(float_format="{:.2f}".format))

# %%
# The grey line is an accuracy of 85%.
figure, axes = plt.subplots(
    1, 2, figsize=(9.5, 3.6), layout="constrained", sharey=True
)
for ax, rule in zip(axes, SELECTORS, strict=True):
    shown = {name: fits[f"{rule}, {name}"] for name in AVAILABILITIES}
    ConvergenceDisplay.from_estimators(shown, smooth=5, ax=ax)
    names = [f"{rule}, {name}" for name in AVAILABILITIES]
    there, in_turns = table.loc[names, "rounds to 85%"]
    ax.set_title(f"{rule}: {in_turns - there:.1f} rounds later")
    ax.set_ylim(0.5, 1.0)
    ax.axhline(TARGET, color="grey", linewidth=0.8)
    ax.legend(loc="lower right", frameon=False)
axes[1].set_ylabel("")
plt.show()
