"""
Clients that train on Ray
=========================

Clients train in ``n_jobs`` processes of Ray, and the model is that of one process, bit for bit:
here two processes on this machine. For another cluster, give ``ray.init`` its address. This example
needs ``pip install "ray>=2.49"``.
"""

import logging

import joblib
import matplotlib.pyplot as plt
import numpy as np
import ray
from sklearn.datasets import load_digits

from skfed import FedAlignSelector, FederatedClassifier
from skfed.datasets import partition_dirichlet
from skfed.inspection import SelectionDisplay

X, y = load_digits(return_X_y=True)
X, users = X / 16, partition_dirichlet(y, 12, alpha=0.5, random_state=0)
federation = {
    "selector": FedAlignSelector(eps=0.5, warmup=0.2),
    "priority": [0, 1, 2],
    "n_rounds": 20,
    "lr_schedule": 0.1,
    "engine": "loop",  # one job a client; the stacked engine has one in all
    "random_state": 0,
}
here = FederatedClassifier(**federation).fit(X, y, clients=users)

# %%
# Ray starts the processes once a fit; they cache the users' rows until it ends.

logging.getLogger("ray").setLevel(logging.ERROR)
ray.init(
    num_cpus=2,
    include_dashboard=False,
    log_to_driver=False,
    logging_level=logging.ERROR,
)
with joblib.parallel_config(backend="ray", n_jobs=2):
    there = FederatedClassifier(**federation).fit(X, y, clients=users)
ray.shutdown()

# %%
# The cohorts are the same, and so is the model, bit for bit.

assert np.array_equal(here.predict_proba(X), there.predict_proba(X))
assert list(here.history_["cohort"]) == list(there.history_["cohort"])
print("the model and the cohorts are those of one process")
display = SelectionDisplay.from_estimator(there, kind="rounds")
display.ax_.set_title("The same users as in one process, in every round")
plt.show()
