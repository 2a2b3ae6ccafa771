"""
Clients that train on a Dask cluster
====================================

Clients train on the workers of a Dask cluster, and the model is that of one process, bit for bit.
With a small net the messages take longer than the training, so one process is faster; a cluster
pays off where a client's training takes seconds.

joblib's backend determines where clients train; here it is a cluster of two workers on this
machine. For another cluster, give ``Client`` the address of its scheduler. This example needs
``pip install "dask[distributed]>=2025.1"``.

Dask's workers import the script that starts them, so its code is in functions.
"""

import joblib
import matplotlib.pyplot as plt
import numpy as np
from distributed import Client, LocalCluster
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

from skfed import FederatedClassifier, PowerOfChoice
from skfed.datasets import partition_dirichlet
from skfed.inspection import ConvergenceDisplay


def federation(**params):
    return FederatedClassifier(
        selector=PowerOfChoice(d=20, clients_per_round=8),
        n_rounds=20,
        lr_schedule=0.1,
        engine="loop",  # one job a client; the stacked engine has one in all
        random_state=0,
        **params,
    )


def main():
    X, y = load_digits(return_X_y=True)
    X, users = X / 16, partition_dirichlet(y, 20, alpha=0.5, random_state=0)
    here = federation().fit(X, y, clients=users)
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0"
    )
    with cluster, Client(cluster), joblib.parallel_config(backend="dask"):
        there = federation().fit(X, y, clients=users)
        # The candidates run in parallel, each fit in one worker (n_jobs=1).
        search = GridSearchCV(
            federation(n_jobs=1), {"selector__d": [8, 14, 20]}, cv=2
        )
        search.fit(X, y, clients=users)
    assert np.array_equal(here.predict_proba(X), there.predict_proba(X))
    print("best d:", search.best_params_["selector__d"])
    # The first round takes longest: workers import skfed and receive the rows.
    fits = {"one process": here, "Dask, two workers": there}
    for name, model in fits.items():
        seconds = model.history_["round_seconds"].median()
        print(f"seconds a round, {name}  {seconds:.4f}")
    display = ConvergenceDisplay.from_estimators(fits, y="round_seconds")
    title = "Messages take longer than the training of a small net"
    display.ax_.set(yscale="log", ylabel="seconds a round", title=title)
    plt.show()


if __name__ == "__main__":
    main()
