"""Flower's own choice of clients, held to the worked decisions as the guide shows it."""

import doctest
from pathlib import Path

import pytest

from skfed.utils._selector_decisions import worked_decisions

pytest.importorskip("flwr")

PAGE = Path(__file__).parents[2] / "doc" / "user_guide" / "worked_decisions.rst"


def test_flowers_fedavg_draws_uniformly_without_replacement():
    text = PAGE.read_text(encoding="utf-8")
    page = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    doctest.DocTestRunner().run(page, clear_globs=False)
    adapter = page.globs["FlowersFedAvg"]()
    with pytest.raises(AssertionError) as caught:
        page.globs["check_worked_decisions"](adapter, rule="random")
    names = [decision["name"] for decision in worked_decisions("random")]
    assert [name for name in names if f"{name}, round" not in str(caught.value)] == [
        "uniform, without replacement, weighted by size",
        "fewer available than m",
        "losses and priority play no part",
    ]
