"""Each client's work starts from the net as it was set up, under the caller's autocast."""

from threading import Lock

import numpy as np
import pytest
import torch
from joblib import parallel_config
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, RandomSelector
from skfed.selection import BaseSelector, Cohort

EVERYBODY = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)


class Counting(nn.Module):
    """Its output depends on the batches that it has seen."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.n_batches = 0

    def forward(self, X):
        if self.training:
            self.n_batches += 1
        return self.linear(X) / (1 + self.n_batches)


class Remembering(nn.Module):
    """Likewise, in containers and tensors, which change in place; some come only with a batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.seen = {"sums": []}
        self.also_seen = self.seen["sums"]
        self.mean = torch.zeros(5)
        self.weight = self.linear.weight.detach()  # the same memory

    def forward(self, X):
        if self.training:
            self.seen["sums"].append(float(X.sum()))
            self.mean += X.mean(0)
            self.last = self.mean + getattr(self, "last", 0) + self.weight.mean()
            assert self.weight.data_ptr() == self.linear.weight.data_ptr()
            return self.linear(X - self.last) / (1 + len(self.also_seen))
        return self.linear(X)


class Softening(nn.Module):
    """Changes a setting of one of torch's own modules."""

    def __init__(self):
        super().__init__()
        self.linear, self.activation = nn.Linear(5, 3), nn.LeakyReLU(0.5)

    def forward(self, X):
        self.activation.negative_slope *= 0.9
        return self.activation(self.linear(X))


class RunningLoss(nn.Module):
    """Cross-entropy in units of its own running mean, a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.ones(()))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, logits, y):
        loss = nn.functional.cross_entropy(logits + self.norm.running_mean, y)
        self.norm(logits.detach())
        self.running.mul_(0.5).add_(loss.detach())
        return loss / self.running


class SofteningLoss:
    """No module of torch's: cross-entropy, ever smoother."""

    def __init__(self):
        self.n_batches = 0

    def __call__(self, logits, y):
        self.n_batches += 1
        return nn.functional.cross_entropy(logits, y, label_smoothing=1 - 0.9**self.n_batches)


class Slowing(NeuralNetClassifier):
    """Takes smaller steps the longer it trains."""

    n_steps = 0

    def train_step(self, batch, **fit_params):
        self.n_steps += 1
        self.optimizer_.param_groups[0]["lr"] = 0.1 / self.n_steps
        return super().train_step(batch, **fit_params)


class Fading(Callback):
    """Likewise, by its gradients."""

    def initialize(self):
        self.n_steps_ = 0
        return self

    def on_grad_computed(self, net, named_parameters, **kwargs):
        self.n_steps_ += 1
        for _, parameter in named_parameters:
            parameter.grad /= self.n_steps_


def make(module=nn.Linear, kind=NeuralNetClassifier, **settings):
    if module is nn.Linear:
        settings |= {"module__in_features": 5, "module__out_features": 3}
    settings = {"criterion": nn.CrossEntropyLoss, "lr": 0.1, "batch_size": 11, **settings}
    return kind(module, **settings)


NETS = {
    "a counter": make(Counting),
    "an instance with a counter": make(Counting()),
    "containers and tensors": make(Remembering),
    "a setting of a layer": make(Softening),
    "buffers of the criterion": make(criterion=RunningLoss),
    "a counter of a criterion that is no module": make(criterion=SofteningLoss),
    "an attribute of the net": make(kind=Slowing),
    "an attribute of a callback": make(callbacks=[("fading", Fading())]),
}


class From(BaseSelector):
    """The clients from a first one on, all of whom are polled before; the last has all weight."""

    def __init__(self, first=0):
        self.first = first

    def _select(self, round):
        clients = np.arange(self.first, 6)
        losses = round.poll(clients)
        return Cohort(clients, np.eye(6)[5, self.first :], objective=losses[-1])


def fit(blobs, net, **params):
    X, y, clients = blobs
    params = {"selector": EVERYBODY, "n_rounds": 2, "random_state": 0, **params}
    return FederatedClassifier(net, **params).fit(X, y, clients=clients)


@pytest.mark.parametrize("name", NETS)
def test_a_client_does_not_see_whom_the_net_served_before(blobs, name):
    """Its losses, polled and of training, are the same after five others."""
    alone, last = (fit(blobs, NETS[name], selector=From(k), engine="loop") for k in (5, 0))
    for column in ("objective", "train_loss"):
        assert alone.history_[column].tolist() == last.history_[column].tolist()


@pytest.mark.parametrize("name", NETS)
def test_a_copy_of_a_net_that_remembers_gives_the_same_in_threads(blobs, same_model, name):
    alone = fit(blobs, NETS[name])
    assert alone.engine_.startswith("loop")
    with parallel_config(backend="threading"):
        assert same_model(alone, fit(blobs, NETS[name], n_jobs=2))


def test_what_cannot_be_copied_is_left_alone(blobs, same_model):
    class Locked(Counting):
        def __init__(self):
            super().__init__()
            self.lock = Lock()
            self.view = self.linear.weight[:1]

        def forward(self, X):
            with self.lock:
                return super().forward(X)

    assert same_model(fit(blobs, make(Locked)), fit(blobs, make(Counting)))


def test_a_net_may_have_no_criterion(blobs):
    class Own(NeuralNetClassifier):
        def initialize_criterion(self):
            return self

        def get_loss(self, y_pred, y_true, *args, **kwargs):
            return nn.functional.cross_entropy(y_pred, y_true)

    net = make(kind=Own, predict_nonlinearity=None)
    model = fit(blobs, net, engine="loop")
    assert not model.history_["n_failed"].any()


ALIGN = {"selector": FedAlignSelector(eps=0.1, warmup=0), "priority": ["a", "b"]}


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_threads_train_and_poll_under_the_callers_autocast(blobs, same_model, engine):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        alone = fit(blobs, None, engine=engine, **ALIGN)
        with parallel_config(backend="threading"):
            threads = fit(blobs, None, engine=engine, n_jobs=2, **ALIGN)
    assert same_model(alone, threads)
    assert alone.history_["objective"].tolist() == threads.history_["objective"].tolist()
    plain = fit(blobs, None, engine=engine, **ALIGN)
    assert not same_model(alone, plain)  # else autocast is nowhere
    reason = {"auto": "loop: torch.autocast is on", "loop": "loop: engine='loop'"}[engine]
    assert alone.engine_.startswith(reason)


@pytest.mark.slow
def test_processes_reset_the_net_and_know_the_callers_state_of_torch(blobs, same_model):
    net = make(Counting, criterion=RunningLoss)

    def fit_in_processes():
        with parallel_config(backend="loky"):
            return fit(blobs, net, n_jobs=2)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same_model(fit(blobs, net), fit_in_processes())
    torch.set_default_dtype(torch.double)
    try:
        assert same_model(fit(blobs, net), fit_in_processes())
    finally:
        torch.set_default_dtype(torch.float)


def test_training_under_autocast_is_training_to_its_precision(blobs):
    """Its cache would keep the weights of the first step; the mean is not rounded by it."""
    plain = fit(blobs, make(), n_rounds=5, engine="loop")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        X, y, _ = blobs
        model = fit(blobs, make(), n_rounds=1, warm_start=True)
        before = model.net_.module_(torch.from_numpy(X))
        model.set_params(n_rounds=5).fit(X, y, clients=blobs[2], X_val=X, y_val=y)
        assert not torch.equal(before, model.net_.module_(torch.from_numpy(X)))
    torch.testing.assert_close(
        model.net_.module_.weight, plain.net_.module_.weight, rtol=0, atol=5e-3
    )
    frozen = fit(blobs, make(), n_rounds=1, lr_schedule=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = fit(blobs, make(), n_rounds=1, lr_schedule=0.0)
    assert torch.allclose(kept.net_.module_.weight, frozen.net_.module_.weight, atol=1e-6)
