"""Fixtures of the tests of displays: data of twelve clients, and a check of texts."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.datasets import make_classification


@pytest.fixture(autouse=True)
def closed_figures():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    yield
    plt.close("all")


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(600, n_informative=6, n_classes=4, random_state=0)
    return X, y, np.array([f"user {i}" for i in range(12)])[np.arange(600) % 12]


@pytest.fixture
def check_texts():
    """Return a function that fails if texts of a display overlap or are clipped."""
    return _check_texts


def _check_texts(display):
    from matplotlib.text import Text

    figure = display.figure_
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    whole = figure.bbox
    boxes = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent(renderer)
            if box.width and box.height and _is_shown(text, display.ax_):
                boxes.append((text.get_text(), box))
    assert boxes
    for words, box in boxes:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1
        assert inside, f"{words!r} is clipped"
    for (one, a), (two, b) in combinations(boxes, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, f"{one!r} lies on {two!r}"


def _is_shown(text, ax):
    """Tell whether a tick's label is within the axes' limits; other texts are."""
    for axis, limits, place in ((ax.xaxis, ax.get_xlim(), 0), (ax.yaxis, ax.get_ylim(), 1)):
        if any(text in (tick.label1, tick.label2) for tick in axis.get_major_ticks()):
            low, high = sorted(limits)
            return low <= text.get_position()[place] <= high
    return True
