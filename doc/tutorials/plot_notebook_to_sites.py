"""
From notebook to sites
======================

A model that was developed in a notebook, on rows in one process, is to be trained at five sites
that keep their rows. This page develops it on a copy of what the sites might hold, and then runs
the same Pipeline over processes, each with the files of one site.

- The Pipeline does not change: server and sites import it from one module of 40 lines.
- The history over processes is that of the simulation: same cohorts, same objective, same bytes.
- What a site sends is one number in a poll, and its model when it trains. A site whose loss is too
  high sends nothing.

The network is `Flower <https://flower.ai>`_ (``pip install "flwr>=1.41,<1.42"``).
"""

# %%
# What the sites hold
# -------------------
# Recordings of phones: a file for each user, with six columns and what the user was doing. Those
# of site 5 were labelled at random.
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

ACTIVITIES = [
    "Downstairs",
    "Jogging",
    "Sitting",
    "Standing",
    "Upstairs",
    "Walking",
]


def write_sites(folder, n_users=3, n_rows=40):
    """Write the files of five sites, each into a folder of its own."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(len(ACTIVITIES), 6))
    for site in range(1, 6):
        (folder / f"site {site}").mkdir(parents=True)
        for user in range(n_users):
            k = rng.integers(len(ACTIVITIES), size=n_rows)
            X = (
                centres[k]
                + 0.2 * rng.normal(size=6)
                + 0.5 * rng.normal(size=(n_rows, 6))
            )
            table = pd.DataFrame(
                X, columns=[f"sensor {i}" for i in range(6)]
            ).round(4)
            labels = (
                rng.integers(len(ACTIVITIES), size=n_rows) if site == 5 else k
            )
            table["activity"] = np.array(ACTIVITIES)[labels]
            table.to_csv(
                folder / f"site {site}" / f"user-{user}.csv", index=False
            )


folder = Path(tempfile.mkdtemp())
write_sites(folder)
files = sorted(folder.rglob("*.csv"))
print(*(path.relative_to(folder) for path in files[:4]), "...", sep="\n")

# %%
# One module for both worlds
# --------------------------
# ``examples/federation/phones/task.py`` says what is trained, and how a site reads its rows. For
# data of your own, copy the folder ``examples/federation``, and change three things in this file:
# the names of the sites, the labels, and ``read_site``.
#
# .. literalinclude:: ../../examples/federation/phones/task.py
#    :language: python
#
# In the notebook
# ---------------
# The simulation reads the rows of all sites, and says whose each row is. The folder ``examples`` is
# in a checkout of the repository only: where skfed was installed from the registry, append the
# folder of your copy.
import sys

import skfed

sys.path.append(
    str(Path(skfed.__file__).parents[1] / "examples" / "federation")
)
from phones.task import SITES, make_estimator, read_site

rows = {site: read_site(folder / site) for site in SITES}
X = pd.concat([X for X, _ in rows.values()], ignore_index=True)
y = np.concatenate([y for _, y in rows.values()])
clients = np.repeat(SITES, [len(y) for _, y in rows.values()])

simulation = make_estimator(rounds=3).fit(X, y, clients=clients)
columns = [
    "round",
    "objective",
    "models_up",
    "scalars_up",
    "cohort",
]
history = simulation[-1].history_[columns].round(4)
print(history.to_string(index=False, na_rep="-"))
print(f"accuracy on all rows: {simulation.score(X, y):.3f}")

# %%
# Round 0 is the warm-up: the first two sites, which have priority, train, and nobody is polled. A
# fifth of the rows are those of site 5, whose labels no model can predict.
import matplotlib.pyplot as plt

from skfed.inspection import SelectionDisplay

figure, ax = plt.subplots(figsize=(6, 2.4), layout="constrained")
SelectionDisplay.from_estimator(simulation, kind="rounds", ax=ax)
ax.set_title("Site 5 trains in no round")
plt.show()

# %%
# The model's loss on the labels of site 5 is too high. That is worth knowing before anything is
# installed at a site.
#
# Over processes
# --------------
# Flower wants an app for the server and one for the sites; they are ten lines each. The server's:
#
# .. literalinclude:: ../../examples/federation/phones/server_app.py
#    :language: python
#    :start-after: app = ServerApp()
#
# The sites':
#
# .. literalinclude:: ../../examples/federation/phones/client_app.py
#    :language: python
#    :start-after: from skfed
#
# This command starts a server and five sites as processes on this machine, and then the simulation
# in one process. A site reads one folder alone: that of ``FOLDER`` which has the site's name.
#
# .. code-block:: sh
#
#    python examples/federation/run.py --sites FOLDER --rounds 3
#
# ``FOLDER`` is that of the files that are written above. The run takes minutes, since each message
# waits for Flower, and has a process at its site, and ends with
#
# .. literalinclude:: ../tutorials/sites_output.txt
#    :language: text
#
# Over a network
# --------------
# The same two apps run on machines of their own. The server is started by ``flower-superlink``,
# each site by ``flower-supernode`` with its name and its folder, and the run by ``flwr run``. All
# traffic is to be encrypted, and each site registered by a key: :doc:`../user_guide/deployment`
# has the commands, and lists what leaves a site and what does not.
#
# Next
# ----
# - A server that is stopped continues: :doc:`../user_guide/saving`.
# - Noise on what a site sends: :doc:`../user_guide/privacy`.
# - Sites that are slow or away, simulated first: :doc:`../user_guide/devices`,
#   :doc:`../user_guide/availability`.
