"""Figure 7: how often each client is selected, quadratic objectives, K=30."""

import pandas as pd

from benchmarks.papers.claims import Direction, Figure
from benchmarks.papers.experiment import Column, Experiment, Panel
from benchmarks.papers.pictures import profile, selected
from benchmarks.papers.power_of_choice._quadratic import FEW, RAND, powd
from benchmarks.runs.problems import quadratic_data

PLACE = "Figure 7"


def correlation(table, strategy):
    """Return, for each seed, the correlation of a client's selections with its data share."""
    shares = quadratic_shares()
    return (
        table.groupby("seed")
        .apply(
            lambda run: selected(run, strategy).reindex(shares.index, fill_value=0.0).corr(shares),
            include_groups=False,
        )
        .to_numpy()
    )


def quadratic_shares():
    clients = quadratic_data(FEW.n_clients).clients
    return pd.Series(clients).value_counts(normalize=True).sort_index()


EXPERIMENT = Experiment(
    title="Power-of-choice, Figure 7: selected client profile, K=30, C=0.1",
    panels=[
        Panel(
            "K=30",
            FEW,
            [RAND, powd(6), powd(15)],
            [
                Figure(
                    words=f"{RAND}: selections reflect data sizes (correlation)",
                    place=PLACE,
                    measure=lambda table: correlation(table, RAND),
                    claimed=0.99,
                    form="{:.3f}",
                    paper="proportional (we ask for 0.99)",
                ),
                Direction(
                    words=f"{powd(15)}: selections not proportional to data sizes (correlation)",
                    place=PLACE,
                    measure=lambda table: correlation(table, powd(15)),
                    more=False,
                    neutral=0.9,
                    form="{:.3f}",
                    paper="not proportional (we ask for less than 0.9)",
                ),
            ],
        )
    ],
    columns=[Column("correlation with the data size", correlation, "{:.3f}")],
    draw=profile,
    note=f"All seeds share one draw of the objectives; a run has {FEW.n_rounds:,} rounds.",
)
