"""Figures that papers print, and the cells whose settings are nearest to theirs.

Each figure was read in the text of its paper. Names of rules are the papers' own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.papers.power_of_choice import table1, table2
from benchmarks.papers.power_of_choice._table import Table
from benchmarks.selection.cells import TIERS
from benchmarks.selection.models import MODELS
from benchmarks.selection.rules import RANDOM

#: Our rule by its name in the tables below.
RULE_OF = {
    "rand, C=0.1": RANDOM,
    "rand": RANDOM,
    "pow-d, d=6": "power-of-choice",
    "afl": "AFL",
    "Random": RANDOM,
    "pow-d": "power-of-choice",
    "CS": "clustered by updates",
    "DivFL": "DivFL",
    "FedCor": "FedCor",
    "HiCS-FL": "HiCS-FL",
}


@dataclass(frozen=True)
class Published:
    """Figures of one kind of a published table.

    Parameters
    ----------
    source : str
        The paper, and the table's name in it.
    setting : str
        The setting of its runs.
    cells : tuple of str
        The nearest cells, of the same data and condition.
    figures : mapping of str to str
        What is printed for each rule: test accuracies in %, or rounds until one is reached.
    random : str
        The row of random selection to which others are compared.
    target : float, default=None
        The accuracy until which rounds are counted; None: the figures are accuracies.
    """

    source: str
    setting: str
    cells: tuple[str, ...]
    figures: Mapping[str, str]
    random: str
    target: float | None = None

    @property
    def what(self) -> str:
        """What the figures are."""
        if self.target is None:
            return "test accuracy in %"
        return f"rounds to a test accuracy of {self.target:.0%}"


def power_of_choice(table: Table, target: float | None = None) -> Published:
    """Return the accuracies of a table of power-of-choice, or the rounds to 60%."""
    column = 2 if target is None else 0
    known = {cell.name for cells, _ in TIERS.values() for cell in cells}
    cells = (f"fashion-mnist-{table.alpha:g}/{model}/always" for model in MODELS)
    return Published(
        f"Cho, Wang and Joshi (2020), arXiv 2010.01243, {table.place}",
        "K = 100, m = 10 in the first row and 3 in the others, 30 steps of 64 rows, an MLP of two "
        "hidden layers, learning rate 0.005 for all rules, halved at rounds 150 and 300, three "
        "seeds; it does not say after how many rounds the accuracy is",
        tuple(cell for cell in cells if cell in known),
        {name: row[column] for name, row in table.theirs.items() if name in RULE_OF},
        random="rand",
        target=target,
    )


PUBLISHED = [
    *(power_of_choice(one.TABLE, target) for one in (table1, table2) for target in (None, 0.6)),
    Published(
        "Chen and Vikalo (NeurIPS 2024), arXiv 2310.00198, Table 2, FMNIST",
        "K = 50, m = 5, each fifth of the rows with a Dirichlet parameter of its own (0.001, "
        "0.002, 0.005, 0.01 and 0.2), two local epochs in batches of 64 rows, a CNN, learning rate "
        "0.001 for all rules, halved every ten iterations; pow-d polls all clients; 200 rounds by "
        "the appendix, though one figure is larger",
        ("fashion-mnist-0.1/linear/always",),
        {
            "Random": "149",
            "pow-d": "79",
            "CS": "114",
            "DivFL": "478",
            "FedCor": "88",
            "HiCS-FL": "60",
        },
        random="Random",
        target=0.75,
    ),
]

UNREAD = (
    "Not here, since no text with their tables was within reach: FedCor (CVPR 2022), clustered "
    "sampling (ICML 2021), DivFL (ICLR 2022), UCB-CS (2020) and Oort (OSDI 2021). FedALIGN prints "
    "curves without numbers."
)
