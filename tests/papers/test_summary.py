"""The papers at a glance: no verdict is better than its rows, and no claim is left out."""

import re
from pathlib import Path

import pytest

import benchmarks.papers
from benchmarks.papers.catalogue import experiments
from benchmarks.papers.fedalign._headlines import PAPER as FEDALIGN
from benchmarks.papers.fedalign._help import gains
from benchmarks.papers.power_of_choice._absolute import is_had
from benchmarks.papers.power_of_choice._headlines import PAPER as POWER_OF_CHOICE
from benchmarks.papers.readme import BEGIN, END, README, refreshed
from benchmarks.papers.report import stamp
from benchmarks.papers.rows import Row, Value, claims_of, number, sections_of, values_of
from benchmarks.papers.summary import Headline, Paper, anchor, mark_rates, overall, screen

RESULTS = (Path(benchmarks.papers.__file__).parent / "RESULTS.md").read_text(encoding="utf-8")
SECTIONS = sections_of(RESULTS)
ROWS = claims_of(SECTIONS.values())
PAPERS = [FEDALIGN, POWER_OF_CHOICE]
OURS = "bound of our own", "not in the paper"  # places of claims that no paper makes
RANK = {"does not hold": 0, "holds partly": 1, "holds": 2}


def row(verdict="holds", words="a: faster", setting="one", measured="+1.0 points ± 0.5 points"):
    return Row("Paper, Figure 1: title", words, "Figure 1", setting, "faster", measured, verdict)


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ("hhhp", "holds"),
        ("hhpp", "holds partly"),
        ("hnnn", "holds partly"),
        ("pnnn", "holds partly"),
        ("hnnnn", "does not hold"),
        ("n", "does not hold"),
        ("hhhn", "holds"),
        ("hhn", "holds partly"),
    ],
)
def test_three_quarters_hold_or_one_quarter_partly(verdicts, whole):
    named = {"h": "holds", "p": "holds partly", "n": "does not hold"}
    assert overall([row(named[letter]) for letter in verdicts]) == whole


def screen_lines(name):
    """Return the cells of a paper's lines at the top of RESULTS.md."""
    top = RESULTS.partition("\n## ")[0]
    table = next(part for part in top.split("\n\n") if part.startswith(f"| {name} |"))
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_no_line_is_better_than_its_rows(paper):
    """The rows that a line counts are counted again, by its sections and the rule's words."""
    lines = screen_lines(paper.name)
    assert len(lines) == len(paper.headlines)
    for (words, *verdicts, figure, links), (headline, groups) in zip(
        lines, paper.judged(ROWS), strict=True
    ):
        assert words == headline.words
        for text, rows in zip(verdicts, groups, strict=True):
            if not rows:
                assert text in ("not run yet", "only as stated")
                continue
            n_full = sum(one.verdict == "holds" for one in rows)
            n_some = sum(one.verdict != "does not hold" for one in rows)
            best = "does not hold"
            if 4 * n_some >= len(rows):
                best = "holds partly"
            if 4 * n_full >= 3 * len(rows):
                best = "holds"
            verdict, held, of = re.match(r"\*(.+)\*: (\d+) of (\d+)", text).groups()
            assert RANK[verdict] <= RANK[best]
            assert (int(held), int(of)) == (n_full, len(rows))
        rows = [one for group in groups for one in group]
        assert figure in {
            f"{one.words.partition(':')[0]}: {one.measured} (paper: {one.paper}), {one.setting}"
            for one in rows
        }
        linked = set(re.findall(r"\(#([^)]+)\)", links))
        assert linked == {anchor(one.section) for one in rows}


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_every_claim_of_the_paper_is_in_one_line(paper):
    for one in ROWS:
        if one.section.startswith(paper.name) and one.place not in OURS:
            lines = [headline.words for headline in paper.headlines if headline.of([one])]
            assert len(lines) == 1, f"_headlines.py has the lines {lines} for {one}"


def test_no_claim_disappears():
    """A section has all claims of its experiment; an experiment without one is named as not run."""
    found = {(one.section, one.words, one.place, one.setting) for one in ROWS}
    for name, experiment in experiments().items():
        if experiment.title not in SECTIONS:
            assert experiment.needs or f"`{name}`" in SECTIONS["Not run"]
            continue
        assert stamp(experiment) in SECTIONS[experiment.title]
        for panel in experiment.panels:
            for claim in panel.claims:
                assert (experiment.title, claim.words, claim.place, panel.title) in found


PAPER = Paper(
    "Paper",
    [
        Headline("a is faster", "a: faster", "one", ("on two", "; two")),
        Headline("b is slower", "b: slower", "one"),
    ],
    rates=("0.005", "0.0003"),
)


def test_a_line_that_holds_at_the_calibrated_rate_alone_says_so():
    stated = row("does not hold", setting="one, lr=0.005", measured="0.9")
    calibrated = row(setting="one, lr=0.0003", measured="0.5")
    first, *_ = screen(PAPER, [stated, calibrated])
    assert (
        first
        == "| Paper | at 0.005, as stated | at 0.0003, calibrated | for example | rows by figure |"
    )
    line = list(screen(PAPER, [stated, calibrated]))[2]
    assert "| *does not hold*: 0 of 1 | *holds*: 1 of 1, only here | a: 0.5 (paper: faster)" in line
    line = list(screen(PAPER, [stated]))[2]
    assert "| *does not hold*: 0 of 1 | not run yet | a: 0.9" in line


def test_the_conclusion_says_where_a_claim_holds():
    rows = [row(setting="one"), row("does not hold", setting="one"), row(setting="two")]
    rows[1:1] = [row("does not hold", setting="one")] * 2
    rows.append(row("does not hold", words="b: slower"))
    sure, depends, not_so = [line for line in screen(PAPER, rows) if line.startswith("- ")]
    assert sure.endswith("two (in brackets, in how many rows it holds): nothing.")
    assert depends.endswith(": a is faster: on two (1 of 1, elsewhere 1 of 4).")
    assert not_so.endswith(": b is slower (0 of 1).")
    rows[4] = row("does not hold", setting="two")
    depends = [line for line in screen(PAPER, rows) if line.startswith("- ")][1]
    assert depends.endswith(": nothing.")  # one of five holds


def test_rows_are_marked_that_hold_at_the_calibrated_rate_alone():
    stated = [row("does not hold", setting="one, lr=0.005"), row(setting="two, lr=0.005")]
    lines = [f"| a: faster | Figure 1 | {one}, lr=0.0003 | faster | 0.5 | *holds* |" for one in
             ("one", "two", "three")]  # fmt: skip
    marked = mark_rates("\n".join(lines), PAPER, stated)
    assert marked.splitlines() == [lines[0][:-2] + ", not at lr=0.005 |", *lines[1:]]
    assert mark_rates(marked, PAPER, stated) == marked
    assert mark_rates(marked, PAPER, []) == "\n".join(lines)
    headings = "| claim | place | setting | paper | measured |  |\n|---|---|---|---|---|---|"
    found = claims_of([f"## Paper, Figure 1: title\n\n{headings}\n{marked}"])
    assert [one.verdict for one in found] == ["holds"] * 3


def test_all_marks_in_the_results_are_due():
    stated = {(r.place, r.words, r.setting): r.verdict for r in ROWS if r.rate == "0.005"}
    for title, text in SECTIONS.items():
        for line in text.splitlines():
            if line.endswith(", not at lr=0.005 |"):
                words, place, setting = (cell.strip() for cell in line.split("|")[1:4])
                same = stated[place, words, setting.replace("0.0003", "0.005")]
                assert same != "holds", title


TABLE = """## FedALIGN, Figure 1: title

| claim | place | setting | paper | measured |  |
|---|---|---|---|---|---|
| FedALIGN by loss, eps 0.2: higher final accuracy than all | Figure 1 | X | higher | -2.0 points ± 0.4 points | *does not hold* |

| setting | strategy | test accuracy, % | training loss | rounds to 60% | paper |
|---|---|---|---|---|---|
| X | priority only | 80.00 ± 1.00 | 0.200 ± 0.100 | 12 ± 2 (1.00) | 10 (0.5) |
| X | all | 90.00 | 0.400 | never in 1 of 3 | 20 |
| X | FedALIGN by loss, eps 0.2 | 88.00 | 0.300 | 9 ± 1 | 12 ± 2 |
"""  # noqa: E501


def test_the_readme_has_the_first_lines_of_the_results():
    readme = README.read_text(encoding="utf-8")
    assert refreshed(readme, RESULTS) == readme
    lines = readme.partition(BEGIN)[2].partition(END)[0].splitlines()[2:]
    first = [paper.headlines[i].words for paper in PAPERS for i in (0, 1)]
    shown = [line.split("|")[1].strip().partition(": ")[2] for line in lines if line]
    assert shown == first


def test_a_readme_without_a_place_for_the_lines_is_an_error():
    with pytest.raises(ValueError, match="needs the lines <!-- written by"):
        refreshed("no place", RESULTS)


def test_numbers_are_read_back():
    found = values_of([TABLE])
    rounds = [value for value in found if value.heading == "rounds to 60%"]
    assert [(one.mean, one.deviation, one.paper) for one in rounds[::2]] == [
        (12, 2, "10 (0.5)"),
        (9, 1, "12 ± 2"),
    ]
    assert rounds[1].mean != rounds[1].mean
    assert len(found) == 9
    assert number("-14.7 points ± 4.7 points") == (-14.7, 4.7)
    assert number("not reached in 1 of 5 runs") is None


def test_the_gain_is_over_the_better_baseline():
    """88 - 90 points, whose error the claim has; 0.3 over the loss of 0.2."""
    (gain,) = gains(values_of([TABLE]), claims_of([TABLE]))
    assert (gain.better, gain.points, gain.error) == ("all", -2.0, 0.4)
    assert gain.loss_ratio == pytest.approx(1.5)


def test_a_figure_can_be_had_within_both_deviations():
    def value(mean, deviation, paper):
        return Value("section", "X, lr=0.005", "rand", "rounds to 60%", mean, deviation, paper)

    assert is_had(value(9, 1, "12 ± 2"))
    assert not is_had(value(8.9, 1, "12 ± 2"))
    assert is_had(value(12, 2, "10 (0.5)"))
    assert not is_had(value(float("nan"), float("nan"), "10"))
