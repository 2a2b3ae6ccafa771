"""Pictures of the results, from their tables alone."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.papers.claims import of_seeds
from benchmarks.papers.experiment import Experiment

# Okabe and Ito's colours, told apart by colour-blind readers too; a strategy keeps its place.
COLOURS = ["#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999"]
STYLES = ["-", "-", "-", "-", "--", "--", "--", "--"]


def curves(
    *measures: tuple[str, str], warmup: float | None = None, log: bool = False
) -> Callable[[Experiment, list[pd.DataFrame]], Figure]:
    """Draw measures, given as (column, label), over rounds: a row each, a column a panel.

    Lines are means over the seeds and bands a standard deviation; ``warmup`` is the share of the
    rounds that a dotted line ends.
    """

    def draw(experiment: Experiment, tables: list[pd.DataFrame]) -> Figure:
        figure, axes = _grid(len(measures), len(tables))
        for panel, table, column in zip(experiment.panels, tables, axes.T, strict=True):
            column[0].set_title(panel.title, fontsize=9)
            for (name, label), ax in zip(measures, column, strict=True):
                _lines(ax, table, panel.strategies, name, log)
                ax.set_ylabel(label if column is axes.T[0] or ax is column[0] else "")
                if warmup is not None:
                    end = warmup * (table["round"].max() + 1)
                    ax.axvline(end, color="grey", linestyle=":", linewidth=1)
            column[-1].set_xlabel("round")
        _legend(figure, axes)
        return figure

    return draw


def bars(experiment: Experiment, tables: list[pd.DataFrame]) -> Figure:
    """Draw each column of the table as a bar a strategy, with the standard error over the seeds."""
    figure, axes = _grid(len(experiment.columns), len(tables))
    for panel, table, column in zip(experiment.panels, tables, axes.T, strict=True):
        column[0].set_title(panel.title, fontsize=9)
        for measured, ax in zip(experiment.columns, column, strict=True):
            values = [measured.measure(table, strategy) for strategy in panel.strategies]
            errors = [v.std(ddof=1) / len(v) ** 0.5 if len(v) > 1 else 0 for v in values]
            places = range(len(values))
            ax.bar(places, [v.mean() for v in values], yerr=errors, color=COLOURS[: len(values)])
            ax.set_xticks(places, panel.strategies, rotation=20, ha="right")
            ax.set_ylabel(measured.heading)
    return figure


def profile(experiment: Experiment, tables: list[pd.DataFrame]) -> Figure:
    """Draw how often each client was in the cohort, in falling order, beside its data share."""
    figure, axes = _grid(len(experiment.panels[0].strategies), len(tables))
    for panel, table, column in zip(experiment.panels, tables, axes.T, strict=True):
        shares = pd.Series(panel.setting.problem(0).clients).value_counts(normalize=True)
        for i, (strategy, ax) in enumerate(zip(panel.strategies, column, strict=True)):
            often = selected(table, strategy).reindex(shares.index, fill_value=0.0)
            often = often.sort_values(ascending=False)
            places = np.arange(len(often))
            ax.bar(places, often, color=COLOURS[i], label="share of selections")
            ax.plot(places, shares[often.index], "o", color="grey", ms=4, label="share of the data")
            ax.set_xticks(places, often.index, fontsize=6)
            ax.set_title(f"{panel.title}, {strategy}", fontsize=9)
        column[-1].set_xlabel("client")
    axes[0, 0].legend(fontsize=8)
    return figure


def selected(table: pd.DataFrame, strategy: str) -> pd.Series:
    """Return each client's share of all selections of a strategy."""
    cohorts = table.loc[table["strategy"] == strategy, "cohort"]
    members = cohorts.astype(str).str.split().explode().astype(int)
    return members.value_counts(normalize=True)


def _grid(n_rows: int, n_columns: int) -> tuple[Figure, np.ndarray]:
    figure = Figure(
        figsize=(max(3.2 * n_columns, 5.0), 2.5 * n_rows + 0.6), dpi=90, layout="constrained"
    )
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    for ax in axes.flat:
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _lines(
    ax: Axes, table: pd.DataFrame, strategies: Sequence[str], column: str, log: bool
) -> None:
    for i, strategy in enumerate(strategies):
        values = of_seeds(table, strategy, column).dropna()
        if values.empty:
            continue
        if len(values) > 1000:  # more than a picture has pixels for
            values = values.iloc[:: len(values) // 500]
        mean, spread = values.mean(axis=1), values.std(axis=1)
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]
        ax.plot(mean.index + 1, mean, style, color=colour, linewidth=1.2, label=strategy)
        if not log:
            ax.fill_between(
                mean.index + 1, mean - spread, mean + spread, color=colour, alpha=0.1, linewidth=0
            )
    if log:
        ax.set_yscale("log")


def _columns(figure: Figure, labels: Iterable[str]) -> int:
    """Return how many columns of a legend fit into a picture's width."""
    inches = 0.6 + 0.065 * max(map(len, labels))
    return max(1, int(figure.get_figwidth() / inches))


def _legend(figure: Figure, axes: np.ndarray) -> None:
    found = {}
    for ax in axes.flat:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=_columns(figure, found),
        fontsize=8,
        frameon=False,
    )
