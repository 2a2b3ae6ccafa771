"""Legends of many entries: all of them are read, none is clipped."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from skfed.inspection import ClientsDisplay, ConvergenceDisplay, TradeoffDisplay
from skfed.inspection._axes import COLOURS, STYLES

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
        (labels, 25, "bare"),
        (labels, 40, "long"),
    ],
)
def test_many_entries_are_all_shown(draw, n_entries, form, check_texts):
    display = draw([FORMS[form].format(i) for i in range(n_entries)])
    assert len(set(shown(display))) == n_entries
    assert display.ax_.get_window_extent().width > 0.4 * display.figure_.bbox.width
    check_texts(display)


@pytest.mark.parametrize("draw", [curves, trade_offs, labels])
def test_more_entries_than_can_be_shown_are_counted(draw, check_texts):
    display = draw([LONG.format(i + 10) for i in range(62)])
    assert len(shown(display)) == 40
    assert shown(display)[-1] == "and 23 more"
    check_texts(display)


def test_forty_entries_look_different():
    assert len({*product(COLOURS, STYLES)}) == 40
    bars = labels([f"{i:02}" for i in range(40)]).ax_.containers
    assert len({(bar[0].get_facecolor(), bar[0].get_hatch()) for bar in bars}) == 40


def test_names_that_differ_in_the_middle_are_told_apart(check_texts):
    display = curves([f"{'a' * 30}{i}{'b' * 30}" for i in range(3)])
    first, *others = shown(display)
    assert "…" in first
    assert others == [f"{first} (2)", f"{first} (3)"]
    check_texts(display)
