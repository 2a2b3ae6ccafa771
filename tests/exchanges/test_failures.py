"""Clients that fail are left out, counted and named."""

import logging
import threading

import joblib
import numpy as np
import pytest
import torch
from rules import COMPARED
from skorch import NeuralNetClassifier
from torch import nn

from skfed import (
    ActiveFLSelector,
    FedAlignSelector,
    FederatedClassifier,
    PowerOfChoice,
    RandomSelector,
)
from skfed.aggregation import CoordinateMedian, NormClipping, Scaffold, TrimmedMean
from skfed.availability import BaseAvailability
from skfed.datasets import load_wisdm
from skfed.modules import SoftmaxRegression
from skfed.selection import BaseSelector, Cohort

EVERYBODY = RandomSelector(1.0, probability="uniform", replace=False)
UNBIASED = RandomSelector(1.0, probability="uniform", replace=False, weighting="unbiased")
ENGINES = ["stacked", "loop"]


class Fragile(nn.Module):
    """Raises at rows that hold 7; its weights turn to NaN at rows that hold 9."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, X):
        if (X == 7).any():
            raise RuntimeError("cannot bear sevens\nsecond line")
        output = self.linear(X)
        return output * torch.nan if (X == 9).any() else output


@pytest.fixture
def broken(blobs):
    """Client a raises, client c diverges; the others are well."""
    X, y, clients = blobs
    X = X.copy()
    X[np.flatnonzero(clients == "a")[-1]] = 7  # not the first row, which the net is tried on
    X[np.flatnonzero(clients == "c")[-1]] = 9
    return X, y, clients


def fit(data, **params):
    X, y, clients = data
    given = {"selector": EVERYBODY, "n_rounds": 3, "engine": "loop", "random_state": 0} | params
    return FederatedClassifier(Fragile, **given).fit(X, y, clients=clients)


def parameters(model):
    return [p.detach() for p in model.net_.module_.parameters()]


@pytest.mark.parametrize(
    "aggregator",
    [None, CoordinateMedian(), TrimmedMean(0.2), NormClipping(0.1), Scaffold()],
    ids=str,
)
@pytest.mark.parametrize("selector", [EVERYBODY, UNBIASED], ids=["mean", "unbiased"])
def test_the_round_is_that_of_the_others_alone(broken, aggregator, selector):
    X, y, clients = broken
    model = fit(broken, aggregator=aggregator, selector=selector)
    well = ~np.isin(clients, ["a", "c"])
    if selector is UNBIASED:  # q_k = p_k: those left out leave the model where it was
        assert all(p.isfinite().all() for p in parameters(model))
        return
    if isinstance(aggregator, Scaffold):
        return  # c moves by a share of all clients
    alone = fit((X[well], y[well], clients[well]), aggregator=aggregator)
    for a, b in zip(parameters(model), parameters(alone), strict=True):
        torch.testing.assert_close(a, b)


def test_an_unbiased_cohort_loses_the_steps_of_those_that_failed(broken):
    X, y, clients = broken
    model = fit(broken, selector=UNBIASED, n_rounds=1)
    well = ~np.isin(clients, ["a", "c"])
    start = fit(broken, n_rounds=1, min_clients=99)  # the first model
    alone = fit((X[well], y[well], clients[well]), n_rounds=1)
    share = well.mean()
    for got, w, mean in zip(*map(parameters, (model, start, alone)), strict=True):
        torch.testing.assert_close(got, w + share * (mean - w), rtol=1e-4, atol=1e-6)


def test_history_and_log_say_who_and_why(broken, caplog):
    with caplog.at_level(logging.WARNING, logger="skfed"):
        history = fit(broken).history_
    assert (history["n_failed"] == 2).all()
    assert (history["n_trained"] == 5).all()  # c did train, to no avail
    assert (history["n_aggregated"] == 4).all()
    assert history["cohort"][0] == ("b", "d", "e", "f")
    assert history["failed"][0] == ("a", "c")
    why = history["causes"][0]
    assert why[0] == "RuntimeError: cannot bear sevens"
    assert "not finite" in why[1]
    assert (history["models_up"] == 5).all()
    assert (history["models_down"] == 6).all()
    # Once a client and cause, not once a round.
    assert len([r for r in caplog.records if "cannot bear" in r.getMessage()]) == 1
    assert "client 'a' fails in round 0" in caplog.text


@pytest.mark.parametrize("engine", ENGINES)
def test_an_update_that_is_not_finite_is_left_out_by_both_engines(blobs, engine):
    X, y, clients = blobs
    X = X.copy()
    X[clients == "c"] *= 1e37  # its second step overflows
    settings = {"selector": EVERYBODY, "n_rounds": 2, "local_epochs": 2, "random_state": 0}
    model = FederatedClassifier(SoftmaxRegression(5, 3), engine=engine, **settings)
    model.fit(X, y, clients=clients)
    assert model.history_["failed"].tolist() == [("c",), ("c",)]
    well = clients != "c"
    alone = FederatedClassifier(SoftmaxRegression(5, 3), engine=engine, **settings)
    alone.fit(X[well], y[well], clients=clients[well])
    np.testing.assert_allclose(
        model.predict_proba(X[well]), alone.predict_proba(X[well]), rtol=1e-4, atol=1e-6
    )


def test_raise_ends_the_fit_with_the_first_cause(broken):
    with pytest.raises(RuntimeError, match="cannot bear sevens") as caught:
        fit(broken, on_client_error="raise")
    assert any("client 'a' in round 0" in note for note in caught.value.__notes__)


def test_when_everybody_fails_always_the_first_cause_is_raised(broken):
    X, y, clients = broken
    mine = clients == "a"
    with pytest.raises(RuntimeError, match="cannot bear sevens") as caught:
        fit((X[mine], y[mine], clients[mine]))
    assert any("every client failed in every round" in note for note in caught.value.__notes__)


def test_too_few_survivors_keep_the_model(broken):
    kept, moved = fit(broken, min_clients=5), fit(broken, min_clients=4)
    assert (kept.history_["n_aggregated"] == 0).all()
    assert kept.history_["cohort"].tolist() == [()] * 3
    assert (moved.history_["n_aggregated"] == 4).all()
    torch.testing.assert_close(parameters(kept), parameters(fit(broken, min_clients=6)))
    assert not torch.equal(parameters(kept)[0], parameters(moved)[0])


@pytest.mark.parametrize(
    "selector",
    [
        PowerOfChoice(d=1.0, clients_per_round=3, ignore_priority=True),
        PowerOfChoice(d=1.0, clients_per_round=3, loss="batch", ignore_priority=True),
        PowerOfChoice(d=1.0, clients_per_round=3, loss="reported", ignore_priority=True),
        ActiveFLSelector(clients_per_round=3, ignore_priority=True),
        *COMPARED,
        FedAlignSelector(eps=10.0, warmup=0),
        FedAlignSelector(eps=1.0, warmup=0, match="accuracy"),
    ],
    ids=str,
)
def test_every_selector_lives_with_failures(broken, selector):
    model = fit(broken, selector=selector, n_rounds=6, priority=["b", "c"])
    assert all(p.isfinite().all() for p in parameters(model))
    assert model.history_["n_aggregated"].max() > 0
    assert not any({"a", "c"} & set(cohort) for cohort in model.history_["cohort"])


def test_a_poll_that_fails_is_charged_no_answer(broken):
    model = fit(broken, selector=PowerOfChoice(d=1.0, clients_per_round=2), n_rounds=1)
    row = model.history_.iloc[0]
    assert (row["n_polled"], row["scalars_up"], row["models_down"]) == (6, 4, 6)
    assert row["failed"] == ("a", "c")


class Evasive(nn.Linear):
    """Trains on any rows, but raises when it is polled on rows that hold 7."""

    def __init__(self):
        super().__init__(5, 3)

    def forward(self, X):
        if not self.training and (X == 7).any():
            raise RuntimeError("no answer to that")
        return super().forward(X)


class Unbiased(BaseSelector):
    """Polls everybody and trains all of them, whatever they say, with raw weights."""

    def _select(self, round):
        everybody = np.arange(len(round.sizes))
        round.poll(everybody)
        return Cohort(everybody, round.fractions, unbiased=True)


def fit_evasive(blobs, **params):
    """Fit for a round in which client c fails its poll, and no training fails."""
    X, y, clients = blobs
    X = X.copy()
    X[np.flatnonzero(clients == "c")[-1:]] = 7  # not the first row, which the net is tried on
    given = {"n_rounds": 1, "engine": "loop", "random_state": 0} | params
    return FederatedClassifier(Evasive, **given).fit(X, y, clients=clients)


PRIORITY = {"selector": FedAlignSelector(eps=0.0, warmup=0), "priority": ["a", "b", "c"]}


def test_a_client_whose_poll_failed_is_left_out_of_the_round(blobs):
    """FedALIGN's priority client c is polled for F, raises, and is not trained."""
    model = fit_evasive(blobs, **PRIORITY)
    row = model.history_.iloc[0]
    assert row["cohort"] == ("a", "b")
    assert (row["failed"], row["n_failed"]) == (("c",), 1)
    assert row["causes"] == ("RuntimeError: no answer to that",)
    # Free clients have the bound, and no loss is exactly F.
    assert (row["n_polled"], row["n_trained"], row["n_aggregated"]) == (6, 2, 2)
    assert (row["models_down"], row["models_up"]) == (6, 2)
    assert row["samples_trained"] == 10 + 20
    # Weights by size among those who are left: as if a and b alone had priority.
    others = fit_evasive(blobs, **PRIORITY | {"priority": ["a", "b"]})
    assert row["objective"] == others.history_["objective"][0]
    torch.testing.assert_close(parameters(model), parameters(others), rtol=0, atol=0)


def test_power_of_choice_with_d_equal_to_m_trains_those_who_answered(blobs):
    selector = PowerOfChoice(d=6, clients_per_round=6)
    row = fit_evasive(blobs, selector=selector).history_.iloc[0]
    assert row["cohort"] == ("a", "b", "d", "e", "f")
    assert (row["failed"], row["scalars_up"], row["models_up"]) == (("c",), 5, 5)


def test_an_unbiased_cohort_loses_the_step_of_who_failed_the_poll(blobs):
    """Raw weights are not scaled; what c would have added is lacking."""
    X, y, clients = blobs
    model = fit_evasive(blobs, selector=Unbiased())
    assert model.history_["cohort"][0] == ("a", "b", "d", "e", "f")
    start = fit_evasive(blobs, selector=EVERYBODY, min_clients=99)
    well = clients != "c"
    alone = fit_evasive((X[well], y[well], clients[well]), selector=EVERYBODY)
    for got, w, mean in zip(*map(parameters, (model, start, alone)), strict=True):
        torch.testing.assert_close(got, w + (1 - 15 / 140) * (mean - w), rtol=1e-4, atol=1e-6)


def test_a_poll_that_fails_ends_the_fit_under_raise(blobs):
    with pytest.raises(RuntimeError, match="no answer to that") as caught:
        fit_evasive(blobs, on_client_error="raise", **PRIORITY)
    assert any("client 'c' in round 0" in note for note in caught.value.__notes__)


def test_when_all_chosen_fail_the_poll_the_round_keeps_the_model(blobs):
    only_c = PRIORITY | {"priority": ["c"], "selector": FedAlignSelector(eps=9.0, warmup=1)}
    warm = fit_evasive(blobs, **only_c)
    model = fit_evasive(blobs, n_rounds=2, **only_c)
    assert model.history_["cohort"].tolist() == [("c",), ()]
    torch.testing.assert_close(parameters(model), parameters(warm), rtol=0, atol=0)


class Copies(BaseSelector):
    """Client a twice and client b once."""

    def _select(self, round):
        return Cohort.mean(np.array([0, 0, 1]))


def test_min_clients_counts_distinct_clients(blobs):
    kept = fit_evasive(blobs, selector=Copies(), min_clients=3)
    assert kept.history_["cohort"][0] == ()
    assert kept.history_["n_trained"][0] == 3  # updates
    moved = fit_evasive(blobs, selector=Copies(), min_clients=2)
    assert moved.history_["cohort"][0] == ("a", "a", "b")
    assert moved.history_["n_aggregated"][0] == 3


class PollsAll(Copies):
    """Client a twice, b once and c twice, after a poll of all."""

    def _select(self, round):
        round.poll(np.arange(len(round.sizes)))
        return Cohort.mean(np.array([0, 0, 1, 2, 2]))


class NotAOrC(BaseAvailability):
    """Clients a and c never answer."""

    def _answers(self, federation, chosen, rng):
        return ~np.isin(chosen, [0, 2])


def test_n_failed_counts_distinct_clients(blobs):
    """Client a is silent in both copies; c has failed its poll, and would be silent besides."""
    row = fit_evasive(blobs, selector=PollsAll(), availability=NotAOrC()).history_.iloc[0]
    assert row["cohort"] == ("b",)
    assert row["failed"] == ("a", "c")
    assert row["causes"] == ("no answer", "RuntimeError: no answer to that")
    assert row["n_failed"] == 2


def test_a_chunk_that_raises_is_tried_client_by_client(blobs, monkeypatch):
    from skfed.engines._stacked_steps import ChunkTraining

    X, y, clients = blobs
    params = {"selector": EVERYBODY, "n_rounds": 2, "engine": "stacked", "random_state": 0}
    whole = FederatedClassifier(**params).fit(X, y, clients=clients)
    # The chunk of six fails, then the second of them when it is alone.
    run, calls = ChunkTraining.run, []

    def failing(self, load):
        calls.append(len(self.members))
        if len(calls) in (1, 3):
            raise RuntimeError("once")
        return run(self, load)

    monkeypatch.setattr(ChunkTraining, "run", failing)
    model = FederatedClassifier(**params).fit(X, y, clients=clients)
    assert calls[:7] == [6, 1, 1, 1, 1, 1, 1]
    assert model.history_["n_failed"].tolist() == [1, 0]
    [failed] = model.history_["failed"][0]
    assert failed in set(clients)
    assert whole.history_["n_failed"].sum() == 0


def test_a_poll_that_raises_is_tried_client_by_client(blobs, monkeypatch):
    from skfed.engines._evaluate import BatchEvaluation

    X, y, clients = blobs
    run, calls = BatchEvaluation.run, []

    def failing(self, load):
        calls.append(len(self.clients))
        if len(calls) in (1, 3):
            raise RuntimeError("once")
        return run(self, load)

    monkeypatch.setattr(BatchEvaluation, "run", failing)
    model = FederatedClassifier(
        SoftmaxRegression(5, 3), selector=PowerOfChoice(d=1.0, clients_per_round=2), n_rounds=2,
        engine="stacked", random_state=0,
    ).fit(X, y, clients=clients)  # fmt: skip
    assert model.history_["n_failed"].tolist() == [1, 0]
    assert model.history_["scalars_up"].tolist() == [5, 6]


def test_one_row_or_one_class_is_no_failure(blobs):
    X, y, clients = blobs
    rows = np.concatenate([np.flatnonzero(clients == "a")[:1], np.flatnonzero(clients == "b")])
    more = np.flatnonzero((clients == "d") & (y == y[clients == "d"][0]))
    rows = np.concatenate([rows, more])
    model = FederatedClassifier(selector=EVERYBODY, n_rounds=2).fit(
        X[rows], y[rows], clients=clients[rows]
    )
    assert model.history_["n_failed"].sum() == 0


def test_a_third_of_the_clients_failing_costs_little(data_home):
    data = load_wisdm()
    X = data.X.fillna(data.X.mean()).to_numpy()
    X = ((X - X.mean(0)) / (X.std(0) + 1e-9)).astype(np.float32)
    rng = np.random.default_rng(0)
    test = rng.random(len(X)) < 0.25
    scores = []
    for share in (0.0, 0.3):
        net = NeuralNetClassifier(
            Unreliable, module__share=share, criterion=nn.CrossEntropyLoss, lr=0.1
        )
        model = FederatedClassifier(
            net, selector=RandomSelector(10), n_rounds=60, local_epochs=2, engine="loop",
            random_state=0,
        ).fit(X[~test], data.y[~test], clients=data.clients[~test])  # fmt: skip
        scores.append(model.score(X[test], data.y[test]))
        asked = model.history_["n_failed"] + model.history_["n_aggregated"]
        assert model.history_["n_failed"].sum() / asked.sum() == pytest.approx(share, abs=0.05)
    assert scores[1] > scores[0] - 0.03


class Unreliable(nn.Module):
    """Fails in a share of the trainings, at random."""

    def __init__(self, share):
        super().__init__()
        self.linear = nn.Linear(43, 6)
        self.chance = 1 - (1 - share) ** (1 / 2.6)  # of a batch; a training has 2.6 on average

    def forward(self, X):
        if self.training and torch.rand(()) < self.chance:
            raise RuntimeError("battery is empty")
        return self.linear(X)


class Locked(RuntimeError):
    """Cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class Choosy(RuntimeError):
    """Cannot be unpickled."""

    def __init__(self, place, reason):
        super().__init__(f"{reason} at {place}")


@pytest.mark.parametrize(
    "error", [Locked("no way"), Choosy("here", "no way")], ids=["dumps", "loads"]
)
def test_exceptions_that_cannot_travel_are_told_the_same_for_any_n_jobs(broken, error):
    causes = []
    given = {"selector": EVERYBODY, "n_rounds": 1, "engine": "loop", "random_state": 0}
    X, y, clients = broken
    X[X == 9] = 0

    class Raising(nn.Linear):
        def __init__(self):
            super().__init__(5, 3)

        def forward(self, X):
            if (X == 7).any():
                raise error
            return super().forward(X)

    for n_jobs in (1, 2):
        with joblib.parallel_config(backend="threading"):
            model = FederatedClassifier(Raising, n_jobs=n_jobs, **given).fit(X, y, clients=clients)
        causes.append(model.history_["causes"][0])
    assert causes[0] == causes[1]
    assert causes[0][0].startswith(f"RuntimeError: {type(error).__name__}: no way")
