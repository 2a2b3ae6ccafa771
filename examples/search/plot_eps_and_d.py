"""
Choosing eps and d with a grid search
=====================================

One search compares values of FedALIGN's eps, values of power-of-choice's d, and the two selectors,
by the accuracy on the priority clients. FedALIGN is best with an eps that lets free hospitals help;
eps=0 trains the priority hospitals alone. Power-of-choice ignores who has priority: it is best with
d=2, where it trains both hospitals that it draws, whatever their loss. With a larger d it trains
those with the highest loss, and the model is less accurate for the priority hospitals.

eps sets which updates FedALIGN uses, d how many candidates power-of-choice polls; both are
parameters like any other. Ten hospitals hold digits; the first two have priority. Folds are split
within each hospital, so that all of them are in every training set. The splitter, the estimator and
the scorer use the same array of hospitals, which needs scikit-learn's metadata routing.
"""

import matplotlib.pyplot as plt
import pandas as pd
import sklearn
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice
from skfed.datasets import partition_dirichlet
from skfed.inspection import ClientsDisplay, TradeoffDisplay
from skfed.metrics import priority_accuracy
from skfed.model_selection import WithinClientKFold

sklearn.set_config(enable_metadata_routing=True)

X, y = load_digits(return_X_y=True)
hospitals = partition_dirichlet(y, 10, alpha=0.3, random_state=0)
PRIORITY = [0, 1]
display = ClientsDisplay.from_data(y, hospitals, priority=PRIORITY)
display.ax_.set_title("Each hospital holds other digits")

# %%
# A grid of two selectors, each with a parameter of its own. Power-of-choice ignores priority;
# ``ignore_priority=True`` turns off the warning.
federation = FederatedClassifier(
    priority=PRIORITY,
    n_rounds=40,
    local_epochs=2,
    lr_schedule=0.2,
    random_state=0,
)
step = "federatedclassifier__selector"
search = GridSearchCV(
    make_pipeline(MinMaxScaler(), federation),
    [
        {
            step: [FedAlignSelector()],
            f"{step}__eps": [0, 0.5, 1.0, 1.5, 2.0, 4.0],
        },
        {
            step: [PowerOfChoice(clients_per_round=2, ignore_priority=True)],
            f"{step}__d": [2, 4, 6, 8, 10],
        },
    ],
    scoring=priority_accuracy,
    cv=WithinClientKFold(3, random_state=0),
).fit(X, y, clients=hospitals)

results = pd.DataFrame(search.cv_results_)
for name in ("eps", "d"):  # a candidate has one of them
    candidates = results.dropna(subset=f"param_{step}__{name}")
    shown = candidates[
        [f"param_{step}__{name}", "mean_test_score", "std_test_score"]
    ]
    values = [f"{name}={value:g}" for value in shown.pop(shown.columns[0])]
    table = shown.set_axis(values).set_axis(["accuracy", "deviation"], axis=1)
    print(table.round(3).to_string())
print("best:")
for name, value in search.best_params_.items():
    print(f"{name} = {value}")

# %%
# The score by each parameter.
figure, axes = plt.subplots(
    1, 2, figsize=(9.5, 3.8), layout="constrained", sharey=True
)
TradeoffDisplay.from_search(search, "eps", ax=axes[0])
TradeoffDisplay.from_search(search, "d", ax=axes[1])
axes[0].set_title("FedALIGN: free hospitals help")
axes[1].set(title="Power-of-choice: d=2 is best", ylabel="")
plt.show()
