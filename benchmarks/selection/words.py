"""Values as they are on the page."""

import re

import numpy as np

from benchmarks.selection.answer import Difference
from benchmarks.selection.data import Data


def anchor(*words: str) -> str:
    """Return the name of a row of a table, to be linked to."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")


def points(found: Difference) -> str:
    """Return a difference with its interval."""
    if not found.n_blocks:
        return "-"
    if np.isnan(found.low):
        return f"{found.mean:+.1f}"
    return f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"


def percent(value: float, error: float) -> str:
    """Return an accuracy in % with its standard error, if it has one."""
    if np.isnan(value):
        return "-"
    return f"{100 * value:.1f}" + ("" if np.isnan(error) else f" ± {100 * error:.1f}")


def setting(data: Data) -> str:
    """Return the numbers of clients and of steps."""
    return (
        f"K = {data.n_clients}, m = {data.clients_per_round}, "
        f"{data.local_steps} steps of {data.batch_size} rows"
    )
