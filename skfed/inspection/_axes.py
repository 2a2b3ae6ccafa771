"""Axes, labels and legends of all displays."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from skfed.inspection._style import STYLE
from skfed.utils._extras import needs

_MAX_LABELS = 20  # client ids beside an axis
_MAX_LENGTH = 14  # characters of a client id
_MAX_ENTRIES = 40  # of a legend
# The characters of a name in a legend, and the font size in points: what fits first is taken.
_NAME_SIZES = *product([70], [10, 9, 8, 7]), *product([40], [10, 9, 8, 7, 6, 5])
_MAX_WIDTH = 0.5  # of a legend, as a share of the room
# Where a name is written beside a marker, in radii: what is free first is taken.
_PLACES = (1, 0), (-1, 0), (0, 1), (0, -1), (0.7, 0.7), (0.7, -0.7), (-0.7, 0.7), (-0.7, -0.7)
_ALIGNED = {1: "left", 0: "center", -1: "right"}


def get_axes(ax: Any, size: tuple[float, float] = (6.4, 4.0)) -> tuple[Any, Any]:
    """Return ``ax``, or new axes, and their figure."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(needs("skfed.inspection", "plot")) from error
    if ax is None:
        with plt.rc_context(STYLE):
            _, ax = plt.subplots(figsize=size, layout="constrained")
    return ax, ax.figure


def name_clients(
    axis: Any, names: Sequence, label: str, marked: Sequence[bool] | None = None
) -> None:
    """Label an axis with ids, ``marked`` ones with a star, or with their number if many."""
    if not are_named(names):
        axis.set_ticks([])
        axis.set_label_text(f"{len(names)} {label}")
        return
    ambiguous = len({str(name) for name in names}) < len(names)  # as for 1 and "1"
    texts = [_shorten(repr(name) if ambiguous else name) for name in names]
    stars = [False] * len(texts) if marked is None else marked
    texts = [f"{text}*" if star else text for text, star in zip(texts, stars, strict=True)]
    axis.set_ticks(np.arange(len(names)), texts, parse_math=False)  # ids may contain "$"
    axis.set_label_text(label)
    if axis.axis_name == "x":
        axis.set_tick_params(rotation=90)


def are_named(names: Sequence) -> bool:
    """Return whether an axis has room for these names."""
    return len(names) <= _MAX_LABELS


def label_rounds(ax: Any) -> None:
    """Label the horizontal axis as rounds, with ticks at whole numbers."""
    ax.set_xlabel("round")
    ax.xaxis.get_major_locator().set_params(integer=True)


def label_mean(label: str, n_fits: Any) -> str:
    """Return the label of an axis on which means over fits have bands or error bars."""
    return f"{label}\nmean ± standard deviation of {n_fits} fits"


def legend(ax: Any) -> None:
    """Put a legend beside the axes, with a font size and columns that fit there.

    Only constrained layout makes room beside axes; without it the legend is inside of them.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    inside = not isinstance(ax.figure.get_layout_engine(), ConstrainedLayoutEngine)
    width, height = _room(ax, inside)
    for max_length, size in _NAME_SIZES:
        handles, labels = _entries(ax, max_length)
        if not labels:
            return
        drawn = _legend(ax, handles, labels, size, inside)
        n_columns = int(np.ceil(drawn.get_window_extent().height / height))
        if n_columns > 1:
            drawn = _legend(ax, handles, labels, size, inside, n_columns)
        if drawn.get_window_extent().width <= _MAX_WIDTH * width:
            return


def _room(ax: Any, inside: bool) -> tuple[float, float]:
    """Return the width and the height of the axes, or of their part of the figure."""
    if inside:
        return ax.bbox.width, ax.bbox.height
    spec = ax.get_subplotspec()
    n_rows, n_columns = (1, 1) if spec is None else spec.get_gridspec().get_geometry()
    return ax.figure.bbox.width / n_columns, ax.figure.bbox.height / n_rows


def _entries(ax: Any, max_length: int) -> tuple[list, list[str]]:
    """Return the handles and labels of a legend, with a count of those left out."""
    handles, labels = ax.get_legend_handles_labels()
    labels = number_duplicates([_shorten(text, max_length) for text in labels])
    if len(labels) > _MAX_ENTRIES:
        from matplotlib.lines import Line2D

        n_shown = _MAX_ENTRIES - 1
        labels = [*labels[:n_shown], f"and {len(labels) - n_shown} more"]
        handles = [*handles[:n_shown], Line2D([], [], linestyle="none")]
    return handles, labels


def _legend(
    ax: Any, handles: list, labels: list[str], size: float, inside: bool, n_columns: int = 1
) -> Any:
    beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
    drawn = ax.legend(
        handles,
        labels,
        **({"loc": "best", "frameon": True} if inside else beside),
        fontsize=size,
        ncols=n_columns,
        labelspacing=0.2,
        columnspacing=1.0,
        handlelength=20 / size,  # in font sizes; long enough to show the dashes of a line
    )
    for text in drawn.get_texts():
        text.set_parse_math(False)
    return drawn


def format_params(params: Mapping[str, Any]) -> str:
    """Return the parameters of a search's candidate as text.

    Names of steps are left out where those of the parameters differ.
    """
    short = {name: name.rpartition("__")[2] for name in params}
    uses = Counter(short.values())
    names = {name: own if uses[own] == 1 else name for name, own in short.items()}
    text = ", ".join(f"{names[name]}={value}" for name, value in params.items())
    return " ".join(text.split())  # the text of a long value has several lines


def number_duplicates(names: Sequence[str]) -> list[str]:
    """Append a number to the second and later occurrences of a name."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return numbered


def _shorten(name: Any, max_length: int = _MAX_LENGTH) -> str:
    """Leave out the middle of a long name, since long names often differ at their ends."""
    text = str(name)
    if len(text) <= max_length:
        return text
    end = (max_length - 1) // 2
    return f"{text[: max_length - 1 - end]}…{text[-end:]}"


def place_names(
    ax: Any, points: np.ndarray, radii: np.ndarray, names: Sequence, others: Sequence[Any]
) -> None:
    """Write the name of each marker beside it; leave out those that would lie on something.

    ``radii`` are those of the markers, in points, and ``others`` texts that are to stay free. The
    limits of the axes are to stay as they are.
    """
    from matplotlib.patheffects import withStroke

    figure = ax.figure
    figure.draw_without_rendering()  # its layout is known thereafter
    renderer = figure.canvas.get_renderer()
    places, in_pixels = ax.transData.transform(points), figure.dpi / 72 * radii
    taken = [_box(x, y, r) for (x, y), r in zip(places, in_pixels, strict=True)]
    taken += [text.get_window_extent(renderer) for text in others]
    for point, radius, name in zip(points, radii + 3, names, strict=True):
        for x, y in _PLACES:
            text = ax.annotate(
                _shorten(name),
                point,
                (radius * x, radius * y),
                textcoords="offset points",
                ha=_ALIGNED[np.sign(x)],
                va={0: "center", 1: "bottom", -1: "top"}[np.sign(y)],
                fontsize=9,
                parse_math=False,
                path_effects=[withStroke(linewidth=2, foreground="white")],  # over lines
            )
            box = text.get_window_extent(renderer)
            inside = ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1
            inside = inside and ax.bbox.y0 <= box.y0 and box.y1 <= ax.bbox.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def _box(x: float, y: float, radius: float) -> Any:
    """Return the box about a circle."""
    from matplotlib.transforms import Bbox

    return Bbox([[x - radius, y - radius], [x + radius, y + radius]])
