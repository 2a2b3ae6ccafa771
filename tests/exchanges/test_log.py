"""The records of exchanges: what each has cost each client, and sums that are the history's.

The devices are those of test_clock.py: a model of 16 bytes takes 1 s down and 1/2 s up, a scalar
half of that; latency is 1/4 s. Batches of 2 rows, 3 local steps.
"""

import numpy as np
import pandas as pd
import pytest
from clocked import ALL, CLIENTS, DEVICES, DRAWN, POW, RATES, Twice, X, Y, estimator, fit
from rules import COMPARED, deadline_of
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfed import ActiveFLSelector, FedAlignSelector, PowerOfChoice, RandomSelector
from skfed.aggregation import Scaffold
from skfed.availability import Dropout, IndependentAvailability, TraceAvailability
from skfed.devices import ConstantDevices, LognormalDevices
from skfed.exchanges import COLUMNS
from skfed.metrics import client_exchanges


def check_sums(model):
    """Check that the sums over the records of each round are the history's."""
    records = client_exchanges(model)
    assert tuple(records) == COLUMNS
    for row in model.history_.itertuples():
        own = records[records["round"] == row.round]
        assert own["bytes_down"].sum() == row.bytes_down
        assert own["bytes_up"].sum() == row.bytes_up
        assert own.loc[own["kind"] == "poll", "rows"].sum() == row.samples_evaluated
        trained = own["kind"].isin(["training", "report", "trial", "sketch"])
        assert own.loc[trained, "rows"].sum() == row.samples_trained
        exchanges = own.groupby("exchange")
        durations = exchanges["duration"].first()
        assert exchanges["duration"].nunique().eq(1).all()
        assert durations.sum() == pytest.approx(row.seconds, abs=1e-12)
        starts = row.elapsed - row.seconds + durations.cumsum().shift(fill_value=0.0)
        np.testing.assert_allclose(exchanges["start"].first(), starts, atol=1e-9)
        assert set(own.loc[own["outcome"] == "late", "client"]) <= set(row.failed)
        assert set(row.cohort) <= set(own.loc[own["outcome"] == "answered", "client"])
    answered = records["outcome"].isin(["answered", "silent", "failed"])
    assert (records["seconds"] <= records["duration"])[answered].all()
    assert (records["seconds"] > records["duration"])[records["outcome"] == "late"].all()
    assert records["seconds"].isna().equals(records["outcome"] == "no answer")
    return records


def test_a_poll_and_a_training_by_hand():
    """Client d is late in the poll, at 2.83 s; two of the others train."""
    model = fit(selector=PowerOfChoice(**POW), deadline=2.8, n_rounds=2)
    records = check_sums(model)
    poll = records[(records["round"] == 1) & (records["kind"] == "poll")].set_index("client")
    assert sorted(poll.index) == list("abcd")
    seconds = {k: 1.5 + 4 / 3 / rate for k, rate in RATES.items()}
    np.testing.assert_allclose(poll["seconds"][list(RATES)], list(seconds.values()))
    assert poll["outcome"].to_dict() == dict.fromkeys("abc", "answered") | {"d": "late"}
    assert poll["rows"][list("abcd")].tolist() == [4, 4, 4, 0]
    assert poll["bytes_down"].tolist() == [16] * 4
    assert poll["bytes_up"][list("abcd")].tolist() == [8, 8, 8, 0]
    assert poll["duration"].tolist() == [2.8] * 4
    assert poll["start"].tolist() == [model.history_["elapsed"][0]] * 4
    training = records[(records["round"] == 1) & (records["kind"] == "training")]
    assert training["exchange"].tolist() == [1, 1]
    assert training["bytes_down"].tolist() == [0, 0]  # it was sent in the poll


def test_copies_of_a_client_have_a_record_each():
    records = check_sums(fit(selector=Twice(), n_rounds=1))
    assert records["client"].tolist() == ["a", "a", "b"]
    assert records["bytes_down"].tolist() == [16, 0, 16]
    assert records["bytes_up"].tolist() == [16, 16, 16]
    assert records["seconds"].tolist() == [4.25, 4.25, 3.75]


def test_statistics_are_records_of_round_0():
    model = estimator(n_rounds=2).set_params(estimator=None).fit(X, Y, clients=CLIENTS)
    records = check_sums(model)
    first = records[records["kind"] == "statistics"]
    assert (first["client"].tolist(), set(first["round"])) == (list("abcd"), {0})
    assert first["bytes_up"].tolist() == [8 * (3 + 2)] * 4
    assert first["seconds"].tolist() == [1.5] * 4


@pytest.mark.filterwarnings("ignore:.*never replied to a training in time")
@pytest.mark.parametrize(
    "selector",
    [
        RandomSelector(3, ignore_priority=True),
        PowerOfChoice(**POW),
        PowerOfChoice(**POW, loss="reported"),
        FedAlignSelector(eps=0.01, warmup=0),
        ActiveFLSelector(2, ignore_priority=True),
        *COMPARED,
    ],
)
@pytest.mark.parametrize("availability", [IndependentAvailability(0.6), Dropout(0.4)])
def test_sums_are_those_of_the_history(selector, availability):
    model = fit(
        selector=selector,
        availability=availability,
        priority=["a", "b"],
        devices=LognormalDevices(3, 16, 32, 0.25, jitter=0.5),
        deadline=deadline_of(selector, 5.0),
        report_goal=0.8,
        aggregator=Scaffold(),
        n_rounds=8,
    )
    records = check_sums(model)
    assert "late" in set(records["outcome"])
    if isinstance(availability, Dropout):
        assert "no answer" in set(records["outcome"])


def test_silent_clients_send_nothing():
    model = fit(selector=FedAlignSelector(eps=0, warmup=0), priority=["a", "b"])
    silent = (records := check_sums(model))[records["outcome"] == "silent"]
    assert set(silent["client"]) == {"c", "d"} and not silent["bytes_up"].any()


def test_a_round_without_clients_has_no_records():
    model = fit(availability=TraceAvailability([[1, 1, 0, 0], [0, 0, 0, 0]]), n_rounds=2)
    records = check_sums(model)
    assert set(records["round"]) == {0}
    assert client_exchanges(model, round=1).empty
    assert list(client_exchanges(model, round=1)) == list(records)


def test_one_round_is_that_of_the_whole_table():
    model = fit(**DRAWN)
    whole = client_exchanges(model)
    for t in range(6):
        own = whole[whole["round"] == t].reset_index(drop=True)
        pd.testing.assert_frame_equal(client_exchanges(model, round=t), own)


@pytest.mark.parametrize("params", [{"n_jobs": 2}, {"engine": "stacked"}], ids=repr)
def test_records_do_not_depend_on_jobs_or_engine(params):
    plain = client_exchanges(fit(engine="loop", **DRAWN))
    pd.testing.assert_frame_equal(plain, client_exchanges(fit(**DRAWN | params)))


@pytest.mark.parametrize(
    "ids", [[*"abcd"], [1, 2, 3, 4], [1.5, 2.0, 3.0, 4.0], [("a", 1), 2, "c", 4]]
)
def test_a_resumed_or_loaded_fit_has_the_same_records(ids, tmp_path):
    clients = np.empty(4, dtype=object)
    clients[:] = ids
    clients = clients.repeat(4)
    whole = estimator(**DRAWN).fit(X, Y, clients=clients)
    part = estimator(**DRAWN | {"n_rounds": 3}, checkpoint=tmp_path, warm_start=True)
    part.fit(X, Y, clients=clients)
    resumed = estimator(**DRAWN, checkpoint=tmp_path, warm_start=True).fit(X, Y, clients=clients)
    expected = check_sums(whole)
    pd.testing.assert_frame_equal(client_exchanges(resumed), expected)
    assert set(expected["client"]) == set(ids)
    whole.save(tmp_path / "model")
    loaded = estimator(**DRAWN).load(tmp_path / "model")
    pd.testing.assert_frame_equal(client_exchanges(loaded), expected)


def test_ids_of_later_fits_keep_their_types():
    model = fit(n_rounds=1)
    model.set_params(devices=ConstantDevices(6, 16, 32))
    model.partial_fit(X, Y, clients=np.repeat([1, 2, 3, 4], 4))
    assert client_exchanges(model)["client"].tolist() == [*"abcd", 1, 2, 3, 4]


def test_rounds_without_a_clock_have_no_records():
    model = fit(devices=None, warm_start=True)
    with pytest.raises(ValueError, match=r"rounds had no clock.*fit with devices"):
        client_exchanges(model)
    model.set_params(devices=DEVICES, n_rounds=5).fit(X, Y, clients=CLIENTS)
    assert client_exchanges(model)["round"].unique().tolist() == [3, 4]
    with pytest.raises(ValueError, match=r"Round 2 had no clock"):
        client_exchanges(model, round=2)
    with pytest.raises(ValueError, match=r"round=5 is none of the 5 rounds"):
        client_exchanges(model, round=5)
    with pytest.raises(ValueError, match=r"'round' parameter of client_exchanges .* 4.0"):
        client_exchanges(model, round=4.0)


def test_of_a_pipeline():
    pipeline = make_pipeline(FunctionTransformer(), estimator(n_rounds=1))
    pipeline.fit(X, Y, federatedclassifier__clients=CLIENTS)
    assert len(client_exchanges(pipeline)) == 4


def test_a_round_of_a_hundred_clients_is_kept_in_few_bytes():
    """Beyond ids and seconds, 8 bytes each, few bytes a client."""
    n = 100
    model = estimator(selector=ALL, n_rounds=1, devices=LognormalDevices(3, 16, 32))
    model.fit(np.zeros((2 * n, 1), np.float32), np.arange(2 * n) % 2, clients=np.arange(2 * n) // 2)
    [packed] = model._server.rows[0]["exchanges"]
    n_bytes = sum(len(v[1]) for v in packed.values() if isinstance(v, tuple))
    assert n_bytes <= 18 * n
    assert "exchanges" not in model.history_
