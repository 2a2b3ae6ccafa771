"""Several fits of a name: their mean, their deviation, and fits of other lengths."""

import numpy as np
import pandas as pd
import pytest
from torch import nn

from skfed import FederatedClassifier, RandomSelector
from skfed.inspection import ConvergenceDisplay


def table(xs, ys):
    return pd.DataFrame({"x": xs, "y": ys})


def drawn(fits, **options):
    return ConvergenceDisplay({"it": fits}, **options).plot()


def edges(band):
    """Return the lower and the upper edge of a band, by x."""
    corners = pd.DataFrame(band.get_paths()[0].vertices, columns=["x", "y"])
    return corners.groupby("x")["y"].agg(["min", "max"])


def test_the_mean_and_the_band_are_those_by_hand(check_texts):
    display = drawn([table([1, 2], [1.0, 4.0]), table([1, 2], [3.0, 4.0]), table([1, 2], [5, 7])])
    [line] = display.lines_
    assert line.get_xydata().tolist() == [[1, 3], [2, 5]]
    # Sample deviations: the root of (4 + 0 + 4) / 2, and of (1 + 1 + 4) / 2.
    band = edges(display.bands_["it"])
    assert band.loc[1].tolist() == pytest.approx([3 - 2, 3 + 2])
    assert band.loc[2].tolist() == pytest.approx([5 - 3**0.5, 5 + 3**0.5])
    assert display.ax_.get_ylabel() == "objective F(w)\nmean ± standard deviation of 3 fits"
    check_texts(display)


def test_one_fit_is_a_line_without_a_band():
    for fits in ([table([1, 2], [1.0, 4.0])], table([1, 2], [1.0, 4.0])):
        display = drawn(fits)
        assert display.lines_[0].get_xydata().tolist() == [[1, 1], [2, 4]]
        assert not display.bands_ and display.ax_.get_ylabel() == "objective F(w)"


def test_at_other_costs_each_fit_counts_with_its_line_there():
    """By bytes the second fit is at 3 halfway between its rounds, with the value 2."""
    display = drawn([table([1.0, 3.0], [0.0, 4.0]), table([2.0, 4.0], [1.0, 3.0])], x="bytes")
    assert display.lines_[0].get_xydata().tolist() == [[2, (2 + 1) / 2], [3, (4 + 2) / 2]]


def test_the_mean_ends_with_the_shortest_fit_and_the_rest_is_thin():
    long, short = table([1, 2, 3, 4], [1.0, 2.0, 3.0, 5.0]), table([1, 2], [3.0, 4.0])
    display = drawn([long, short])
    assert display.lines_[0].get_xydata().tolist() == [[1, 2], [2, 3]]
    [rest] = [line for line in display.ax_.lines if line not in display.lines_]
    assert rest.get_xydata().tolist() == [[2, 2], [3, 3], [4, 5]]
    assert rest.get_linewidth() < display.lines_[0].get_linewidth()
    assert rest.get_color() == display.lines_[0].get_color()


def test_each_fit_is_smoothed_before_the_mean(check_texts):
    fits = [table([1, 2, 3], [0.0, 4.0, 2.0]), table([1, 2, 3], [2.0, 2.0, 2.0])]
    display = drawn(fits, smooth=2)
    assert display.lines_[0].get_ydata().tolist() == [(0 + 2) / 2, (2 + 2) / 2, (3 + 2) / 2]
    band = edges(display.bands_["it"])
    assert band.loc[1].tolist() == pytest.approx([1 - 2**0.5, 1 + 2**0.5])  # of 0 and 2
    assert fits[0]["y"].tolist() == [0, 4, 2]
    assert display.ax_.get_ylabel().startswith("objective F(w) (mean of 2 rounds)\nmean ±")
    check_texts(display)


def test_fits_without_a_common_x_are_an_error():
    with pytest.raises(ValueError, match=r"'it' have no x in common.*at 1 to 2, 5 to 6\. Draw"):
        drawn([table([1, 2], [1.0, 4.0]), table([5, 6], [1.0, 4.0])], x="bytes")


@pytest.mark.parametrize("smooth", [0, 1.5, True, None, "10"], ids=repr)
def test_the_width_of_a_running_mean_is_a_positive_integer(smooth):
    with pytest.raises(ValueError, match="pass the number of rounds of the running mean"):
        drawn([table([1, 2], [1.0, 4.0])], smooth=smooth)


@pytest.fixture(scope="module")
def fits(data):
    X, y, clients = data

    def fit(seed, n_rounds=6):
        selector = RandomSelector(3, "uniform", replace=False)  # so that all rounds cost the same
        module = nn.Linear(X.shape[1], len(set(y.tolist())))  # all of it travels in each round
        model = FederatedClassifier(
            module, selector=selector, n_rounds=n_rounds, engine="loop", random_state=seed
        )
        model.fit(X, y, clients=clients, X_val=X, y_val=y)
        # Measured seconds differ from fit to fit, so that two fits may have none in common.
        model.history_ = model.history_.assign(round_seconds=0.5)
        return model

    return [fit(0), fit(1), fit(2, n_rounds=4)]


@pytest.mark.parametrize("x", ["round", "bytes", "seconds"])
def test_lists_of_models_are_averaged(fits, x, check_texts):
    display = ConvergenceDisplay.from_estimators({"two": fits[:2], "one": fits[2]}, x=x)
    mean, alone = display.lines_
    assert [*display.bands_] == ["two"]
    np.testing.assert_array_equal(alone.get_ydata(), fits[2].history_["val_score"])
    # Both fits cost the same in each round: three models down and three up, and half a second.
    scores = [model.history_["val_score"] for model in fits[:2]]
    np.testing.assert_allclose(mean.get_ydata(), np.mean(scores, axis=0))
    band = edges(display.bands_["two"])
    np.testing.assert_allclose(band["max"] - band["min"], 2 * np.std(scores, axis=0, ddof=1))
    check_texts(display)


def test_models_of_other_numbers_of_rounds(fits):
    display = ConvergenceDisplay.from_estimators({"it": tuple(fits)}, y="train_loss", smooth=3)
    [line] = display.lines_
    assert line.get_xdata().tolist() == [1, 2, 3, 4]
    losses = [model.history_["train_loss"] for model in fits]
    assert line.get_ydata()[3] == pytest.approx(np.mean([loss[1:4].mean() for loss in losses]))
    assert len(display.ax_.lines) == 3  # the mean, and the rest of two


def test_bad_lists_of_models_are_errors(data, fits):
    X, y, clients = data
    blind = FederatedClassifier(n_rounds=1, engine="loop").fit(X, y, clients=clients)
    with pytest.raises(ValueError, match=r"estimators\['it'\] is empty: pass at least one"):
        ConvergenceDisplay.from_estimators({"it": []})
    with pytest.raises(ValueError, match=r"y='val_score' is not in the history_ of 'it'\[1\]"):
        ConvergenceDisplay.from_estimators({"it": [fits[0], blind]}, y="val_score")
    with pytest.raises(ValueError, match=r"which 'it'\[0\] has none of: fit it with devices"):
        ConvergenceDisplay.from_estimators({"it": fits}, x="elapsed")
    with pytest.raises(TypeError, match="has no federated step"):
        ConvergenceDisplay.from_estimators({"it": [fits[0], "model"]})
