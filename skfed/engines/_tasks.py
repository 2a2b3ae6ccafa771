"""The works of a round in a fixed binary tree, which is cut into one task for each job.

The results of two halves are joined at the node above them, in this process or in a worker, so that
a sum is made in the order of the tree. The tree depends on the costs of the works alone, not on
n_jobs or the backend, and so do the bits of the sum.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from operator import methodcaller
from typing import Any, TypeVar

from skfed.engines._worker_data import ClientData
from skfed.engines._workers import Load, Work, Workers, run_or_split

T = TypeVar("T")

#: A position, or two halves.
Tree = int | tuple["Tree", "Tree"]


def balanced_tree(costs: Sequence[int]) -> Tree:
    """Return a tree of positions, the halves of each node of much the same cost.

    By their costs, the highest first, positions go to the half that is lighter so far, the first
    one where both weigh the same. Each half is split in the same way.
    """
    return _halve(sorted(range(len(costs)), key=lambda i: -costs[i]), costs)  # ties in order


def _halve(positions: list[int], costs: Sequence[int]) -> Tree:
    if len(positions) == 1:
        return positions[0]
    first, second, lead = [], [], 0  # of the first half, in cost
    for i in positions:
        if lead > 0:
            second.append(i)
            lead -= costs[i]
        else:
            first.append(i)
            lead += costs[i]
    return _halve(first, costs), _halve(second, costs)


def consecutive_tree(costs: Sequence[int]) -> Tree:
    """Return a tree of positions in their order, the halves of each node of much the same cost."""
    ends = list(accumulate(costs))

    def halve(start: int, stop: int) -> Tree:
        if stop - start == 1:
            return start
        middle = (ends[start] - costs[start] + ends[stop - 1]) / 2
        cut = bisect_left(ends, middle, start, stop - 2) + 1
        return halve(start, cut), halve(cut, stop)

    return halve(0, len(costs))


def fold(tree: Tree, leaf: Callable[[int], T], join: Callable[[T, T], T]) -> T:
    """Return what ``leaf`` makes of the positions, joined along the tree, depth first."""
    if isinstance(tree, int):
        return leaf(tree)
    first, second = tree
    return join(fold(first, leaf, join), fold(second, leaf, join))


@dataclass(frozen=True)
class Pair:
    """Two works, one after the other (a ``Work``).

    Parameters
    ----------
    first, second : Work
        Works of clients, or pairs.
    join : callable
        Makes one result of those of both.
    """

    first: Work
    second: Work
    join: Callable[[Any, Any], Any]

    @cached_property
    def cost(self) -> int:
        """That of both."""
        return self.first.cost + self.second.cost

    @property
    def clients(self) -> Sequence[int]:
        """Those of both."""
        return [*self.first.clients, *self.second.clients]

    def run(self, load: Load) -> Any:
        """Do both works; where one fails, the other is not done again."""
        run = partial(run_or_split, run=methodcaller("run", load))
        return self.join(run(self.first), run(self.second))

    def recover(self, run: Callable[[Work], Any], error: Exception) -> Any:
        """Return the joined results of ``run`` on each work."""
        return self.join(run(self.first), run(self.second))


def run_works(
    works: Sequence[Work],
    make_tree: Callable[[Sequence[int]], Tree],
    join: Callable[[T, T], T],
    workers: Workers,
    data: ClientData,
) -> T:
    """Return the results of works, joined along a tree; no job gets more than one task.

    Parameters
    ----------
    works : sequence of Work
        At least one.
    make_tree : callable
        Makes a tree of their positions, given their costs.
    join : callable
        Makes one result of two; it can be sent to another process.
    workers : Workers
        Where the works are done.
    data : ClientData
        The rows of all clients.
    """
    tree = make_tree([work.cost for work in works])
    tasks, pairs = _cut(fold(tree, works.__getitem__, partial(Pair, join=join)), workers.count())
    results = list(workers.map(tasks, data))
    for i, pair in reversed(pairs):
        results[i : i + 2] = [pair.join(*results[i : i + 2])]
    return results[0]


def _cut(work: Work, n_tasks: int) -> tuple[list[Work], list[tuple[int, Pair]]]:
    """Cut a work into at most so many tasks, the one of the highest cost first.

    Return them, in the order of the tree, and the pairs that were cut, with their positions.
    """
    tasks, cut = [work], []
    while len(tasks) < n_tasks:
        pairs = [(i, task) for i, task in enumerate(tasks) if isinstance(task, Pair)]
        if not pairs:
            break
        i, pair = max(pairs, key=lambda found: found[1].cost)  # the first of those with this cost
        tasks[i : i + 1] = pair.first, pair.second
        cut.append((i, pair))
    return tasks, cut
