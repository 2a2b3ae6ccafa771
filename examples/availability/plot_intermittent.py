"""
Intermittent availability
=========================

Phones train while they charge at night. Those of two time zones are available alternately, and some
never reply. An availability determines the available clients of a round and the clients that reply;
any selector works with any availability. Power-of-choice is still better than random selection when
two halves of the clients alternate (its appendix G.3).
"""

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.availability import AlternatingHalves, Dropout
from skfed.datasets import partition_dirichlet
from skfed.inspection import ConvergenceDisplay, SelectionDisplay

X, y = load_digits(return_X_y=True)
X, X_val, y, y_val = train_test_split(X / 16, y, test_size=0.25, random_state=0)
phones = partition_dirichlet(y, 40, alpha=0.3, min_size=5, random_state=0)

SELECTORS = {"random": RandomSelector(3), "power-of-choice": PowerOfChoice(12, 3)}
AVAILABILITIES = {
    "always": None,
    "alternating halves": AlternatingHalves(removed=0.1),
    "alternating halves, a fifth drops out": Dropout(0.2, availability=AlternatingHalves(0.1)),
}
models = {
    f"{selection}, {name}": FederatedClassifier(
        selector=selector,
        availability=availability,
        n_rounds=60,
        local_epochs=2,
        lr_schedule=0.3,
        random_state=0,
    ).fit(X, y, clients=phones, X_val=X_val, y_val=y_val)
    for name, availability in AVAILABILITIES.items()
    for selection, selector in SELECTORS.items()
}

# %%
# The final accuracies, and the number of chosen clients that did not reply.
table = pd.DataFrame(
    {
        name: {
            "accuracy, last 10 rounds": model.history_["val_score"].tail(10).mean(),
            "failed a round": model.history_["n_failed"].mean(),
        }
        for name, model in models.items()
    }
).T
print(table.to_string(float_format="{:.3f}".format))
ConvergenceDisplay.from_estimators(models)

# %%
# The rounds in which each phone was selected show the two halves.
SelectionDisplay.from_estimator(models["power-of-choice, alternating halves"], kind="rounds")
plt.show()
