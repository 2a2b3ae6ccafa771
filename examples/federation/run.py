"""
FedALIGN over five sites on this machine, as processes of Flower
================================================================

One SuperLink and five SuperNodes on loopback, each node with the files of its own WISDM users, and
then a simulation in one process with the same seed. Both fit a Pipeline on raw rows: they impute,
scale and train. The two histories are equal.

    python examples/federation/run.py [--rounds 5] [--sites FOLDER] [--log-json FILE]

It needs ``pip install "flwr>=1.41,<1.42"``, and WISDM in the folder that ``SKFED_DATA`` names, or a
folder with the files of each site in a folder of its own (``site 1`` to ``site 5``). Every message
has a process at its node. On Linux this is a fork of one that has all imports
(``skfed.flower.warm``), and a round takes 10 seconds or more, mostly for Flower's waiting;
elsewhere each process imports for itself, which takes longer than that.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from loopback import Loopback
from phones.task import ACTIVITIES, SITES, make_estimator, read_site

import skfed
from skfed.datasets import load_wisdm
from skfed.pipeline import FederatedPipeline

HERE = Path(__file__).resolve().parent
COLUMNS = [
    "round",
    "objective",
    "models_up",
    "scalars_up",
    "cohort",
]


def write_sites(folder: Path) -> dict[str, Path]:
    """Write a file for each user, in folders of five sites; return these."""
    wisdm = load_wisdm()
    for i, user in enumerate(np.unique(wisdm.clients)):
        site = folder / SITES[i % len(SITES)]
        site.mkdir(parents=True, exist_ok=True)
        rows = wisdm.clients == user
        table = wisdm.X[rows].assign(activity=wisdm.y[rows])
        table.to_csv(site / f"user-{user:02d}.csv", index=False)
    return {site: folder / site for site in SITES}


def run_federation(
    folder: Path, sites: dict[str, Path], rounds: int, log: str
) -> FederatedPipeline:
    """Fit the Pipeline over processes; return what the server has written.

    It appends lines of JSON to ``log``, if that is no empty text.
    """
    out = folder / "model.safetensors"
    with Loopback(folder) as federation:
        for site, data in sites.items():
            federation.node(site, data)
        settings = {"rounds": rounds, "out": str(out), "log-json": log}
        run = federation.submit(HERE, **settings)
        federation.wait(run, 600.0 * (1 + rounds), print, nodes=sites)
    return skfed.load(make_estimator(rounds), out)


def read_all(
    sites: dict[str, Path],
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return the raw rows of all sites, their labels, and the site of each."""
    rows = {site: read_site(data) for site, data in sites.items()}
    X = pd.concat([X for X, _ in rows.values()], ignore_index=True)
    y = np.concatenate([y for _, y in rows.values()])
    if set(ACTIVITIES) != set(y):
        raise ValueError(
            f"the labels of the sites are {sorted(set(y))}, those of task.py "
            f"{ACTIVITIES}: the server has to know each label, and no other."
        )
    return X, y, np.repeat(list(rows), [len(y) for _, y in rows.values()])


def show(
    title: str, pipeline: FederatedPipeline, X: pd.DataFrame, y: np.ndarray
):
    """Print the history, and the accuracy on raw rows."""
    print(f"\n{title}")
    history = pipeline[-1].history_[COLUMNS].round(4)
    print(history.to_string(index=False, na_rep="-"))
    print(f"accuracy on all rows: {pipeline.score(X, y):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--sites",
        type=Path,
        help="a folder for each site; default: WISDM's users",
    )
    parser.add_argument(
        "--log-json",
        type=Path,
        help="a file for a line of JSON for each site and round",
    )
    arguments = parser.parse_args()
    log = arguments.log_json and str(arguments.log_json.resolve())
    rounds = arguments.rounds
    with tempfile.TemporaryDirectory() as folder:
        if arguments.sites is None:
            sites = write_sites(Path(folder) / "sites")
        else:
            sites = {site: arguments.sites.resolve() / site for site in SITES}
        X, y, clients = read_all(sites)
        federation = run_federation(Path(folder), sites, rounds, log or "")
    show("over processes", federation, X, y)
    show(
        "in one process",
        make_estimator(rounds).fit(X, y, clients=clients),
        X,
        y,
    )


if __name__ == "__main__":
    main()
