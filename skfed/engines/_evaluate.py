"""Polls: all candidates hold the same model, so their rows share its products."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from skfed.engines._client import errors, one_torch_thread
from skfed.engines._data import Rows
from skfed.engines._memory import MemoryPool
from skfed.engines._replies import sendable
from skfed.engines._sampling import Polled, chosen
from skfed.engines._weights import weighed
from skfed.engines._worker_data import ClientRows, DataRef
from skfed.engines._workers import Work
from skfed.nets import NetPool, State, set_state

Poll = tuple[DataRef, int]  # of a product's rows, and its batches
Answer = tuple[float, float, Exception | None]


@dataclass(frozen=True)
class PolledRows:
    """Rows to be evaluated in one product: batches of some clients, one after the other.

    Parameters
    ----------
    rows : Rows
        The data.
    numbers : ndarray of shape (n_rows,)
        Row numbers.
    ends : ndarray of shape (n_batches,)
        Where each batch ends.
    """

    rows: Rows
    numbers: np.ndarray
    ends: np.ndarray

    def subset(self, batch: int) -> "PolledRows":
        """Return one batch alone."""
        start, end = self.ends[batch - 1] if batch else 0, self.ends[batch]
        return PolledRows(self.rows, self.numbers[start:end], np.array([end - start]))


def make_polled(
    asked: Sequence[Polled], ends: np.ndarray, rows: Rows, held: Sequence[np.ndarray]
) -> PolledRows:
    """Gather the row numbers of a product; ``held`` are the rows that each client holds."""
    numbers = [chosen(mine, polled) for mine, polled in zip(held, asked, strict=True)]
    return PolledRows(rows, np.concatenate(numbers), ends)


def cut_polls(
    held: ClientRows, clients: Sequence[int], asked: Sequence[Polled], batch_size: int, limit: int
) -> tuple[list[Poll], np.ndarray]:
    """Cut the rows of polled clients into batches, and these into products of about ``limit`` rows.

    Parameters
    ----------
    held : ClientRows
        The data.
    clients : sequence of int
        Who is polled.
    asked : sequence of (range or ndarray of int)
        Which of its rows each is asked of.
    batch_size : int
        Rows of a batch; -1 means all of a client's. The mean loss of a client is that of its
        batches, weighted by their rows.
    limit : int
        Rows of a product, unless a batch has more.

    Returns
    -------
    polls : list of (DataRef, int)
        Each product, and the number of its batches.
    owners : ndarray of shape (n_batches,)
        Whose batch each is, as a position in ``asked``, over all products.
    """
    sizes, owners = [], []
    for i, polled in enumerate(asked):
        size = len(polled) if batch_size == -1 else batch_size
        n_batches = -(-len(polled) // size)
        sizes += [size] * (n_batches - 1) + [len(polled) - (n_batches - 1) * size]
        owners += [i] * n_batches
    polls, first, start = [], 0, 0
    ends, bounds = np.cumsum(sizes), np.cumsum([len(polled) for polled in asked])
    while first < len(ends):
        last = max(int(np.searchsorted(ends, start + limit, side="right")), first + 1)
        stop = int(ends[last - 1])
        who = range(owners[first], owners[last - 1] + 1)
        parts = [_between(asked[i], start, stop, int(bounds[i])) for i in who]
        make = partial(make_polled, parts, ends[first:last] - start)
        polls.append((DataRef(held, [clients[i] for i in who], make), last - first))
        first, start = last, stop
    return polls, np.array(owners)


def _between(polled: Polled, start: int, stop: int, end: int) -> Polled:
    """Cut what a client is asked of; among the rows of all, its own are those before ``end``."""
    before = end - len(polled)
    return polled[max(start - before, 0) : stop - before]


def poll_work(
    net_pool: NetPool,
    memory_pool: MemoryPool,
    state: State,
    rowwise: bool,
    share: DataRef,
    n_batches: int,
) -> Work:
    """Return a product of some polls, as work whose process may die."""
    same = net_pool, memory_pool, state, rowwise

    def apart() -> Iterator[Work]:
        alone = (share.part(i) for i in range(n_batches) if n_batches > 1)
        return (poll_work(*same, batch, 1) for batch in alone)

    def lost(error: Exception) -> list[Answer]:
        return [(np.nan, np.nan, error)]

    return Work(evaluate_rows, same, share, apart, lost)


def evaluate_rows(
    net_pool: NetPool, memory_pool: MemoryPool, state: State, rowwise: bool, polled: PolledRows
) -> list[Answer]:
    """Return the summed losses and errors of each batch's rows, by weight, from one product.

    ``rowwise`` says that the criterion is the plain mean of cross-entropies, so that the losses of
    all rows are had at once. Where that raises, each batch is evaluated alone; one that fails gets
    NaN, and what it raised.
    """
    try:
        losses, wrong = _evaluate(net_pool, memory_pool, state, rowwise, polled)
        return [(*pair, None) for pair in zip(losses.tolist(), wrong.tolist(), strict=True)]
    except MemoryError:
        raise
    except Exception as error:
        if len(polled.ends) == 1:
            return [(np.nan, np.nan, sendable(error))]
        batches = (polled.subset(i) for i in range(len(polled.ends)))
        return [
            a
            for batch in batches
            for a in evaluate_rows(net_pool, memory_pool, state, rowwise, batch)
        ]


def _evaluate(
    net_pool: NetPool, memory_pool: MemoryPool, state: State, rowwise: bool, polled: PolledRows
) -> tuple[np.ndarray, np.ndarray]:
    with (
        net_pool.borrowed() as net,
        memory_pool.borrowed() as memory,
        one_torch_thread(),
        torch.no_grad(),
    ):
        numbers, y = polled.rows.prepare(polled.numbers)
        X = polled.rows.take(numbers, memory)
        set_state(net, state)
        net._set_training(False)
        output = net.module_(X)
        starts = np.concatenate([[0], polled.ends[:-1]])
        weights = polled.rows.weigh(polled.numbers)
        wrong = errors(net, output, y).cpu().numpy()
        if weights is not None:
            wrong *= weights.cpu().numpy()
        wrong = np.add.reduceat(wrong, starts)
        if rowwise:
            # With rows as the last axis it takes a fraction of the time.
            picked = torch.log_softmax(output.T.contiguous(), 0).gather(0, y.unsqueeze(0))
            losses = -picked.squeeze(0).cpu().numpy()
            if weights is not None:
                losses = losses * weights.cpu().numpy()
            return np.add.reduceat(losses, starts, dtype=float), wrong
        sums = []
        for a, b in zip(starts.tolist(), polled.ends.tolist(), strict=True):
            own = None if weights is None else weights[a:b]
            with weighed(net, own):
                loss = net.get_loss(output[a:b], y[a:b], X=X[a:b], training=False).item()
            sums.append(loss * (b - a if own is None else own.sum().item()))
        return np.array(sums), wrong


def is_rowwise(criterion: nn.Module) -> bool:
    """Tell whether a criterion is the plain mean of its rows' cross-entropies."""
    return (
        type(criterion) is nn.CrossEntropyLoss
        and criterion.weight is None
        and criterion.label_smoothing == 0
        and criterion.reduction == "mean"
        and criterion.ignore_index < 0
    )
