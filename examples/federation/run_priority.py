"""
Two of five sites have another task
===================================

One SuperLink and five SuperNodes on loopback. Sites 1 and 2 have priority, site 3 has their task,
and sites 4 and 5 have another: FedALIGN polls them, and they stay silent.

    python examples/federation/run_priority.py

It needs ``pip install "flwr>=1.41,<1.42"``, and no data. Every message has a process at its node,
on Linux a fork of one that has all imports (``skfed.flower.warm``); elsewhere it takes minutes.
"""

import sys
import tempfile
from pathlib import Path

from loopback import Loopback

import skfed
from skfed.inspection import participation_report

PROJECT = Path(__file__).resolve().parent / "priority"
SITES = [f"site {k}" for k in range(1, 6)]


def run_federation(folder: Path) -> skfed.FederatedClassifier:
    """Run the project over processes; return what the server has written."""
    sys.path.append(str(PROJECT))
    from digits.app import model

    out = folder / "model.safetensors"
    with Loopback(folder) as federation:
        for site in SITES:
            federation.node(site, folder)
        run = federation.submit(PROJECT, out=str(out))
        federation.wait(run, show=print, nodes=SITES)
    return skfed.load(model, out)


def describe_savings(model: skfed.FederatedClassifier) -> str:
    """Return who was silent, and how many bytes were not sent for it."""
    report = participation_report(model)
    silent = report["polls_silent"][report["polls_silent"] > 0]
    tensors = model.net_.module_.state_dict().values()
    n_bytes = sum(tensor.nbytes for tensor in tensors)
    saved, sent = int(silent.sum()) * n_bytes, report["bytes_up"].sum()
    return (
        f"{' and '.join(silent.index)} stayed silent in {silent.sum()} polls, "
        f"and trained in none of these rounds.\n"
        f"{saved:,} bytes of models were not sent; {sent:,} bytes were."
    )


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = run_federation(Path(folder))
    print(participation_report(model).T.to_string())
    print(describe_savings(model))


if __name__ == "__main__":
    main()
