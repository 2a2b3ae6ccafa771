"""Pictures of searches: curves of candidates round by round, and what a parameter trades."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.callback import ScoringMonitor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.checkpoint._run import Run
from skfed.inspection import ConvergenceDisplay, TradeoffDisplay


@pytest.fixture(scope="module")
def search(data):
    X, y, clients = data
    return GridSearchCV(
        FederatedClassifier(selector=PowerOfChoice(), n_rounds=3, random_state=0),
        {"selector__d": [2, 4, 8], "local_epochs": [1, 2]},
        cv=KFold(2, shuffle=True, random_state=0),
    ).fit(X, y, clients=clients)


@pytest.fixture(scope="module")
def monitored(data):
    """Return a search over both papers' selectors in a Pipeline, and what watched its rounds."""
    X, y, clients = data
    monitor = ScoringMonitor(scoring=["accuracy", "neg_log_loss"])
    model = FederatedClassifier(priority=["user 3"], n_rounds=3, engine="loop", random_state=0)
    step = "federatedclassifier__selector"
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model.set_callbacks(monitor)),
        [
            {step: [FedAlignSelector(warmup=0)], f"{step}__eps": [0.1, 0.5]},
            {step: [PowerOfChoice(d=2, ignore_priority=True)], f"{step}__d": [2, 4]},
        ],
        cv=KFold(2, shuffle=True, random_state=0),
    )
    return search.fit(X, y, federatedclassifier__clients=clients), monitor


def test_curves_of_a_searchs_candidates(data, monitored, check_texts):
    X, y, clients = data
    search, monitor = monitored
    display = ConvergenceDisplay.from_search(search, monitor)
    assert len(display.lines_) == 4
    assert display.lines_[3].get_label() == "selector=PowerOfChoice(d=2, ignore_priority=True), d=4"
    np.testing.assert_array_equal(display.lines_[3].get_xdata(), [1, 2, 3])
    # The mean over the folds of accuracy on the rows trained on, after the last round.
    last = []
    for train, _ in search.cv.split(X):
        model = sklearn.base.clone(search.estimator).set_params(**search.cv_results_["params"][3])
        model.fit(X[train], y[train], federatedclassifier__clients=clients[train])
        last.append(model.score(X[train], y[train]))
    assert display.lines_[3].get_ydata()[-1] == pytest.approx(np.mean(last))
    check_texts(display)
    other = ConvergenceDisplay.from_search(search, monitor, score="neg_log_loss")
    assert other.ax_.get_ylabel() == "training neg_log_loss, mean over folds"
    assert (np.diff(other.lines_[3].get_ydata()) > 0).all()


def test_a_monitor_of_something_else_is_told(data, monitored):
    X, y, clients = data
    search, monitor = monitored
    with pytest.raises(ValueError, match=r"score='f1' was not monitored.*\['accuracy', 'neg_log"):
        ConvergenceDisplay.from_search(search, monitor, score="f1")
    alone = ScoringMonitor(scoring="accuracy")
    model = FederatedClassifier(n_rounds=1, engine="loop").set_callbacks(alone)
    model.fit(X, y, clients=clients)
    with pytest.raises(ValueError, match=r"a GridSearchCV.*by \['FederatedClassifier'\]: pass a"):
        ConvergenceDisplay.from_search(search, alone)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        ConvergenceDisplay.from_search(GridSearchCV(LogisticRegression(), {}), monitor)


def watched_search(data, grid, *, checkpoint=None, in_pipeline=False, **params):
    """Search on two folds, with a monitor; return both."""
    X, y, clients = data
    monitor = ScoringMonitor(scoring="accuracy")
    given = {"n_rounds": 3, "engine": "loop", "random_state": 0} | params
    model = FederatedClassifier(checkpoint=checkpoint, **given).set_callbacks(monitor)
    prefix = ""
    if in_pipeline:
        model, prefix = make_pipeline(StandardScaler(), model), "federatedclassifier__"
    grid = {f"{prefix}{name}": values for name, values in grid.items()}
    search = GridSearchCV(model, grid, cv=KFold(2, shuffle=True, random_state=0), refit=True)
    return search.fit(X, y, **{f"{prefix}clients": clients}), monitor


def curves_of(search, monitor):
    lines = ConvergenceDisplay.from_search(search, monitor).lines_
    return [np.transpose(line.get_data()).tolist() for line in lines]


def test_curves_of_a_search_without_a_pipeline(data):
    X, y, clients = data
    search, monitor = watched_search(data, {"local_epochs": [1, 2]})
    curves = curves_of(search, monitor)
    assert [[t for t, _ in curve] for curve in curves] == [[1, 2, 3]] * 2
    last = []
    for train, _ in search.cv.split(X):
        model = sklearn.base.clone(search.estimator).set_params(local_epochs=2)
        last.append(model.fit(X[train], y[train], clients[train]).score(X[train], y[train]))
    assert curves[1][-1][1] == pytest.approx(np.mean(last))


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_a_search_run_again_averages_the_same_rounds(data, tmp_path, monkeypatch, in_pipeline):
    grid = {"local_epochs": [1, 2]}
    whole = curves_of(*watched_search(data, grid, in_pipeline=in_pipeline))

    def stop_after_2_rounds(run, server, last, keep=Run.keep):
        keep(run, server, last)
        if server.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "keep", stop_after_2_rounds)
        with pytest.warns(UserWarning, match="interrupted"), pytest.raises(KeyboardInterrupt):
            watched_search(data, grid, checkpoint=tmp_path, in_pipeline=in_pipeline)
    # The first fold of the first candidate goes on with its third round.
    again = watched_search(data, grid, checkpoint=tmp_path, in_pipeline=in_pipeline)
    assert curves_of(*again) == [whole[0][2:], whole[1]]
    finished = watched_search(data, grid, checkpoint=tmp_path, in_pipeline=in_pipeline)
    with pytest.raises(ValueError, match=r"saw 0 rounds.*checkpoint= finds finished"):
        ConvergenceDisplay.from_search(*finished)


def test_candidates_that_print_alike_are_told_apart(data, check_texts):
    modules = [nn.Linear(20, 4), nn.Linear(20, 4)]
    search, monitor = watched_search(
        data, {"estimator": modules, "selector__clients_per_round": [1, 2]}, n_rounds=1,
        selector=RandomSelector(),
    )  # fmt: skip
    display = ConvergenceDisplay.from_search(search, monitor)
    assert [line.get_marker() for line in display.lines_] == ["o"] * 4  # of one round each
    first = "estimator=Linear(in_features=20, out_features=4, bias=True), clients_per_round=1"
    assert [*display.curves][::2] == [first, f"{first} (2)"]
    check_texts(display)
    traded = TradeoffDisplay.from_search(search, "clients_per_round")
    scores = search.cv_results_["mean_test_score"]
    for i, (name, points) in enumerate(traded.points.groupby("series", sort=False)):
        assert name.endswith("bias=True)" if i == 0 else "bias=True) (2)")
        np.testing.assert_array_equal(points["score"], scores[2 * i : 2 * i + 2])
    nets = [NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss) for module in modules]
    search, _ = watched_search(
        data, {"estimator": nets, "n_rounds": [1, 2]}, selector=RandomSelector()
    )
    assert TradeoffDisplay.from_search(search, "n_rounds").points["series"].nunique() == 2
    check_texts(traded)


def test_trade_offs_of_a_search(search, check_texts):
    display = TradeoffDisplay.from_search(search, "d")
    assert display.param == "selector__d"
    assert len(display.points) == 6
    assert sorted(set(display.points["series"])) == ["local_epochs=1", "local_epochs=2"]
    best = display.points.loc[display.points["score"].idxmax()]
    assert best["score"] == search.best_score_
    check_texts(display)
    with pytest.raises(ValueError, match=r"'eps' is of no candidate.*selector__d"):
        TradeoffDisplay.from_search(search, "eps")
    with pytest.raises(ValueError, match=r"metric='f1' was not scored; there is \['score'\]"):
        TradeoffDisplay.from_search(search, "d", metric="f1")


@pytest.mark.parametrize("values", [[np.inf], [0.2, np.inf], [0, 0.001, 0.5, 4, np.inf]], ids=str)
def test_an_infinite_eps_stands_at_the_right(data, values, check_texts):
    X, y, clients = data
    search = GridSearchCV(
        FederatedClassifier(
            selector=FedAlignSelector(), priority=["user 3"], n_rounds=1, engine="loop"
        ),
        {"selector__eps": values},
        cv=KFold(2, shuffle=True, random_state=0),
    ).fit(X, y, clients=clients)
    display = TradeoffDisplay.from_search(search, "eps")
    assert display.points["value"].tolist() == values
    drawn = np.asarray(display.ax_.lines[0].get_xdata(), dtype=float)
    assert np.isfinite(drawn).all() and drawn[-1] == max(drawn)
    assert display.ax_.get_xticks()[-1] == drawn[-1]
    assert display.ax_.get_xticklabels()[-1].get_text() == "∞"
    check_texts(display)


def test_curves_are_named_by_the_parameters_that_differ(search):
    found = sklearn.clone(search)
    found.best_estimator_ = search.best_estimator_
    grid = [("a", 1), ("a", 2), ("b", 1)]
    candidates = [
        {"selector": "same", "lr": lr, "net__lr": 0.1, "selector__d": d}
        for lr, d in [*grid, ("c", "not drawn")]
    ]
    del candidates[2]["net__lr"]
    found.cv_results_ = {
        "params": candidates,
        "mean_test_score": np.arange(4.0),
        "std_test_score": np.ones(4),
    }
    points = TradeoffDisplay.from_search(found, "d").points
    assert points["series"].tolist() == ["lr=a, net__lr=0.1", "lr=a, net__lr=0.1", "lr=b"]
    assert points["score"].tolist() == [0.0, 1.0, 2.0]
    del candidates[0]["net__lr"], candidates[1]["net__lr"]
    candidates[2]["lr"] = "a"
    points = TradeoffDisplay.from_search(found, "d").points
    assert points["series"].tolist() == [""] * 3


def test_candidates_without_a_score_are_left_out(search):
    broken = sklearn.clone(search)
    broken.cv_results_ = {**search.cv_results_, "mean_test_score": np.full(6, np.nan)}
    broken.best_estimator_ = search.best_estimator_
    with pytest.raises(ValueError, match="'d' is no number in any candidate that has a score"):
        TradeoffDisplay.from_search(broken, "d")


def scattered(values):
    points = [(value, i / 10, 0.01, "") for i, value in enumerate(values)]
    return TradeoffDisplay(
        pd.DataFrame(points, columns=["value", "score", "spread", "series"]), "d"
    )


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([0.001, 0.01, 0.1, 1], "log"),
        ([0.1, 0.2, 0.4, 0.8, 1.6], "log"),  # doubled
        ([0, 0.001, 0.5, 4], "log"),
        ([*range(1, 13)], "linear"),  # over a decade, but evenly spaced
        ([0, 0.5, 1, 1.5, 2, 4], "linear"),
        ([3, 6, 12], "linear"),
        ([0.01, 1], "linear"),
        ([-1, 0.01, 0.1, 1], "linear"),
    ],
    ids=str,
)
@pytest.mark.parametrize("infinite", [False, True])
def test_values_over_decades_have_a_logarithmic_axis(values, scale, infinite, check_texts):
    display = scattered([*values, np.inf] if infinite else values).plot()
    assert display.ax_.get_xscale() == scale
    check_texts(display)


def test_zero_and_infinity_have_places_on_a_logarithmic_axis():
    display = scattered([0, 0.01, 0.1, 1, np.inf]).plot()
    drawn = display.ax_.lines[0].get_xdata()
    beyond = 100**0.25
    assert drawn.tolist() == pytest.approx([0.01 / beyond, 0.01, 0.1, 1, beyond])
    ticks = dict(
        zip(
            [label.get_text() for label in display.ax_.get_xticklabels()],
            display.ax_.get_xticks(),
            strict=True,
        )
    )
    expected = {"0": drawn[0], "0.01": 0.01, "0.03": 0.03, "0.1": 0.1, "0.3": 0.3, "1": 1}
    assert ticks == pytest.approx(expected | {"∞": drawn[-1]})
