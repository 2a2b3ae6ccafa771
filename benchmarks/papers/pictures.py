"""Pictures of the results, from their tables alone."""

from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from benchmarks.papers.claims import of_seeds
from benchmarks.papers.experiment import Experiment
from skfed.inspection import _style as style

# The baseline comes first, in black.
COLOURS = ["#000000", "#D55E00", *(c for c in style.COLOURS if c not in ("#000000", "#D55E00"))]
# Later lines are dashed, so that lines beneath them stay visible.
STYLES = [
    "-",
    "-",
    (0, (6, 2)),
    (0, (3, 3)),
    (0, (1, 2)),
    (0, (6, 2, 1, 2)),
    (0, (9, 4)),
    (0, (2, 4)),
]


def curves(
    *measures: tuple[str, str] | tuple[str, str, str],
    warmup: float | None = None,
    log: bool = False,
) -> Callable[[Experiment, list[pd.DataFrame]], Figure]:
    """Return a function that draws curves over rounds: a row for each measure, a column a panel.

    A measure is (column, label): lines are means over the seeds, bands one standard deviation. With
    (column, label, strategy) the lines are the mean differences from that strategy, seed by seed,
    and the bands their standard error; this is for seeds with data of their own, which differ more
    than strategies do. A dotted line ends the ``warmup``, a share of the rounds.
    """

    def draw(experiment: Experiment, tables: list[pd.DataFrame]) -> Figure:
        figure, columns = _columns_of_axes(len(measures), len(tables))
        for panel, table, column in zip(experiment.panels, tables, columns, strict=True):
            _title(column[0], panel.title)
            for (name, label, *than), ax in zip(measures, column, strict=True):
                _lines(ax, table, panel.strategies, name, log, *than)
                ax.set_ylabel(label, fontsize=9)
                if warmup is not None:
                    end = warmup * (table["round"].max() + 1)
                    ax.axvline(end, color="grey", linestyle=":", linewidth=1)
            column[-1].set_xlabel("round", fontsize=9)
        _legend(figure)
        return figure

    return draw


def curves_by_seconds(experiment: Experiment, tables: list[pd.DataFrame]) -> Figure:
    """Draw the test accuracy over simulated seconds: means over the seeds, and their spread.

    A line ends with the first of its seeds.
    """
    figure, columns = _columns_of_axes(1, len(tables))
    for panel, table, (ax,) in zip(experiment.panels, tables, columns, strict=True):
        _title(ax, panel.title)
        for i, strategy in enumerate(panel.strategies):
            elapsed, accuracy = (of_seeds(table, strategy, c) for c in ("elapsed", "test_accuracy"))
            grid = np.linspace(elapsed.iloc[0].max(), elapsed.iloc[-1].min(), 300)
            values = pd.DataFrame(
                {seed: np.interp(grid, elapsed[seed], accuracy[seed]) for seed in accuracy}
            )
            mean, spread, colour = values.mean(axis=1), values.std(axis=1), COLOURS[i]
            label = experiment.panels[0].strategies[i]
            ax.plot(grid, mean, label=label, color=colour, ls=STYLES[i], lw=1.2)
            ax.fill_between(grid, mean - spread, mean + spread, color=colour, alpha=0.1, lw=0)
        ax.set_xlabel("simulated seconds", fontsize=9)
        ax.set_ylabel("test accuracy", fontsize=9)
    _legend(figure)
    return figure


def _title(ax: Axes, text: str) -> None:
    """Set a title, wrapped to the width of the axes."""
    ax.set_title("\n".join(wrap(text, 36)), fontsize=9)


def bars(experiment: Experiment, tables: list[pd.DataFrame]) -> Figure:
    """Draw each column of the table as bars, one a strategy, with the standard error over seeds."""
    figure, columns = _columns_of_axes(len(experiment.columns), len(tables))
    for panel, table, column in zip(experiment.panels, tables, columns, strict=True):
        _title(column[0], panel.title)
        for measured, ax in zip(experiment.columns, column, strict=True):
            values = [measured.measure(table, strategy) for strategy in panel.strategies]
            errors = [v.std(ddof=1) / len(v) ** 0.5 if len(v) > 1 else 0 for v in values]
            places = range(len(values))
            ax.bar(places, [v.mean() for v in values], yerr=errors, color=COLOURS[: len(values)])
            ax.set_xticks(places, panel.strategies, rotation=20, ha="right")
            ax.set_ylabel(measured.heading)
    return figure


def profile(experiment: Experiment, tables: list[pd.DataFrame]) -> Figure:
    """Draw each client's share of all selections, in decreasing order, beside its data share."""
    figure, columns = _columns_of_axes(len(experiment.panels[0].strategies), len(tables))
    for panel, table, column in zip(experiment.panels, tables, columns, strict=True):
        shares = pd.Series(panel.setting.problem(0).clients).value_counts(normalize=True)
        for i, (strategy, ax) in enumerate(zip(panel.strategies, column, strict=True)):
            often = selected(table, strategy).reindex(shares.index, fill_value=0.0)
            often = often.sort_values(ascending=False)
            places = np.arange(len(often))
            ax.bar(places, often, color=COLOURS[i], label="share of selections")
            ax.plot(places, shares[often.index], "o", color="grey", ms=4, label="share of the data")
            ax.set_xticks(places, often.index, fontsize=6)
            _title(ax, f"{panel.title}, {strategy}")
        column[-1].set_xlabel("client")
    columns[0][0].legend(fontsize=8)
    return figure


def selected(table: pd.DataFrame, strategy: str) -> pd.Series:
    """Return each client's share of all selections of a strategy, from the counts in a table."""
    texts = table.loc[table["strategy"] == strategy, "selections"].dropna()
    counts = texts.str.split(expand=True).astype(int).sum()
    return counts / counts.sum()


def _columns_of_axes(n_measures: int, n_panels: int) -> tuple[Figure, list[np.ndarray]]:
    """Return a picture and the axes of each panel, one above the other.

    Up to four panels are side by side; more are in two blocks.
    """
    n_blocks = 1 if n_panels <= 4 else 2
    side_by_side = -(-n_panels // n_blocks)
    n_rows = n_blocks * n_measures
    size = (max(3.2 * side_by_side, 5.0), 2.4 * n_rows + 0.6)
    figure = Figure(figsize=size, dpi=90 if n_blocks == 1 else 65, layout="constrained")
    with rc_context(style.STYLE):
        axes = figure.subplots(n_rows, side_by_side, squeeze=False)
    for ax in axes.flat:
        ax.tick_params(labelsize=8)
    blocks = axes.reshape(n_blocks, n_measures, side_by_side)
    columns = [blocks[i // side_by_side, :, i % side_by_side] for i in range(n_panels)]
    for ax in set(axes.flat) - {ax for column in columns for ax in column}:
        ax.remove()
    return figure, columns


def _lines(
    ax: Axes,
    table: pd.DataFrame,
    strategies: Sequence[str],
    column: str,
    log: bool,
    than: str | None = None,
) -> None:
    for i, strategy in enumerate(strategies):
        values = of_seeds(table, strategy, column).dropna()
        if values.empty or strategy == than:
            continue
        if than is not None:
            values = values - of_seeds(table, than, column)
        if len(values) > 1000:  # more than a picture has pixels for
            values = values.iloc[:: len(values) // 500]
        mean = values.mean(axis=1)
        spread = values.std(axis=1) if than is None else values.sem(axis=1)
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]
        ax.plot(mean.index + 1, mean, label=strategy, color=colour, ls=style, lw=1.2)
        if not log:
            ax.fill_between(
                mean.index + 1, mean - spread, mean + spread, color=colour, alpha=0.1, linewidth=0
            )
    if log:
        ax.set_yscale("log")
        for formatted in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
            formatted(LogFormatter(minor_thresholds=(2, 0.4)))


def _legend(figure: Figure) -> None:
    found = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=_n_columns(figure, found),
        fontsize=8,
        frameon=False,
    )


def _n_columns(figure: Figure, labels: Iterable[str]) -> int:
    """Return the number of columns of a legend that fit into a picture's width."""
    inches = 0.6 + 0.065 * max(map(len, labels))
    return max(1, int(figure.get_figwidth() / inches))
