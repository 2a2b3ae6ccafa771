"""What the pages of a built gallery show: output and pictures, nothing that a reader stumbles over.

SKFED_SITE names the folder of a site that was built with its gallery. What is a fault, and that it
is found, is tested without one.
"""

import os
import re
import runpy
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

OUTPUT = {"sphx-glr-script-out", "output_html"}  # classes
FAULTS = {
    "NaN": re.compile(r"\bnan\b", re.IGNORECASE),
    "repr": re.compile(r"\bat 0x[0-9a-fA-F]+"),
    "warning": re.compile(r"warning\b", re.IGNORECASE),
    "path": re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+|\b[A-Z]:\\"),
}
PICTURES = runpy.run_path(str(Path(__file__).parents[2] / "doc" / "_ext" / "pictures.py"))
COMMITTED = PICTURES["committed"]()
NOT_RUN = "Shown without its output"
PRINTED = re.compile(r'class="sphx-glr-script-out.*?<pre>(.*?)</pre>', re.DOTALL)
COLUMNS = 80  # a page with a list of its sections has place for no more


class Outputs(HTMLParser):
    """The text of the elements of a page that are output of its code."""

    def __init__(self):
        super().__init__()
        self.texts, self.depth, self.is_style = [], 0, False

    def handle_starttag(self, tag, attrs):
        """Enter an output, or go deeper into one."""
        is_output = OUTPUT & set((dict(attrs).get("class") or "").split())
        if tag == "div" and (self.depth or is_output):
            if not self.depth:
                self.texts.append("")
            self.depth += 1
        elif self.depth:
            self.texts[-1] += " "  # between cells of a table
        self.is_style = tag == "style"

    def handle_endtag(self, tag):
        """Leave a division, or a style."""
        self.is_style = False
        if tag == "div" and self.depth:
            self.depth -= 1

    def handle_data(self, data):
        """Keep the text of outputs."""
        if self.depth and not self.is_style:
            self.texts[-1] += data


def outputs_of(page):
    """Return the texts of a page's outputs."""
    parser = Outputs()
    parser.feed(page)
    return parser.texts


def faults_of(page):
    """Return the faults of a page's outputs, and where they are."""
    return {
        (name, text[max(found.start() - 30, 0) : found.end() + 30])
        for text in outputs_of(page)
        for name, pattern in FAULTS.items()
        for found in pattern.finditer(text)
    }


def long_lines(page):
    """Return the printed lines of a page that have too many columns."""
    printed = (unescape(re.sub("<.*?>", "", text)) for text in PRINTED.findall(page))
    return [line for text in printed for line in text.splitlines() if len(line) > COLUMNS]


def is_finished(page):
    """Tell whether a page has what its code printed or drew, or says that it was not run."""
    return NOT_RUN in page or "_images/sphx_glr_plot_" in page or bool(outputs_of(page))


def placeholders(thumbnails, folder):
    """Return the thumbnails that stand for a picture that is missing."""
    glr = pytest.importorskip("sphinx_gallery", reason="the extra docs is not installed")
    from sphinx_gallery.utils import scale_image

    static, blank = Path(glr.__file__).parent / "_static", set()
    for name in ("no_image.png", "broken_example.png"):
        scale_image(static / name, folder / name, 400, 280)
        blank.add((folder / name).read_bytes())
    return [path.name for path in thumbnails if path.read_bytes() in blank]


@pytest.fixture(scope="module")
def site():
    """Return the folder of a site with its gallery, or skip."""
    if "SKFED_SITE" not in os.environ:
        pytest.skip("SKFED_SITE is unset: no gallery is looked at")
    return Path(os.environ["SKFED_SITE"]).resolve()


@pytest.fixture(scope="module")
def pages(site):
    """Return the pages of examples and tutorials, or skip."""
    paths = site.glob("auto_*/**/plot_*.html")
    found = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    if all(NOT_RUN in page for page in found.values()):
        pytest.skip("the site was built without running the examples")
    return found


def test_each_page_of_the_gallery_has_output_without_faults(pages):
    assert len(pages) >= 20
    assert not [name for name, page in pages.items() if not is_finished(page)]
    found = {name: faults_of(page) for name, page in pages.items()}
    assert not {name: faults for name, faults in found.items() if faults}


def test_what_examples_print_fits_their_pages(pages):
    found = {name: long_lines(page) for name, page in pages.items()}
    assert not {name: lines for name, lines in found.items() if lines}


def test_each_example_has_a_picture_of_its_own_as_thumbnail(pages, site, tmp_path):
    thumbnails = sorted(site.glob("_images/sphx_glr_plot_*_thumb.*"))
    assert len({path.read_bytes() for path in thumbnails}) == len(thumbnails) == len(pages)
    assert not placeholders(thumbnails, tmp_path)


def differs(picture, other, folder):
    """Return how two pictures differ, None where they do not."""
    images = pytest.importorskip("matplotlib.testing.compare", reason="needs matplotlib")
    # Other machines round differently, which moves lines by a part of a pixel: about 2.
    return images.compare_images(picture, shutil.copy(other, folder / "drawn.png"), tol=5)


def test_the_pictures_of_doc_are_those_of_examples():
    assert {path.name for path in PICTURES["IMAGES"].glob("*.png")} == COMMITTED.keys()


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_pictures_are_as_the_examples_draw_them(pages, site, name, tmp_path):
    example = COMMITTED[name]
    if NOT_RUN in pages[example]:
        pytest.skip(f"the site was built without running {example}")
    drawn = PICTURES["drawn"](site, example)
    assert not differs(PICTURES["IMAGES"] / name, drawn, tmp_path), "make docs pictures"


ROW = re.compile(r"^(.*?)((?: +(?:-?\d+\.?\d*|inf))+)$", re.MULTILINE)


def rows_of(page):
    """Return the numbers of each row of the tables that a page prints, by the row's first name."""
    found: dict[str, list[float]] = {}
    for name, cells in ROW.findall("\n".join(outputs_of(page))):
        found.setdefault(name.strip(), [float(cell) for cell in cells.split()])
    return found


def conclude_accuracy_per_byte(rows):
    rounds, megabytes, _ = zip(*(rows[k] for k in ("pow-d", "rpow-d", "random")), strict=True)
    assert sorted(rounds) == list(rounds)  # pow-d is first, and random last
    assert megabytes[0] > megabytes[2] > megabytes[1]


def conclude_fairness(rows):
    (mean, lowest, *_), (mean_random, lowest_random, *_) = rows["power-of-choice"], rows["random"]
    assert lowest - lowest_random > abs(mean_random - mean)


def conclude_hostile(rows):
    mean, _, trimmed, median = zip(*(rows[str(n)] for n in (0, 2, 4, 6)), strict=True)
    assert mean[1] < 0.2
    for robust in (trimmed, median):
        assert min(robust[1:3]) >= robust[0]
        assert robust[0] > robust[3] > robust[0] - 0.05


def conclude_intermittent(rows):
    away = "in turns, 1 of 5 silent"
    random, power = (
        [rows[f"{rule}, {name}"][0] for name in ("always there", away)]
        for rule in ("random", "power-of-choice")
    )
    assert 0 < power[1] - power[0] < random[1] - random[0]
    assert power[1] < random[0]


def conclude_time_to_accuracy(rows):
    late = ", deadline of 6 s"
    for name in ("", late):
        rounds, seconds, _ = zip(rows[f"pow-d{name}"], rows[f"random{name}"], strict=True)
        assert rounds[0] < rounds[1]
        assert seconds[0] < seconds[1]
    for rule in ("pow-d", "random"):
        _, seconds, trained = zip(rows[rule], rows[rule + late], strict=True)
        assert seconds[1] < seconds[0]
        assert trained[1] < trained[0]


def conclude_adult(rows):
    """Read the share of right rows, and kB for preprocessing."""
    pooled, federated, own = (
        rows[name] for name in ("in one place", "federated", "each client's own scale")
    )
    assert federated[0] == pytest.approx(pooled[0], abs=0.002)
    assert federated[0] - 0.02 < own[0] < federated[0]
    assert federated[1] < pooled[1] / 10


def conclude_contributions_converge(rows):
    """Read Banzhaf and Shapley values, then models, distances, and these by the errors."""
    values = np.array([rows[f"client {k}"] for k in "ABCDEFGH"])
    assert values[6:].max() < 0 < values[:6].min()  # the last two have random labels
    assert rows["sum"][1] == pytest.approx(rows["gain of the round:"][0], abs=0.001)
    assert abs(rows["sum"][0] - rows["sum"][1]) > 0.1
    banzhaf, shapley = (
        np.array([cells for row, cells in rows.items() if row.startswith(name)])
        for name in ("DataBanzhaf", "GTGShapley")
    )
    for models, distances, by_errors in (banzhaf.T, shapley.T):
        assert (np.diff(distances) < 0).all()
        assert by_errors == pytest.approx(distances, rel=0.1, abs=0.01)
        assert (np.diff(models) > 0).all()
    near = np.interp(shapley[:2, 0], banzhaf[:, 0], banzhaf[:, 1])
    assert (shapley[:2, 1] < near).all()
    assert shapley[0, 0] == pytest.approx(255 / 3, rel=0.1)
    assert shapley[-1, 0] > 0.95 * 255
    assert rows["DataBanzhaf, 64 subsets"][1] == pytest.approx(0.4, abs=0.03)


def conclude_eps_and_d(rows):
    align, power = (
        {name: cells[0] for name, cells in rows.items() if name.startswith(f"{parameter}=")}
        for parameter in ("eps", "d")
    )
    assert max(power, key=power.get) == "d=2"
    assert max(align.values()) > max(power.values())
    assert max(align.values()) > align["eps=0"]


def conclude_own_selector(rows):
    own, power, random = (
        rows[name][2]  # MB to an accuracy
        for name in ("AboveAverage(d=6)", "PowerOfChoice(d=6, m=3)", "RandomSelector(m=3)")
    )
    assert own == pytest.approx(power, rel=0.2)
    assert min(own, power) > random


def conclude_paying_and_free(rows):
    """Read the accuracy, the free users included, and the most wrong labels of one of them."""
    cold, warm = rows["warmup=0"], rows["warmup=0.2"]
    assert warm[0] > cold[0]
    assert warm[1] < cold[1]
    alone, moderate, large = (rows[f"eps={eps}"] for eps in (0, 0.4, 2.0))
    assert moderate[0] > alone[0] > large[0]
    assert moderate[1] > alone[1] == 0 == moderate[2] < large[2]
    assert min(rows["loss, eps=0.4"][0], rows["accuracy, eps=0.2"][0]) > alone[0]
    trial = [rows[f"weight={weight}"][1] for weight in (0, 0.05, 1)]
    assert trial[1] > 0.9 > trial[0]
    assert trial[1] == pytest.approx(trial[2], abs=0.02)


def conclude_should_this_hospital_join(rows):
    """Read worth, its error and extremes, and gains; then losses of federations."""
    names = "Basel", "Graz", "Nice", "Turin", "Varna"
    six = np.array([rows[f"{name}, all six"] for name in (*names, "Zagreb")])
    worth, error, _, _, gain = np.array([rows[f"{name}, five"] for name in names]).T
    assert six[5, 3] < 0  # the most that Zagreb is worth
    assert six[:, 4].argmax() == 5  # its gain
    assert worth[3:].min() > worth[:3].sum()
    assert worth[3] - worth[4] < np.hypot(*error[3:])
    assert gain[:3].min() > 0 >= gain[3:].max()
    three, turin, varna, both, everybody, align = (
        rows[name][0]
        for name in (
            *("the three", "with Turin", "with Varna", "with Turin and Varna"),
            *("all six", "FedALIGN"),
        )
    )
    assert max(turin, varna) < three
    assert min(turin, align) + 0.01 > both > turin - 0.002
    assert everybody > 1.9 * both
    assert rows["rounds of Zagreb:"] == [0]


def conclude_skorch_net(rows):
    assert rows["accuracy:"][0] > 0.8  # more than four in five


def conclude_fine_tuning(rows):
    """Read MB down and up, and accuracies."""
    whole, head, untrained = rows.values()
    assert sum(head[:2]) < 0.2 * sum(whole[:2]) and head[1] < 0.01 * whole[1]
    assert 0 < whole[2] - head[2] < 0.1 and head[2] > untrained[2] + 0.1
    assert untrained[1] == head[1]


def conclude_token_ids(rows):
    """Read accuracies of messages from phones, and from laptops."""
    masked, unmasked = rows["with the mask"], rows["without"]
    lost = np.subtract(masked, unmasked)
    assert lost[0] > 0.04 and abs(lost[1]) < lost[0] / 2


def conclude_several_labels(rows):
    """Read the fractions of right rows, of right entries, and of digits found."""
    alone, federated, dealt, nothing = (
        rows[name]
        for name in (
            *("a client alone", "federated"),
            *("federated, dealt at random", "no digit found"),
        )
    )
    assert alone[1] < nothing[1] < federated[1] and alone[2] < 0.5 < federated[2] < dealt[2]
    assert federated[0] < federated[1]


def conclude_whose_statistics(rows):
    """Read accuracies for users who pay, for others, and for those who were not in fit."""
    alike, free, second = (
        [rows[f"{data}, {by}"] for by in ("all clients", "priority clients", "each client")]
        for data in (
            "as they are",
            "free phones in other units",
            "every second phone in other units",
        )
    )
    assert alike[0][0] == pytest.approx(alike[1][0], abs=0.01)
    assert alike[2][0] < alike[0][0] - 0.02
    for everybody, priority, own in (free, second):
        assert own[0] > max(everybody[0], priority[0]) + 0.05
        assert own[1] > max(everybody[1], priority[1])
    assert second[2][2] < second[0][2] - 0.05


def conclude_wisdm_pipeline(rows):
    """Read accuracies, and kB for preprocessing."""
    pooled, federated, own = (
        rows[name] for name in ("in one place", "federated", "each user's own")
    )
    assert federated[0] == pytest.approx(pooled[0], abs=0.002)
    assert own[0] > federated[0]
    assert federated[2] < pooled[2] / 10
    assert rows["the twelve with most rows"] < rows["the others"]


CONCLUSIONS = {
    "plot_accuracy_per_byte": conclude_accuracy_per_byte,
    "plot_adult": conclude_adult,
    "plot_contributions_converge": conclude_contributions_converge,
    "plot_eps_and_d": conclude_eps_and_d,
    "plot_fairness": conclude_fairness,
    "plot_fine_tuning": conclude_fine_tuning,
    "plot_hostile": conclude_hostile,
    "plot_intermittent": conclude_intermittent,
    "plot_own_selector": conclude_own_selector,
    "plot_paying_and_free": conclude_paying_and_free,
    "plot_should_this_hospital_join": conclude_should_this_hospital_join,
    "plot_several_labels": conclude_several_labels,
    "plot_skorch_net": conclude_skorch_net,
    "plot_time_to_accuracy": conclude_time_to_accuracy,
    "plot_token_ids": conclude_token_ids,
    "plot_whose_statistics": conclude_whose_statistics,
    "plot_wisdm_pipeline": conclude_wisdm_pipeline,
}


@pytest.mark.parametrize("name", CONCLUSIONS)
def test_examples_end_as_their_first_lines_say(pages, name):
    if NOT_RUN in pages[name]:
        pytest.skip(f"the site was built without running {name}")
    CONCLUSIONS[name](rows_of(pages[name]))


def test_rows_of_tables_are_read():
    table = "        rounds  MB\nrandom, 1 of 5 away   13.8  0.21\n2   inf  -1\n2   0\n"
    rows = {"random, 1 of 5 away": [13.8, 0.21], "2": [float("inf"), -1.0]}
    assert rows_of(SCRIPT.format(table)) == rows


SCRIPT = '<div class="sphx-glr-script-out highlight-none"><div><pre>{}</pre></div></div>'
TABLE = (
    '<div class="output_subarea output_html"><div><table><td>a</td><td>{}</td></table></div></div>'
)


@pytest.mark.parametrize("output", [SCRIPT, TABLE], ids=["printed", "table"])
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0.93   NaN  12", "NaN"),
        ("accuracy: nan", "NaN"),
        ("&lt;skfed.inspection.ClientsDisplay object at 0x7f01&gt;", "repr"),
        ("&lt;function f at 0x7f01&gt;", "repr"),
        ("UserWarning: it did not converge", "warning"),
        ("12:24:36 WARNING setup.py:85 -- not supported", "warning"),
        ("/tmp/runs/state.json", "path"),
        ("read from /home/me/data/", "path"),
        (r"C:\Users\me", "path"),
    ],
)
def test_a_bad_page_is_found(output, text, fault):
    page = f"<p>/usr/lib/ NaN</p>{output.format(text)}<p>NaN</p>"
    assert {name for name, _ in faults_of(page)} == {fault}


@pytest.mark.parametrize("text", ["banana", "2 MB/s", "1/2", "see https://example.org/a/b", "-"])
def test_a_good_page_has_no_faults(text):
    assert not faults_of(SCRIPT.format(text))


@pytest.mark.parametrize("n_columns", [COLUMNS, COLUMNS + 1])
def test_long_lines_are_found(n_columns):
    page = SCRIPT.format(f"<span></span>short\n{'&lt;' * n_columns}\n")
    assert long_lines(page) == ["<" * n_columns] * (n_columns > COLUMNS)


def test_a_page_without_output_is_not_finished():
    assert not is_finished("<p>code</p>")
    assert is_finished(f"<p>code</p><p>{NOT_RUN}</p>")
    assert is_finished(SCRIPT.format("0.9"))


@pytest.mark.parametrize("is_other", [False, True])
def test_a_picture_of_another_style_is_found(tmp_path, is_other):
    plt = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    paths = tmp_path / "committed.png", tmp_path / "new.png"
    for path, visible in zip(paths, (False, is_other), strict=True):
        figure, ax = plt.subplots(figsize=(7, 4))
        ax.spines["top"].set_visible(visible)
        figure.savefig(path, dpi=100)
        plt.close(figure)
    folder = tmp_path / "compared"
    folder.mkdir()
    assert bool(differs(*paths, folder)) == is_other


def test_placeholders_are_found(tmp_path):
    glr = pytest.importorskip("sphinx_gallery", reason="the extra docs is not installed")
    from sphinx_gallery.utils import scale_image

    blank, drawn = tmp_path / "blank_thumb.png", tmp_path / "drawn_thumb.png"
    scale_image(Path(glr.__file__).parent / "_static" / "no_image.png", blank, 400, 280)
    drawn.write_bytes(b"picture")
    folder = tmp_path / "scaled"
    folder.mkdir()
    assert placeholders([blank, drawn], folder) == ["blank_thumb.png"]
