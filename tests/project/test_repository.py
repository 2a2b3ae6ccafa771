"""What holds of the repository beside its source: CI, workflows, forms, packages and versions."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CI, GITHUB = ROOT / ".ci", ROOT / ".github"
BASH = shutil.which("bash")  # by its path: Windows would take another that it has
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
FORMS = sorted(GITHUB.glob("ISSUE_TEMPLATE/*.yml"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def script(name):
    """Import a script of .ci."""
    spec = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


contents, release = script("contents"), script("release")


def read_yaml(path):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra docs installs")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps_of_ci():
    done = subprocess.run([BASH, CI / "run", "--list"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def commands(job):
    """Return what a job runs, once for each value of its matrix that the command names."""
    for step in job["steps"]:
        if "run" in step:
            name = re.search(r"\$\{\{ matrix\.(\w+) \}\}", step["run"])
            values = job["strategy"]["matrix"][name[1]] if name else [""]
            yield from (
                step["run"].replace(name[0], value) if name else step["run"] for value in values
            )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_steps_of_ci_and_nothing_else(path):
    workflow = read_yaml(path)
    lines = [line for job in workflow["jobs"].values() for line in commands(job)]
    assert lines
    for line in lines:
        command, *steps = line.split()
        assert command == ".ci/run"
        assert steps
        assert set(steps) <= steps_of_ci()


def test_every_step_of_ci_is_run_by_a_workflow():
    jobs = [job for path in WORKFLOWS for job in read_yaml(path)["jobs"].values()]
    run = {step for job in jobs for line in commands(job) for step in line.split()[1:]}
    assert run == steps_of_ci()


def test_ci_runs_no_step_that_it_does_not_have():
    run = [BASH, CI / "run", "lint", "nothing"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.startswith("there is no step 'nothing'; steps: ")


@pytest.mark.parametrize("name", ["python -m pytest", "plot_quickstart.py", "nothing"])
def test_ci_runs_commands_of_the_readme(name):
    done = subprocess.run([BASH, CI / "readme", name], capture_output=True, text=True, check=False)
    if name == "nothing":
        assert done.returncode == 1
        assert done.stderr == "no command of README.md has 'nothing'\n"
    else:
        assert f'run_readme "{name}"' in (CI / "run").read_text(encoding="utf-8")
        (command,) = done.stdout.splitlines()
        assert command.startswith("python -m pip install") and name in command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_read_and_only_a_publication_more(path):
    workflow = read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    allowed = {
        name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job
    }
    assert allowed == ({"publish": {"id-token": "write"}} if path.stem == "release" else {})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_a_major_version(path):
    steps = [step for job in read_yaml(path)["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert not [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", one)]


def test_workflows_test_every_python_that_the_package_names():
    project = release.project()
    matrix = read_yaml(GITHUB / "workflows" / "tests.yml")["jobs"]["python"]["strategy"]["matrix"]
    named = [one.rpartition(" :: ")[2] for one in project["classifiers"] if " :: 3." in one]
    assert matrix["python"] == named
    assert project["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_of_issues_have_what_they_need(path):
    form = read_yaml(path)
    if path.stem == "config":
        assert all({"name", "url", "about"} == set(link) for link in form["contact_links"])
        return
    assert {"name", "description", "body"} <= form.keys()
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names)
    assert all(field["attributes"]["label"] for field in form["body"])


def test_the_site_of_read_the_docs_is_the_one_that_make_docs_builds():
    build = read_yaml(ROOT / ".readthedocs.yaml")["build"]
    assert "make docs" in build["jobs"]["build"]["html"]


def test_the_changelog_begins_with_the_version_of_pyproject():
    name, _ = release.newest(CHANGELOG)
    assert name == release.project()["version"]


def test_the_version_is_stated_in_one_place():
    cff = read_yaml(ROOT / "CITATION.cff")
    assert cff["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= cff.keys()
    assert "version" not in cff
    assert cff["license"] == release.project()["license"]


RELEASED = "# Changelog\n\n## 1.2.0 (2027-01-31)\n\n- More.\n\n## 1.1.0 (2026-12-01)\n"


@pytest.mark.parametrize(
    ("tag", "changelog", "placeholders", "found"),
    [
        ("v1.2.0", RELEASED, [], []),
        (
            "1.2.0",
            RELEASED,
            [],
            ["the tag is '1.2.0', pyproject.toml's version '1.2.0': tag v1.2.0"],
        ),
        ("v1.2.0", RELEASED, ["README.md"], ["README.md still says OWNER: RELEASING.md"]),
        (
            "v1.2.0",
            RELEASED.replace("2027-01-31", "unreleased"),
            [],
            ["CHANGELOG.md says that 1.2.0 is unreleased: give its first heading a date"],
        ),
        (
            "v1.2.0",
            RELEASED.replace("## 1.2.0 (2027-01-31)", ""),
            [],
            ["CHANGELOG.md begins with 1.1.0, pyproject.toml's version is 1.2.0"],
        ),
    ],
)
def test_a_release_that_is_not_ready_is_refused(tag, changelog, placeholders, found):
    assert release.problems(tag, "1.2.0", changelog, placeholders) == found


def test_an_sdist_built_by_hand_has_no_built_pages():
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8")
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    built = re.findall(r"^/(doc/.+)/$", ignored, re.MULTILINE)
    assert "doc/_build" in built
    assert set(built) <= set(re.findall(r"^prune (.+)$", manifest, re.MULTILINE))


TRACKED = {"skfed/__init__.py", "skfed/py.typed", "tests/test_it.py", ".ci/run", "README.md"}
IN_WHEEL = {name for name in TRACKED if name.startswith("skfed/")}
IN_WHEEL |= {f"dist-info/{name}" for name in contents.IN_WHEEL}
IN_SDIST = TRACKED - {".ci/run"} | contents.IN_SDIST | {"skfed.egg-info/PKG-INFO"}


@pytest.mark.parametrize(
    ("wheel", "sdist", "found"),
    [
        (IN_WHEEL, IN_SDIST, []),
        (IN_WHEEL - {"skfed/py.typed"}, IN_SDIST, ["wheel: is missing: skfed/py.typed"]),
        (IN_WHEEL | {"tests/test_it.py"}, IN_SDIST, ["wheel: does not belong: tests/test_it.py"]),
        (IN_WHEEL, IN_SDIST - {"README.md"}, ["sdist: is missing: README.md"]),
        (IN_WHEEL, IN_SDIST | {".ci/run"}, ["sdist: does not belong: .ci/run"]),
        (IN_WHEEL, IN_SDIST | {"data/X.npy"}, ["sdist: does not belong: data/X.npy"]),
    ],
)
def test_packages_have_what_is_tracked_and_nothing_else(wheel, sdist, found):
    assert contents.problems(TRACKED, wheel, sdist) == found


def test_with_the_newest_versions_warnings_at_our_lines_are_errors(tmp_path):
    script = (CI / "versions").read_text(encoding="utf-8")
    filters = re.search(r"'(filterwarnings=.+)'", script)[1].replace(r"\n", "\n")
    (tmp_path / "test_it.py").write_text("""
import warnings
import pytest

@pytest.mark.parametrize("name", ["skfed", "skfed.engines._loop", "skorch", "skfedx"])
def test_warns(name):
    warnings.warn_explicit("old", DeprecationWarning, "its.py", 1, module=name)
""")
    run = [sys.executable, "-m", "pytest", "-rf", "-p", "no:cacheprovider", "-o", filters, tmp_path]
    output = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    failed = re.findall(r"FAILED .*\[(.+)\]", output)
    assert failed == ["skfed", "skfed.engines._loop"], output
