"""Figure 3: FedALIGN compared with local models of free clients, 50 samples a client."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.papers.claims import POINTS, Claim, Direction, final_gain, gain_over
from benchmarks.papers.experiment import Experiment, Panel, final_of
from benchmarks.papers.fedalign._claims import SHARDS
from benchmarks.papers.fedalign._images import (
    BY_ACCURACY,
    BY_LOSS,
    N_ROUNDS,
    convolutions,
    softmax_regression,
    strategies,
    two_layers,
)
from benchmarks.papers.local_models import LOCAL, WithLocalModels
from benchmarks.papers.pictures import curves
from benchmarks.runs.problems import shards

SETTINGS = {
    "Fashion-MNIST": (softmax_regression, {"name": "fashion-mnist"}),
    "MNIST for EMNIST, 5 shards": (
        two_layers,
        {"name": "mnist", "n_shards": 600, "shards_per_client": 5},
    ),
    "CIFAR-10": (convolutions, {"name": "cifar-10"}),
}


def setting(title: str) -> WithLocalModels:
    """Return the setting of one panel."""
    net, problem = SETTINGS[title]
    return WithLocalModels(
        name=f"fedalign-local-{problem['name']}",
        problem=partial(shards, **problem, n_priority=2, rows_per_client=50, tested="all"),
        net=net,
        training={"local_steps": 5},
        strategies={LOCAL: {}, **strategies()},
        n_rounds=N_ROUNDS,
        loss_every=10,
    )


def better(by: str, column: str, where: str) -> Claim:
    """Claim that FedALIGN's model is better for free clients than their local models."""
    return Direction(
        words=f"{by}: better than local models, on {where}",
        place="Figure 3",
        measure=final_gain(by, LOCAL, column, 100),
        form=POINTS,
        paper="better",
    )


def faster(by: str, column: str, where: str) -> Claim:
    """Claim that FedALIGN's model converges faster: its mean over the rounds is higher."""
    return Direction(
        words=f"{by}: above local models in the mean over all rounds, on {where}",
        place="Figure 3",
        measure=gain_over(by, LOCAL, column, 0, 1, 100),
        form=POINTS,
        paper="converges faster",
    )


def comparison(title: str, panels: Sequence[str], note: str, **needs: Any) -> Experiment:
    """Return the experiment on some of the settings."""
    measured = {
        "test_accuracy": "the whole test set",
        "local_accuracy": "test rows with the client's labels",
    }
    claims = [
        claim(by, column, where)
        for claim in (better, faster)
        for by in (BY_ACCURACY, BY_LOSS)
        for column, where in measured.items()
    ]
    return Experiment(
        title=title,
        panels=[
            Panel(panel, setting(panel), [LOCAL, BY_ACCURACY, BY_LOSS], claims) for panel in panels
        ],
        columns=[
            final_of("test_accuracy", "accuracy on the whole test set, %", 100),
            final_of("local_accuracy", "accuracy on the client's labels, %", 100),
        ],
        draw=curves(
            ("test_accuracy", "accuracy, whole test set"),
            ("local_accuracy", "accuracy, own labels"),
        ),
        n_seeds=5,
        note=(
            "The paper does not say which test data are a local client's, so both readings are "
            f"measured, as means over the free clients. {note}"
        ),
        **needs,
    )


EXPERIMENT = comparison(
    "FedALIGN, Figure 3: models of their own for free clients with 50 samples",
    ["Fashion-MNIST", "MNIST for EMNIST, 5 shards"],
    SHARDS,
)
