"""The participation report: values by hand, sums of the history, and its picture."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, PredefinedSplit
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
from skfed.aggregation import Scaffold  # noqa: E402
from skfed.availability import Dropout  # noqa: E402
from skfed.contribution import DataBanzhaf, LeaveOneOut  # noqa: E402
from skfed.devices import ConstantDevices, LognormalDevices  # noqa: E402
from skfed.inspection import ParticipationDisplay, participation_report  # noqa: E402
from skfed.inspection._report import bytes_text  # noqa: E402
from skfed.metrics import (  # noqa: E402
    client_exchanges,
    client_scores,
    personalised_scores,
    usefulness,
)
from skfed.modules import SoftmaxRegression  # noqa: E402
from skfed.selection import BaseSelector, Cohort  # noqa: E402
from skfed.utils import _files  # noqa: E402

CLIENTS = np.repeat(list("abcd"), [4, 8, 6, 2])
RNG = np.random.default_rng(0)
Y = np.arange(20) % 2
X = (RNG.normal(size=(20, 3)) + Y[:, None]).astype(np.float32)
TEST = {"X_test": X[1::2], "y_test": Y[::-1][1::2], "clients_test": CLIENTS[1::2]}
COUNTS = [
    *("rounds_chosen", "rounds_aggregated", "weight_share", "rows_trained", "polls_answered"),
    *("bytes_down", "bytes_up", "times_failed", "times_late"),
]
ALL = RandomSelector(1.0, probability="uniform", replace=False)


class Given(BaseSelector):
    """A cohort that a function makes of the round."""

    def __init__(self, choose):
        self.choose = choose

    def _select(self, round):
        return self.choose(round)


class Failing(SoftmaxRegression):
    """Raises at large numbers."""

    def forward(self, X):
        if (X > 1e6).any():
            raise ValueError("too large")
        return super().forward(X)


def estimator(**params):
    """A net of 2 x 3 weights and 2 biases, 32 bytes, that learns nothing before round 0."""
    given = {"estimator": SoftmaxRegression(3, 2), "selector": ALL, "n_rounds": 3}
    return FederatedClassifier(**given | {"local_steps": 2, "random_state": 0} | params)


def fit(**params):
    return estimator(**params).fit(X, Y, clients=CLIENTS)


def sums_are_those_of_the_history(model):
    report, history = participation_report(model), model.history_
    for name, column in {"rows_trained": "samples_trained"}.items():
        assert report[name].sum() == history[column].sum()
    for name in ("bytes_down", "bytes_up"):
        assert report[name].sum() == history[name].sum()
    return report


class TestGave:
    def test_full_participation(self):
        """In 3 rounds each client gets and sends 32 bytes, and takes 2 steps on all its rows."""
        report = sums_are_those_of_the_history(fit())
        assert report.index.tolist() == list("abcd") and report.index.name == "client"
        assert report.columns.tolist() == [*COUNTS[:7], "priority", *COUNTS[7:]]
        assert report["rounds_chosen"].tolist() == report["rounds_aggregated"].tolist() == [3] * 4
        assert report["rows_trained"].tolist() == [24, 48, 36, 12]
        assert report["bytes_down"].tolist() == report["bytes_up"].tolist() == [96] * 4
        assert report["weight_share"].tolist() == pytest.approx([0.2, 0.4, 0.3, 0.1])
        assert report["priority"].all() and not report[["times_failed", "times_late"]].any().any()
        summary = "4 of 4 clients gave updates, and 768 bytes were sent."
        assert report.attrs == {"summary": summary}

    def test_a_client_that_is_drawn_twice(self):
        """It gets one model and sends two, is chosen in one round, and has both weights."""
        report = sums_are_those_of_the_history(
            fit(selector=Given(lambda _: Cohort(np.array([0, 1, 1]), np.array([0.5, 0.3, 0.2]))))
        )
        assert report["rounds_chosen"].tolist() == report["rounds_aggregated"].tolist()
        assert report["rounds_chosen"].tolist() == [3, 3, 0, 0]
        assert report["bytes_down"].tolist() == [96, 96, 0, 0]
        assert report["bytes_up"].tolist() == [96, 192, 0, 0]
        assert report["rows_trained"].tolist() == [24, 96, 0, 0]
        assert report["weight_share"].tolist() == pytest.approx([0.5, 0.5, 0, 0])

    def test_weights_of_unbiased_cohorts_are_those_given(self):
        """Round 0 has q = 0.8 and 1.6, round 1 nobody, round 2 q = 0.4."""
        cohorts = {
            0: Cohort(np.array([0, 1]), np.array([0.8, 1.6]), unbiased=True),
            1: Cohort.mean(np.zeros(0, dtype=int)),
            2: Cohort(np.array([1]), np.array([0.4]), unbiased=True),
        }
        report = participation_report(fit(selector=Given(lambda r: cohorts[r.index])))
        assert report["weight_share"].tolist() == pytest.approx([0.8 / 3, 2 / 3, 0, 0])

    def test_polls(self):
        """Candidates get the model and send 8 bytes; who then trains is sent no second one."""

        def choose(round):
            round.poll(np.array([3, 0]))
            return Cohort.mean(np.array([0]))

        report = sums_are_those_of_the_history(fit(selector=Given(choose)))
        assert report["polls_answered"].tolist() == [3, 0, 0, 3]
        assert report["bytes_down"].tolist() == [96, 0, 0, 96]
        assert report["bytes_up"].tolist() == [96 + 24, 0, 0, 24]

    @pytest.mark.parametrize(
        "params",
        [
            {"estimator": None},  # whose first exchanges scale the columns
            {"estimator": None, "priority": ["a", "b"], "selector": FedAlignSelector(0.5)},
            {"estimator": None, "selector": RandomSelector(6)},  # drawn with replacement
            {"aggregator": Scaffold()},
            {"selector": PowerOfChoice(3, 2), "availability": Dropout(0.4)},
            {"devices": LognormalDevices(100, 1e3, 1e3), "deadline": 0.3},
            {"selector": Given(lambda r: (r.sketch(np.arange(4)), Cohort.mean(np.arange(2)))[1])},
        ],
        ids=["first exchanges", "FedALIGN", "duplicates", "variates", "away", "late", "sketches"],
    )
    def test_sums_are_those_of_the_history(self, params):
        sums_are_those_of_the_history(fit(**params))

    def test_clients_that_fail(self):
        wrong = X.copy()
        wrong[CLIENTS == "b"] = 1e9
        model = estimator(
            estimator=Failing(3, 2), selector=Given(lambda r: Cohort.mean(np.arange(3)))
        ).fit(wrong, Y, clients=CLIENTS)
        report = sums_are_those_of_the_history(model)
        assert report["times_failed"].tolist() == [0, 3, 0, 0]
        assert report["rounds_chosen"].tolist() == [3, 3, 3, 0]
        assert report["rounds_aggregated"].tolist() == [3, 0, 3, 0]
        assert report["weight_share"].tolist() == pytest.approx([0.5, 0, 0.5, 0])

    def test_seconds_and_late_clients(self):
        """Client d needs 6 s in each round, and is waited for 4; its own seconds count."""
        devices = ConstantDevices(dict(zip("abcd", [8, 8, 8, 1], strict=True)), 32, 32)
        model = fit(devices=devices, deadline=4.0)
        report = sums_are_those_of_the_history(model)
        # A second down, one up, and two steps on all rows, at 8 rows a second, of d at 1.
        seconds = [3 * (2 + 8 / 8), 3 * (2 + 16 / 8), 3 * (2 + 12 / 8), 3 * (2 + 4)]
        assert report["seconds"].tolist() == pytest.approx(seconds)
        assert report["times_late"].tolist() == [0, 0, 0, 3]
        exchanges = client_exchanges(model)
        by_client = exchanges.groupby("client")["seconds"].sum()
        np.testing.assert_allclose(report["seconds"], by_client)

    def test_seconds_of_a_client_that_is_drawn_twice(self):
        """Client b has one model down, two up and two times 16 rows in one request, 7 s."""
        cohort = Cohort.mean(np.array([0, 1, 1]))
        report = participation_report(
            fit(selector=Given(lambda _: cohort), devices=ConstantDevices(8, 32, 32))
        )
        assert report["seconds"].tolist() == pytest.approx([3 * 3, 3 * 7, 0, 0])


class TestStatus:
    def aligned(self, eps=0.1, **params):
        """Clients c and d have labels that are wrong, the less so in c."""
        y = np.where(np.isin(CLIENTS, ["c", "d"]), 1 - Y, Y)
        selector = FedAlignSelector(eps, warmup=1)
        given = {"selector": selector, "priority": ["a"], "n_rounds": 6, "estimator": None}
        return estimator(**given | params).fit(X, y, clients=CLIENTS)

    def test_matched_and_silent(self):
        model = self.aligned()
        report, history = participation_report(model), model.history_
        polled = history[history["n_polled"] > 0]
        assert len(polled) == 5 and report["matched"].isna().tolist() == [True, False, False, False]
        for client in "bcd":
            taken = sum(client in cohort for cohort in polled["cohort"])
            assert report.loc[client, "matched"] == taken / 5
            silent, answered = report.loc[client, ["polls_silent", "polls_answered"]]
            assert silent + answered == 5 and answered >= taken
        assert report.loc["d", "polls_silent"] > 0 and report.loc["d", "matched"] < 1
        assert report["priority"].tolist() == [True, False, False, False]

    def test_all_or_none_match(self):
        assert participation_report(self.aligned(np.inf))["matched"].tolist()[1:] == [1.0] * 3
        none = participation_report(self.aligned(0.0))
        assert none["matched"].tolist()[1:] == [0.0] * 3

    def test_without_a_bound_there_are_no_such_columns(self):
        rule = PowerOfChoice(1, 1, ignore_priority=True)
        report = participation_report(self.aligned(selector=rule))
        assert not {"matched", "polls_silent"} & set(report.columns)

    def test_priority_by_weight(self):
        model = self.aligned(priority={"a": 1.0, "b": 0.5, "c": 0.0})
        report = participation_report(model)
        assert report["priority_weight"].tolist() == [1.0, 0.5, 0.0, 0.0]
        assert report["priority"].tolist() == [True, True, False, False]


class TestWorth:
    def test_per_megabyte(self, monkeypatch):
        model = fit(selector=Given(lambda _: Cohort.mean(np.arange(3))))
        given = {"value": [0.3, -0.1, 0.2, 0.0], "error": [0.1, 0.0, 0.2, 0.0]}
        table = pd.DataFrame(given, index=list("abcd"))
        monkeypatch.setattr(FederatedClassifier, "contributions_", table)
        report = participation_report(model)
        assert report["worth"].tolist() == given["value"]
        assert report["worth_error"].tolist() == given["error"]
        per_mb = [value / 192e-6 for value in given["value"][:3]]
        assert report["worth_per_mb"].tolist()[:3] == pytest.approx(per_mb)
        assert np.isnan(report["worth_per_mb"].iloc[3])  # nothing was sent
        assert "1 of 4 clients was worth less than nothing" in report.attrs["summary"]

    def test_of_a_fit_with_contributions(self):
        """The bytes of the valuation count."""
        model = fit(contribution=DataBanzhaf(8))
        report = sums_are_those_of_the_history(model)
        assert report["worth"].tolist() == model.contributions_["value"].tolist()
        assert report["worth_error"].tolist() == model.contributions_["error"].tolist()
        n_bytes = fit().history_[["bytes_up", "bytes_down"]].sum().sum()
        assert report[["bytes_up", "bytes_down"]].sum().sum() > n_bytes


class TestGained:
    def test_scores_of_the_model(self):
        model = fit()
        report = participation_report(model, X, Y, CLIENTS)
        expected = client_scores(model, X, Y, CLIENTS)
        assert report["global_accuracy"].tolist() == expected["accuracy"].tolist()
        assert report["rows_scored"].tolist() == [4, 8, 6, 2]
        assert "useful" not in report and "clients_served" not in report.attrs

    def test_with_test_rows_and_clients_without(self):
        """Client d has no test rows; e is not in the federation."""
        model, given = fit(), TEST | {"clients_test": np.where(CLIENTS == "d", "e", CLIENTS)[1::2]}
        report = participation_report(model, X, Y, CLIENTS, **given)
        test = given.values()
        alone = usefulness(model, X, Y, CLIENTS, *test)
        tuned = personalised_scores(model, X, Y, CLIENTS, *test)
        for name in ("global_accuracy", "local_accuracy"):
            assert report[name].tolist()[:3] == alone[name].tolist()
        tuned = tuned.loc[list("abc"), "personalised_accuracy"]
        assert report["personalised_accuracy"].tolist()[:3] == tuned.tolist()
        assert report["useful"].tolist()[:3] == alone["useful"].tolist()
        assert report["useful"].isna().tolist() == [False] * 3 + [True]
        assert report["local_accuracy"].isna().sum() == report["global_accuracy"].isna().sum() == 1
        assert report["rows_scored"].tolist() == [2, 4, 3, 0]
        assert report.attrs["clients_served"] == alone["useful"].mean()
        assert report.attrs["summary"].endswith(
            f"the model serves {alone['useful'].sum()} of 3 clients better than their own."
        )

    def test_rows_of_other_clients_alone(self):
        others = np.char.upper(CLIENTS)
        given = TEST | {"clients_test": others[1::2]}
        report = participation_report(fit(), X, Y, others, **given)
        assert report["useful"].isna().all() and np.isnan(report.attrs["clients_served"])
        assert "the model serves 0 of 0 clients" in report.attrs["summary"]

    def test_regressors(self):
        model = FederatedRegressor(n_rounds=3, random_state=0).fit(X, X[:, 0], clients=CLIENTS)
        report = participation_report(model, X, X[:, 0], CLIENTS)
        assert report["global_r2"].notna().all()

    def test_ids_that_are_equal_but_for_their_type(self):
        ids = np.array([1, True, 1.0, "1"], dtype=object)[np.arange(20) % 4]
        model = estimator().fit(X, Y, clients=ids)
        report, expected = participation_report(model, X, Y, ids), client_scores(model, X, Y, ids)
        assert report["global_accuracy"].tolist() == expected["accuracy"].tolist()

    @pytest.mark.parametrize("kind", ["pipeline", "search"])
    def test_pipelines_and_searches(self, kind):
        twice = FunctionTransformer(lambda rows: rows * np.float32(2))
        model = make_pipeline(twice, estimator()).fit(X, Y, federatedclassifier__clients=CLIENTS)
        if kind == "search":
            cv = PredefinedSplit(np.arange(20) // 2 % 2)
            model = GridSearchCV(estimator(), {"n_rounds": [2, 3]}, cv=cv)
            model.fit(X, Y, clients=CLIENTS)
        report = participation_report(model, X, Y, CLIENTS, **TEST)
        assert report["global_accuracy"].notna().all() and report["bytes_up"].gt(0).all()

    def test_errors(self):
        model = fit()
        with pytest.raises(ValueError, match="y and clients missing: pass all of X, y, clients"):
            participation_report(model, X)
        with pytest.raises(ValueError, match="clients_test missing: pass all of X_test"):
            participation_report(model, X, Y, CLIENTS, X_test=X, y_test=Y)
        with pytest.raises(ValueError, match="X_test is given without X"):
            participation_report(model, **TEST)
        with pytest.raises(TypeError):
            participation_report(FunctionTransformer())


class TestKept:
    """Counts outlive an interruption, a file, and a warm start."""

    @pytest.fixture
    def params(self):
        devices = LognormalDevices(100, 1e3, 1e3, jitter=0.5)
        return {"selector": RandomSelector(3), "devices": devices, "n_rounds": 6, "deadline": 1.0}

    def assert_equal(self, model, other):
        one, two = participation_report(model), participation_report(other)
        pd.testing.assert_frame_equal(one, two, check_exact=True)
        assert one["seconds"].sum() > 0

    @pytest.mark.parametrize("estimator_", [None, SoftmaxRegression(3, 2)], ids=["own", "net"])
    def test_resumed_and_warm_started(self, tmp_path, params, estimator_):
        params = params | {"estimator": estimator_}
        whole = fit(**params)
        kept = {"checkpoint": tmp_path, "warm_start": True}
        fit(**params | kept | {"n_rounds": 4})
        self.assert_equal(fit(**params | kept), whole)
        warm = fit(**params | {"warm_start": True, "n_rounds": 2})
        self.assert_equal(warm.set_params(n_rounds=6).fit(X, Y, clients=CLIENTS), whole)

    def test_files_and_pickles(self, tmp_path, params):
        model = fit(**params)
        model.save(tmp_path / "model")
        self.assert_equal(estimator(**params).load(tmp_path / "model"), model)
        self.assert_equal(pickle.loads(pickle.dumps(model)), model)

    def test_clients_that_come_and_go(self):
        model = fit(warm_start=True, n_rounds=2)
        rows = CLIENTS != "a"
        names = np.where(CLIENTS == "d", "e", CLIENTS)[rows]
        model.set_params(n_rounds=3).fit(X[rows], Y[rows], clients=names)
        report = participation_report(model)
        assert report.index.tolist() == list("bce")
        assert report["rounds_aggregated"].tolist() == [3, 3, 1]
        assert report["bytes_up"].tolist() == [96, 96, 32]

    def test_clients_that_come_back(self, tmp_path):
        """What a client gave before it was away counts, as what it was worth does."""
        model, rows = fit(warm_start=True, n_rounds=2), CLIENTS != "a"
        model.set_params(n_rounds=3).fit(X[rows], Y[rows], clients=CLIENTS[rows])
        model.save(tmp_path / "model")
        for one in (model, estimator(warm_start=True).load(tmp_path / "model")):
            one.set_params(n_rounds=4).fit(X, Y, clients=CLIENTS)
            report = sums_are_those_of_the_history(one)
            assert report["rounds_aggregated"].tolist() == [3, 4, 4, 4]
            # To rules it is new.
            assert one._server.past.column("n_chosen").tolist() == [1, 4, 4, 4]

    def test_other_clients_alone(self):
        model = fit(warm_start=True, n_rounds=2).set_params(n_rounds=3)
        report = participation_report(model.fit(X, Y, clients=np.char.upper(CLIENTS)))
        assert report["rounds_aggregated"].tolist() == [1] * 4

    def test_a_round_that_fails_is_not_counted(self, monkeypatch):
        from skfed.server._rounds import Rounds

        model, after = estimator(warm_start=True, n_rounds=2), Rounds._after_callbacks
        whole = fit()
        model.fit(X, Y, clients=CLIENTS)

        def fail(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(Rounds, "_after_callbacks", fail)
        interrupted = pytest.warns(UserWarning, match="interrupted")
        with pytest.raises(KeyboardInterrupt), interrupted:
            model.set_params(n_rounds=3).fit(X, Y, clients=CLIENTS)
        assert participation_report(model)["rounds_chosen"].tolist() == [2] * 4
        monkeypatch.setattr(Rounds, "_after_callbacks", after)
        one, two = map(participation_report, (model.fit(X, Y, clients=CLIENTS), whole))
        pd.testing.assert_frame_equal(one, two, check_exact=True)

    def test_files_without_counts(self, tmp_path):
        """Of an earlier version, which has kept none."""
        model = fit(n_rounds=2)
        model.save(tmp_path / "model")
        saved = _files.read(tmp_path / "model")
        past = saved["state"]["past"]
        new = ["clients", "reported", "n_chosen", "last_chosen", "loss_mean"]
        saved["state"]["past"] = {name: past[name] for name in new}
        _files.write(tmp_path / "model", saved)
        old = estimator(n_rounds=3, warm_start=True).load(tmp_path / "model")
        with pytest.warns(UserWarning, match="counts 0 of the 2 rounds"):
            report = participation_report(old)
        assert report.columns.tolist() == ["priority"]
        assert report.attrs["summary"] == "4 of 4 clients have priority."
        old.fit(X, Y, clients=CLIENTS)
        with pytest.warns(UserWarning, match="counts 1 of the 3 rounds"):
            report = participation_report(old)
        assert report["rounds_chosen"].tolist() == [1] * 4
        assert report["weight_share"].sum() == pytest.approx(1)

    def test_files_with_counts_that_are_not_valid(self, tmp_path):
        fit().save(tmp_path / "model")
        for name, value in {"n_counted": -1, "bytes_up": np.zeros(4)}.items():
            saved = _files.read(tmp_path / "model")
            saved["state"]["past"][name] = value
            _files.write(tmp_path / "wrong", saved)
            with pytest.raises(ValueError, match=name):
                estimator().load(tmp_path / "wrong")


def test_rules_do_not_see_the_counts():
    from skfed.exchanges._totals import TOTALS
    from skfed.selection import Past

    assert not set(TOTALS) & set(dir(Past))


def test_over_flower(tmp_path):
    pytest.importorskip("flwr")
    from local_grid import LocalGrid, Node, Time

    from skfed.flower import FederatedStrategy, client_app

    model = estimator(priority=["a"], selector=FedAlignSelector(0.1, warmup=1))

    def load(context):
        rows = context.node_config["client-name"] == CLIENTS
        return X[rows], Y[rows]

    grid = LocalGrid(Time(), *(Node(client_app(model, load), {"client-name": k}) for k in "abcd"))
    strategy = FederatedStrategy(model, clients=4, timeout=5)
    strategy.start(grid)
    found = participation_report(strategy.model_)
    expected = participation_report(model.fit(X, Y, clients=CLIENTS))
    assert "seconds" in found
    pd.testing.assert_frame_equal(found.drop(columns="seconds"), expected, check_exact=True)


def drawn(n_clients=12, worth=True, gain=True, status=True, seed=0):
    """Return a report as large as is wanted."""
    rng = np.random.default_rng(seed)
    matched = np.where(rng.random(n_clients) < 0.5, 0.0, 0.7)
    matched[: n_clients // 4] = np.nan
    report = pd.DataFrame(
        {
            "weight_share": 1 / n_clients,
            "bytes_down": rng.integers(0, 5_000_000, n_clients),
            "bytes_up": rng.integers(0, 5_000_000, n_clients),
            "global_accuracy": rng.random(n_clients),
            "priority": np.arange(n_clients) < n_clients // 4,
        },
        index=[f"hospital {i}" for i in range(n_clients)],
    )
    if worth:
        report["worth"] = rng.normal(0.1, 0.2, n_clients)
        report["worth_error"] = 0.03
    if gain:
        report["local_accuracy"] = rng.random(n_clients)
    if status:
        report["matched"] = matched
    return report


def legend_of(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


class TestDisplay:
    @pytest.mark.parametrize("n_clients", [1, 4, 20, 40, 400])
    @pytest.mark.parametrize("worth", [True, False])
    @pytest.mark.parametrize("gain", [True, False])
    def test_texts_lie_apart(self, n_clients, worth, gain, check_texts):
        display = ParticipationDisplay.from_report(drawn(n_clients, worth, gain))
        check_texts(display)
        words = {text.get_text() for text in display.ax_.texts}
        if n_clients > 1:
            assert ("gives and gains" in words) == (worth and gain)
        names = [word for word in words if word.startswith("hospital")]
        assert bool(names) == (n_clients <= 20)

    def test_what_is_drawn(self):
        report = drawn(8)
        display = ParticipationDisplay.from_report(report)
        markers = [c for c in display.ax_.collections if len(c.get_offsets())]
        markers = [c for c in markers if len(getattr(c, "get_sizes", list)())]
        points = np.concatenate([c.get_offsets() for c in markers])
        gain = report["global_accuracy"] - report["local_accuracy"]
        expected = np.column_stack([gain, report["worth"]])
        np.testing.assert_allclose(np.sort(points, axis=0), np.sort(expected, axis=0))
        sizes = np.sort(np.concatenate([c.get_sizes() for c in markers]))
        n_bytes = np.sort(report["bytes_down"] + report["bytes_up"])
        np.testing.assert_allclose(sizes / sizes[-1], n_bytes / n_bytes[-1])
        assert legend_of(display) == [
            "priority", "free, matched", "never matched", "1 MB sent", "5 MB sent"
        ]  # fmt: skip
        assert display.ax_.get_xlabel() == "gain: accuracy, less that of its own model"
        assert display.ax_.get_ylabel().startswith("worth")

    def test_without_worth_the_share_of_weight_is_drawn(self):
        display = ParticipationDisplay.from_report(drawn(worth=False, status=False))
        assert display.ax_.get_ylabel() == "share of the weight; dashed: equal shares"
        assert legend_of(display)[:2] == ["priority", "free"]

    def test_without_own_models_the_score_is_drawn(self):
        display = ParticipationDisplay.from_report(drawn(gain=False))
        assert display.ax_.get_xlabel() == "accuracy of the model on the client's rows"

    def test_clients_without_a_score_are_left_out(self, check_texts):
        report = drawn()
        report.iloc[:2, report.columns.get_loc("global_accuracy")] = np.nan
        display = ParticipationDisplay.from_report(report)
        assert "2 of 12 clients have none" in display.ax_.get_xlabel()
        check_texts(display)

    def test_circles_of_the_legend_lie_apart(self):
        """With the largest that there may be, of 1 GB where the client has sent as much."""
        report = drawn()
        report[["bytes_down", "bytes_up"]] = 0
        report.iloc[0, report.columns.get_loc("bytes_up")] = 10**9
        display = ParticipationDisplay.from_report(report)
        display.figure_.canvas.draw()
        legend = display.ax_.get_legend()
        sizes = np.array([one.get_sizes()[0] for one in legend.legend_handles])
        rows = [text.get_window_extent() for text in legend.get_texts()]
        middles = np.array([box.y0 + box.y1 for box in rows]) / 2 * 72 / display.figure_.dpi
        radii = (sizes / np.pi) ** 0.5
        assert legend_of(display)[-1] == "1 GB sent"
        assert (-np.diff(middles) >= radii[1:] + radii[:-1]).all()

    def test_without_bytes_the_legend_has_no_sizes(self):
        report = drawn()
        report[["bytes_down", "bytes_up"]] = 0
        assert legend_of(ParticipationDisplay.from_report(report))[-1] == "never matched"
        assert bytes_text(1.0) == "1 byte" and bytes_text(0.0) == "0 bytes"

    def test_clients_that_were_worth_nothing(self):
        report = drawn().assign(worth=0.0, worth_error=0.0)
        assert ParticipationDisplay.from_report(report).ax_.get_ylim() == (-1, 1)

    def test_free_clients_that_have_heard_no_bound_are_not_said_to_match(self):
        report = drawn()
        report.loc["hospital 11", "matched"] = np.nan
        assert legend_of(ParticipationDisplay.from_report(report))[1] == "free"

    def test_of_a_model(self, check_texts):
        model = fit(priority=["a", "b"], selector=FedAlignSelector(0.5, warmup=0))
        display = ParticipationDisplay.from_estimator(model, X, Y, CLIENTS, **TEST)
        check_texts(display)
        pd.testing.assert_frame_equal(
            display.report, participation_report(model, X, Y, CLIENTS, **TEST)
        )
        _, ax = plt.subplots()
        assert ParticipationDisplay.from_report(display.report, ax=ax).ax_ is ax

    def test_reports_that_cannot_be_drawn(self):
        with pytest.raises(ValueError, match="report has no scores: give X, y and clients"):
            ParticipationDisplay.from_report(participation_report(fit()))
        with pytest.raises(ValueError, match="report has no column 'bytes_up'"):
            ParticipationDisplay.from_report(drawn().drop(columns="bytes_up"))


def test_the_docstring_lists_the_columns():
    table = participation_report.__doc__.split("*gave*")[1].split("====")[0]
    given = {"devices": ConstantDevices(100, 1e3, 1e3), "contribution": LeaveOneOut()}
    model = TestStatus().aligned(priority={"a": 1.0}, **given)
    report = participation_report(model, X, Y, CLIENTS, **TEST)
    assert re.findall(r"^ *``(\w+)`` ", table, re.MULTILINE) == report.columns.tolist()
