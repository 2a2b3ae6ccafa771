"""
Write a rule and check it
=========================

A rule says who trains in a round (a *selector*), or what the clients' models become (an
*aggregator*). Each is a class with one method. This page writes one of each, has the checks find
what is wrong with a first version, and compares the results.

- A selector of a dozen lines, which trains clients of middling loss, beats random selection and
  power-of-choice where a fifth of the clients have wrong labels.
- It runs in simulations, searches and over Flower as the ones of skfed do.
- ``check_selector`` finds mistakes that no error message would: here ties that are not broken at
  random, so that clients with high numbers never train.
- A rule for the aggregate is a function of stacked tensors, checked by hand on a tiny case.
"""

# %%
# A selector
# ----------
# The rule: draw *d* candidates, poll them, and train the *m* whose loss is closest to the median
# of all. The model fits those of low loss already, those of highest loss may have wrong labels.
#
# A selector sees a :class:`~skfed.selection.Round`: sizes, who is available, a generator. It gets
# losses by ``poll``, which is charged to the round. It returns a
# :class:`~skfed.selection.Cohort`: the clients, and the weights of their models.
import numpy as np

from skfed.selection import BaseSelector, Cohort


class FirstMedian(BaseSelector):
    """Train the m of d candidates of middling loss: a first version."""

    def __init__(self, d=8, m=3):
        self.d = d
        self.m = m

    def _select(self, round):
        candidates = np.sort(round.draw(self.d))
        losses = round.poll(candidates)
        distance = np.abs(losses - np.median(losses))
        return Cohort.mean(
            candidates[np.argsort(distance, kind="stable")[: self.m]]
        )


# %%
# Check it
# --------
# The checks call the selector on rounds with given losses. Nothing is trained, and they take a
# second.
import textwrap

from skfed.utils.selector_checks import check_selector

try:
    check_selector(FirstMedian())
except AssertionError as error:
    print(textwrap.fill(str(error), 79))

# %%
# The candidates were sorted, so that of those at the same distance the one with the lowest number
# is chosen each time, and others never. A random order breaks ties at random. The second version
# also allows for a client that failed: its loss is NaN, and would make the median NaN.


class NearMedian(BaseSelector):
    """Train the m of d candidates whose loss is closest to their median."""

    uses_priority = False  # a fit with priority= warns that it plays no part

    def __init__(self, d=8, m=3):
        self.d = d
        self.m = m

    def _select(self, round):
        candidates = round.rng.permutation(round.draw(self.d))
        losses = round.poll(candidates)
        known = np.isfinite(losses)
        median = np.median(losses[known]) if known.any() else 0.0
        nearest = np.argsort(np.abs(losses - median), kind="stable")
        return Cohort.mean(candidates[nearest[: self.m]])


check_selector(NearMedian())
print("NearMedian passes every check")

# %%
# In a test of your project, ``parametrize_with_selector_checks`` makes a test of each check:
#
# .. code-block:: python
#
#    from skfed.utils.selector_checks import parametrize_with_selector_checks
#
#    @parametrize_with_selector_checks([NearMedian(), NearMedian(d=4, m=1)])
#    def test_my_selectors(selector, check):
#        check(selector)
#
# Compare it
# ----------
# A fifth of 40 clients has random labels.
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.datasets import partition_dirichlet

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
clients = partition_dirichlet(y, 40, alpha=1.0, min_size=5, random_state=0)
wrong = clients < 8
y[wrong] = np.random.default_rng(0).integers(0, 10, wrong.sum())

rules = {
    "near the median": NearMedian(),
    "power-of-choice": PowerOfChoice(d=8, clients_per_round=3),
    "random": RandomSelector(3),
}
fits = {
    name: [
        FederatedClassifier(selector=rule, n_rounds=60, random_state=seed).fit(
            X, y, clients=clients, X_val=X_test, y_val=y_test
        )
        for seed in range(3)
    ]
    for name, rule in rules.items()
}

# %%
import matplotlib.pyplot as plt

from skfed.inspection import ConvergenceDisplay

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ConvergenceDisplay.from_estimators(fits, smooth=5, ax=ax)
ax.set_title("Power-of-choice trains clients with wrong labels most often")
plt.show()

# %%
# How often a client with wrong labels trained, of all trainings:
for name, models in fits.items():
    trained = np.concatenate(
        [np.concatenate(m.history_["cohort"].to_list()) for m in models]
    )
    print(f"{name}: {(trained < 8).mean():.0%}")

# %%
# Search its parameters
# ---------------------
# A selector is an estimator: its parameters are searched like others, and it can be cloned, saved
# and printed.
from sklearn.model_selection import GridSearchCV

model = FederatedClassifier(selector=NearMedian(), n_rounds=30, random_state=0)
search = GridSearchCV(model, {"selector__d": [4, 8, 16]}, cv=3).fit(
    X, y, clients=clients
)
print(search.best_params_)

# %%
# An aggregator
# -------------
# The second kind of rule: what the clients' models become. This one leaves out the update that is
# farthest from the global model, and takes the mean of the others. ``updates`` are the clients'
# models, stacked along a leading axis; ``parameters`` are the names of the tensors that are
# trained.
import torch

from skfed.aggregation import BaseAggregator


class WithoutTheFarthest(BaseAggregator):
    """The mean of the clients' models without the farthest one."""

    def _aggregate(self, model, updates, cohort, parameters):
        steps = [
            (updates[name] - model[name]).flatten(1)
            for name in sorted(parameters)
        ]
        norms = torch.cat(steps, dim=1).norm(dim=1)
        kept = norms.argsort()[: max(1, len(norms) - 1)]
        return {
            name: updates[name][kept].to(model[name].dtype).mean(0)
            for name in model
        }


# %%
# By hand: the global model is 0, the clients' models are 1, 3 and 9. Without 9 the mean is 2.
state = {"weight": torch.zeros(1)}
updates = [{"weight": torch.tensor([value])} for value in (1.0, 3.0, 9.0)]
cohort = Cohort.mean(np.arange(3))
print(WithoutTheFarthest().aggregate(state, updates, cohort, {"weight"}))

# %%
# It is a parameter of the estimator, and goes with any selector.
robust = FederatedClassifier(
    selector=RandomSelector(5),
    aggregator=WithoutTheFarthest(),
    n_rounds=60,
    random_state=0,
)
robust.fit(X, y, clients=clients)
print(f"accuracy: {robust.score(X_test, y_test):.3f}")

# %%
# Next
# ----
# - The equations of the rules that there are: :doc:`../user_guide/selectors`,
#   :doc:`../user_guide/aggregation`.
# - A rule that looks at the time clients take: :doc:`../user_guide/devices`.
# - The whole contract: :class:`~skfed.selection.Round`, :mod:`skfed.utils.selector_checks`,
#   :class:`~skfed.aggregation.BaseAggregator`.
