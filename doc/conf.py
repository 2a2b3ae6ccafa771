"""Sphinx configuration of the site, which ``make docs`` builds."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import skfed

sys.path.append(str(Path(__file__).parent / "_ext"))

project = "skfed"
author = copyright = "The skfed developers"
release = version = skfed.__version__

extensions = [
    "mathml",
    "myst_parser",  # for the changelog
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates", "**/GALLERY_HEADER.rst"]
templates_path = ["_templates"]
html_static_path = ["_static"]

# The docstrings have the types.
autodoc_typehints = "none"
autosummary_ignore_module_all = False
numpydoc_show_class_members = False  # the class template shows them

# Examples whose data or extras are missing are shown but not run.
present = {
    "wisdm": "SKFED_DATA" in os.environ,
    "dask": find_spec("distributed") is not None,
    "ray": find_spec("ray") is not None,
}
absent = "|".join(name for name, is_there in present.items() if not is_there)

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "backreferences_dir": "api/backreferences",
    "doc_module": "skfed",
    "reference_url": {"skfed": None},
    "reset_modules": ("matplotlib", "gallery.reset"),
    "show_memory": False,
    "subsection_order": [
        *(f"../examples/{topic}" for topic in ("getting_started", "fedalign", "search")),
        "*",
    ],
    "write_computation_times": False,
    "run_stale_examples": True,  # their output depends on skfed too
    "filename_pattern": f"/plot_(?!{absent})" if absent else "/plot_",
}

# Names of other projects are links with SKFED_INTERSPHINX=1, which needs a network; else text.
intersphinx_mapping = {
    "numpy": ("https://numpy.org/doc/stable", None),
    "pandas": ("https://pandas.pydata.org/docs", None),
    "python": ("https://docs.python.org/3", None),
    "skorch": ("https://skorch.readthedocs.io/en/stable", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
}
if os.environ.get("SKFED_INTERSPHINX") == "1":
    extensions.append("sphinx.ext.intersphinx")
nitpick_ignore_regex = [("py:.*", r"(flwr|matplotlib|numpy|pandas|sklearn|skorch|torch)\..*")]

html_theme = "pydata_sphinx_theme"
html_title = f"skfed {release}"
html_show_sourcelink = False
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}


def shorten_inherited(app, what, name, obj, options, lines):
    """Keep the first line of docstrings of scikit-learn: their links are to its own pages."""
    if getattr(obj, "__module__", "").startswith("sklearn.") and what in ("method", "property"):
        lines[:] = [lines[0], ""] if lines else []


def setup(app):
    """Connect what changes docstrings."""
    app.connect("autodoc-process-docstring", shorten_inherited)
