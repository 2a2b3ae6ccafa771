"""What the server's optimizer remembers of rounds that are dropped."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from skfed import FederatedClassifier
from skfed.aggregation import ServerOptimizer, WeightedMean

OPTIMIZERS = {
    "FedAvgM": ServerOptimizer(torch.optim.SGD, lr=2.0, options={"momentum": 0.9}),
    "FedAdam": ServerOptimizer(torch.optim.Adam, lr=0.1, options={"amsgrad": True}),
    "FedAdagrad": ServerOptimizer(torch.optim.Adagrad, lr=0.1),
}


class Spiking(WeightedMean):
    """Returns an aggregate that is not finite where it is told to."""

    spikes = False  # of the class, since parameters are copied

    def combine(self, model, parts, cohort, parameters):
        aggregate = super().combine(model, parts, cohort, parameters)
        spike = torch.inf if self.spikes else 0.0
        return {name: w + spike for name, w in aggregate.items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_dropped_round_leaves_no_trace_in_the_optimizer(blobs, monkeypatch, name):
    X, y, clients = blobs
    params = {"server_optimizer": OPTIMIZERS[name], "random_state": 0, "n_rounds": 2}
    model = FederatedClassifier(aggregator=Spiking(), **params).fit(X, y, clients=clients)
    before = deepcopy(model._server.optimizer_state["state"])
    monkeypatch.setattr(Spiking, "spikes", True)
    with pytest.raises(ValueError, match="not finite after round 2"):
        model.partial_fit(X, y, clients=clients)
    torch.testing.assert_close(model._server.optimizer_state["state"], before, rtol=0, atol=0)
    monkeypatch.setattr(Spiking, "spikes", False)
    for _ in range(2):
        model.partial_fit(X, y, clients=clients)
    assert (model.history_["n_aggregated"] > 0).tolist() == [True, True, False, True, True]
    assert np.isfinite(model.predict_proba(X)).all()
