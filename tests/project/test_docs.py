"""What the documentation promises: every public name is in it, and its code runs.

Its pages' examples are doctests, which pytest collects (``testpaths``).
"""

import ast
import importlib
import importlib.util
import pkgutil
import re
import textwrap
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from sphinx.ext.autosummary.generate import main as autogen

import skfed

DOC = Path(__file__).parents[2] / "doc"
EXAMPLES = [*DOC.parent.glob("examples/*/plot_*.py"), *DOC.glob("tutorials/plot_*.py")]
PAGES = [*DOC.glob("*.rst"), *(DOC / "user_guide").glob("*.rst"), DOC / "api" / "index.rst"]
# Parts of the estimator.
NOT_FOR_USERS = {
    f"skfed.{name}" for name in ("checkpoint", "engines", "exchanges", "nets", "server")
}
if find_spec("flwr") is None:  # an extra
    NOT_FOR_USERS.add("skfed.flower")


def public_modules():
    """Return every public module of skfed with a list of public names."""
    names = ["skfed", *(m.name for m in pkgutil.walk_packages(skfed.__path__, "skfed."))]
    public = [name for name in names if "._" not in name and name not in NOT_FOR_USERS]
    modules = [importlib.import_module(name) for name in public]
    return [module for module in modules if hasattr(module, "__all__")]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Make the pages of the API reference; return the names that have one."""
    folder = tmp_path_factory.mktemp("generated")
    templates, index = str(DOC / "_templates"), str(DOC / "api" / "index.rst")
    autogen(["-a", "-o", str(folder), "-t", templates, index])
    return {page.stem for page in folder.glob("*.rst")}


@pytest.mark.parametrize("module", public_modules(), ids=lambda module: module.__name__)
def test_every_public_name_has_a_page(module, reference):
    # What skfed.selection shares with skfed has its page there.
    pages = {name: {f"{module.__name__}.{name}", f"skfed.{name}"} for name in module.__all__}
    assert not [name for name, either in pages.items() if not either & reference]


def test_the_pages_code_is_made_of_doctests():
    """A block in another form would not be run."""
    for page in PAGES:
        languages = re.findall(r"code-block:: *(\w+)", page.read_text(encoding="utf-8"))
        assert set(languages) <= {"sh", "bibtex"}, page.name


def test_examples_in_pages_and_docstrings_fit_a_laptops_page():
    sources = Path(skfed.__file__).parent.rglob("*.py")
    long = {
        (path.name, line)
        for path in [*PAGES, *sources]
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.lstrip().startswith((">>>", "... ")) and len(line) > 79
    }
    assert not long


def test_each_name_of_another_project_that_has_a_link_exists():
    listed = tomllib.loads((DOC / "inventories.toml").read_text(encoding="utf-8"))
    for project in listed.values():
        for entry in [*project["class"], *project.get("function", [])]:
            name = entry if isinstance(entry, str) else entry[0]
            assert pkgutil.resolve_name(name) is not None


def test_every_folder_of_examples_is_in_the_gallery():
    folders = {path.parent for path in DOC.parent.glob("examples/*/plot_*.py")}
    assert all((folder / "GALLERY_HEADER.rst").exists() for folder in folders)


def code_of(source):
    """Return the lines of an example that its page shows as code: not its cells of text."""
    begins, is_text = ast.parse(source).body[0].end_lineno, False
    for line in source.splitlines()[begins:]:
        is_text = line.startswith("# %%") or (is_text and line.startswith("#"))
        if not is_text:
            yield line


def test_code_of_examples_fits_a_laptops_page():
    code = {path: list(code_of(path.read_text(encoding="utf-8"))) for path in EXAMPLES}
    shown = DOC.parent.glob("examples/federation/phones/*.py")  # as they are
    code |= {path: path.read_text(encoding="utf-8").splitlines() for path in shown}
    assert len(code) == len(EXAMPLES) + 4
    assert not [
        (path.name, line) for path, lines in code.items() for line in lines if len(line) > 79
    ]


def blocks_of(page):
    """Yield the lines of a page's literal blocks, without their indentation."""
    text = page.read_text(encoding="utf-8")
    block = r"^( *)(?:\.\. code-block::.*|(?!\.\. ).*::)\n((?:\1 +.*\n|\n)+)"
    for _, lines in re.findall(block, text, re.MULTILINE):
        yield from textwrap.dedent(lines).splitlines()


def test_literal_blocks_of_pages_fit_a_laptops_page():
    lines = {(page.name, line) for page in PAGES for line in blocks_of(page)}
    assert any("pip install" in line for _, line in lines)
    assert not [(name, line) for name, line in lines if len(line) > 79]


def test_code_is_told_from_text():
    source = '"""Title."""\n\nx = 1  # code\n# code\n\n# %%\n# Text.\ny = 2\n# code\n'
    assert [line for line in code_of(source) if line] == [
        "x = 1  # code",
        "# code",
        "y = 2",
        "# code",
    ]


@pytest.fixture(scope="module")
def gallery():
    """Return the module of the site's settings that says what its gallery runs."""
    spec = importlib.util.spec_from_file_location("gallery", DOC / "_ext" / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_examples_that_need_data_are_not_run_without_and_have_a_thumbnail(gallery, monkeypatch):
    sources = {path: path.read_text(encoding="utf-8") for path in EXAMPLES}
    loads = re.compile(r"load_(adult|wisdm|mnist|fashion_mnist|cifar10)\(")
    needy = {path.stem for path, source in sources.items() if loads.search(source)}
    assert needy == gallery.NEEDS_DATA
    monkeypatch.delenv("SKFED_DATA", raising=False)
    runs = re.compile(gallery.runs(gallery.lacking()))
    assert not [path for path in EXAMPLES if path.stem in needy and runs.search(path.as_posix())]
    for path in (path for path in EXAMPLES if path.stem in needy):
        (picture,) = re.findall(r"^# sphinx_gallery_thumbnail_path = '(.*)'", sources[path], re.M)
        assert 0 < (DOC / picture).stat().st_size < 200_000


def test_all_other_examples_are_run(gallery):
    names = [path.as_posix() for path in EXAMPLES]
    assert all(re.search(gallery.runs({}), name) for name in names)
    absent = {"plot_ray": "the package ``ray``"}
    run = [name for name in names if re.search(gallery.runs(absent), name)]
    assert {Path(name).stem for name in {*names} - {*run}} == {"plot_ray"}


@pytest.mark.parametrize(
    ("plot_gallery", "has_data", "said"),
    [(True, True, None), (True, False, "it needs data sets"), (False, True, "were left out")],
)
def test_a_page_says_that_its_code_was_not_run(gallery, monkeypatch, plot_gallery, has_data, said):
    monkeypatch.setenv("SKFED_DATA", "data")
    if not has_data:
        monkeypatch.delenv("SKFED_DATA")
    config = SimpleNamespace(sphinx_gallery_conf={"plot_gallery": plot_gallery})
    page = ["Adult\n=====\n\nText.\n\n=====\n"]
    name = "auto_examples/preprocessing/plot_adult"
    gallery.say_what_is_not_run(SimpleNamespace(config=config), name, page)
    title, _, rest = page[0].partition("=====\n")
    assert (title, rest[-13:]) == ("Adult\n", "Text.\n\n=====\n")
    assert (said in rest) if said else (rest == "\nText.\n\n=====\n")


def test_the_gallery_orders_examples_that_there_are(gallery):
    assert {*gallery.ORDER} == {path.stem for path in EXAMPLES}
    names = ["plot_wisdm_pipeline.py", "plot_skorch_net.py", "plot_new.py", "plot_quickstart.py"]
    first = ["plot_quickstart.py", "plot_skorch_net.py", "plot_wisdm_pipeline.py", "plot_new.py"]
    assert sorted(names, key=gallery.rank) == first


BENCHMARKS = DOC.parent / "benchmarks"
RESULTS = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")
LOCAL_STEPS = (BENCHMARKS / "LOCAL_STEPS.md").read_text(encoding="utf-8")


def rows_of(section):
    """Return the cells of the only table of a text, by rows."""
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return rows[2:]  # behind the header and its line


def results_of(heading):
    """Return the cells of the table under a heading of the benchmarks' results, by rows."""
    section = RESULTS.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return section, rows_of(section)


def guide(name):
    """Return the text of a page of the user guide, on one line."""
    return " ".join((DOC / "user_guide" / f"{name}.rst").read_text(encoding="utf-8").split())


def test_the_guides_seconds_of_a_search_are_those_of_the_benchmarks():
    section, [(one, two, _)] = results_of("Two jobs for a grid")
    assert "over 8 candidates and three folds of WISDM on two cores" in section
    said = f"On two cores, 8 candidates on three folds of WISDM take {float(two):.1f} s"
    assert f"{said} instead of {float(one):.1f} s." in guide("engines")


def test_the_guides_cost_of_preprocessing_is_that_of_the_benchmarks():
    section, rows = results_of("Preprocessing")
    (size,) = re.findall(r"transformers to ([\d,]+ rows of \d+ clients)", section)
    said = f"a fit to {size} takes up to about twice the time of scikit-learn's on the pooled rows,"
    assert f"{said} less for medians, and about as long for quantiles." in guide("preprocessing")
    ratios = {name: float(ratio.split()[0]) for name, *_, ratio in rows}
    assert len(ratios) == 8
    assert 1.75 < max(ratios.values()) < 2.25
    assert ratios["median imputer"] < 1
    assert 0.8 < ratios["robust scaler"] < 1.25


def test_the_guides_cost_of_local_steps_is_that_of_the_benchmark():
    found = {(rounds, training): cells for rounds, training, *cells in rows_of(LOCAL_STEPS)}
    whole, _, _, of_whole = found["100", "`local_epochs=1`"]
    few, ratio, _, of_few = found["100", "`local_steps=20`"]
    (size,) = re.findall(r"classifier on ([\d,]+ rows of \d+ clients)", LOCAL_STEPS)
    assert "on AMD EPYC" in LOCAL_STEPS
    said = f"On {size}, 100 rounds of the default classifier take {few} s of a processor with"
    said += f" ``local_steps=20`` and {whole} s with whole epochs, {ratio} times as much; the"
    assert f"{said} accuracies are {of_few} and {of_whole}." in guide("estimator")
