"""The papers at a glance: no verdict is better than its rows, and no claim is left out."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import benchmarks.papers
from benchmarks.papers.calibration import Trial
from benchmarks.papers.catalogue import experiments
from benchmarks.papers.fedalign._headlines import PAPER as FEDALIGN
from benchmarks.papers.fedalign._help import by_setting, gains, overview
from benchmarks.papers.power_of_choice import _absolute
from benchmarks.papers.power_of_choice._absolute import is_had
from benchmarks.papers.power_of_choice._headlines import PAPER as POWER_OF_CHOICE
from benchmarks.papers.readme import BEGIN, END, README, refreshed
from benchmarks.papers.rows import Row, Value
from benchmarks.papers.summary import (
    Headline,
    Paper,
    anchor,
    calibrated_alone,
    overall,
    screen,
)

RESULTS = (Path(benchmarks.papers.__file__).parent / "RESULTS.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in RESULTS.split("\n## ")[1:]}
PAPERS = [FEDALIGN, POWER_OF_CHOICE]
OURS = "bound of our own", "not in the paper"  # places of claims that no paper makes
RANK = {"does not hold": 0, "holds partly": 1, "holds": 2}
DATA = {
    (experiment.title, panel.title): panel.setting.name
    for experiment in experiments().values()
    for panel in experiment.panels
}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def rows_in(title, section):
    """Read the claims' rows of a section from its text."""
    _, begun, rest = section.partition("| claim | place | setting | paper | measured |  |\n")
    for line in rest.partition("\n\n")[0].splitlines()[1:] if begun else ():
        *others, verdict = cells(line)
        verdict = re.match(r"\*(.+?)\*", verdict)[1]
        yield Row(title, *others, verdict, DATA[title, others[2]])


ROWS = [one for title, text in SECTIONS.items() for one in rows_in(title, text)]


def row(
    verdict="holds",
    words="a: faster",
    setting="one",
    measured="+1.0 points ± 0.5 points",
    section="Paper, Figure 1: title",
    data="one",
):
    cells = words, "Figure 1", setting, "faster", measured, verdict
    return Row(section, *cells, data)


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
    return [cells(line) for line in table.splitlines()[2:]]


def once(rows):
    """Return one row for each claim and runs; another figure's has the same verdict."""
    found = {}
    for one in rows:
        same = found.setdefault((one.data, one.setting, one.words, one.paper), one)
        assert same.verdict == one.verdict
    return list(found.values())


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_no_line_is_better_than_its_rows(paper):
    """The rows of a line are found and counted again, by the words of the rule."""
    for (words, *verdicts, figure, links), headline in zip(
        screen_lines(paper.name), paper.headlines, strict=True
    ):
        assert words == headline.words
        own = headline.of(one for one in ROWS if one.section.startswith(paper.name))
        groups = [own]
        if paper.rates:
            stated, calibrated = paper.rates
            groups = [
                [one for one in own if one.rate in ("", stated)],
                [one for one in own if one.rate == calibrated],
            ]
        groups = [once(rows) for rows in groups]
        for text, rows in zip(verdicts, groups, strict=True):
            if not rows:
                assert text == "-"
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
    """RESULTS.md has all claims of every experiment whose data can be had."""
    found = {(one.section, one.words, one.place, one.setting) for one in ROWS}
    for experiment in experiments().values():
        if experiment.needs:
            assert experiment.title not in SECTIONS
            continue
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
    assert "| *does not hold*: 0 of 1 | - | a: 0.9" in line
    line = list(screen(PAPER, [row()]))[2]
    assert "| *holds*: 1 of 1, at a rate of its own | - |" in line


def conclusion(rows):
    return [line for line in screen(PAPER, rows) if line.startswith("- ")]


def copies(n, *of, **given):
    """Return rows of ``n`` runs."""
    return [row(*of, data=f"{of}{given}{i}", **given) for i in range(n)]


def test_the_conclusion_says_where_a_claim_holds():
    rows = copies(1) + copies(4, "does not hold") + copies(1, setting="two")
    rows += copies(1, "does not hold", words="b: slower")
    sure, depends, not_so = conclusion(rows)
    assert sure.endswith("two (in brackets, in how many rows it holds): nothing.")
    assert depends.endswith(": a is faster: on two (1 of 1; elsewhere 1 of 5).")
    assert not_so.endswith(": b is slower (0 of 1).")
    rows[5] = row("does not hold", setting="two")
    depends = conclusion(rows)[1]
    assert depends.endswith(": nothing.")  # one of six holds


def test_the_conclusion_names_figures_in_which_no_row_holds():
    rows = [
        *copies(3, setting="one, lr=0.005"),
        *copies(1, "does not hold", setting="x, lr=0.005", section="Paper, Figure 7: title"),
        *copies(2, setting="one, lr=0.0003"),
    ]
    sure = conclusion(rows)[0]
    assert sure.endswith(": a is faster (3 of 4 at 0.005; 2 of 2 at 0.0003; none in Figure 7).")


def test_a_claim_that_holds_nowhere_in_full_is_not_relied_upon():
    _, depends, not_so = conclusion(copies(2, "holds partly"))
    assert depends.endswith(": nothing.")
    assert not_so.endswith(": a is faster (0 of 2, 2 partly).")


def test_a_claim_of_two_figures_on_the_same_runs_counts_once():
    same = [row(), row(section="Paper, Figure 2: title")]
    assert "| *holds*: 1 of 1, at" in list(screen(PAPER, same))[2]
    assert "| *holds*: 2 of 2, at" in list(screen(PAPER, copies(2)))[2]
    others = [row(), row(words="a: faster by far"), replace(row(), paper="as fast")]
    assert "| *holds*: 3 of 3, at" in list(screen(PAPER, others))[2]


def test_no_rows_have_no_verdict():
    with pytest.raises(ValueError, match="no rows to judge"):
        overall([])


def test_rows_are_marked_that_hold_at_the_calibrated_rate_alone():
    stated = [row("does not hold", setting="one, lr=0.005"), row(setting="two, lr=0.005")]
    found = [row(setting=f"{one}, lr=0.0003") for one in ("one", "two", "three")]
    assert calibrated_alone(PAPER, [*stated, *found]) == {found[0]}
    assert calibrated_alone(PAPER, found) == set()
    assert calibrated_alone(FEDALIGN, [row("does not hold"), row()]) == set()


def test_all_marks_in_the_results_are_due():
    stated = {(r.place, r.words, r.setting): r.verdict for r in ROWS if r.rate == "0.005"}
    marked = [line for line in RESULTS.splitlines() if line.endswith(", not at lr=0.005 |")]
    for line in marked:
        words, place, setting, *_ = cells(line)
        assert stated[place, words, setting.replace("0.0003", "0.005")] != "holds"
    assert len(marked) == len(calibrated_alone(POWER_OF_CHOICE, ROWS)) > 0


def test_the_log_of_the_devices_ends_with_the_section_of_the_results():
    """Both are written by commands of their own."""
    log = (Path(benchmarks.papers.__file__).parent / "seconds.md").read_text(encoding="utf-8")
    assert log.endswith(SECTIONS["Power-of-choice, Tables 1 and 2: seconds a round"].strip() + "\n")


def test_the_readme_has_the_first_lines_of_the_results():
    readme = README.read_text(encoding="utf-8")
    assert refreshed(readme, ROWS) == readme
    lines = readme.partition(BEGIN)[2].partition(END)[0].splitlines()[2:]
    first = [paper.headlines[i].words for paper in PAPERS for i in (0, 1)]
    shown = [line.split("|")[1].strip().partition(": ")[2] for line in lines if line]
    assert shown == first


def test_a_readme_without_a_place_for_the_lines_is_an_error():
    with pytest.raises(ValueError, match="needs the lines <!-- written by"):
        refreshed("no place", ROWS)


def value(strategy, heading, *each, setting="X", paper="", section="FedALIGN, Figure 1: title"):
    return Value(section, setting, strategy, heading, np.array(each), paper)


def test_the_gain_is_over_the_better_baseline():
    """Seed by seed 87 - 90 and 89 - 90 points; 0.3 over the loss of 0.2."""
    by, accuracy, loss = "FedALIGN by loss, eps 0.2", "test accuracy, %", "training loss"
    values = [
        value("priority only", accuracy, 80.0, 80.0),
        value("all", accuracy, 90.0, 90.0),
        value(by, accuracy, 87.0, 89.0),
        value("priority only", loss, 0.1, 0.3),
        value("all", loss, 0.4, 0.4),
        value(by, loss, 0.3, 0.3),
    ]
    (gain,) = found = gains(values)
    assert (gain.better, gain.points, gain.error) == ("all", -2.0, 1.0)
    assert gain.loss_ratio == pytest.approx(1.5)
    counts = "0 of 1 | 0 of 1 | 0 of 1 | 0 of 1 | 1 of 1 | -2.00 ± 0.00 | 0 of 1"
    assert f"| {by} | {counts} |" in list(overview(found))
    assert "| Figure 1: title | X | all |  | -2.00 ± 1.00 (1.50) |  |" in list(by_setting(found))
    assert gains(values[1:]) == []


def test_gains_below_the_second_decimal_are_none():
    by, accuracy, loss = "FedALIGN by loss, eps 0.4", "test accuracy, %", "training loss"
    names = ("priority only", 80.0), ("all", 90.0), (by, 89.999)
    values = [value(name, heading, mean) for name, mean in names for heading in (accuracy, loss)]
    found = gains(values)
    assert "| Figure 1: title | X | all |  |  | +0.00 ± 0.00 (1.12) |" in list(by_setting(found))
    counts = "0 of 1 | 0 of 1 | 1 of 1 | 1 of 1 | 0 of 1 | +0.00 ± 0.00 | 0 of 1"
    assert f"| {by} | {counts} |" in list(overview(found))


def test_a_figure_can_be_had_within_both_deviations():
    def rounds(mean, paper):
        return value("rand", "rounds to 60%", mean - 1, mean, mean + 1, paper=paper)

    assert is_had(rounds(9.0, "12 ± 2"))
    assert not is_had(rounds(8.9, "12 ± 2"))
    assert is_had(rounds(11.0, "10 (0.5)"))
    assert not is_had(rounds(np.nan, "10"))


def test_absolute_figures_are_had_at_a_rate_or_between_two():
    """Rounds at 0.0005, accuracy at no rate: between ours at first, then beyond them."""

    def lines(accuracy):
        of = {"section": "Power-of-choice, Table 1: title", "paper": "100 ± 5"}
        values = []
        for lr, *means in (("0.005", 10.0, 110.0), ("0.0005", 99.0, accuracy)):
            at = of | {"setting": f"alpha=0.3, lr={lr}"}
            pairs = zip(("rounds to 60%", "test accuracy, %"), means, strict=True)
            values += [value("rand, C=0.1", heading, mean, **at) for heading, mean in pairs]
        trial = Trial(0.3, 0.0003, np.array([140.0, 150.0]), np.array([0.6, 0.7]))
        return list(_absolute.section(values, [trial]))

    line = "| alpha=0.3 | rand, C=0.1 | 100 ± 5 | 99 ± 0 at 0.0005 | 0.0005 | 100 ± 5 | "
    found = lines(91.0)
    assert "- Both figures of a strategy at one rate: none." in found
    assert f"{line}91.0 ± 0.0 at 0.0005 | none | none |" in found
    assert any("may have it: rand, C=0.1 (alpha=0.3). Beyond" in one for one in found)
    assert f"{line}101.0 ± 0.0 at 0.0005 | 0.0005 | 0.0005 |" in lines(101.0)
    found = lines(111.0)
    assert any(
        one.endswith("Beyond ours at all of them: rand, C=0.1 (alpha=0.3).") for one in found
    )
    assert list(_absolute.section([], [])) == []
