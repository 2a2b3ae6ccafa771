"""What the displays have in common: axes to draw on, colours, and labels that do not overlap."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skfed.utils._extras import needs

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
STYLES = ["-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1))]
PRIORITY, FREE = COLOURS[1], COLOURS[0]

_LABELS = 20  # client ids beside an axis
_LONGEST = 14  # characters of one
_ENTRIES = 40  # of a legend
_SIZES = 10, 9, 8, 7, 6, 5  # of its type, in points
_WIDEST = 0.5  # the share of a figure's width that it may take


def axes_of(ax: Any, size: tuple[float, float] = (6.4, 4.0)) -> tuple[Any, Any]:
    """Return the axes to draw on, new ones if none are given, and their figure."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(needs("skfed.inspection", "plot")) from error
    if ax is None:
        _, ax = plt.subplots(figsize=size, layout="constrained")
    return ax, ax.figure


def tidy(ax: Any) -> None:
    """Take away what carries nothing."""
    ax.spines[["top", "right"]].set_visible(False)


def name_clients(
    axis: Any, names: Sequence, label: str, marked: Sequence[bool] | None = None
) -> None:
    """Name clients beside an axis while there is room, else say how many there are.

    Those that are ``marked`` get a star.
    """
    if len(names) > _LABELS:
        axis.set_ticks([])
        axis.set_label_text(f"{len(names)} {label}")
        return
    # Ids are no formulas, whatever dollars they hold.
    alike = len({str(name) for name in names}) < len(names)  # as those of 1 and "1" are
    texts = [_short(repr(name) if alike else name) for name in names]
    stars = [False] * len(texts) if marked is None else marked
    texts = [f"{text}*" if star else text for text, star in zip(texts, stars, strict=True)]
    axis.set_ticks(np.arange(len(names)), texts, parse_math=False)
    axis.set_label_text(label)
    if axis.axis_name == "x":
        axis.set_tick_params(rotation=90)


def in_whole_rounds(ax: Any) -> None:
    """Put ticks of the horizontal axis at whole numbers."""
    ax.set_xlabel("round")
    ax.xaxis.get_major_locator().set_params(integer=True)


def legend(ax: Any) -> None:
    """Put a legend beside the axes, in columns and type that hide and clip nothing."""
    handles, labels = _entries(ax)
    whole = ax.figure.bbox
    for size in _SIZES if labels else ():
        drawn = _legend(ax, handles, labels, size)
        n_columns = int(np.ceil(drawn.get_window_extent().height / whole.height))
        if n_columns > 1:
            drawn = _legend(ax, handles, labels, size, n_columns)
        if drawn.get_window_extent().width <= _WIDEST * whole.width:
            return


def _entries(ax: Any) -> tuple[list, list[str]]:
    """Return what a legend shows: the first entries, and how many more there are."""
    handles, labels = ax.get_legend_handles_labels()
    labels = told_apart([_short(text, 40) for text in labels])
    if len(labels) > _ENTRIES:
        from matplotlib.lines import Line2D

        n_shown = _ENTRIES - 1
        labels = [*labels[:n_shown], f"and {len(labels) - n_shown} more"]
        handles = [*handles[:n_shown], Line2D([], [], linestyle="none")]
    return handles, labels


def _legend(ax: Any, handles: list, labels: list[str], size: float, n_columns: int = 1) -> Any:
    drawn = ax.legend(
        handles,
        labels,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=size,
        ncols=n_columns,
        labelspacing=0.2,
        columnspacing=1.0,
        handlelength=20 / size,  # in its type's size: as long as shows how a line is dashed
    )
    for text in drawn.get_texts():
        text.set_parse_math(False)
    return drawn


def in_words(params: Mapping[str, Any]) -> str:
    """Name a candidate of a search by its parameters, without their steps."""
    words = ", ".join(f"{name.rpartition('__')[2]}={value}" for name, value in params.items())
    return " ".join(words.split())  # a long value prints over several lines


def told_apart(names: Sequence[str]) -> list[str]:
    """Number those names, from the second on, that are alike."""
    seen: Counter[str] = Counter()
    told = []
    for name in names:
        seen[name] += 1
        told.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return told


def _short(name: Any, longest: int = _LONGEST) -> str:
    """Leave out the middle of a long name; such names differ at their ends more often than not."""
    text = str(name)
    if len(text) <= longest:
        return text
    end = (longest - 1) // 2
    return f"{text[: longest - 1 - end]}…{text[-end:]}"
