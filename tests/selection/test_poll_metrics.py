"""A metric of polls is one function and its line in the registry."""

import numpy as np
import pytest
import torch

from skfed import FederatedClassifier, FederatedRegressor
from skfed.nets import to_tensors
from skfed.selection import BaseSelector, Cohort
from skfed.selection._poll_metrics import POLL_METRICS, PollMetric

ENGINES = pytest.mark.parametrize("engine", ["loop", "stacked"])


class Polling(BaseSelector):
    """Polls all clients for a metric, and trains the one of highest value."""

    uses_priority = False

    def __init__(self, metric="loss", replies=None):
        self.metric, self.replies = metric, replies

    def _select(self, round):
        values = round.poll(np.arange(len(round.sizes)), metric=self.metric)
        self.replies.append(values)
        return Cohort.mean(np.array([np.nanargmax(values)]))


def gradient_norm(net, X, y, weights):
    """Return the norm of the gradient on all rows of a client."""
    X, y = to_tensors(net, X, y)
    loss = net.get_loss(net.module_(X), y, X=X, training=False)
    slopes = torch.autograd.grad(loss, list(net.module_.parameters()))
    return float(torch.cat([slope.flatten() for slope in slopes]).norm())


def poll(blobs, engine, metric, kind=FederatedClassifier):
    X, y, clients = blobs
    replies = []
    params = {"n_rounds": 3, "engine": engine, "random_state": 0}
    model = kind(selector=Polling(metric, replies), **params).fit(X, y, clients=clients)
    return model, np.array(replies)


@pytest.fixture
def third_metric(monkeypatch):
    monkeypatch.setitem(POLL_METRICS, "gradient norm", PollMetric(gradient_norm))
    return "gradient norm"


@ENGINES
def test_a_third_metric_is_polled_through_a_selector(blobs, third_metric, engine):
    X, _, _ = blobs
    model, replies = poll(blobs, engine, third_metric)
    assert model.engine_.startswith(engine)
    assert replies.shape == (3, 6)
    assert np.isfinite(replies).all()
    assert (replies > 0).all()
    assert model.history_["scalars_up"].tolist()[1:] == [6] * 2  # moments precede round 0
    assert model.history_["samples_evaluated"].tolist() == [len(X)] * 3
    expected = [model.clients_[int(values.argmax())] for values in replies]
    assert [cohort[0] for cohort in model.history_["cohort"]] == expected


def test_both_engines_poll_the_same_values(blobs, third_metric):
    for metric in (third_metric, *POLL_METRICS):
        (_, loop), (_, stacked) = (poll(blobs, engine, metric) for engine in ("loop", "stacked"))
        np.testing.assert_allclose(loop, stacked, rtol=1e-5)


@ENGINES
def test_only_the_metric_asked_for_is_computed(blobs, monkeypatch, third_metric, engine):
    def forbidden(*arguments):
        raise AssertionError("nobody asked for this")

    for name in ("loss", "error"):
        monkeypatch.setitem(POLL_METRICS, name, PollMetric(forbidden, forbidden))
    _, replies = poll(blobs, engine, third_metric)
    assert np.isfinite(replies).all()


@ENGINES
def test_a_client_whose_metric_raises_is_left_out(blobs, monkeypatch, engine):
    X, _, clients = blobs
    first = X[clients == "a"][0, 0]

    def fragile(net, X, y, weights):
        if X[0, 0] == first:
            raise RuntimeError("no value")
        return float(len(X))

    monkeypatch.setitem(POLL_METRICS, "rows", PollMetric(fragile))
    model, replies = poll(blobs, engine, "rows")
    assert np.isnan(replies[:, 0]).all()
    assert replies[0, 1:].tolist() == model.sizes_[1:].tolist()
    assert model.history_["failed"].tolist() == [("a",)] * 3
    assert model.history_["causes"][0] == ("RuntimeError: no value",)


def test_metrics_of_classifiers_are_refused_for_regressors(blobs, monkeypatch, third_metric):
    with pytest.raises(ValueError, match="selector polls the error, 1 - accuracy, which a reg"):
        poll(blobs, "auto", "error", FederatedRegressor)
    _, replies = poll(blobs, "auto", "loss", FederatedRegressor)
    assert np.isfinite(replies).all()


def test_an_unknown_metric_is_refused(blobs, third_metric):
    message = 'metric must be "loss" or "error" or "gradient norm", got \'size\'.'
    with pytest.raises(ValueError, match=message):
        poll(blobs, "auto", "size")
