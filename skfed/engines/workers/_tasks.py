"""The works of a round in a fixed binary tree, of which each job gets some nodes as a task.

Two results are joined at the node above them, in this process or in a worker, so that a sum is made
in the order of the tree. The tree depends on the costs of the works alone, not on n_jobs or the
backend, and so do the bits of the sum.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import Any, Self, TypeVar

import numpy as np

from skfed.engines.workers._work import Work, run_or_split

T = TypeVar("T")

#: A position, or two halves.
Tree = int | tuple["Tree", "Tree"]


def balanced_tree(costs: Sequence[int]) -> Tree:
    """Return a tree of positions, the halves of each node of about the same cost.

    By their costs, the highest first, positions go to the half that costs less so far, the first
    one where both cost the same. Each half is split in the same way.
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
    """Return a tree of positions in their order, the halves of each node of about the same cost."""
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


def divide(tree: Tree, costs: Sequence[int], n_jobs: int) -> list[list[Tree]]:
    """Return the nodes of each of at most so many jobs, in the order of the tree.

    Halves of an even number of jobs get halves of the tree, so that each of two, four or eight
    jobs gets one node. An odd number of jobs, such as each half of six, gets parts of the tree of
    about the same cost, of more nodes than one.
    """
    if n_jobs == 1 or isinstance(tree, int):
        return [[tree]]
    if n_jobs % 2 == 0:
        return [nodes for half in tree for nodes in divide(half, costs, n_jobs // 2)]
    positions = _positions(tree)
    ends = np.cumsum([costs[i] for i in positions])
    middles = ends - np.array([costs[i] for i in positions]) / 2
    jobs = (n_jobs * middles / ends[-1]).astype(int).tolist()
    found: dict[int, list[Tree]] = defaultdict(list)
    for job, node in _whole_nodes(tree, dict(zip(positions, jobs, strict=True))):
        found[job].append(node)
    return list(found.values())


def _positions(tree: Tree) -> list[int]:
    return fold(tree, lambda i: [i], add)


def _whole_nodes(tree: Tree, jobs: Mapping[int, int]) -> Iterator[tuple[int, Tree]]:
    """Yield the largest nodes whose positions are all of one job, with that job."""
    its = {jobs[i] for i in _positions(tree)}
    if len(its) == 1:
        yield its.pop(), tree
    elif not isinstance(tree, int):
        for half in tree:
            yield from _whole_nodes(half, jobs)


def _n_joins(tree: Tree) -> list[int]:
    """Return how many nodes end with each position: their halves are joined then."""
    return fold(tree, lambda i: [0], lambda one, other: [*one, *other[:-1], other[-1] + 1])


@dataclass(frozen=True)
class Task:
    """The works of one job: those under some nodes of the tree; it can be sent to another process.

    Parameters
    ----------
    works : sequence of Work
        The works, in the order of the tree.
    n_joins : sequence of int
        How many nodes end with each work.
    join : callable
        Makes one result of two; it can be sent to another process.
    """

    works: Sequence[Work]
    n_joins: Sequence[int]
    join: Callable[[Any, Any], Any]

    @classmethod
    def of(
        cls, nodes: Sequence[Tree], works: Sequence[Work], join: Callable[[Any, Any], Any]
    ) -> Self:
        """Return the task of some nodes, given the works of all positions."""
        own = [works[i] for node in nodes for i in _positions(node)]
        return cls(own, [n for node in nodes for n in _n_joins(node)], join)

    @property
    def clients(self) -> Sequence[int]:
        """The clients of all works."""
        return [k for work in self.works for k in work.clients]

    def run(
        self,
        run: Callable[[Work], Any],
        failures: tuple[type[Exception], ...] = (Exception,),
    ) -> list:
        """Return the result of each node; ``run_or_split`` has the same arguments for a work."""
        results: list[Any] = []
        for work, n_joins in zip(self.works, self.n_joins, strict=True):
            results.append(run_or_split(work, run, failures))
            for _ in range(n_joins):
                second = results.pop()
                results.append(self.join(results.pop(), second))
        return results


def joined(tree: Tree, found: Mapping[Tree, T], join: Callable[[T, T], T]) -> T:
    """Return the result of a tree, given those of some nodes."""
    if tree in found:
        return found[tree]
    assert not isinstance(tree, int)
    first, second = tree
    return join(joined(first, found, join), joined(second, found, join))
