"""What holds of skfed's own source."""

import ast
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path, PurePosixPath

import pytest

import skfed

ROOT = Path(skfed.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
ONE_PLACE = ROOT / "utils" / "_sklearn.py"


def private_names(source):
    """Return the private scikit-learn names that a module imports or reaches for."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    paths = [name.split(".") for name in found]
    return [
        ".".join(path)
        for path in paths
        if path[0] == "sklearn" and any(p.startswith("_") and not p.endswith("__") for p in path)
    ]


def test_private_scikit_learn_is_imported_in_one_place():
    """Not by ruff's import-private-name: it is a preview, and does not see attributes."""
    found = {path: private_names(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: names for path, names in found.items() if names}.keys() == {ONE_PLACE}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from sklearn.utils import _safe_indexing as safe", ["sklearn.utils._safe_indexing"]),
        ("from sklearn.utils._tags import Tags", ["sklearn.utils._tags.Tags"]),
        ("import sklearn.utils._tags", ["sklearn.utils._tags"]),
        ("import sklearn\nsklearn.utils._x(1)", ["sklearn.utils._x"]),
        ("from sklearn.base import BaseEstimator", []),
        ("import sklearn.callback\nprint(sklearn.callback.__file__)", []),
        ("from skfed.nets import cast\ncast._x", []),
    ],
)
def test_private_names_are_found(line, found):
    assert private_names(line) == found


PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALLED = re.compile(r"""pip install ["']([^."'][^"']*)["']""")


@pytest.mark.parametrize("folder", ["skfed", "doc", "examples", "README.md", "CONTRIBUTING.md"])
def test_no_text_installs_skfed_by_a_name_that_pip_does_not_know(folder):
    paths = [ROOT.parent / folder, *(ROOT.parent / folder).rglob("*")]
    texts = [p for p in paths if p.suffix in (".py", ".rst", ".md", ".ipynb")]
    packages = {name for p in texts for name in INSTALLED.findall(p.read_text(encoding="utf-8"))}
    assert packages <= {"{package}", *chain(*PROJECT["optional-dependencies"].values())}


NAMES = {"sklearn": "scikit-learn"}
OF_EXTRAS = {"dask", "flwr", "google", "matplotlib", "opacus", "pytest", "ray"}  # google: of flwr


def imported(source):
    """Return the packages that a module imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.level == 0]
    return {name.partition(".")[0] for name in names}


def test_what_the_readme_shows_needs_no_package_but_plain_dependencies():
    """Its first command installs these alone: checkpoint= and save need safetensors."""
    found = set().union(*(imported(path.read_text(encoding="utf-8")) for path in SOURCES))
    found -= sys.stdlib_module_names | {"skfed"} | OF_EXTRAS
    plain = {re.match(r"[\w-]+", one)[0] for one in PROJECT["dependencies"]}
    assert "safetensors" in plain
    assert {NAMES.get(name, name) for name in found} <= plain


def module_of(path):
    """Return the name by which a file is imported."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_among(modules, source):
    """Return those of some modules that a source imports, in functions and for typing too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            paths = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {path if path in modules else node.module for path in paths}
    return names & set(modules)


def circles(graph):
    """Return the sets of nodes that reach one another."""
    reached = {}
    for start in graph:
        reached[start], ahead = set(), set(graph[start])
        while ahead:
            node = ahead.pop()
            reached[start].add(node)
            ahead |= graph[node] - reached[start]
    inside = [node for node in graph if node in reached[node]]
    return {frozenset(n for n in reached[node] if node in reached[n]) for node in inside}


def test_no_import_circle():
    sources = {module_of(path): path.read_text(encoding="utf-8") for path in SOURCES}
    graph = {name: imports_among(sources, source) for name, source in sources.items()}
    assert "skfed.engines._loop" in graph["skfed.engines"]
    assert not [sorted(circle) for circle in circles(graph)]


def test_circles_are_found():
    modules = {"skfed.a", "skfed.a.b", "skfed.c"}
    typing = "if TYPE_CHECKING:\n    from skfed.a import b, other\ndef f():\n    import skfed.c"
    assert imports_among(modules, typing) == modules
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}, "e": set()}
    assert circles(graph) == {frozenset("bc")}


def imports_across_packages():
    """Yield (package, other package, private module or None, name) of each import between them."""
    for path in SOURCES:
        own = package_of(module_of(path))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skfed"):
                for name in (alias.name for alias in node.names):
                    module = f"skfed.{name}" if node.module == "skfed" else node.module
                    other = package_of(module)
                    is_private = any(part.startswith("_") for part in module.split(".")[2:])
                    if other != own:
                        yield own, other, module if is_private else None, name


def package_of(module):
    """Return the package of a module; the conformance checks count as one of their own."""
    if module.startswith("skfed.utils") and "selector" in module:
        return "skfed.utils.selector_checks"
    return ".".join(module.split(".")[:2])


def test_no_two_packages_import_from_each_other():
    arrows = {(own, other) for own, other, *_ in imports_across_packages()}
    assert ("skfed.server", "skfed.exchanges") in arrows
    assert not [(own, other) for own, other in arrows if (other, own) in arrows]


def test_few_names_of_private_modules_cross_the_border_of_a_package():
    names = {
        (module, name)
        for _, other, module, name in imports_across_packages()
        if module is not None and other != "skfed.utils"
    }
    assert 20 < len(names) < 60


CONTRIBUTING = (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


def calls_at_the_first_product():
    """Return the calls of skfed, from fit on, under the first matrix product of a local step."""
    code = """
import sys
from pathlib import Path

import numpy as np
import torch

import skfed
from skfed.utils._products import PRODUCTS

PRODUCTS.by_onednn = PRODUCTS.by_openblas = False
root = str(Path(skfed.__file__).parent)
product = torch.baddbmm

def first(*arguments, **options):
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(root):
            frames.append(f"{Path(name).relative_to(root).as_posix()}: {frame.f_code.co_qualname}")
        frame = frame.f_back
    if any("run_round" in one for one in frames):
        print(*reversed(frames), sep="\\n")
        sys.exit()
    return product(*arguments, **options)

torch.baddbmm = first
X = np.random.default_rng(0).normal(size=(120, 5))
clients = np.repeat(range(6), 20)
skfed.FederatedClassifier(n_rounds=1, engine="stacked").fit(X, X[:, 0] > 0, clients=clients)
"""
    run = [sys.executable, "-c", code]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_way_of_a_row_through_a_round_is_short_and_as_documented():
    calls = calls_at_the_first_product()
    steps = re.findall(r"^\d+\. `(.+?)`: `(.+?)`", CONTRIBUTING, re.MULTILINE)
    start = calls.index("server/_rounds.py: Rounds.run_round")
    assert calls[start : start + len(steps)] == list(map(": ".join, steps))
    assert steps[-1][1] == "BoundLayers.descend"
    assert len(steps) <= 10
    assert len(calls) <= 15


def test_files_that_contributing_names_exist():
    names = re.findall(r"`([\w/]+(?:\.py|/))`", CONTRIBUTING)
    papers = ROOT.parent / "benchmarks" / "papers"
    rooms = [ROOT / name for name in ("server", "engines", "exchanges")]
    folders = ROOT, ROOT.parent, *rooms, papers
    assert len(names) > 30
    assert not [name for name in names if not any((folder / name).exists() for folder in folders)]


# Folders of tests/ that mirror no package: they test what the estimators do across packages, the
# benchmarks of the papers and of selection, and the repository.
OTHER_FOLDERS = {
    *("clusters", "estimators", "papers", "project", "properties"),
    "selection_benchmark",
}


def files_of(folder):
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.py"))]


def fault_of_place(test, sources):
    """Return what is wrong with the place of a file in tests/, by the files of skfed/, or None."""
    path, modules = PurePosixPath(test), [PurePosixPath(source) for source in sources]
    folder, name = str(path.parent), path.stem.removeprefix("test_")
    homes = {str(one.parent) for one in modules if one.stem in (name, f"_{name}")}
    if path.parts[0] == "helpers" or test == "digests.py":
        return None
    if folder not in {str(one.parent) for one in modules} | OTHER_FOLDERS:
        return "its folder is no package of skfed"
    if path.name == "conftest.py":
        return None
    if not path.name.startswith("test_"):
        return "no test, and not in helpers"
    if folder not in homes and (homes or folder == "."):
        return "no module of its name in this package"
    return None


def test_tests_lie_as_what_they_test():
    sources = files_of(ROOT)
    found = {test: fault_of_place(test, sources) for test in files_of(ROOT.parent / "tests")}
    assert len(found) > 100
    assert {test: fault for test, fault in found.items() if fault} == {}


@pytest.mark.parametrize(
    ("test", "fault"),
    [
        ("test_a.py", None),
        ("test_b.py", "no module of its name in this package"),
        ("test_round_trips.py", "no module of its name in this package"),
        ("p/test_b.py", None),
        ("p/test_a.py", "no module of its name in this package"),
        ("p/test_round_trips.py", None),
        ("p/conftest.py", None),
        ("p/made.py", "no test, and not in helpers"),
        ("made.py", "no test, and not in helpers"),
        ("q/test_round_trips.py", "its folder is no package of skfed"),
        ("project/test_round_trips.py", None),
        ("project/test_b.py", "no module of its name in this package"),
        ("helpers/made.py", None),
    ],
)
def test_a_test_in_the_wrong_place_is_found(test, fault):
    assert fault_of_place(test, ["__init__.py", "_a.py", "p/__init__.py", "p/b.py"]) == fault
