import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from rules import COMPARED

from skfed import (
    ActiveFLSelector,
    FedAlignSelector,
    FederatedClassifier,
    PowerOfChoice,
    RandomSelector,
)
from skfed._federation import make_federation
from skfed.availability import (
    AlternatingHalves,
    Always,
    Dropout,
    IndependentAvailability,
    TraceAvailability,
)

FEDERATION = make_federation(np.arange(20), 20)
SELECTORS = [
    RandomSelector(clients_per_round=3, ignore_priority=True),
    PowerOfChoice(d=4, clients_per_round=2, ignore_priority=True),
    FedAlignSelector(eps=1.0, warmup=0),
    ActiveFLSelector(clients_per_round=2, ignore_priority=True),
    *COMPARED,
]


def masks(availability, n_rounds=2000, federation=FEDERATION):
    return np.array(
        [
            availability.reachable(
                federation, t, np.random.default_rng((0, t)), np.random.default_rng(9)
            )
            for t in range(n_rounds)
        ]
    )


def test_always():
    assert masks(Always(), 5).all()


def test_two_fixed_halves_alternate_and_a_share_is_not_available():
    seen = masks(AlternatingHalves(removed=0.1), 400)
    assert (seen.sum(axis=1) == 9).all()  # 10 clients a half, 1 away
    even, odd = seen[0::2].any(axis=0), seen[1::2].any(axis=0)
    assert not (even & odd).any()
    assert (even | odd).all()
    away = ~seen[0::2][:, even]
    np.testing.assert_allclose(away.mean(axis=0), 0.1, atol=4 * np.sqrt(0.09 / 200))


def test_independent_probabilities():
    share = masks(IndependentAvailability(0.3)).mean(axis=0)
    np.testing.assert_allclose(share, 0.3, atol=4 * np.sqrt(0.21 / 2000))
    given = {k: k / 19 for k in range(20)}
    share = masks(IndependentAvailability(given)).mean(axis=0)
    np.testing.assert_allclose(share, np.arange(20) / 19, atol=4 * np.sqrt(0.25 / 2000))
    assert share[0] == 0
    assert share[19] == 1


def test_a_trace_by_id_or_by_index_starts_again_at_its_end():
    federation = make_federation(["b", "a"], 2)
    expected = [[True, False], [False, True], [True, False]]
    array = TraceAvailability([[1, 0], [0, 1]])
    frame = TraceAvailability(pd.DataFrame({"z": [1, 1], "b": [0, 1], "a": [1, 0]}))
    assert masks(array, 3, federation).tolist() == expected
    assert masks(frame, 3, federation).tolist() == expected


class Table(dict):
    """A frame with ``column_names``, as in pyarrow."""

    column_names = property(dict.keys)


@pytest.mark.parametrize("frame", [pl.DataFrame, pd.DataFrame, Table])
def test_a_trace_in_any_frame_is_read_by_its_columns_names(frame):
    trace = TraceAvailability(frame({"d": [True, False], "a": [False, True], "z": [True, True]}))
    federation = make_federation(["a", "d"], 2)
    assert masks(trace, 2, federation).tolist() == [[False, True], [True, False]]
    with pytest.raises(ValueError, match=r"trace has no column for 1 client\(s\), such as 'b'"):
        masks(trace, 1, make_federation(["a", "b"], 2))


@pytest.mark.parametrize(
    "availability",
    [
        IndependentAvailability({1: 0.5, "a": 0.5}),
        TraceAvailability(pd.DataFrame({1: [True], "a": [True]})),
        Dropout(0.1, IndependentAvailability({1: 0.5, "a": 0.5})),
    ],
)
@pytest.mark.parametrize("other", [True, 1.0])
def test_a_mapping_that_cannot_tell_ids_apart_is_refused_as_ambiguous(availability, other):
    federation = make_federation([1, other, "a"], 3)
    with pytest.raises(ValueError, match=r"(probability|trace) is ambiguous: .*\b1\b.* equal but"):
        masks(availability, 1, federation)
    assert masks(IndependentAvailability(0.5), 1, federation).shape == (1, 3)
    assert masks(availability, 1, make_federation([other, "a"], 2)).shape == (1, 2)


@pytest.mark.parametrize(
    "availability",
    [IndependentAvailability({0: 1, "1": 1}), TraceAvailability(pd.DataFrame({0: [1], "1": [1]}))],
)
def test_an_id_that_differs_only_by_its_type_is_named(availability):
    federation = make_federation(np.array([0, 1, 2]), 3)
    match = r"2 client\(s\), such as 1 \(there is '1', which differs .* its type: str, not int\): "
    with pytest.raises(ValueError, match=match):
        masks(availability, 1, federation)


@pytest.mark.parametrize(
    ("availability", "match"),
    [
        (TraceAvailability([[1, 0]]), r"trace has shape \(1, 2\), but there are 6 clients"),
        (TraceAvailability(pd.DataFrame({"a": [1]})), "trace has no column for 5.*'b'"),
        (TraceAvailability([[1, 0, np.nan, 1, 1, 1]]), "trace must hold True and False"),
        (TraceAvailability([["False"] * 6]), "trace must hold True and False"),
        (TraceAvailability(np.empty((0, 6))), r"trace has shape \(0, 6\)"),
        (IndependentAvailability(1.5), "'probability' parameter.*1.5"),
        (IndependentAvailability({"a": 0.5}), "probability lacks 5.*'b'"),
        (IndependentAvailability(dict.fromkeys("abcdef", 2)), r"probability must be in \[0, 1\]"),
        (AlternatingHalves(removed=-1), "'removed' parameter.*-1"),
        (Dropout(probability=2), "'probability' parameter.*2"),
        (Dropout(availability=AlternatingHalves(removed=2)), "'removed' parameter.*2"),
    ],
    ids=repr,
)
def test_bad_parameters(blobs, availability, match):
    X, y, clients = blobs
    with pytest.raises(ValueError, match=match):
        FederatedClassifier(availability=availability).fit(X, y, clients=clients)


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
@pytest.mark.parametrize(
    "availability",
    [AlternatingHalves(0.4), IndependentAvailability(0.4), Dropout(0.5, AlternatingHalves())],
    ids=repr,
)
def test_with_every_selector_only_the_available_take_part(blobs, selector, availability):
    X, y, clients = blobs
    model = FederatedClassifier(
        selector=selector,
        priority=["a", "d"],
        availability=availability,
        n_rounds=30,
        random_state=0,
    )
    history = model.fit(X, y, clients=clients).history_
    assert len(history) == 30
    assert history["n_trained"].between(0, 6).all()
    again = model.fit(X, y, clients=clients).history_
    assert history["cohort"].tolist() == again["cohort"].tolist()
    assert history["failed"].tolist() == again["failed"].tolist()


@pytest.mark.filterwarnings("ignore:FedCorSelector.* drew the cohorts of all 1 rounds uniformly")
@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_a_round_in_which_nobody_can_be_reached_keeps_the_model(blobs, selector):
    X, y, clients = blobs
    trace = pd.DataFrame({k: [True, False, True] for k in "abcdef"})
    availability = TraceAvailability(trace)
    model = FederatedClassifier(
        selector=selector, availability=availability, warm_start=True, random_state=0
    )
    model.set_params(n_rounds=1).fit(X, y, clients=clients)
    before = model.net_.module_.linear.weight.clone()
    model.set_params(n_rounds=2).fit(X, y, clients=clients)
    assert torch.equal(model.net_.module_.linear.weight, before)
    row = model.history_.iloc[1]
    assert (row["cohort"], row["polled"], row["models_down"], row["models_up"]) == ((), (), 0, 0)
    model.set_params(n_rounds=3).fit(X, y, clients=clients)
    assert not torch.equal(model.net_.module_.linear.weight, before)


ALL = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)


def test_in_a_fit_the_halves_stay_the_same_and_the_away_change(blobs):
    X, y, clients = blobs
    fixed = FederatedClassifier(
        selector=ALL, availability=AlternatingHalves(removed=0.0), n_rounds=6, random_state=0
    ).fit(X, y, clients=clients)
    cohorts = fixed.history_["cohort"].tolist()
    assert cohorts[0::2] == cohorts[:1] * 3
    assert cohorts[1::2] == cohorts[1:2] * 3
    assert sorted(cohorts[0] + cohorts[1]) == list("abcdef")
    some_away = FederatedClassifier(
        selector=ALL, availability=AlternatingHalves(removed=0.4), n_rounds=20, random_state=0
    ).fit(X, y, clients=clients)
    away = {tuple(set(cohorts[0]) - set(c)) for c in some_away.history_["cohort"][0::2]}
    assert len(away) == 3  # one of three is away, another each time
    assert all(len(names) == 1 for names in away)


def test_dropouts_are_charged_and_left_out(blobs):
    X, y, clients = blobs
    sizes = dict(zip(*np.unique(clients, return_counts=True), strict=True))
    model = FederatedClassifier(
        selector=ALL, availability=Dropout(0.5), n_rounds=6, random_state=0
    ).fit(X, y, clients=clients)
    for _, row in model.history_.iterrows():
        assert sorted(row["cohort"] + row["failed"]) == list("abcdef")
        assert row["n_failed"] == len(row["failed"])
        assert row["models_down"] == 6
        assert row["models_up"] == row["n_trained"] == row["n_aggregated"] == len(row["cohort"])
        assert row["samples_trained"] == sum(sizes[k] for k in row["cohort"])
    assert model.history_["n_failed"].between(1, 5).any()


def test_after_a_dropout_the_others_weights_sum_to_1(blobs, same_model):
    """One round of all but who dropped out equals one round of the survivors alone."""
    X, y, clients = blobs
    dropped = FederatedClassifier(
        selector=ALL, availability=Dropout(0.5), n_rounds=1, random_state=0
    ).fit(X, y, clients=clients)
    survivors = dropped.history_["cohort"][0]
    assert 0 < len(survivors) < 6
    trace = pd.DataFrame({k: [k in survivors] for k in "abcdef"})
    alone = FederatedClassifier(
        selector=ALL, availability=TraceAvailability(trace), n_rounds=1, random_state=0
    ).fit(X, y, clients=clients)
    for a, b in zip(
        dropped.net_.module_.parameters(), alone.net_.module_.parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_nested_dropouts(blobs):
    X, y, clients = blobs
    nested = Dropout(0.0, availability=Dropout(1.0))
    model = FederatedClassifier(selector=ALL, availability=nested, n_rounds=1)
    assert model.fit(X, y, clients=clients).history_["n_failed"][0] == 6


def test_everybody_dropping_out_keeps_the_model(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(selector=ALL, availability=Dropout(1.0), n_rounds=2)
    model.fit(X, y, clients=clients)
    assert not any(p.any() for p in model.net_.module_.parameters())
    assert model.history_["n_failed"].tolist() == [6, 6]
