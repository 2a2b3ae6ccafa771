"""
Should this hospital join?
==========================

Three hospitals share a model that tells malignant from benign tumours. Each has ten patients of its
own to train on. Three others, with 70 patients each, ask to join: Turin's patients are like those
of the three, Varna's have small tumours only, and in Zagreb's records the diagnoses are mixed up.

Zagreb should not join: with each of five seeds its updates are worth less than nothing, though it
would gain most. Turin and Varna are worth more than the three together, and it takes losses of the
three, not a look at records, to find out. But their own models are as good for their patients as
the shared one, so they need another reason to join. And one of them is enough: with both the model
is no better than with Turin.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss

from skfed import FedAlignSelector, FederatedClassifier
from skfed.contribution import DataBanzhaf
from skfed.inspection import (
    STYLE,
    ParticipationDisplay,
    participation_report,
)

plt.style.use(STYLE)

THE_THREE = ["Basel", "Graz", "Nice"]
ALL_SIX = [*THE_THREE, "Turin", "Varna", "Zagreb"]
SEEDS = range(5)

X, y = load_breast_cancer(return_X_y=True)
small = np.argsort(X[:, 0])[:150]  # by the mean radius


def deal(seed):
    """Return each patient's hospital, its records, and who is trained on."""
    rng = np.random.default_rng(seed)
    hospitals = np.full(len(y), "Varna", dtype="U6")
    varna = rng.choice(small, 110, replace=False)
    others = rng.permutation(np.setdiff1d(np.arange(len(y)), varna))
    hospitals[others] = [
        *np.repeat(["Turin", "Zagreb"], 110),
        *np.resize(THE_THREE, len(others) - 220),
    ]
    trains = np.zeros(len(y), dtype=bool)
    for name in ALL_SIX:
        patients = rng.permutation(np.flatnonzero(hospitals == name))
        trains[patients[: 10 if name in THE_THREE else 70]] = True
    records = y.copy()
    mixed_up = trains & (hospitals == "Zagreb")
    records[mixed_up] = rng.permutation(records[mixed_up])
    return hospitals, records, trains


def rows_of(members, seed, of_training):
    """Return X, y and clients of some hospitals."""
    hospitals, records, trains = deal(seed)
    rows = np.isin(hospitals, members) & (trains == of_training)
    return X[rows], records[rows], hospitals[rows]


def federate(members, seed, contribution=None, eps=np.inf, warmup=0):
    """Return a model of some hospitals, for the three."""
    model = FederatedClassifier(
        selector=FedAlignSelector(eps=eps, warmup=warmup),
        priority=THE_THREE,
        contribution=contribution,
        n_rounds=20,
        lr_schedule=0.05,
        random_state=seed,
    )
    X, y, clients = rows_of(members, seed, of_training=True)
    return model.fit(X, y, clients=clients)


# %%
# A trial with all six
# --------------------
# With ``eps=inf`` everybody trains in every round. After a round the three evaluate the models that
# subsets of the six would have made: there are 64 subsets, so the Banzhaf values are exact. A value
# is the sum over the rounds of what a hospital's updates add to the objective, by how much they
# lower the mean loss of the three. What differs from seed to seed is who the patients are.
six = [federate(ALL_SIX, seed, DataBanzhaf()) for seed in SEEDS]


def mean_of(reports):
    """Return the mean of the seeds' reports, with errors over the seeds."""
    by_hospital = pd.concat(reports).astype(float).groupby(level=0)
    worth = by_hospital["worth"]
    return by_hospital.mean().assign(
        worth_error=worth.sem(), least=worth.min(), most=worth.max()
    )


def tabulate(report, members):
    """Print the worth, its extremes over the seeds, and the gain."""
    gain = report["global_accuracy"] - report["local_accuracy"]
    columns = ["worth", "worth_error", "least", "most"]
    table = report[columns].assign(gain=gain).rename_axis(None)
    table = table.rename(lambda name: f"{name}, {members}")
    print(table.to_string(float_format="{:.3f}".format))


reports = []
for seed, model in zip(SEEDS, six, strict=True):
    X_test, y_test, clients_test = rows_of(ALL_SIX, seed, of_training=False)
    test = {"X_test": X_test, "y_test": y_test, "clients_test": clients_test}
    rows = rows_of(ALL_SIX, seed, of_training=True)
    reports.append(participation_report(model, *rows, **test))
of_six = mean_of(reports)
tabulate(of_six, "all six")

# %%
# Zagreb is worth less than 0 with every seed. A gain is the accuracy of the shared model for a
# hospital's other patients, whose diagnoses are right, less that of a model that the hospital
# trains alone: Zagreb would gain most. Areas are bytes, bars standard errors over the seeds. The
# three are large because they get the models that they evaluate.
display = ParticipationDisplay.from_report(of_six)
display.ax_.set_title("Zagreb gains most, and does harm")

# %%
# Valued again without Zagreb
# ---------------------------
# Turin and Varna owe most of their values to Zagreb: in the mean they make up for what it spoils.
# A value depends on who else is there. So who does harm is left out first, and the others are
# valued again.
FIVE = [name for name in ALL_SIX if name != "Zagreb"]
five = [federate(FIVE, seed, DataBanzhaf()) for seed in SEEDS]
reports = [
    participation_report(model, *rows_of(FIVE, seed, of_training=False))
    for seed, model in zip(SEEDS, five, strict=True)
]
own = of_six["local_accuracy"]  # what hospitals train alone is the same
of_five = mean_of(reports).assign(local_accuracy=own)
tabulate(of_five, "five")

# %%
# Turin and Varna are worth more than the three together; which of them is worth more, five seeds do
# not tell. The three gain. Turin and Varna do not, since their own models are as good or better for
# their patients: what they are worth to the three says for what these could make an offer.
display = ParticipationDisplay.from_report(of_five)
display.ax_.set_title("The three gain, Turin and Varna give")

# %%
# Was the answer right?
# ---------------------
# The loss and the accuracy of federations for other patients of the three, on whom no value was
# measured. The last row is another way to the same end: FedALIGN with a warm-up and a moderate eps
# takes the updates of those whose loss is near that of the three.
fits = {
    "the three": [federate(THE_THREE, seed) for seed in SEEDS],
    "with Turin": [federate([*THE_THREE, "Turin"], seed) for seed in SEEDS],
    "with Varna": [federate([*THE_THREE, "Varna"], seed) for seed in SEEDS],
    "with Turin and Varna": five,
    "all six": six,
    "FedALIGN": [federate(ALL_SIX, seed, None, 0.2, 0.2) for seed in SEEDS],
}


def score(model, seed):
    """Return the loss and the accuracy for the three."""
    X, y, _ = rows_of(THE_THREE, seed, of_training=False)
    return log_loss(y, model.predict_proba(X)), model.score(X, y)


rows = {
    name: np.mean(
        [score(*pair) for pair in zip(models, SEEDS, strict=True)], 0
    )
    for name, models in fits.items()
}
table = pd.DataFrame(rows, index=["loss", "accuracy"]).T
print(table.to_string(float_format="{:.3f}".format))

# %%
# It was: Turin and Varna lower the loss, and Zagreb doubles it. Either of the two could do without
# the other, and a Banzhaf value is a mean over subsets with the other and without: it does not say
# that Varna adds nothing beside Turin. FedALIGN used Zagreb's updates in this many of 100 rounds:
n_rounds = [
    participation_report(model).loc["Zagreb", "rounds_aggregated"]
    for model in fits["FedALIGN"]
]
print(f"rounds of Zagreb: {sum(n_rounds)}")
plt.show()
