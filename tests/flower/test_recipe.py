"""The guide's recipe and dry run, and what the page shows of them."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from local_grid import LocalGrid, Node

import skfed
from skfed.flower import check

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "federation"
PAGES = ROOT / "doc" / "user_guide"


@pytest.fixture
def project(monkeypatch):
    """Import the project's app."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.syspath_prepend(EXAMPLE / "priority")
    from digits import app

    return app


@pytest.fixture
def grid(project, grid_time):
    names = [f"site {k}" for k in range(1, 6)]
    return LocalGrid(grid_time, *(Node(project.client, {"client-name": name}) for name in names))


def without_seconds(text):
    return [line.rstrip() for line in text.splitlines() if not line.startswith("seconds")]


def test_sites_with_another_task_stay_silent_as_the_page_says(project, grid, capsys, tmp_path):
    from run_priority import describe_savings

    out = tmp_path / "model.safetensors"
    project.main(grid, SimpleNamespace(run_config={"out": str(out)}))
    printed, _ = capsys.readouterr()
    model = skfed.load(project.model, out)
    assert model.history_["cohort"].tolist() == [
        ("site 1", "site 2"),
        *[("site 1", "site 2", "site 3")] * 4,
    ]
    page = (PAGES / "priority_output.txt").read_text(encoding="utf-8")
    found = without_seconds(f"{printed}{describe_savings(model)}\n")
    assert found == without_seconds(page)
    # What was not sent is the difference to a run in which the two had trained.
    saved = int(re.search(r"([\d,]+) bytes of models were not sent", page)[1].replace(",", ""))
    update = model.history_["bytes_up"][0] // 2
    assert saved == 2 * 4 * update


def test_the_dry_run_prints_what_the_page_shows(project, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert check.main(["digits.app:client", "--node-config", 'client-name="site 1"']) == 0
    printed, _ = capsys.readouterr()
    page = (PAGES / "check_output.txt").read_text(encoding="utf-8")
    seconds = re.compile(r"\d+\.\d\d s")
    assert seconds.sub("", printed) == seconds.sub("", page)
