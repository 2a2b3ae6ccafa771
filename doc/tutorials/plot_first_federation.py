"""
Your first federation
=====================

Five hospitals have a table each, with the same columns. None may send its rows away, and each is
small. This page trains one model over all five, compares it with what each hospital can do alone,
and counts what left the hospitals.

- For four of the five hospitals the federated model makes fewer errors than one that the hospital
  trains alone. Over all five it makes about as many as one trained on all rows in one place.
- What left a hospital are counts, moments of columns, losses, and models: no row did.
- A hospital that would spoil the model is left out by FedALIGN, without a look at its rows.
- The model is a scikit-learn estimator. ``clients``, the hospital of each row, is all that is new.

A simulation holds the rows of all hospitals in one process, to find out whether a federation is
worth building. :ref:`sphx_glr_auto_tutorials_plot_notebook_to_sites.py` runs one where the rows
are.
"""

# %%
# The tables
# ----------
# Age, blood pressure and twenty results of the laboratory, some of which are missing; the question
# is whether a patient comes back within a month. With tables of your own, ``pd.concat`` puts them
# one below the other, with a column that says whose each row is. Nice and Rome join later.
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
sizes = {
    "Ely": 40,
    "Graz": 35,
    "Lund": 30,
    "Oslo": 25,
    "York": 20,
    "Nice": 60,
    "Rome": 40,
}
hospital = np.repeat(list(sizes), [8 * size for size in sizes.values()])
n = len(hospital)
# What the columns have in common; nobody measures it.
frailty = rng.normal(size=n)
table = pd.DataFrame(
    {
        "hospital": hospital,
        "age": 60 + 12 * (0.5 * frailty + rng.normal(size=n)),
    }
)
table["pressure"] = 130 + 15 * (0.4 * frailty + rng.normal(size=n))
for i in range(20):
    table[f"lab {i}"] = (1 + i) * (10 + 0.5 * frailty + rng.normal(size=n))
came_back = frailty + 0.3 * rng.normal(size=n) > 0.5
came_back ^= hospital == "Nice"  # which has written yes for no
table["back"] = np.where(came_back, "yes", "no")
table.loc[rng.random(n) < 0.1, "lab 3"] = np.nan
table.groupby("hospital").agg(
    rows=("back", "size"),
    back=("back", lambda back: (back == "yes").mean()),
    age=("age", "mean"),
).round(2)

# %%
# Train and test
# --------------
# Every hospital keeps seven eighths of its rows for the test: its training rows are few, which is
# why it wants to train with others. :class:`~skfed.model_selection.WithinClientKFold` splits the
# rows of each hospital.
from skfed.model_selection import WithinClientKFold

X, y = table.drop(columns=["hospital", "back"]), table["back"]
clients = table["hospital"]
test, all_seven = next(
    WithinClientKFold(8, random_state=0).split(X, groups=clients)
)
test, train = (
    k[~clients.iloc[k].isin(["Nice", "Rome"])] for k in (test, all_seven)
)
print(f"{len(train)} rows to train with, {len(test)} to test with")

# %%
# Fit
# ---
# A missing value is replaced by the column's mean over the hospitals, which
# :class:`~skfed.preprocessing.FederatedSimpleImputer` gets from their counts and means.
# :class:`~skfed.FederatedClassifier` is softmax regression if it is given no other model, and
# standardises the columns by moments that the hospitals send. In each of 30 rounds
# every hospital trains the model on its own rows, and the server takes the mean.
from skfed import FederatedClassifier, RandomSelector, make_pipeline
from skfed.preprocessing import FederatedSimpleImputer

everybody = RandomSelector(
    clients_per_round=1.0, probability="uniform", replace=False
)
federated = make_pipeline(
    FederatedSimpleImputer(),
    FederatedClassifier(selector=everybody, n_rounds=30, random_state=0),
)
federated.fit(X.iloc[train], y.iloc[train], clients=clients.iloc[train])
print(f"accuracy: {federated.score(X.iloc[test], y.iloc[test]):.3f}")

# %%
# Was it worth it?
# ----------------
# The comparison is with logistic regression on the rows of one hospital, and on all rows as if
# they were in one place, each scored on the test rows of each hospital.
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline as pooling_pipeline
from sklearn.preprocessing import StandardScaler


def logistic(rows):
    """Return logistic regression on some rows of the table."""
    model = pooling_pipeline(
        SimpleImputer(), StandardScaler(), LogisticRegression()
    )
    return model.fit(X.iloc[rows], y.iloc[rows])


pooled, scores = logistic(train), {}
for name in clients.iloc[train].unique():
    its_test = test[clients.iloc[test] == name]
    alone = logistic(train[clients.iloc[train] == name])
    models = {
        "alone": alone,
        "federated": federated,
        "all rows in one place": pooled,
    }
    scores[name] = {
        k: m.score(X.iloc[its_test], y.iloc[its_test])
        for k, m in models.items()
    }
scores = pd.DataFrame(scores).T
better = scores["federated"] > scores["alone"]
print(f"better than alone at {better.sum()} of {len(better)} hospitals")
scores.loc["mean"] = scores.mean()
scores.round(3)

# %%
import matplotlib.pyplot as plt

from skfed.inspection import STYLE

plt.style.use(STYLE)
figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
markers = {"alone": "o", "federated": "D", "all rows in one place": "x"}
for k, marker in markers.items():
    ax.plot(scores.index, scores[k], marker, label=k)
ax.set(
    ylabel="accuracy",
    title="The federated model is about as good as one on all rows",
)
ax.legend()
plt.show()

# %%
# What left the hospitals
# -----------------------
# ``exchange_`` lists what each hospital sent for the imputer, and ``history_`` what the training
# sent, round by round.
imputer, model = federated[0], federated[-1]
print(imputer.exchange_[["client", "bytes_up", "held"]].to_string(index=False))
sent = model.history_[["bytes_down", "bytes_up"]].sum() / 1000
print(
    f"the training sent {sent['bytes_down']:.0f} kB down "
    f"and {sent['bytes_up']:.0f} kB up"
)

# %%
# Two hospitals join
# ------------------
# Rome is like the others. Nice writes yes for those who did *not* come back, and nobody knows. The
# model is for the five: they have *priority*. With :class:`~skfed.FedAlignSelector` another
# hospital's update is used only while the model's loss there is within ``eps`` of theirs.
from skfed import FedAlignSelector

five = ["Ely", "Graz", "Lund", "Oslo", "York"]
aligned = make_pipeline(
    FederatedSimpleImputer(),
    FederatedClassifier(
        selector=FedAlignSelector(eps=0.2),
        priority=five,
        n_rounds=30,
        random_state=0,
    ),
)
rounds = {}
for name, pipe in {"all seven": federated, "FedALIGN": aligned}.items():
    pipe.fit(
        X.iloc[all_seven], y.iloc[all_seven], clients=clients.iloc[all_seven]
    )
    cohorts = pipe[-1].history_["cohort"]
    rounds[name] = {
        "Rome trained": sum("Rome" in cohort for cohort in cohorts),
        "Nice trained": sum("Nice" in cohort for cohort in cohorts),
        "accuracy for the five": round(
            pipe.score(X.iloc[test], y.iloc[test]), 3
        ),
    }
pd.DataFrame(rounds).T

# %%
# Numbers instead of classes
# --------------------------
# :class:`~skfed.FederatedRegressor` has the same parameters, for a target that is a number: here
# the days in the hospital. Its ``score`` is R\ :sup:`2`.
from skfed import FederatedRegressor

days = 6 + 2 * frailty + rng.normal(size=n)
regressor = make_pipeline(
    FederatedSimpleImputer(),
    FederatedRegressor(selector=everybody, n_rounds=30, random_state=0),
)
regressor.fit(X.iloc[train], days[train], clients=clients.iloc[train])
print(f"R2: {regressor.score(X.iloc[test], days[test]):.3f}")

# %%
# Columns of text
# ---------------
# A ColumnTransformer treats each kind of column in its own way. It passes ``clients`` to its steps
# with scikit-learn's metadata routing, which is off by default. Here the ward is text.
import sklearn
from sklearn.compose import ColumnTransformer

from skfed.preprocessing import FederatedOneHotEncoder

wards = X.assign(ward=rng.choice(["heart", "lungs", "bones"], n))
columns = ColumnTransformer(
    [("text", FederatedOneHotEncoder(sparse_output=False), ["ward"])],
    remainder=FederatedSimpleImputer(),
)
pipe = make_pipeline(columns, sklearn.clone(federated[-1]))
with sklearn.config_context(enable_metadata_routing=True):
    pipe.fit(wards.iloc[train], y.iloc[train], clients=clients.iloc[train])
print(f"accuracy: {pipe.score(wards.iloc[test], y.iloc[test]):.3f}")

# %%
# Save, load, predict
# -------------------
# The file of a Pipeline has numbers and names, and nothing in it is executed when it is loaded. A
# new patient may lack the result of a test.
import tempfile
from pathlib import Path

from sklearn.base import clone

import skfed

path = Path(tempfile.mkdtemp()) / "back.safetensors"
skfed.save(aligned, path)
unfitted = clone(aligned)  # what the program has that loads it
loaded = skfed.load(unfitted, path)
patient = X.iloc[[test[0]]].assign(**{"lab 3": np.nan})
print(loaded.predict(patient), loaded.predict_proba(patient).round(2))

# %%
# Next
# ----
# - More on preparing columns, and on what leaves a hospital: :doc:`../user_guide/preprocessing`.
# - Which ``eps``, which rule: :doc:`../user_guide/searching`, :doc:`../user_guide/which_rule`.
# - A warning, or a model that does not learn: :doc:`../user_guide/troubleshooting`.
