"""Legends of many entries: all of them are read, none is clipped."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from skfed.inspection import ClientsDisplay, ConvergenceDisplay, TradeoffDisplay
from skfed.inspection._style import COLOURS, STYLES

LONG = "selector=FedAlignSelector(warmup=0), eps={}, local_epochs=2"


def curves(names):
    curve = pd.DataFrame({"x": [1, 2, 3], "y": [0.3, 0.2, 0.1]})
    return ConvergenceDisplay({name: curve + i for i, name in enumerate(names)}).plot()


def trade_offs(names):
    points = [(value, i, 0.1, name) for i, name in enumerate(names) for value in (1, 2)]
    table = pd.DataFrame(points, columns=["value", "score", "spread", "series"])
    return TradeoffDisplay(table, "selector__d").plot()


def labels(names):
    return ClientsDisplay.from_data(names, np.arange(len(names)) % 3)


def shown(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


FORMS = {"short": "eps={}", "long": LONG, "bare": "{}"}


@pytest.mark.parametrize(
    ("draw", "n_entries", "form"),
    [
        (curves, 25, "short"),
        (curves, 26, "bare"),
        (curves, 26, "long"),
        (curves, 40, "long"),
        (trade_offs, 26, "short"),
        (trade_offs, 40, "long"),
    ],
)
def test_many_entries_are_all_shown(draw, n_entries, form, check_texts):
    display = draw([FORMS[form].format(i) for i in range(n_entries)])
    assert len(set(shown(display))) == n_entries
    assert display.ax_.get_window_extent().width > 0.4 * display.figure_.bbox.width
    check_texts(display)


@pytest.mark.parametrize("draw", [curves, trade_offs])
def test_more_entries_than_can_be_shown_are_counted(draw, check_texts):
    display = draw([LONG.format(i + 10) for i in range(62)])
    assert len(shown(display)) == 40
    assert shown(display)[-1] == "and 23 more"
    check_texts(display)


def test_forty_entries_look_different():
    assert len({*product(COLOURS, STYLES)}) == 40


@pytest.mark.parametrize("n_labels", [20, 40])
def test_labels_are_named_or_counted(n_labels, check_texts):
    display = labels([f"a label of some length, {i + 10}" for i in range(n_labels)])
    texts = [text.get_text() for text in display.ax_.get_yticklabels()]
    assert len({*texts}) == (n_labels if n_labels == 20 else 0)
    assert display.ax_.get_ylabel() == ("labels" if n_labels == 20 else "40 labels")
    check_texts(display)


@pytest.mark.parametrize("layout", ["constrained", "tight", None])
def test_a_legend_is_never_cut(layout):
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout=layout)
    curve = pd.DataFrame({"x": [1, 2, 3], "y": [0.3, 0.2, 0.1]})
    drawn = [
        ConvergenceDisplay({LONG.format(i): curve + i for i in range(9)}).plot(ax) for ax in axes
    ]
    for _ in range(2):  # an engine lays out what was drawn before
        figure.canvas.draw()
    boxes = [display.ax_.get_legend().get_window_extent() for display in drawn]
    for box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1
        assert box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1
    assert boxes[0].x1 <= drawn[1].ax_.get_window_extent().x0  # not on the other axes


def test_a_few_long_names_are_shown_whole(check_texts):
    names = [LONG.format(i) for i in range(6)]
    display = trade_offs(names)
    assert shown(display) == names
    assert display.ax_.get_window_extent().width > 0.4 * display.figure_.bbox.width
    check_texts(display)


def test_names_that_differ_in_the_middle_are_told_apart(check_texts):
    display = curves([f"{'a' * 40}{i}{'b' * 40}" for i in range(3)])
    first, *others = shown(display)
    assert "…" in first
    assert others == [f"{first} (2)", f"{first} (3)"]
    check_texts(display)
