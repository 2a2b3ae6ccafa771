"""Bars of clients over several models have error bars of one standard deviation."""

import numpy as np
import pandas as pd
import pytest

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.container import BarContainer, ErrorbarContainer  # noqa: E402

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector  # noqa: E402
from skfed.inspection import ClientsDisplay  # noqa: E402
from skfed.metrics import client_scores  # noqa: E402


def bars(display):
    """Return the heights of bars by their places, from left to right."""
    drawn = [bar for group in display.ax_.containers if isinstance(group, BarContainer)
             for bar in group]  # fmt: skip
    return [bar.get_height() for bar in sorted(drawn, key=lambda bar: bar.get_x())]


def errors(display):
    """Return place and ends of each error bar that is drawn, and the number of lines of caps."""
    groups = [one for one in display.ax_.containers if isinstance(one, ErrorbarContainer)]
    if not groups:
        return None
    [(_, caps, (lines,))] = groups
    ends = [[*segment[0], segment[1][1]] for segment in lines.get_segments() if len(segment)]
    return ends, len(caps)


def test_the_error_bars_are_those_by_hand(check_texts):
    table = pd.DataFrame({"accuracy": [0.5, 0.75, np.nan]}, index=["b", "a", "none"])
    display = ClientsDisplay(
        table, np.array([True, False, False]), "accuracy", spread=np.array([0.25, 0.125, np.nan])
    ).plot()
    assert bars(display)[:2] == [0.5, 0.75] and np.isnan(bars(display)[2])
    ends, n_caps = errors(display)
    assert ends == [[0, 0.25, 0.75], [1, 0.625, 0.875]]
    assert n_caps == 2  # lower and upper ones
    texts = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert texts == ["priority", "free"]
    check_texts(display)


@pytest.fixture(scope="module")
def fits(data):
    X, y, clients = data
    return [
        FederatedClassifier(
            selector=RandomSelector(2, ignore_priority=True), priority=["user 5"], n_rounds=3,
            engine="loop", random_state=seed,
        ).fit(X, y, clients=clients)
        for seed in range(3)
    ]  # fmt: skip


def test_a_list_of_models_is_drawn_as_mean_and_deviation(data, fits, check_texts):
    display = ClientsDisplay.from_estimator(fits, *data)
    single = pd.DataFrame([client_scores(model, *data)["accuracy"] for model in fits])
    order = ["user 5", *sorted({*data[2]} - {"user 5"})]
    mean, deviation = single.mean()[order], single.std(ddof=1)[order]
    assert (deviation > 0).any()
    assert display.table.columns.tolist() == ["accuracy"]
    np.testing.assert_allclose(display.table["accuracy"], mean)
    np.testing.assert_allclose(bars(display), mean)
    ends, _ = errors(display)
    np.testing.assert_allclose(ends, np.c_[np.arange(12), mean - deviation, mean + deviation])
    assert display.ax_.get_ylabel() == "accuracy\nmean ± standard deviation of 3 fits"
    assert display.ax_.get_xticklabels()[0].get_text() == "user 5*"
    check_texts(display)


def test_one_model_has_no_error_bars(data, fits):
    single = ClientsDisplay.from_estimator(fits[0], *data)
    for given in (fits[:1], tuple(fits[:1])):
        display = ClientsDisplay.from_estimator(given, *data)
        assert errors(display) is None and errors(single) is None
        assert bars(display) == bars(single)
        assert display.ax_.get_ylabel() == single.ax_.get_ylabel() == "accuracy"


def test_many_clients_have_error_bars_without_caps(data, check_texts):
    X, _, _ = data
    clients, target = np.arange(600) % 30, X[:, 0]
    fits = [
        FederatedRegressor(
            selector=RandomSelector(2), n_rounds=2, engine="loop", random_state=seed
        ).fit(X, target, clients=clients)
        for seed in range(2)
    ]
    display = ClientsDisplay.from_estimator(fits, X, target, clients)
    ends, n_caps = errors(display)
    scores = client_scores(fits, X, target, clients)
    np.testing.assert_allclose([high - low for _, low, high in ends], 2 * scores["r2_std"])
    assert n_caps == 0
    assert display.ax_.get_ylabel() == "R²\nmean ± standard deviation of 2 fits"
    check_texts(display)


def test_models_that_differ_are_an_error(data, fits):
    X, y, clients = data
    other = FederatedClassifier(n_rounds=1, engine="loop").fit(X, y, clients=y)
    with pytest.raises(ValueError, match=r"model\[0\] has the client 'user 0', which model\[1\]"):
        ClientsDisplay.from_estimator([fits[0], other], X, y, clients)
