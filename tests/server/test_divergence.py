"""A fit that diverges, or whose rounds come to nothing, is told of, and keeps a model of use."""

import re
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetRegressor
from torch import nn

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed._problem import Regression
from skfed.aggregation import ServerOptimizer
from skfed.callbacks import RoundCallback
from skfed.server._divergence import divergence_warning

ALL = RandomSelector(clients_per_round=1.0, probability="uniform", replace=False)


@pytest.fixture(scope="module")
def unscaled():
    """Five features, one of them times 30, over four clients: X, y, clients."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5)) * [1, 1, 30, 1, 1]
    y = X @ [1, 2, 0.1, -1, 0.5] + rng.normal(size=400)
    return X, y, np.repeat(list("abcd"), 100)


def regressor(**params):
    net = NeuralNetRegressor(nn.Linear, module__in_features=5, module__out_features=1, lr=0.01)
    return FederatedRegressor(net, **{"selector": ALL, "n_rounds": 25, "random_state": 0} | params)


def loss_of(model, X, y):
    """Return the loss as the net computes it, in float32."""
    return np.square(model.predict(X).astype(np.float32) - y.astype(np.float32)).mean()


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_divergence_warns_and_keeps_the_model_of_the_lowest_loss(unscaled, engine):
    X, y, clients = unscaled
    with pytest.warns(ConvergenceWarning) as told:
        model = regressor(engine=engine).fit(X, y, clients=clients, X_val=X, y_val=y)
    assert len(told) == 1
    assert told[0].filename == __file__
    losses = model.history_["train_loss"].dropna()
    last = losses.index[-1]
    assert 3 < last < 24
    text = str(told[0].message)
    assert f"train_loss was {losses[0]:.4g} in round 0" in text
    assert f"{losses[last]:.4g} in round {last}" in text
    assert f"from round {last + 1} to 24 no client succeeded" in text
    assert text.count("try lr_schedule=0.001") == 1
    assert re.search(r"The loss of client '[a-d]' grew first, in round 1", text)
    for way_out in ("skfed.modules.Standardize", "standardize_targets=True", "lower the learning"):
        assert way_out in text
    assert "StandardScaler)" not in text  # which would be fitted on the rows of all
    # What the last round with updates led to had an infinite loss, which the next one showed.
    assert np.isinf(model.history_["val_loss"].iloc[-1])
    # The first model had the lowest loss: no round has lowered it.
    assert losses.idxmin() == 0
    assert f"The model before round 0 is kept, whose training loss was {losses[0]:.4g}." in text
    start = regressor(engine=engine, n_rounds=1, lr_schedule=0.0).fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.predict(X), start.predict(X))


def test_divergence_that_is_still_finite_warns(unscaled):
    X, y, clients = unscaled
    with pytest.warns(
        ConvergenceWarning, match=r"in round 0, 1000 times that.*in round 4\. The loss of"
    ):
        model = regressor(n_rounds=5).fit(X, y, clients=clients)
    assert (model.history_["n_aggregated"] == 4).all()


def test_a_fit_that_diverges_is_not_told_of_eps_too(unscaled):
    """No loss is near another then; a larger eps would not help."""
    X, y, clients = unscaled
    with pytest.warns(ConvergenceWarning) as told:
        regressor(selector=None, priority=["a"]).fit(X, y, clients=clients)
    assert len(told) == 1


def test_scaled_features_do_not_warn(unscaled):
    X, y, clients = unscaled
    regressor().fit(X / X.std(axis=0), y, clients=clients)


def test_outputs_that_are_not_finite_have_no_r2():
    target = np.zeros((2, 1), np.float32)
    score = Regression(()).score
    assert np.isnan(score(np.array([[np.inf], [0]], np.float32), target))
    # Nor do large ones overflow: the sum of squares is 2e60.
    assert score(np.array([[1e30], [-1e30]], np.float32), np.array([[1.0], [-1.0]])) == (
        pytest.approx(-1e60, rel=1e-5)
    )


def test_partial_fit_warns_of_divergence_once(unscaled):
    X, y, clients = unscaled
    model = regressor(n_rounds=100)
    with pytest.warns(ConvergenceWarning) as told:
        for _ in range(6):
            model.partial_fit(X, y, clients=clients)
    assert len(told) == 1


class Interrupt(RoundCallback):
    """Raises after a round."""

    def __init__(self, t):
        self.t = t

    def on_round_end(self, estimator, record):
        if record["round"] == self.t:
            raise KeyboardInterrupt


@pytest.mark.parametrize("t", [1, 14, 15, 18])  # before and after the last with a finite loss
def test_a_diverged_fit_goes_on_from_its_checkpoint_to_the_same_model(unscaled, tmp_path, t):
    X, y, clients = unscaled
    with pytest.warns(ConvergenceWarning) as told:
        whole = regressor(n_rounds=20).fit(X, y, clients=clients)
    resumed = regressor(n_rounds=20, checkpoint=tmp_path).set_callbacks(Interrupt(t))
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="interrupted"):
        resumed.fit(X, y, clients=clients)
    with pytest.warns(ConvergenceWarning, match="diverged") as told_again:
        model = regressor(n_rounds=20, checkpoint=tmp_path).fit(X, y, clients=clients)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    assert str(told[0].message) == str(told_again[0].message)


def test_a_fit_that_has_diverged_goes_on_from_the_model_that_is_kept(unscaled, tmp_path):
    """Also from its checkpoint."""
    X, y, clients = unscaled
    params = {"warm_start": True, "checkpoint": tmp_path}
    with pytest.warns(ConvergenceWarning):
        model = regressor(n_rounds=20, **params).fit(X, y, clients=clients)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        again = regressor(n_rounds=20, **params).fit(X, y, clients=clients)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


class Worn(nn.Linear):
    """Fails as soon as it has learned anything."""

    def __init__(self):
        super().__init__(5, 3)
        nn.init.zeros_(self.weight)

    def forward(self, X):
        if self.weight.any():
            raise RuntimeError("worn out")
        return super().forward(X)


def test_rounds_in_which_every_client_fails_are_told_in_the_end(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(
        Worn, selector=ALL, n_rounds=4, local_steps=1, engine="loop", random_state=0
    )
    with pytest.warns(ConvergenceWarning) as told:
        model.fit(X, y, clients=clients)
    assert [str(w.message) for w in told] == [
        "from round 1 to 3 no client succeeded, so the model did not move: RuntimeError: worn out."
    ]
    assert model.net_.module_.weight.any()


def test_an_aggregate_that_is_not_finite_is_not_taken(blobs, same_model):
    """In round 0 clients do not move, later the server's step is beyond all numbers."""
    X, y, clients = blobs
    model = FederatedClassifier(
        selector=ALL,
        server_optimizer=ServerOptimizer(torch.optim.SGD, lr=3e38),
        lr_schedule=lambda t: 0.0 if t == 0 else 100.0,
        n_rounds=4,
        random_state=0,
    )
    with pytest.warns(ConvergenceWarning, match="from round 1 to 3 no aggregate was finite.*lower"):
        model.fit(X, y, clients=clients)
    assert model.history_["n_aggregated"].tolist() == [6, 0, 0, 0]
    assert not model.net_.module_.linear.weight.any()


def row(t, loss, n_aggregated=2, causes=(), **more):
    told = {"round": t, "train_loss": loss, "objective": np.nan, "models_down": 2}
    return told | {"n_aggregated": n_aggregated, "causes": causes} | more


def told(losses, noisy=False, **more):
    return divergence_warning([row(t, loss, **more) for t, loss in enumerate(losses)], 9, {}, noisy)


def test_a_rise_is_no_divergence():
    assert told([0.7, 700.0, 700.0, 700.0])
    assert told([0.7, 70.0, 690.0, 690.0]) is None  # power-of-choice may go after the worst
    assert told([0.7, 7e4, 7e4, 0.7]) is None  # another cohort
    assert told([0.7, np.nan, 7e4, np.nan]) is not None
    assert told([1e-9, 1e-3, 1e-2, 1e-1]) is None  # small in any case
    assert told([1e-9, 10.0]) is not None
    assert told([0.7]) is None
    assert told([]) is None
    assert told([-5.0, 0.5, 2.0, 5.0]) is None  # of noise
    assert told([0.7, 7e4, 7e4, 7e4], noisy=True) is None


def test_the_objective_and_the_validation_loss_count_too():
    assert "objective was 1 in" in divergence_warning(
        [row(t, 1.0, objective=10.0 ** (4 * t)) for t in range(4)], 9, {}, False
    )
    assert "val_loss was 1 in round 0, 1000 times that or more in round 1" in divergence_warning(
        [row(0, 1.0, val_loss=1.0), row(1, 1.0, val_loss=np.inf)], 9, {}, False
    )


def test_some_failing_cohorts_are_no_failing_fit():
    failing = {"n_aggregated": 0, "causes": ("ValueError: x",)}
    well, bad = row(0, 0.7), row(0, np.nan, **failing)
    silent = row(0, np.nan, n_aggregated=0, causes=("no answer",))
    nobody = row(0, np.nan, n_aggregated=0, models_down=0)
    say = lambda *rows: divergence_warning(rows, 9, {}, False)  # noqa: E731
    assert say(well, bad, bad) is None  # a cohort each, of nine clients
    assert say(well, bad, bad, bad)
    assert say(well, bad, nobody, bad, bad, nobody)
    assert say(bad, bad, bad, well) is None
    few = row(0, 0.7, **failing)  # min_clients kept the model
    assert say(well, few, few, few) is None
    assert say(well, silent, silent, silent) is None
    assert say(well, row(0, np.nan, n_aggregated=0, causes=("ValueError: x",) * 9))
