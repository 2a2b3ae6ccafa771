"""Whether rules are better than tuned random selection, by how much, and how they rank."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.selection.conditions import CONDITIONS
from benchmarks.selection.rules import CONTROLS, RANDOM
from benchmarks.selection.table import CELL

LEVEL = 0.95  # of intervals
#: Cells of the same data and model have the same clients and first models and, of a rule that does
#: not depend on the condition, the same runs: only blocks are independent.
BLOCK = ["data", "model"]
FEW = 6  # blocks, of which draws with replacement are too much alike
N_DRAWS = 10_000  # of a bootstrap
SEED = 0  # of its draws


class Difference(NamedTuple):
    """A mean difference to random selection in points, its interval, and of how many blocks."""

    mean: float
    low: float
    high: float
    n_blocks: int

    @property
    def is_better(self) -> bool:
        """Whether the interval is above zero."""
        return self.low > 0


class Ranks(NamedTuple):
    """Mean ranks over blocks, Friedman's p, and Nemenyi's p of each pair of rules."""

    means: pd.Series
    friedman: float
    nemenyi: pd.DataFrame
    n_blocks: int


def paired(reached: pd.DataFrame, figure: str = "counts") -> pd.DataFrame:
    """Return the difference of each run to random selection's of the same cell and seed.

    Parameters
    ----------
    reached : DataFrame
        As ``budgets.reached`` returns it.
    figure : str, default="counts"
        The accuracy that is compared.
    """
    keys = [*CELL, "seed", "budget"]
    ours = reached.loc[reached["rule"] == RANDOM, [*keys, figure]]
    both = reached.merge(ours.rename(columns={figure: "random"}), on=keys)
    return both.assign(points=100 * (both[figure] - both["random"]))[[*keys, "rule", "points"]]


def over_blocks(differences: pd.DataFrame, level: float = LEVEL) -> Difference:
    """Return the mean over blocks of a rule's differences, with a bootstrap of blocks and seeds.

    The conditions of a block are averaged for each seed that all of them have, so that they count
    alike. Of few blocks the interval is Student's, of their means, and of one block over its seeds.
    """
    known = _common_seeds(differences).dropna(subset="points")
    by_seed = known.groupby([*BLOCK, "seed"])["points"].mean()
    blocks = [own.to_numpy() for _, own in by_seed.groupby(level=BLOCK)]
    if not blocks:
        return Difference(np.nan, np.nan, np.nan, 0)
    means = np.array([own.mean() for own in blocks])
    if len(blocks) < FEW:
        low, high = _student(blocks[0] if len(blocks) == 1 else means, level)
    else:
        low, high = _bootstrap(blocks, level)
    return Difference(float(means.mean()), low, high, len(blocks))


def _common_seeds(differences: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the seeds that all conditions of their block have."""
    blocks = differences.groupby(BLOCK)["condition"]
    having = differences.groupby([*BLOCK, "seed"])["condition"]
    return differences[having.transform("nunique") == blocks.transform("nunique")]


def _student(values: np.ndarray, level: float) -> tuple[float, float]:
    """Return the interval of a mean; NaN of one value."""
    if len(values) < 2:
        return np.nan, np.nan
    error = stats.sem(values)
    if error == 0:
        return float(values.mean()), float(values.mean())
    low, high = stats.t.interval(level, len(values) - 1, values.mean(), error)
    return float(low), float(high)


def _bootstrap(blocks: Sequence[np.ndarray], level: float) -> tuple[float, float]:
    """Return the interval of the mean of blocks' means, of blocks drawn, and of seeds in each."""
    rng = np.random.default_rng(SEED)
    n = len(blocks)
    means = np.stack(
        [own[rng.integers(len(own), size=(N_DRAWS, len(own)))].mean(axis=1) for own in blocks]
    )
    drawn, which = rng.integers(n, size=(N_DRAWS, n)), rng.integers(N_DRAWS, size=(N_DRAWS, n))
    tail = (1 - level) / 2
    low, high = np.quantile(means[drawn, which].mean(axis=1), [tail, 1 - tail])
    return float(low), float(high)


def by_rule(differences: pd.DataFrame, level: float = LEVEL) -> dict[str, Difference]:
    """Return the difference of each rule but random selection, over all cells that are given."""
    groups = differences[differences["rule"] != RANDOM].groupby("rule", sort=False)
    return {str(rule): over_blocks(own, level) for rule, own in groups}


def apart(differences: pd.DataFrame) -> tuple[int, int]:
    """Return in how many cells the interval of a rule's difference is above zero, and below."""
    cells = [over_blocks(own) for _, own in differences.groupby(CELL)]
    return sum(one.low > 0 for one in cells), sum(one.high < 0 for one in cells)


def best_rule(found: dict[str, Difference]) -> tuple[str, Difference] | None:
    """Return the rule of the largest mean difference, controls apart, or None without any."""
    known = {r: d for r, d in found.items() if r not in CONTROLS and d.n_blocks}
    return max(known.items(), key=lambda item: item[1].mean) if known else None


def better_rules(differences: pd.DataFrame) -> list[str]:
    """Return the rules, controls apart, that are better than random selection.

    Intervals are wider by Bonferroni's correction: that any of the rules has one above zero by
    chance is as unlikely as for one rule alone.
    """
    n_rules = differences["rule"].nunique() - 1
    rules = by_rule(differences, 1 - (1 - LEVEL) / max(1, n_rules))
    return [r for r, d in rules.items() if d.is_better and r not in CONTROLS]


def winners(reached: pd.DataFrame) -> dict[str, list[str]]:
    """Return the rules that are better than random selection over their cells, by budget."""
    groups = paired(reached).groupby("budget", sort=False)
    return {str(budget): better_rules(own) for budget, own in groups}


def ranks(reached: pd.DataFrame, budget: str, figure: str = "counts") -> Ranks | None:
    """Return the ranks of the rules that are in all cells; None of less than two blocks.

    Cells with priority clients are left out: few rules are in them. A block has the mean over its
    conditions and seeds. A rule that has no value within the budget comes last.
    """
    without = [name for name, one in CONDITIONS.items() if not one.has_priority]
    own = reached[(reached["budget"] == budget) & reached["condition"].isin(without)]
    matrix = own.pivot_table(
        index=CELL, columns="rule", values=figure, aggfunc="mean", dropna=False
    )
    taken = own.pivot_table(index=CELL, columns="rule", values="seed", aggfunc="count")
    matrix = matrix.reindex(index=taken.index, columns=taken.columns)
    matrix = matrix.loc[:, taken.notna().all()].fillna(-1).groupby(level=BLOCK).mean()
    if len(matrix) < 2 or matrix.shape[1] < 3:
        return None
    from scikit_posthocs import posthoc_nemenyi_friedman

    means = matrix.rank(axis=1, ascending=False).mean().sort_values()
    p = float(stats.friedmanchisquare(*matrix.to_numpy().T).pvalue)
    pairs = posthoc_nemenyi_friedman(matrix.reset_index(drop=True))
    return Ranks(means, p, pairs, len(matrix))
