"""In a fit lognormal devices draw each client once, and are as those that draw it in each round."""

import pickle
import tracemalloc

import joblib
import numpy as np
import pytest

from skfed import FedCSSelector, FederatedClassifier, OortSelector, TiflSelector
from skfed._federation import make_federation
from skfed.devices import LognormalDevices
from skfed.engines import Batching
from skfed.utils._seeding import Purpose

FEDERATION = make_federation(np.arange(50), 50)
DEVICES = LognormalDevices(
    20.0, 2000.0, 300.0, 0.5, latency_sigma=0.3, correlation=0.4, jitter=0.2, public=True
)
ASKED = [[3, 7, 20], [7], [0, 3, 7, 49], [], range(50), [49, 20, 3]]


class Anew(LognormalDevices):
    """Devices that keep nothing in a fit."""

    def _bound(self, federation, deadline):
        super()._bound(federation, deadline)
        return self


def streams_of(purpose, t, drawn=None, federation=FEDERATION):
    """Return the streams of a round; whose are taken is noted in ``drawn``."""
    batching = Batching(federation, 5, 1)

    def streams(clients):
        if drawn is not None:
            drawn.extend(clients.tolist())
        return batching.streams(purpose, t, clients)

    return streams


def asked_about(devices, drawn=None):
    """Return the speeds, and those expected, of some clients in one round after the other."""
    found = []
    for t, clients in enumerate(ASKED):
        clients, fixed = np.array(clients, dtype=int), streams_of(Purpose.DEVICES, 0, drawn)
        jitter = streams_of(Purpose.DEVICE_JITTER, t)
        found += devices.speeds(FEDERATION, clients, t, jitter, fixed)
        found += devices.expected(FEDERATION, clients, t, fixed)
    return [values.tolist() for values in found]


def test_speeds_of_a_fit_are_those_that_are_drawn_anew_bit_for_bit():
    assert asked_about(DEVICES.bound(FEDERATION)) == asked_about(DEVICES)


def test_each_client_is_drawn_once_in_a_fit():
    drawn, anew = [], []
    asked_about(DEVICES.bound(FEDERATION), drawn)
    assert sorted(drawn) == list(range(50))
    asked_about(DEVICES, anew)
    assert len(anew) == 2 * sum(map(len, ASKED))


def test_another_fit_draws_its_own():
    first = DEVICES.bound(FEDERATION)
    asked_about(first)
    for again in (first, DEVICES):
        drawn = []
        asked_about(again.bound(FEDERATION), drawn)
        assert sorted(drawn) == list(range(50))


def fit(data, devices, n_rounds=4, selector=None, **params):
    X, y, clients = data
    selector = FedCSSelector(2, ignore_priority=True) if selector is None else selector
    model = FederatedClassifier(
        selector=selector, devices=devices, n_rounds=n_rounds, random_state=0, **params
    )
    return model.fit(X, y, clients=clients)


def seconds_of(model):
    return model.history_[["cohort", "slowest", "elapsed"]].values.tolist()


@pytest.mark.parametrize("rule", [FedCSSelector, TiflSelector, OortSelector])
def test_fits_are_those_of_devices_that_keep_nothing(blobs, rule):
    selector = rule(2, ignore_priority=True)
    kept, anew = (
        fit(blobs, kind(**DEVICES.get_params()), selector=selector, n_rounds=8, deadline=20.0)
        for kind in (LognormalDevices, Anew)
    )
    assert seconds_of(kept) == seconds_of(anew)


def test_a_fit_that_goes_on_with_other_clients_draws_for_them(blobs):
    """The first part of the fit has three of the clients, whose indices are others later."""
    X, y, clients = blobs
    few = np.isin(clients, ["b", "d", "f"])
    found = []
    for kind in (LognormalDevices, Anew):
        model = fit((X[few], y[few], clients[few]), kind(**DEVICES.get_params()), warm_start=True)
        model.set_params(n_rounds=8).fit(X, y, clients=clients)
        model.partial_fit(X[~few], y[~few], clients=clients[~few])
        found.append(seconds_of(model))
    assert found[0] == found[1] and len(found[0]) == 9


def test_a_fit_does_not_change_the_devices_that_it_is_given(blobs):
    devices = LognormalDevices(**DEVICES.get_params())
    state, written, digest = dict(vars(devices)), pickle.dumps(devices), joblib.hash(devices)
    model = fit(blobs, devices)
    assert model.devices is devices and vars(devices) == state
    assert pickle.dumps(devices) == written and joblib.hash(devices) == digest


def test_a_million_clients_of_which_few_are_asked_take_little_memory():
    n_clients = 10**6
    federation = make_federation(np.arange(n_clients), n_clients)
    asked = np.arange(0, n_clients, n_clients // 100)
    fixed = streams_of(Purpose.DEVICES, 0, federation=federation)
    DEVICES.expected(federation, asked, 0, fixed)  # what the federation keeps is there before
    tracemalloc.start()
    bound = DEVICES.bound(federation)
    bound.expected(federation, asked, 0, fixed)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 4 * n_clients + 100_000
