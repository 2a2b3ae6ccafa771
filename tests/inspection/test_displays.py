"""Each display shows its data; no texts overlap or are clipped."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

from skfed import (  # noqa: E402
    FedAlignSelector,
    FederatedClassifier,
    FederatedRegressor,
    PowerOfChoice,
    RandomSelector,
)
from skfed.devices import ConstantDevices  # noqa: E402
from skfed.inspection import (  # noqa: E402
    STYLE,
    ClientsDisplay,
    ConvergenceDisplay,
    SelectionDisplay,
)
from skfed.metrics import client_scores  # noqa: E402


@pytest.fixture(scope="module")
def model(data):
    X, y, clients = data
    return FederatedClassifier(
        selector=FedAlignSelector(eps=0.3), priority=["user 3", "user 5"], n_rounds=20,
        random_state=0,
    ).fit(X, y, clients=clients, X_val=X, y_val=y)  # fmt: skip


@pytest.fixture(scope="module")
def others(data):
    X, y, clients = data
    selectors = {
        "random": RandomSelector(3),
        "power of choice, with a name that is long enough to need some room": PowerOfChoice(6, 3),
    }
    return {
        name: FederatedClassifier(selector=selector, n_rounds=15, random_state=0).fit(
            X, y, clients=clients, X_val=X, y_val=y
        )
        for name, selector in selectors.items()
    }


def test_curves_by_round(model, check_texts):
    display = ConvergenceDisplay.from_estimator(model)
    [line] = display.lines_
    np.testing.assert_array_equal(line.get_ydata(), model.history_["val_score"])
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 21))
    [warmup] = [w for w in display.ax_.lines if w.get_label() == "end of the warm-up"]
    assert warmup.get_xdata()[0] == 2  # 0.1 of 20 rounds
    check_texts(display)


@pytest.mark.parametrize("x", ["round", "bytes", "seconds"])
def test_several_models_by_what_they_cost(others, x, check_texts):
    display = ConvergenceDisplay.from_estimators(others, x=x, y="train_loss")
    assert len(display.lines_) == 2
    sent = others["random"].history_
    if x == "bytes":
        total = (sent["bytes_down"] + sent["bytes_up"]).sum() / 1e6
        assert display.lines_[0].get_xdata()[-1] == pytest.approx(total)
    check_texts(display)


def test_curves_by_simulated_seconds(data, others):
    X, y, clients = data
    timed = clone(others["random"]).set_params(devices=ConstantDevices(50, 1e3, 1e3), n_rounds=3)
    timed.fit(X, y, clients=clients)
    display = ConvergenceDisplay.from_estimator(timed, x="elapsed")
    assert display.lines_[0].get_xdata().tolist() == timed.history_["elapsed"].tolist()
    assert display.ax_.get_xlabel() == "simulated seconds"
    with pytest.raises(ValueError, match="x='elapsed' is .* time, which 'random' has none"):
        ConvergenceDisplay.from_estimators({"timed": timed, **others}, x="elapsed")
    measured = clone(others["random"]).fit(X, y, clients=clients)
    measured.history_ = measured.history_.assign(elapsed=1.0)  # as over Flower, without devices
    display = ConvergenceDisplay.from_estimator(measured, x="elapsed")
    assert display.ax_.get_xlabel() == "measured seconds"
    both = {"timed": timed, "measured": measured}
    display = ConvergenceDisplay.from_estimators(both, x="elapsed")
    assert display.ax_.get_xlabel() == "seconds, simulated or measured"


def test_the_objective_where_it_was_polled(model):
    display = ConvergenceDisplay.from_estimator(model, y="objective")
    assert len(display.lines_[0].get_ydata()) == 18  # nobody is polled in the warm-up
    assert display.ax_.get_ylabel() == "objective F(w)"


def test_errors_of_missing_columns(data):
    X, _, clients = data
    model = FederatedRegressor(n_rounds=2).fit(X, X[:, 0], clients=clients)
    assert ConvergenceDisplay.from_estimator(model).y == "train_loss"
    with pytest.raises(ValueError, match=r"'val_score'.*takes X_val"):
        ConvergenceDisplay.from_estimator(model, y="val_score")
    with pytest.raises(ValueError, match=r"x must be one of"):
        ConvergenceDisplay.from_estimator(model, x="miles")
    with pytest.raises(ValueError, match=r"y=3 is not in the history_"):
        ConvergenceDisplay.from_estimator(model, y=3)
    with pytest.raises(TypeError, match=r"estimators must be a dict.*got \["):
        ConvergenceDisplay.from_estimators([model])
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_estimator(FederatedRegressor())


def test_each_warm_up_is_labelled(data, check_texts):
    X, y, clients = data
    early, late = FedAlignSelector(np.inf, warmup=2), FedAlignSelector(np.inf, warmup=4)
    selectors = {
        "early": early,
        "late": late,
        "late too": late,
        "none": RandomSelector(2, ignore_priority=True),
    }
    models = {
        name: FederatedClassifier(
            selector=selector, priority=["user 1"], n_rounds=8, engine="loop", random_state=0
        ).fit(X, y, clients=clients)
        for name, selector in selectors.items()
    }
    display = ConvergenceDisplay.from_estimators(models)
    ends = {
        line.get_label(): line.get_xdata()[0]
        for line in display.ax_.lines
        if line not in display.lines_
    }
    assert ends == {"warm-up ends: early": 2, "warm-up ends: late, late too": 4}
    check_texts(display)


def test_a_warm_up_of_all_models_is_not_named_by_each(model):
    display = ConvergenceDisplay.from_estimators({"one": model, "other": [model, model]})
    [line] = [line for line in display.ax_.lines if line not in display.lines_]
    assert (line.get_label(), line.get_xdata()[0]) == ("end of the warm-up", 2)


def test_the_warm_up_of_the_default_selector_is_shown(data):
    X, y, clients = data
    model = FederatedClassifier(priority=["user 1"], n_rounds=10, engine="loop", random_state=0)
    for _ in range(2):  # so that it need not match anybody
        model.partial_fit(X, y, clients=clients)
    display = ConvergenceDisplay.from_estimator(model, y="n_aggregated")
    [line] = [line for line in display.ax_.lines if line not in display.lines_]
    assert line.get_xdata()[0] == 1


def test_frequencies_are_those_of_the_history(model, check_texts):
    display = SelectionDisplay.from_estimator(model)
    assert display.counts.to_numpy().sum() == model.history_["n_aggregated"].sum()
    assert (display.counts["user 3"] == 1).all()
    heights = [bar.get_height() for bar in display.ax_.patches]
    assert sum(heights) == pytest.approx(1)
    check_texts(display)


def test_the_raster_has_priority_clients_on_top(model, check_texts):
    display = SelectionDisplay.from_estimator(model, kind="rounds")
    [image] = display.ax_.images
    assert image.get_array().shape == (12, 20)
    assert image.get_array()[:2].all()
    check_texts(display)
    with pytest.raises(ValueError, match="kind must be"):
        SelectionDisplay.from_estimator(model, kind="pie")


def test_many_clients_are_counted_not_named(data, check_texts):
    X, y, _ = data
    many = np.arange(600) % 60
    model = FederatedClassifier(n_rounds=5, random_state=0).fit(X, y, clients=many)
    for kind in ("frequency", "rounds"):
        display = SelectionDisplay.from_estimator(model, kind=kind)
        labels = display.ax_.get_xlabel() + display.ax_.get_ylabel()
        assert "60 clients" in labels
        check_texts(display)


@pytest.mark.parametrize("kind", ["frequency", "rounds"])
@pytest.mark.parametrize("priority", [None, ["user 0"]])
def test_clients_of_an_earlier_partial_fit_are_shown_without_a_share(
    data, kind, priority, check_texts
):
    X, y, clients = data
    now = np.isin(clients, ["user 0", "user 1", "user 2"])
    model = FederatedClassifier(
        selector=RandomSelector(9, ignore_priority=True),
        priority=priority,
        engine="loop",
        random_state=0,
    ).partial_fit(X, y, clients=clients)
    earlier = {*model.history_["cohort"][0]} - {"user 0", "user 1", "user 2"}
    model.partial_fit(X[now], y[now], clients=clients[now])
    display = SelectionDisplay.from_estimator(model, kind=kind)
    assert set(display.counts) == earlier | {"user 0", "user 1", "user 2"}
    assert display.counts.to_numpy().sum() == model.history_["n_aggregated"].sum()
    assert (display.counts.iloc[1, 3:] == 0).all()
    shares = dict(zip(display.counts, display.shares, strict=True))
    assert {name for name, share in shares.items() if np.isnan(share)} == earlier
    assert np.nansum(display.shares) == pytest.approx(1)
    has_priority = [priority is None or name in priority for name in display.counts]
    assert display.priority.tolist() == has_priority
    check_texts(display)


def test_clients_of_ids_that_compare_equal_are_two():
    X, y, ids = np.eye(4), [0, 1, 0, 1], [1, 1.0, 1, 1.0]
    model = FederatedClassifier(
        selector=RandomSelector(1.0, "uniform", replace=False), engine="loop", n_rounds=2
    ).fit(X, y, clients=ids)
    assert SelectionDisplay.from_estimator(model).counts.to_numpy().tolist() == [[1, 1], [1, 1]]


def test_dollars_in_ids_and_names_are_no_formulas(data, check_texts):
    X, y, clients = data
    paid = np.char.add(clients, " $x^2$")
    model = FederatedClassifier(n_rounds=2, engine="loop", random_state=0)
    model.fit(X, y, clients=paid, X_val=X, y_val=y)
    for display in (
        SelectionDisplay.from_estimator(model),
        SelectionDisplay.from_estimator(model, kind="rounds"),
        ClientsDisplay.from_data(np.char.add("$", y.astype(str)), paid, priority=paid[:1]),
        ConvergenceDisplay.from_estimators({"5$ a day": model, "9$ a day": model}),
    ):
        texts = display.figure_.findobj(matplotlib.text.Text)
        texts = [text for text in texts if "$" in text.get_text()]
        assert texts and not any(text.get_parse_math() for text in texts)
        check_texts(display)


def test_labels_of_each_client(data, check_texts):
    _, y, clients = data
    display = ClientsDisplay.from_data(y, clients, priority=["user 5"])
    assert display.table.index[0] == "user 5"
    assert display.table.loc["user 5"].sum() == 50
    assert display.table.to_numpy().sum() == 600
    assert display.ax_.get_xticklabels()[0].get_text() == "user 5*"
    [image] = display.ax_.images
    counted = [np.sum((clients == "user 5") & (y == label)) for label in range(4)]
    assert image.get_array()[:, 0].tolist() == counted
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == ["0", "1", "2", "3"]
    check_texts(display)


def test_all_panels_have_the_clients_in_one_order(data, model):
    X, y, clients = data
    _, axes = plt.subplots(3, layout="constrained")
    rows = clients != "user 2"  # the numbers of rows differ between panels
    rows[:300] = True
    panels = [
        ClientsDisplay.from_data(y, clients, priority=["user 3", "user 5"], ax=axes[0]),
        ClientsDisplay.from_estimator(model, X, y, clients, ax=axes[1]),
        ClientsDisplay.from_estimator(model, X[rows], y[rows], clients[rows], ax=axes[2]),
    ]
    order = ["user 3", "user 5", *sorted({*clients} - {"user 3", "user 5"})]
    assert [[*panel.table.index] for panel in panels] == [order] * 3
    texts = [[label.get_text() for label in panel.ax_.get_xticklabels()] for panel in panels]
    assert texts == [["user 3*", "user 5*", *order[2:]]] * 3


def test_a_hundred_clients_are_a_heat_map(data, check_texts):
    _, y, _ = data
    clients = np.arange(600) % 100
    display = ClientsDisplay.from_data(y, clients, priority=[7, 9])
    [image] = display.ax_.images
    assert image.get_array().shape == (4, 100)
    assert [*display.table.index[:3]] == [7, 9, 0]
    assert display.ax_.get_xlabel() == "100 clients, the 2 with priority at the left"
    [line] = display.ax_.lines
    assert line.get_xdata()[0] == 1.5
    white, *_, dark = image.cmap(image.norm([0, display.table.to_numpy().max()]))
    assert white.tolist() == [1, 1, 1, 1] and dark[:3].sum() < 1
    check_texts(display)


def test_rows_of_one_label_are_bars(check_texts):
    display = ClientsDisplay.from_data(np.ones(6), [1, 1, 1, 2, 2, 3])
    assert [bar.get_height() for bar in display.ax_.patches] == [3, 2, 1]
    check_texts(display)


def test_the_raster_says_what_black_means(model):
    display = SelectionDisplay.from_estimator(model, kind="rounds")
    legend = display.ax_.get_legend()
    texts = [text.get_text() for text in legend.get_texts()]
    patch = legend.legend_handles[texts.index("in the cohort")]
    assert patch.get_facecolor() == (0, 0, 0, 1)
    assert display.ax_.get_xlim() == (0.5, 20.5)  # nothing but the rounds


def test_accuracy_of_each_client(data, model, check_texts):
    X, y, clients = data
    display = ClientsDisplay.from_estimator(model, X, y, clients)
    right = model.predict(X) == y
    assert display.table.loc["user 7", "accuracy"] == right[clients == "user 7"].mean()
    assert set(display.table.index[:2]) == {"user 3", "user 5"}
    check_texts(display)


def test_clients_without_priority(data, check_texts):
    _, y, clients = data
    check_texts(ClientsDisplay.from_data(y, clients))


DISPLAYS = [
    lambda model, *data: ConvergenceDisplay.from_estimator(model),
    lambda model, *data: ConvergenceDisplay.from_estimators({"it": model}),
    lambda model, *data: SelectionDisplay.from_estimator(model),
    lambda model, *data: ClientsDisplay.from_estimator(model, *data),
]


@pytest.mark.parametrize("display", DISPLAYS)
def test_the_federated_step_of_a_pipeline_is_drawn(data, model, display, check_texts):
    X, y, clients = data
    pipeline = make_pipeline(FunctionTransformer(lambda X: X / 2), clone(model))
    pipeline.fit(2 * X, y, federatedclassifier__clients=clients)
    piped, alone = display(pipeline, 2 * X, y, clients), display(pipeline[-1], X, y, clients)
    for one, other in zip(piped.ax_.lines, alone.ax_.lines, strict=True):
        np.testing.assert_array_equal(one.get_xydata(), other.get_xydata())
    heights = [[bar.get_height() for bar in drawn.ax_.patches] for drawn in (piped, alone)]
    assert heights[0] == heights[1]
    check_texts(piped)


@pytest.mark.parametrize("display", DISPLAYS)
def test_an_estimator_that_is_not_federated_is_an_error(data, display):
    X, y, clients = data
    with pytest.raises(TypeError, match=r"LogisticRegression\(\) has no federated step: pass a"):
        display(LogisticRegression().fit(X, y), X, y, clients)
    with pytest.raises(NotFittedError):
        display(make_pipeline(FederatedClassifier()), X, y, clients)


def test_a_regressors_r2_is_drawn(data, check_texts):
    X, _, clients = data
    clients = np.where(np.arange(len(X)) == 0, "of one row", clients)
    selector = FedAlignSelector(eps=np.inf)
    model = FederatedRegressor(selector=selector, priority=["user 1"], n_rounds=3, engine="loop")
    model.fit(X, X[:, 0], clients=clients)
    display = ClientsDisplay.from_estimator(model, X, X[:, 0], clients)
    assert display.ax_.get_ylabel() == "R²"
    scores = client_scores(model, X, X[:, 0], clients)
    heights = display.table["r2"]
    assert [*heights.index] == ["user 1", *sorted({*clients} - {"user 1"})]
    assert np.isnan(heights["of one row"])  # without a bar
    assert heights.to_dict() == pytest.approx(scores["r2"].to_dict(), nan_ok=True)
    check_texts(display)


def test_clients_are_told_apart_by_type_and_value(data):
    X, y, _ = data
    clients = [[1, 1.0, True, "1"][row % 4] for row in range(len(X))]
    model = FederatedClassifier(n_rounds=2, random_state=0)
    model.fit(X, y, clients=clients)
    counted = SelectionDisplay.from_estimator(model)
    assert [*map(repr, counted.counts.columns)] == ["True", "1.0", "1", "'1'"]
    for drawn in (
        ClientsDisplay.from_data(y, clients),
        ClientsDisplay.from_estimator(model, X, y, clients),
        counted,
    ):
        labels = {label.get_text() for label in drawn.ax_.get_xticklabels()}
        assert labels == {"True", "1.0", "1", "'1'"}


def test_they_draw_on_given_axes(model):
    figure, (left, right) = plt.subplots(1, 2)
    display = ConvergenceDisplay.from_estimator(model, ax=left)
    assert display.ax_ is left and display.figure_ is figure
    assert display.plot(right).ax_ is right


def test_the_settings_of_the_session_stay_as_they_are(data, model):
    _, y, clients = data
    before = dict(matplotlib.rcParams)
    displays = [
        ConvergenceDisplay.from_estimator(model),
        SelectionDisplay.from_estimator(model),
        ClientsDisplay.from_data(y, clients),
    ]
    assert dict(matplotlib.rcParams) == before
    given = ConvergenceDisplay.from_estimator(model, ax=plt.subplots()[1])
    for display in (*displays, given):  # one frame
        assert not display.ax_.spines["top"].get_visible()
    with plt.rc_context(STYLE):  # for pictures beside them
        [line] = plt.subplots()[1].plot([1, 2])
    assert line.get_color() == given.lines_[0].get_color()
