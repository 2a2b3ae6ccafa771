"""What the documentation promises: every public name is in it, and its code runs.

Its pages' examples are doctests, which pytest collects (``testpaths``).
"""

import importlib
import pkgutil
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from sphinx.ext.autosummary.generate import main as autogen

import skfed

DOC = Path(__file__).parents[1] / "doc"
PAGES = [*DOC.glob("*.rst"), *(DOC / "user_guide").glob("*.rst"), DOC / "api" / "index.rst"]
NOT_FOR_USERS = {"skfed.engines", "skfed.nets"}  # parts of the estimator
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
