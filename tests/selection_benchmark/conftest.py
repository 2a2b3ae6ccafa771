"""Cells that train in a moment, in this process."""

from contextlib import contextmanager
from shutil import copytree

import numpy as np
import pytest
from in_a_thread import runs_in_a_thread

from benchmarks.runs.tables import Tables
from benchmarks.selection import cells, data, rules
from benchmarks.selection.campaign import run_cells


def small(seed, *, per_client=20):
    """Return three classes of points of twelve clients, each of which holds two of them mostly."""
    rng = np.random.default_rng(seed)
    clients = np.repeat(np.arange(12), per_client)
    y = (clients + (rng.random(len(clients)) < 0.3) + 2 * (rng.random(len(clients)) < 0.1)) % 3
    X = rng.normal(size=(len(y), 4)) + np.eye(3, 4)[y] * 2
    return X.astype(np.float32), y, clients


SMALL = data.Data(
    "small", small, 12, n_rounds=4, local_steps=2, batch_size=4, natural=True, redrawn=True
)


@pytest.fixture
def in_this_process():
    """Make runs in a thread of this process."""
    with runs_in_a_thread():
        yield


@contextmanager
def small_cell():
    """Give a cell of small data with three rules."""
    known = ("random", "power-of-choice", "round robin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.DATA, "small", SMALL)
        yield cells.Cell("small", "linear", "devices", {n: rules.RULES[n] for n in known})


@pytest.fixture
def cell():
    with small_cell() as found:
        yield found


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """Return a folder with all runs of the cell."""
    tables = Tables(tmp_path_factory.mktemp("whole"))
    with small_cell() as cell, runs_in_a_thread():
        run_cells(tables, [cell], range(2), 1)
    return tables.folder


@pytest.fixture
def finished(whole, tmp_path, in_this_process):
    """Return tables with all runs of the cell, which a test may change."""
    return Tables(copytree(whole, tmp_path / "finished"))
