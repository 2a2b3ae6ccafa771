"""What the gallery runs, in which order, and what a page says whose code is not run."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import sklearn

DATA = "data sets, from the folder that ``$SKFED_DATA`` names"
NEEDS_DATA = {"plot_adult", "plot_fine_tuning", "plot_whose_statistics", "plot_wisdm_pipeline"}
NEEDS = {"plot_dask": "distributed", "plot_ray": "ray"}  # packages of extras

# The order on a page: first what is read first. What is not here follows.
ORDER = [
    "plot_first_federation",
    "plot_compare_rules",
    "plot_write_a_rule",
    "plot_notebook_to_sites",
    "plot_quickstart",
    "plot_skorch_net",
    "plot_wisdm_pipeline",
    "plot_fine_tuning",
    "plot_token_ids",
    "plot_several_labels",
    "plot_paying_and_free",
    "plot_own_selector",
    "plot_accuracy_per_byte",
    "plot_who_is_chosen",
    "plot_should_this_hospital_join",
    "plot_contributions_converge",
    "plot_eps_and_d",
    "plot_fairness",
    "plot_resume",
    "plot_dask",
    "plot_ray",
    "plot_adult",
    "plot_whose_statistics",
    "plot_intermittent",
    "plot_time_to_accuracy",
    "plot_hostile",
]

TITLE = re.compile(r"^=+\n(?=\n)", re.MULTILINE)
NOT_RUN = """
.. admonition:: Shown without its output
   :class: note

   When this site was built, the code of this page was not run: {why}.

"""


def reset(gallery_conf, fname):
    """Turn off metadata routing, which an example may have turned on."""
    sklearn.set_config(enable_metadata_routing=False)


def rank(filename):
    """Return the place of an example among those of its heading."""
    name = Path(filename).stem
    return ORDER.index(name) if name in ORDER else len(ORDER)


def lacking():
    """Return what this machine lacks of what examples need, by the name of the example."""
    needs = {} if "SKFED_DATA" in os.environ else dict.fromkeys(NEEDS_DATA, DATA)
    absent = {name: package for name, package in NEEDS.items() if find_spec(package) is None}
    return needs | {name: f"the package ``{package}``" for name, package in absent.items()}


def runs(absent):
    """Return the pattern of the files that are run, where what some need is absent."""
    names = "|".join(sorted(absent))
    return rf"/(?!({names})\.py)plot_" if absent else "/plot_"


def say_what_is_not_run(app, docname, source):
    """Write below the title of a page that its code was not run."""
    name = docname.rpartition("/")[2]
    if not (docname.startswith("auto_") and name.startswith("plot_")):
        return
    absent = lacking()
    if name in absent:
        why = f"it needs {absent[name]}"
    elif not app.config.sphinx_gallery_conf["plot_gallery"]:
        why = "examples were left out"
    else:
        return
    source[0] = TITLE.sub(lambda line: line[0] + NOT_RUN.format(why=why), source[0], count=1)


def setup(app):
    """Connect what changes pages."""
    app.connect("source-read", say_what_is_not_run)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
