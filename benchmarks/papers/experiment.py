"""A figure or table of a paper: its panels, the columns of its table, and the paper's claims."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.papers.claims import Claim, final_mean, of_seeds, rounds_to
from benchmarks.runs.runner import Run
from benchmarks.runs.settings import Setting


@dataclass(frozen=True)
class Column:
    """A column of the table that compares our results with the paper's.

    ``measure`` takes a table of results and a strategy, and returns one value a seed. With
    ``with_share`` the value is also shown as a share of the experiment's baseline.
    """

    heading: str
    measure: Callable[[pd.DataFrame, str], np.ndarray]
    form: str = "{:.2f}"
    with_share: bool = False


def final_of(column: str, heading: str, scale: float = 1.0, form: str = "{:.2f}") -> Column:
    """Return the column of a mean over the last rounds."""
    return Column(
        heading, lambda table, strategy: scale * final_mean(table, strategy, column), form
    )


def mean_of(column: str, heading: str, form: str = "{:.1f}") -> Column:
    """Return the column of a mean over rounds."""
    return Column(
        heading, lambda table, strategy: of_seeds(table, strategy, column).mean().to_numpy(), form
    )


ACCURACY = final_of("test_accuracy", "test accuracy, %", 100)
LOSS = final_of("global_loss", "training loss", form="{:.3f}")
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
        Title above its curves.
    setting : Setting
        The setting whose results it shows.
    strategies : sequence of str
        The strategies that it shows.
    claims : sequence of Claim
        The paper's claims.
    theirs : mapping of str to mapping of str to str
        The paper's values, by strategy and heading.
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
        Title of its section in RESULTS.md.
    panels : sequence of Panel
        Its panels, side by side in the picture.
    columns : sequence of Column
        Columns of the table.
    draw : callable
        Takes the experiment and a table of results for each panel; returns a picture.
    n_seeds : int, default=3
        Runs of each strategy.
    baseline : str, default=None
        The strategy whose values columns with shares refer to.
    note : str, default=""
        What differs from the paper, and why.
    needs : callable, default=None
        Returns whether the data are on disk; None if they always are or can be downloaded.
    is_shortened : bool, default=False
        Whether it has fewer seeds, rounds, rows or local steps, so that its claims are not judged.
    """

    title: str
    panels: Sequence[Panel]
    columns: Sequence[Column]
    draw: Callable[["Experiment", list[pd.DataFrame]], Figure]
    n_seeds: int = 3
    baseline: str | None = None
    note: str = ""
    needs: Callable[[], bool] | None = None
    is_shortened: bool = False

    @property
    def runs(self) -> list[Run]:
        """All its runs."""
        return [
            (panel.setting, strategy, seed)
            for panel in self.panels
            for strategy in panel.strategies
            for seed in range(self.n_seeds)
        ]
