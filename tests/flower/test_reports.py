"""Sites may be sent the table of who took part."""

import logging

import numpy as np
import pandas as pd
import pytest
from local_grid import is_kind, late, requests
from mishaps import PowerCut, at_round, estimator, node_of

from skfed import FedAlignSelector, FederatedClassifier, make_pipeline
from skfed.contribution import DataBanzhaf
from skfed.flower import FederatedStrategy, _report, client_app
from skfed.inspection import participation_report
from skfed.preprocessing import FederatedStandardScaler


@pytest.fixture
def table(monkeypatch):
    """A table in place of that of the model."""
    table = pd.DataFrame(
        {
            "rounds": [1, 2, 3, 4, 5, 6],
            "worth": [0.25, np.nan, -1.5, 0.0, 1e-300, 7.0],
            "useful": [True, False, True, True, False, False],
            "status": ["priority", "silent", "matched", "free", "été", "late"],
        },
        index=list("abcdef"),
    )
    table.attrs = {"summary": "4 of 6 clients gain.", "served": 4 / 6}
    monkeypatch.setattr(_report.inspection, "participation_report", lambda model: table)
    return table


@pytest.fixture
def run(federate, blobs):
    """Return a function that runs a strategy; it returns the tables by site, and the grid."""
    X, y, clients = blobs

    def load_data(context):
        rows = clients == context.node_config["client-name"]
        return X[rows], y[rows]

    def start(watch=lambda grid: None, on_report=None, model=None, **params):
        model = estimator(n_rounds=2) if model is None else model
        got = {}

        def keep(report, context):
            got[context.node_config["client-name"]] = report

        strategy, grid = federate(model, **params)
        app = client_app(model, load_data, on_report=on_report or keep)
        for node in grid.nodes.values():
            node.app = app
        watch(grid)
        strategy.start(grid)
        return got, grid, strategy

    return start


def test_by_default_nothing_is_sent(run, table):
    got, grid, _ = run()
    assert not got
    assert not any(is_kind(message, "report") for message in grid.sent)


def test_each_site_gets_its_own_row_alone(run, table):
    got, grid, _ = run(report="own")
    assert sorted(got) == list("abcdef")
    for name, report in got.items():
        own = table.loc[[name]]
        own.attrs = {}  # which tell of the others
        pd.testing.assert_frame_equal(report, own)
        assert report.attrs == {}
    texts = {m.content["request"]["client"]: str(m.content) for m in grid.sent[-6:]}
    assert all(("silent" in text) == (name == "b") for name, text in texts.items())
    assert not any("of 6 clients gain" in text for text in texts.values())


def test_each_site_gets_all_rows(run, table):
    got, _, _ = run(report="all")
    assert sorted(got) == list("abcdef")
    for report in got.values():
        pd.testing.assert_frame_equal(report, table)
        assert report.attrs == table.attrs


def test_without_a_callback_the_table_is_logged(federate, table, caplog):
    strategy, grid = federate(estimator(n_rounds=1), report="own")
    with caplog.at_level(logging.INFO, "flwr"):
        strategy.start(grid)
    assert "6 of 6 clients have the participation report" in caplog.text
    assert caplog.text.count("participation report, clients: 1") == 6
    assert "été" in caplog.text


def test_a_site_that_does_not_answer_is_named_by_a_warning(run, table):
    def hang(grid):
        node = node_of(grid, "b")
        node.answer = lambda m: late(m) if is_kind(m, "report") else node.app(m, node.context)

    def fail(report, context):
        if context.node_config["client-name"] == "e":
            raise OSError("the disk of John Smith is full")

    with pytest.warns(UserWarning, match="these clients have not confirmed") as warned:
        _, grid, strategy = run(hang, on_report=fail, report="own")
    (told,) = [str(w.message) for w in warned if "not confirmed" in str(w.message)]
    assert "'b': 'TimeoutError: no answer'" in told
    assert "the client failed with 'OSError'" in told and "Smith" not in told
    assert not any(f"'{name}'" in told for name in "acdf")
    assert strategy.model_.n_rounds_ == 2
    assert len(requests(grid.sent, "report")) == 6


def test_the_table_is_of_the_fitted_model(run, monkeypatch, table):
    seen = []

    def report_of(model):
        seen.append((type(model).__name__, model[-1].n_rounds_))
        return table

    monkeypatch.setattr(_report.inspection, "participation_report", report_of)
    model = FederatedClassifier(n_rounds=2, random_state=0)
    got, _, _ = run(model=make_pipeline(FederatedStandardScaler(), model), report="own")
    assert seen == [("FederatedPipeline", 2)]
    assert len(got) == 6


def test_a_run_that_is_cut_off_sends_no_table_and_one_that_continues_does(run, table, tmp_path):
    def cut(grid):
        raise PowerCut

    model = estimator(n_rounds=3, checkpoint=tmp_path)
    with pytest.raises(PowerCut):
        run(at_round(1, cut), model=model, report="all")
    for _ in range(2):  # after its end too
        got, _, _ = run(model=model, report="all")
        assert len(got) == 6


def test_sites_get_the_report_of_the_run(run):
    selector = FedAlignSelector(eps=0.1, warmup=0)
    model = estimator(selector=selector, priority=["a", "b"], contribution=DataBanzhaf())
    got, _, strategy = run(model=model, report="all")
    report = participation_report(strategy.model_)
    assert report["worth"].abs().sum() > 0 and report["matched"].isna().any()
    for one in got.values():
        pd.testing.assert_frame_equal(one, report, check_dtype=False, check_names=False)
        assert one.attrs == report.attrs


@pytest.mark.parametrize("report", ["mine", None, True, 1, ["own"]])
def test_another_value_is_refused(report):
    with pytest.raises(ValueError, match=r"report=.* must be one of \('none', 'own', 'all'\)"):
        FederatedStrategy(estimator(), report=report)


def test_a_table_for_another_client_is_refused(run, table):
    got, grid, _ = run(report="own")
    got.clear()
    last = next(m for m in grid.sent if is_kind(m, "report"))
    node = node_of(grid, "b" if last.content["request"]["client"] == "a" else "a")
    answer = node.app(last, node.context)
    assert "the message is for client" in answer.content["failure"]["message"]
    assert not got
