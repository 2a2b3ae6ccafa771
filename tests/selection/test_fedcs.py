"""FedCS: the quickest clients, as many as are in time."""

import numpy as np
import pytest

from skfed import FedCSSelector, FederatedClassifier
from skfed.availability import Dropout
from skfed.devices import ConstantDevices

NAN = np.nan


def chosen(make_round, seconds, seed=0, n_chosen=None, view=None, **params):
    n_chosen = np.ones(len(seconds), int) if n_chosen is None else np.array(n_chosen)
    round, polls = make_round(
        np.ones(len(seconds)), seed=seed, seconds=seconds, past={"n_chosen": n_chosen}, **view or {}
    )
    cohort = FedCSSelector(**params).select(round)
    assert not polls
    return cohort


def rates(make_round, seconds, n=2000, **given):
    cohorts = [chosen(make_round, seconds, seed, **given) for seed in range(n)]
    return sum(np.bincount(cohort.clients, minlength=len(seconds)) for cohort in cohorts) / n


def test_the_quickest_train_and_weigh_by_size(make_round):
    view = {"sizes": [10, 20, 30, 60]}
    cohort = chosen(make_round, [4.0, 9.0, 1.0, 2.0], clients_per_round=2, view=view)
    assert cohort.clients.tolist() == [2, 3]
    np.testing.assert_allclose(cohort.weights, [1 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("limit", "m", "expected"),
    [(5, None, [0, 2, 3]), (4, None, [2, 3]), (5, 1, [2]), (99, 4, [0, 1, 2, 3]), (0.5, 3, [2])],
)
def test_as_many_train_as_are_in_time(make_round, limit, m, expected):
    """Seconds below the limit; the quickest always trains."""
    cohort = chosen(make_round, [4.0, 9.0, 1.0, 2.0], round_seconds=limit, clients_per_round=m)
    assert cohort.clients.tolist() == expected


def test_new_clients_come_first_and_who_has_not_answered_last(make_round):
    given = {"n_chosen": [0, 1, 0, 3], "clients_per_round": 1}
    np.testing.assert_allclose(
        rates(make_round, [NAN, 1.0, NAN, NAN], **given), [0.5, 0, 0.5, 0], atol=0.05
    )
    given["clients_per_round"] = 3
    assert rates(make_round, [NAN, 1.0, NAN, NAN], n=50, **given).tolist() == [1, 1, 1, 0]


def test_what_is_expected_goes_before_what_was(make_round):
    view = {"expected_seconds": [5.0, 1.0, 3.0]}
    assert chosen(make_round, [1.0, 9.0, NAN], clients_per_round=2, view=view).clients.tolist() == [
        1,
        2,
    ]
    view["available"] = [True, False, True]
    assert chosen(make_round, [NAN] * 3, clients_per_round=1, view=view).clients.tolist() == [2]


def test_equal_seconds_are_drawn_from(make_round):
    found = rates(make_round, [2.0, 2.0, 1.0, 2.0], clients_per_round=2)
    assert found[2] == 1
    np.testing.assert_allclose(found[[0, 1, 3]], 1 / 3, atol=0.05)


def test_without_seconds_it_is_a_random_choice_or_everybody(make_round):
    np.testing.assert_allclose(rates(make_round, [NAN] * 4), 0.5, atol=0.06)
    assert len(chosen(make_round, [NAN] * 4, round_seconds=1.0).clients) == 4


def test_few_are_all_taken(make_round):
    view = {"available": [False, True, False]}
    assert chosen(make_round, [1.0, 9.0, 2.0], view=view).clients.tolist() == [1]
    alone = chosen(make_round, [1.0, 9.0, 2.0], view=view, round_seconds=3.0)
    assert alone.clients.tolist() == [1]


@pytest.mark.parametrize(("n_clients", "m"), [(3, 1), (4, 2), (40, 10), (1000, 100), (4000, 400)])
def test_the_default_is_good_for_few_and_many(make_round, n_clients, m):
    cohort = chosen(make_round, np.arange(float(n_clients)))
    assert cohort.clients.tolist() == list(range(m))


def fit(blobs, selector, public=False, **params):
    X, y, clients = blobs
    latency = dict(zip("abcdef", [9, 1, 8, 2, 7, 3], strict=True))
    devices = ConstantDevices(1e9, 1e9, 1e9, latency, public=public)
    model = FederatedClassifier(selector=selector, n_rounds=5, devices=devices, random_state=0)
    return model.set_params(**params).fit(X, y, clients=clients).history_


def test_a_fit_with_dropouts(blobs):
    history = fit(blobs, FedCSSelector(clients_per_round=2), availability=Dropout(0.3))
    assert len(history) == 5
    assert (history["n_aggregated"] + history["n_failed"] == 2).all()


def test_a_fit_takes_the_quick_once_it_knows_them(blobs):
    """Those of 1, 2 and 3 seconds are b, d and f."""
    cohorts = fit(blobs, FedCSSelector(round_seconds=3.5), public=True)["cohort"]
    assert [set(cohort) for cohort in cohorts] == [set("bdf")] * 5
    cohorts = fit(blobs, FedCSSelector(round_seconds=3.5))["cohort"]
    assert [set(cohort) for cohort in cohorts] == [set("abcdef")] + [set("bdf")] * 4
    cohorts = fit(blobs, FedCSSelector(clients_per_round=3))["cohort"]
    assert set(cohorts[0]) | set(cohorts[1]) == set("abcdef")
    assert [set(cohort) for cohort in cohorts[2:]] == [set("bdf")] * 3
