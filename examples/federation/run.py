"""
FedALIGN over five sites on this machine, as processes of Flower
================================================================

One SuperLink and five SuperNodes on loopback, each node with the files of its own WISDM users, and
then a simulation in one process with the same seed. The two histories are equal.

    python examples/federation/run.py [--rounds 5]

It needs ``pip install "flwr>=1.41,<1.42"`` and WISDM in the folder that ``SKFED_DATA`` names. Every
message starts a Python process at its node, so on one machine a round takes 10 seconds or more,
mostly for imports and Flower's waiting.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from loopback import Loopback
from phones.task import ACTIVITIES, SITES, make_estimator, read_site

from skfed.datasets import load_wisdm

HERE = Path(__file__).resolve().parent
COLUMNS = ["round", "objective", "models_down", "models_up", "scalars_up", "cohort"]


def write_sites(folder: Path) -> dict[str, Path]:
    """Write each user's rows to a file, in the folder of one of five sites; return the folders."""
    wisdm = load_wisdm()
    for i, user in enumerate(np.unique(wisdm.clients)):
        site = folder / SITES[i % len(SITES)]
        site.mkdir(parents=True, exist_ok=True)
        rows = wisdm.clients == user
        table = wisdm.X[rows].assign(activity=wisdm.y[rows])
        table.to_csv(site / f"user-{user:02d}.csv", index=False)
    return {site: folder / site for site in SITES}


def run_federation(folder: Path, sites: dict[str, Path], rounds: int) -> pd.DataFrame:
    """Run the rounds over processes; return the history."""
    out = folder / "model.safetensors"
    with Loopback(folder) as federation:
        for site, data in sites.items():
            federation.node(site, data)
        run = federation.submit(HERE, rounds=rounds, out=str(out))
        federation.wait(run, timeout=300 + 60 * rounds, show=print)
    return make_estimator(rounds).load(out).history_


def simulate(sites: dict[str, Path], rounds: int) -> pd.DataFrame:
    """Run the rounds in this process; return the history."""
    rows = {site: read_site(data) for site, data in sites.items()}
    X = pd.concat([X for X, _ in rows.values()], ignore_index=True)
    y = np.concatenate([y for _, y in rows.values()])
    clients = np.repeat(list(rows), [len(y) for _, y in rows.values()])
    assert set(ACTIVITIES) == set(y)
    return make_estimator(rounds).fit(X, y, clients=clients).history_


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        sites = write_sites(Path(folder) / "sites")
        federation = run_federation(Path(folder), sites, rounds)
        simulation = simulate(sites, rounds)
    print("\nfive processes")
    print(federation[COLUMNS].round(4).to_string(index=False))
    print("\none process")
    print(simulation[COLUMNS].round(4).to_string(index=False))


if __name__ == "__main__":
    main()
