"""What updates were worth in the rounds of a fit: gains, their cost, and what stays as it is."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import log_loss
from skorch import NeuralNetClassifier
from torch import nn

from skfed import (
    FedAlignSelector,
    FederatedClassifier,
    FederatedRegressor,
    OptimalSelector,
    PowerOfChoice,
    RandomSelector,
)
from skfed.aggregation import (
    CoordinateMedian,
    NormClipping,
    Scaffold,
    ServerOptimizer,
    TrimmedMean,
)
from skfed.availability import BaseAvailability
from skfed.contribution import BaseContribution, LeaveOneOut, Values
from skfed.devices import LognormalDevices
from skfed.metrics import client_exchanges, round_contributions
from skfed.privacy import GaussianMechanism
from skfed.selection import BaseSelector, Cohort

RNG = np.random.default_rng(5)
CLIENTS = np.repeat(["a", "b", "c"], [12, 20, 8])
X = RNG.normal(size=(len(CLIENTS), 3)) + (CLIENTS == "c")[:, None]
Y = ((X @ [1.0, -1.0, 0.5] + RNG.normal(size=len(X))) > 0).astype(int)
X_VAL, Y_VAL = RNG.normal(size=(30, 3)), RNG.integers(2, size=30)
EVERYBODY = RandomSelector(1.0, "uniform", replace=False, ignore_priority=True)
PRIORITY = ["a", "b"]
TIMED = ["select_seconds", "train_seconds", "round_seconds"]


class AllGains(BaseContribution):
    """Keeps the gains of all subsets, in the order of ``subsets``, and gives the last to each."""

    found: list = []

    def _values(self, gains, n_players, rng):
        subsets = subsets_of(n_players)
        AllGains.found.append(gains(subsets))
        return Values(np.full(n_players, AllGains.found[-1][-1]), np.full(n_players, 0.5))


class Silent(BaseAvailability):
    """These clients train and do not answer."""

    def __init__(self, names=()):
        self.names = names

    def _answers(self, federation, chosen, rng):
        return ~np.isin(federation.ids[chosen], self.names)


class Fixed(BaseSelector):
    """The same cohort in each round."""

    uses_priority = False
    ignore_priority = True

    def __init__(self, clients, weights, unbiased=False):
        self.clients = clients
        self.weights = weights
        self.unbiased = unbiased

    def _select(self, round):
        return Cohort(np.array(self.clients), np.array(self.weights), self.unbiased)


def subsets_of(n_players):
    return np.array(list(product([False, True], repeat=n_players)))


def estimator(**params):
    given = {"selector": EVERYBODY, "n_rounds": 1, "random_state": 3, "local_epochs": 2}
    return FederatedClassifier(**given | params)


def gains_of(model, **fit):
    AllGains.found = []
    model.fit(X, Y, clients=CLIENTS, **fit)
    return AllGains.found


def objective(model, is_counted=None):
    """F(w) of the priority clients, or of the rows in a mask."""
    rows = np.isin(CLIENTS, model.clients_[model.priority_]) if is_counted is None else is_counted
    return log_loss(Y[rows], model.predict_proba(X[rows]), labels=[0, 1])


def before(model):
    """The loss of the model that the round began with: nobody answers."""
    return model.set_params(availability=Silent(tuple("abc"))).fit(X, Y, clients=CLIENTS)


class WithBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, X):
        return self.layers(X)


class Overflowing(nn.Linear):
    """Has no finite output for very large columns."""

    def forward(self, X):
        return super().forward(X) * X[:, :1]


def net(module, **given):
    return NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=8, **given)


CASES = {
    "weighted mean": {},
    "priority": {"priority": PRIORITY},
    "unbiased": {"selector": RandomSelector(1.0, "uniform", replace=False, weighting="unbiased")},
    "median": {"aggregator": CoordinateMedian()},
    "trimmed": {"aggregator": TrimmedMean(0.3)},
    "clipped": {"aggregator": NormClipping(0.1)},
    "scaffold": {"aggregator": Scaffold()},
    "server optimizer": {"server_optimizer": ServerOptimizer(torch.optim.Adam, lr=0.1)},
    "batch norm": {"estimator": net(WithBatchNorm)},
    "hidden layer": {"estimator": net(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))},
    "float64": {"estimator": net(nn.Linear(3, 2).double())},
}


@pytest.mark.parametrize(
    ("case", "engine"),
    [(case, engine) for case in CASES for engine in ("loop", "stacked") if case != "batch norm"]
    + [("batch norm", "loop")],  # statistics of batches are not stacked
)
def test_the_gain_of_a_subset_is_that_of_a_round_in_which_the_others_do_not_answer(case, engine):
    given = CASES[case] | {"engine": engine}
    dtype = np.float64 if case == "float64" else np.float32
    model = estimator(**given)
    (gains,) = gains_of(estimator(contribution=AllGains(), **given))
    start = objective(before(model))
    expected = []
    for subset in subsets_of(3):
        others = tuple(np.array(list("abc"))[~subset])
        alone = model.set_params(availability=Silent(others)).fit(X, Y, clients=CLIENTS)
        expected.append(start - objective(alone))
    np.testing.assert_allclose(gains, expected, atol=1e-12 if dtype == np.float64 else 1e-6)
    assert gains[0] == 0 and np.ptp(gains) > 1e-3


def test_what_only_momentum_moves_is_a_gain_too():
    """In the second round the rate of the clients is 0."""
    momentum = ServerOptimizer(torch.optim.SGD, lr=1.0, options={"momentum": 0.9})
    given = {"server_optimizer": momentum, "lr_schedule": lambda t: 0.1 * (t == 0)}
    _, gains = gains_of(estimator(contribution=AllGains(), n_rounds=2, **given))
    start, end = (
        objective(estimator(n_rounds=n, **given).fit(X, Y, clients=CLIENTS)) for n in (1, 2)
    )
    assert start - end > 1e-3
    np.testing.assert_allclose(gains[1:], start - end, atol=1e-6)


def test_a_client_drawn_twice_is_one_player_with_both_updates():
    given = {"selector": Fixed([0, 1, 1], [0.2, 0.4, 0.4])}
    (gains,) = gains_of(estimator(contribution=AllGains(), **given))
    start = objective(before(estimator(**given)))
    alone = [
        start - objective(estimator(selector=Fixed(*one)).fit(X, Y, clients=CLIENTS))
        for one in (([1, 1], [0.5, 0.5]), ([0], [1.0]), ([0, 1, 1], [0.2, 0.4, 0.4]))
    ]
    np.testing.assert_allclose(gains, [0.0, *alone], atol=1e-6)


@pytest.mark.parametrize("unbiased", [False, True])
def test_a_client_of_weight_0_adds_nothing(unbiased):
    given = {"selector": Fixed([0, 1, 2], [0.4, 0.0, 0.6], unbiased)}
    (gains,) = gains_of(estimator(contribution=AllGains(), **given))
    with_b, without_b = gains[subsets_of(3)[:, 1]], gains[~subsets_of(3)[:, 1]]
    np.testing.assert_array_equal(with_b, without_b)
    assert with_b[0] == 0


def test_with_full_batches_clients_with_the_same_rows_are_worth_the_same():
    rows, y = np.tile(X[:12], (2, 1)), np.tile(Y[:12], 2)
    given = {"estimator": net(nn.Linear(3, 2)).set_params(batch_size=-1), "random_state": 0}
    model = estimator(contribution=AllGains(), **given)
    AllGains.found = []
    model.fit(rows, y, clients=np.repeat(["a", "b"], 12))
    (gains,) = AllGains.found
    np.testing.assert_allclose(gains[1], gains[2], atol=1e-7)


def test_free_clients_that_have_not_matched_are_no_players():
    selector = FedAlignSelector(eps=0.0, warmup=0)
    model = estimator(selector=selector, priority=["a"], contribution=AllGains(), n_rounds=3)
    assert [len(gains) for gains in gains_of(model)] == [2, 2, 2]
    assert (model.contributions_.loc[["b", "c"]] == 0).all(axis=None)


def test_values_are_summed_over_rounds_and_errors_by_their_squares():
    model = estimator(contribution=AllGains(every=2), n_rounds=5, selector=RandomSelector(1))
    found = gains_of(model)
    rounds = round_contributions(model)
    assert rounds.index.tolist() == [1, 3] and rounds.columns.tolist() == ["a", "b", "c"]
    players = [model.history_["cohort"][t][0] for t in (1, 3)]
    for t, client, gains in zip((1, 3), players, found, strict=True):
        assert rounds.loc[t].dropna().to_dict() == {client: gains[-1]}
    assert round_contributions(model, "error").stack().dropna().tolist() == [0.5, 0.5]
    frame = model.contributions_
    assert frame.index.equals(pd.Index(["a", "b", "c"], name="client"))
    assert frame["value"].tolist() == rounds.sum().tolist()
    n = pd.Series(players).value_counts().reindex(frame.index, fill_value=0)
    np.testing.assert_allclose(frame["error"], 0.5 * np.sqrt(n))


def test_each_model_is_charged_to_each_priority_client():
    """Softmax regression of 3 columns and 2 classes: 8 numbers. All clients have the scaling."""
    given = {"priority": PRIORITY, "n_rounds": 2}
    model = estimator(contribution=AllGains(), **given).fit(X, Y, clients=CLIENTS)
    plain = estimator(**given).fit(X, Y, clients=CLIENTS)
    histories = (one.history_.drop(columns=TIMED).fillna(-1.0) for one in (model, plain))
    more = next(histories) != next(histories)
    changed = more.columns[more.any()].tolist()
    assert changed == [
        *("models_down", "scalars_up", "bytes_down", "bytes_up", "samples_evaluated")
    ]
    by = {name: (model.history_[name] - plain.history_[name]).tolist() for name in changed}
    n_bytes = 8 * 4
    # The clients a and b hold w_t, since they have trained it. There are 7 subsets.
    assert by["models_down"] == [14, 14] and by["bytes_down"] == [14 * n_bytes] * 2
    assert by["scalars_up"] == [16, 16] and by["bytes_up"] == [128, 128]
    assert by["samples_evaluated"] == [8 * 32] * 2
    assert model.history_["n_polled"].tolist() == plain.history_["n_polled"].tolist()


def test_a_priority_client_that_lacks_the_model_is_sent_it():
    given = {"priority": PRIORITY, "selector": Fixed([2], [1.0])}
    model = estimator(contribution=AllGains(), **given).fit(X, Y, clients=CLIENTS)
    plain = estimator(**given).fit(X, Y, clients=CLIENTS)
    assert model.history_["models_down"][0] - plain.history_["models_down"][0] == 2 * (1 + 1)


@pytest.mark.parametrize(
    "selector",
    [None, PowerOfChoice(3, 2, ignore_priority=True), RandomSelector(2, ignore_priority=True)],
)
@pytest.mark.parametrize("evaluate_on", ["priority", "validation"])
def test_the_model_is_that_of_a_fit_without(selector, evaluate_on):
    given = {"selector": selector, "priority": PRIORITY, "n_rounds": 4}
    validation = {"X_val": X_VAL, "y_val": Y_VAL}
    contribution = AllGains(evaluate_on=evaluate_on)
    model = estimator(contribution=contribution, **given).fit(X, Y, clients=CLIENTS, **validation)
    plain = estimator(**given).fit(X, Y, clients=CLIENTS, **validation)
    for name, w in plain.net_.module_.state_dict().items():
        assert torch.equal(model.net_.module_.state_dict()[name], w)
    costs = [*("models_down", "scalars_up", "bytes_down", "bytes_up", "samples_evaluated"), *TIMED]
    pd.testing.assert_frame_equal(
        model.history_.drop(columns=costs), plain.history_.drop(columns=costs)
    )
    if evaluate_on == "validation":
        assert (model.history_[costs[:5]] == plain.history_[costs[:5]]).all(axis=None)


def test_on_validation_rows_the_gain_is_that_of_their_loss():
    fit = {"X_val": X_VAL, "y_val": Y_VAL}
    (gains,) = gains_of(estimator(contribution=AllGains(evaluate_on="validation")), **fit)
    model = estimator().fit(X, Y, clients=CLIENTS, **fit)
    start = log_loss(Y_VAL, before(estimator()).predict_proba(X_VAL))
    np.testing.assert_allclose(gains[-1], start - model.history_["val_loss"][0], atol=1e-6)


def test_with_clients_val_rows_of_priority_clients_count():
    owners = np.where(np.arange(30) < 20, "a", "c")
    fit = {"X_val": X_VAL, "y_val": Y_VAL, "clients_val": owners}
    contribution = AllGains(evaluate_on="validation")
    (gains,) = gains_of(estimator(contribution=contribution, priority=PRIORITY), **fit)
    model = estimator(priority=PRIORITY)
    start = log_loss(Y_VAL[:20], before(model).predict_proba(X_VAL[:20]))
    model.set_params(availability=None).fit(X, Y, clients=CLIENTS)
    after = log_loss(Y_VAL[:20], model.predict_proba(X_VAL[:20]))
    np.testing.assert_allclose(gains[-1], start - after, atol=1e-6)


def test_accuracy_is_a_gain_too():
    (gains,) = gains_of(estimator(contribution=AllGains(metric="accuracy")))
    model = estimator()
    start = before(model).score(X, Y)
    model.set_params(availability=None).fit(X, Y, clients=CLIENTS)
    np.testing.assert_allclose(gains[-1], model.score(X, Y) - start, atol=1e-7)


def test_of_a_regressor_the_gain_is_of_the_squared_error():
    y = X @ [1.0, 2.0, 3.0]
    AllGains.found = []
    model = FederatedRegressor(
        selector=EVERYBODY, n_rounds=2, contribution=AllGains(), random_state=0
    ).fit(X, y, clients=CLIENTS)
    after = np.mean((y - model.predict(X)) ** 2)
    first, second = AllGains.found
    model.fit(X, y, clients=CLIENTS)
    assert first[-1] > 0 and second[-1] > 0
    start = model.set_params(n_rounds=1).fit(X, y, clients=CLIENTS)
    np.testing.assert_allclose(second[-1], np.mean((y - start.predict(X)) ** 2) - after, rtol=1e-4)


def test_a_priority_client_that_cannot_tell_its_losses_does_not_count():
    spoilt = np.where((CLIENTS == "b")[:, None], 3e38, X)
    given = {"estimator": net(Overflowing(3, 2)), "selector": Fixed([0, 2], [0.5, 0.5])}
    AllGains.found = []
    model = estimator(contribution=AllGains(), **given).fit(spoilt, Y, clients=CLIENTS)
    assert model.history_["failed"][0] == ("b",)
    assert "its loss of a subset's model is not finite" in model.history_["causes"][0][0]
    start, others = before(estimator(**given)), CLIENTS != "b"
    expected = objective(start, others) - objective(model, others)
    np.testing.assert_allclose(AllGains.found[0][-1], expected, atol=1e-6)


def test_a_valuation_that_fails_does_not_end_the_fit():
    spoilt = np.where((CLIENTS == "b")[:, None], 3e38, X)
    given = {"estimator": net(Overflowing(3, 2)), "selector": Fixed([0, 2], [0.5, 0.5])}
    model = estimator(contribution=AllGains(), on_client_error="raise", **given)
    model.fit(spoilt, Y, clients=CLIENTS)
    assert model.history_["failed"][0] == ("b",)


def test_a_client_of_which_no_row_counts_is_not_told_to_lower_its_rate():
    y = np.where(CLIENTS == "b", 2, Y)
    ignoring = net(nn.Linear(3, 3)).set_params(criterion__ignore_index=2)
    given = {"estimator": ignoring, "selector": Fixed([0, 2], [0.5, 0.5])}
    model = estimator(contribution=AllGains(), **given).fit(X.astype("float32"), y, clients=CLIENTS)
    assert "none of the rows that it was asked for counts" in model.history_["causes"][0][0]


def test_where_nobody_tells_losses_the_round_has_no_values(caplog):
    spoilt = np.where(np.isin(CLIENTS, PRIORITY)[:, None], 3e38, X)
    given = {"estimator": net(Overflowing(3, 2)), "selector": Fixed([2], [1.0])}
    model = estimator(priority=PRIORITY, contribution=AllGains(), **given)
    model.fit(spoilt, Y, clients=CLIENTS)
    assert "round 0 has no contributions" in caplog.text
    with pytest.raises(AttributeError, match="the log says why rounds have no"):
        _ = model.contributions_


class Away(BaseAvailability):
    """Priority clients cannot be reached in the first round."""

    def _reachable(self, federation, t, rng, fixed):
        return np.full(len(federation.ids), t > 0) | ~np.isin(federation.ids, PRIORITY)


def test_a_round_without_a_priority_client_in_reach_has_no_values(caplog):
    given = {"priority": PRIORITY, "n_rounds": 2, "availability": Away()}
    given |= {"devices": LognormalDevices()}
    model = estimator(contribution=AllGains(), **given)
    (gains,) = gains_of(model)
    assert len(gains) == 8
    assert round_contributions(model).index.tolist() == [1]
    assert "round 0 has no contributions: no priority client is in reach." in caplog.text
    assert "valuation" not in set(client_exchanges(model).query("round == 0")["kind"])


def test_nothing_is_valued_where_nothing_is_aggregated():
    model = estimator(contribution=AllGains(), availability=Silent(("a", "b", "c")))
    assert gains_of(model) == [] and not hasattr(model, "contributions_")


def test_devices_charge_seconds_and_the_cohorts_stay():
    given = {"devices": LognormalDevices(jitter=0.5), "n_rounds": 3, "selector": RandomSelector(2)}
    model = estimator(contribution=AllGains(), **given).fit(X, Y, clients=CLIENTS)
    plain = estimator(**given).fit(X, Y, clients=CLIENTS)
    assert model.history_["cohort"].tolist() == plain.history_["cohort"].tolist()
    assert (model.history_["seconds"] > plain.history_["seconds"]).all()
    kinds = client_exchanges(model)["kind"]
    assert (kinds == "valuation").sum() == 9


@pytest.mark.parametrize("evaluate_on", ["priority", "validation"])
def test_resumed_continued_and_with_jobs_contributions_are_the_same(tmp_path, evaluate_on):
    given = {"n_rounds": 4, "priority": PRIORITY, "contribution": AllGains(evaluate_on=evaluate_on)}
    fit = {"clients": CLIENTS, "X_val": X_VAL, "y_val": Y_VAL}
    whole = estimator(**given).fit(X, Y, **fit).contributions_
    jobs = estimator(n_jobs=2, **given).fit(X, Y, **fit)
    pd.testing.assert_frame_equal(jobs.contributions_, whole, check_exact=True)
    folder = str(tmp_path)
    more = estimator(**given | {"n_rounds": 2}, warm_start=True, checkpoint=folder).fit(X, Y, **fit)
    resumed = estimator(**given, warm_start=True, checkpoint=folder).fit(X, Y, **fit)
    continued = more.set_params(n_rounds=4).fit(X, Y, **fit)
    for model in (resumed, continued):
        pd.testing.assert_frame_equal(model.contributions_, whole, check_exact=True)
    file = tmp_path / "model.safetensors"
    continued.save(file)
    loaded = estimator(**given).load(file)
    pd.testing.assert_frame_equal(loaded.contributions_, whole, check_exact=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"update_privacy": GaussianMechanism(1.0, 1.0)}, "update_privacy"),
        ({"loss_privacy": GaussianMechanism(1.0, 1.0)}, "loss_privacy"),
        ({"selector": OptimalSelector(2)}, "upload"),
        ({"contribution": AllGains(evaluate_on="validation")}, "X_val and y_val"),
        ({"contribution": AllGains(every=0)}, "'every' parameter of AllGains"),
        ({"contribution": "banzhaf"}, "'contribution' parameter of FederatedClassifier"),
    ],
)
def test_what_cannot_be_valued_is_refused_by_name(given, words):
    model = estimator(**{"contribution": AllGains(), **given})
    with pytest.raises(ValueError, match=words):
        model.fit(X, Y, clients=CLIENTS)


def test_a_regressor_has_no_accuracy_and_partial_fit_no_validation_rows():
    model = FederatedRegressor(contribution=AllGains(metric="accuracy"))
    with pytest.raises(ValueError, match="contribution__metric='accuracy'"):
        model.fit(X, Y, clients=CLIENTS)
    model = estimator(contribution=AllGains(evaluate_on="validation"))
    with pytest.raises(ValueError, match="partial_fit"):
        model.partial_fit(X, Y, classes=[0, 1], clients=CLIENTS)


def test_partial_fit_goes_on_and_a_fit_begins_anew():
    model = estimator(contribution=AllGains())
    model.partial_fit(X, Y, classes=[0, 1], clients=CLIENTS).partial_fit(X, Y, clients=CLIENTS)
    assert round_contributions(model).index.tolist() == [0, 1]
    model.set_params(contribution=None).fit(X, Y, clients=CLIENTS)
    assert not hasattr(model, "contributions_")


def test_stacked_clients_give_the_values_of_the_loop():
    given = {"n_rounds": 3, "priority": PRIORITY, "contribution": AllGains()}
    one, other = (
        estimator(engine=engine, **given).fit(X, Y, clients=CLIENTS).contributions_
        for engine in ("loop", "stacked")
    )
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_ids_that_are_equal_but_for_their_type():
    """True, 1.0 and 1, in this order, have each what a client of another name has."""
    rng = np.random.default_rng(0)
    X, places = rng.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 3
    y = (X[:, 0] > 0).astype(int)
    own = RandomSelector(1.0, probability="uniform", replace=False)
    net = NeuralNetClassifier(nn.Linear(3, 2), criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=-1)
    tables = []
    for ids in ([True, 1.0, 1], ["a", "b", "c"]):
        model = FederatedClassifier(
            net, selector=own, contribution=LeaveOneOut(), n_rounds=2, random_state=0
        )
        clients = np.array(ids, dtype=object)[places]
        model.fit(X, y, clients=clients)
        per_round = round_contributions(model)
        np.testing.assert_allclose(per_round.sum(), model.contributions_["value"])
        tables.append(per_round.to_numpy())
    assert len(np.unique(tables[0][0])) == 3
    np.testing.assert_allclose(*tables, rtol=1e-3)
