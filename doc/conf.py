"""Sphinx configuration of the site, which ``make docs`` builds."""

import sys
from pathlib import Path

import skfed

HERE = Path(__file__).parent
sys.path.append(str(HERE / "_ext"))

from gallery import lacking, runs  # noqa: E402  these are in _ext
from guide_pictures import draw_all  # noqa: E402
from inventories import write_inventories  # noqa: E402

project = "skfed"
author = copyright = "The skfed developers"
release = version = skfed.__version__

extensions = [
    "gallery",
    "mathml",
    "myst_parser",  # for the changelog
    "numpydoc",
    "results",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates", "**/GALLERY_HEADER.rst", "tutorials"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"  # a browser asks for one
html_css_files = ["pages.css"]

# The docstrings have the types.
autodoc_typehints = "none"
autosummary_ignore_module_all = False
numpydoc_show_class_members = False  # the class template shows them

sphinx_gallery_conf = {
    "examples_dirs": ["../examples", "tutorials"],
    "gallery_dirs": ["auto_examples", "auto_tutorials"],
    "backreferences_dir": "api/backreferences",
    "doc_module": "skfed",
    "reference_url": {"skfed": None},
    "capture_repr": ("_repr_html_",),  # tables; not the addresses of displays
    "reset_modules": ("matplotlib", "gallery.reset"),
    "show_memory": False,
    "subsection_order": [
        *(f"../examples/{topic}" for topic in ("getting_started", "nets", "selection", "search")),
        "*",
    ],
    "within_subsection_order": "gallery.rank",
    "write_computation_times": False,
    "remove_config_comments": True,
    "run_stale_examples": True,  # their output depends on skfed too
    # Examples whose data or extras are missing are shown but not run.
    "filename_pattern": runs(lacking()),
}

# Links to other projects' pages, from inventories.toml, since a build may have no network.
intersphinx_mapping = write_inventories(HERE / "inventories.toml", HERE / "_build" / "inventories")
intersphinx_disabled_reftypes = ["std:*"]
nitpick_ignore_regex = [("py:.*", r"(flwr|matplotlib|numpy|pandas)\..*")]

myst_heading_anchors = 3  # as on GitHub, for the links of results
# Rows of tables have names in HTML, which myst does not know; tests/project/test_site.py follows
# every link.
suppress_warnings = ["myst.xref_missing"]

# Blocks are copied without prompts and output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

draw_all(HERE / "images" / "guide")

toc_object_entries_show_parents = "hide"  # in "On this page": fit(), not the class before it
html_theme = "pydata_sphinx_theme"
html_title = f"skfed {release}"
html_context = {"default_mode": "auto"}  # without it the theme logs an error
html_show_sourcelink = False
# Pages without others below them need no list of these.
alone = ["benchmarks", "calibration", "changelog", "citing", "coming_from", "comparison"]
alone += ["default_models", "papers", "selection_benchmark"]
html_sidebars = {name: [] for name in alone}
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}


def shorten_inherited(app, what, name, obj, options, lines):
    """Keep the first line of docstrings of scikit-learn: their links are to its own pages."""
    if getattr(obj, "__module__", "").startswith("sklearn.") and what in ("method", "property"):
        lines[:] = [lines[0], ""] if lines else []


def setup(app):
    """Connect what changes docstrings."""
    app.connect("autodoc-process-docstring", shorten_inherited)
