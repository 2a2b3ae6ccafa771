"""A figure or table of a paper: its panels, what it measures, and what the paper says of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.papers.claims import Claim, in_the_end, of_seeds, rounds_to
from benchmarks.papers.settings import Setting


@dataclass(frozen=True)
class Column:
    """A column of the table of ours against theirs: one figure a strategy and seed."""

    heading: str
    measure: Callable[[pd.DataFrame, str], np.ndarray]
    form: str = "{:.2f}"
    with_share: bool = False  # of what the experiment's baseline comes to


def end_of(column: str, heading: str, scale: float = 1.0, form: str = "{:.2f}") -> Column:
    """Return the column of what is measured in the end."""
    return Column(
        heading, lambda table, strategy: scale * in_the_end(table, strategy, column), form
    )


def mean_of(column: str, heading: str, form: str = "{:.1f}") -> Column:
    """Return the column of a mean over rounds."""
    return Column(
        heading, lambda table, strategy: of_seeds(table, strategy, column).mean().to_numpy(), form
    )


ACCURACY = end_of("test_accuracy", "test accuracy, %", 100)
LOSS = end_of("global_loss", "training loss", form="{:.3f}")
SECONDS = Column(
    "seconds a round",
    lambda table, strategy: of_seeds(table, strategy, "seconds").median().to_numpy(),
    "{:.4f}",
    with_share=True,
)
MODELS = Column(
    "models sent a round",
    lambda table, strategy: (
        (of_seeds(table, strategy, "models_down") + of_seeds(table, strategy, "models_up"))
        .mean()
        .to_numpy()
    ),
    "{:.1f}",
    with_share=True,
)
TO_60 = Column(
    "rounds to 60%",
    lambda table, strategy: rounds_to(table, strategy, "test_accuracy", 0.6),
    "{:.0f}",
    with_share=True,
)
TO_LOSS = Column(
    "rounds to loss 0.7",
    lambda table, strategy: rounds_to(table, strategy, "global_loss", 0.7, falling=True),
    "{:.0f}",
)


@dataclass(frozen=True)
class Panel:
    """One setting in a figure.

    Parameters
    ----------
    title : str
        Above its curves.
    setting : Setting
        Where its results come from.
    strategies : sequence of str
        Those that it shows.
    claims : sequence of Claim
        What the paper says.
    theirs : mapping of str to mapping of str to str
        The paper's figures: strategy to heading to figure.
    """

    title: str
    setting: Setting
    strategies: Sequence[str]
    claims: Sequence[Claim] = ()
    theirs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One figure or table.

    Parameters
    ----------
    title : str
        What it is.
    panels : sequence of Panel
        Side by side in the picture.
    columns : sequence of Column
        Of the table.
    draw : callable
        (experiment, tables of results, one a panel) to a picture.
    n_seeds : int, default=3
        Runs of each strategy.
    baseline : str, default=None
        The strategy that figures are also given as shares of.
    note : str, default=""
        What differs from the paper, and why.
    needs : callable, default=None
        Tells whether the data are there; None where they always are, or can be downloaded.
    """

    title: str
    panels: Sequence[Panel]
    columns: Sequence[Column]
    draw: Callable[["Experiment", list[pd.DataFrame]], Figure]
    n_seeds: int = 3
    baseline: str | None = None
    note: str = ""
    needs: Callable[[], bool] | None = None
