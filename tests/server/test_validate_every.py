"""Validation after every n-th round and the last."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.inspection import ConvergenceDisplay
from skfed.metrics import usefulness

ALL_CLIENTS = RandomSelector(1.0, probability="uniform", replace=False)


def fit(blobs, regress=False, **params):
    X, y, clients = blobs
    model = FederatedRegressor if regress else FederatedClassifier
    model = model(**{"selector": ALL_CLIENTS, "n_rounds": 7, "random_state": 0} | params)
    return model.fit(X, y, clients=clients, X_val=X, y_val=y)


def validated_rounds(model):
    return model.history_["round"][model.history_["val_score"].notna()].tolist()


@pytest.mark.parametrize("regress", [False, True])
def test_validate_every_n_rounds_and_the_last(blobs, regress, monkeypatch):
    from skfed.server import _validation

    real, calls = _validation.evaluate, []
    whole = fit(blobs, regress)
    monkeypatch.setattr(_validation, "evaluate", lambda *given: calls.append(1) or real(*given))
    model = fit(blobs, regress, validate_every=3)
    assert validated_rounds(model) == [2, 5, 6]
    assert len(calls) == 3
    columns = ["val_loss", "val_score"]
    assert [*model.history_.columns] == [*whole.history_.columns]
    pd.testing.assert_frame_equal(
        model.history_.loc[[2, 5, 6], columns], whole.history_.loc[[2, 5, 6], columns]
    )
    assert model.history_.loc[[0, 1, 3, 4], columns].isna().all(axis=None)
    assert validated_rounds(fit(blobs, regress, validate_every=100)) == [6]


def test_the_model_does_not_depend_on_validate_every(blobs, same_model):
    assert same_model(fit(blobs), fit(blobs, validate_every=4))


class Stopper:
    """A callback for scikit-learn that stops after some rounds."""

    def __init__(self, n_rounds):
        self.n_left = n_rounds

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context, *, X=None): ...

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        self.n_left -= context.task_name == "round"
        return self.n_left == 0


def test_the_round_in_which_a_callback_stops_is_validated(blobs, tmp_path):
    X, y, clients = blobs
    model = FederatedClassifier(
        selector=ALL_CLIENTS, n_rounds=9, validate_every=3, random_state=0, checkpoint=tmp_path
    )
    model.set_callbacks(Stopper(4)).fit(X, y, clients=clients, X_val=X, y_val=y)
    assert validated_rounds(model) == [2, 3]
    assert model.history_["val_score"].iloc[-1] == pytest.approx(model.score(X, y))
    resumed = clone(model).set_callbacks().fit(X, y, clients=clients, X_val=X, y_val=y)
    assert resumed.n_rounds_ == 4  # from the checkpoint
    pd.testing.assert_frame_equal(resumed.history_, model.history_)


def test_a_warm_start_validates_the_last_round_of_each_fit(blobs):
    X, y, clients = blobs
    model = FederatedClassifier(n_rounds=3, validate_every=2, warm_start=True, random_state=0)
    for n_rounds in (3, 6):
        model.set_params(n_rounds=n_rounds)
        model.fit(X, y, clients=clients, X_val=X, y_val=y)
    assert validated_rounds(model) == [1, 2, 3, 5]


def test_a_resumed_fit_validates_the_same_rounds(blobs, tmp_path):
    class Killed(RandomSelector):
        fails_in = 4

        def _select(self, round):
            if type(self).fails_in == round.index:
                type(self).fails_in = None
                raise RuntimeError("killed")
            return super()._select(round)

    params = {"selector": Killed(3), "validate_every": 3, "checkpoint": tmp_path}
    with pytest.raises(RuntimeError, match="killed"):
        fit(blobs, **params)
    resumed, whole = fit(blobs, **params), fit(blobs, **params | {"checkpoint": None})
    assert validated_rounds(resumed) == validated_rounds(whole) == [2, 5, 6]
    np.testing.assert_array_equal(resumed.history_["val_loss"], whole.history_["val_loss"])
    other = fit(blobs, **params | {"validate_every": 2})  # another run
    assert validated_rounds(other) == [1, 3, 5, 6]


def test_a_display_skips_rounds_without_validation(blobs):
    model = fit(blobs, validate_every=3)
    [line] = ConvergenceDisplay.from_estimator(model).lines_
    assert line.get_xdata().tolist() == [3, 6, 7]
    np.testing.assert_array_equal(line.get_ydata(), model.history_["val_score"].dropna())


def test_usefulness_validates_local_models_in_each_round(blobs):
    X, y, clients = blobs
    every, some = (fit(blobs, validate_every=n, lr_schedule=30.0) for n in (1, 7))
    # At this rate, and with these labels, the best round of a client is not its last.
    test = X, np.random.default_rng(0).permutation(y), clients
    tables = [usefulness(model, X, y, clients, *test) for model in (every, some)]
    pd.testing.assert_frame_equal(*tables)


def test_the_bar_shows_the_last_score(blobs, capsys):
    fit(blobs, validate_every=3, verbose=1)
    assert "val score=nan" not in capsys.readouterr().err


@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_validate_every_is_a_positive_int(blobs, value):
    with pytest.raises(ValueError, match="validate_every"):
        fit(blobs, validate_every=value)


def test_batches_have_the_rows_that_fit_where_the_loss_is_a_mean_over_rows(blobs, monkeypatch):
    """With the loop engine they are the net's, of 16 rows; values differ by rounding alone."""
    from skfed.nets import _evaluate

    real, n_batches = _evaluate.to_tensors, []
    monkeypatch.setattr(_evaluate, "to_tensors", lambda *a: n_batches.append(1) or real(*a))
    histories = []
    for engine, expected in (("loop", -(-len(blobs[1]) // 16)), ("stacked", 1)):
        n_batches.clear()
        model = fit(blobs, validate_every=7, engine=engine, selector=RandomSelector(1))
        assert len(n_batches) == expected
        histories.append(model.history_[["val_loss", "val_score"]])
    pd.testing.assert_frame_equal(*histories, rtol=1e-5)
