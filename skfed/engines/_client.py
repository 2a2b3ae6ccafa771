"""What one client does: train from the global model on its own rows, or say its loss.

Functions of a module, so that they reach other processes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from skorch import NeuralNet, NeuralNetClassifier

from skfed.aggregation._scaffold import new_variate
from skfed.engines._data import Rows
from skfed.engines._minibatches import Minibatches
from skfed.engines._replies import LocalTraining, TrainRequest, Updates, collect, sendable
from skfed.engines._sampling import Polled, batch_size, chosen, whole
from skfed.engines._weights import weighed, weighted_mean
from skfed.nets import (
    NetPool,
    State,
    add_to_gradients,
    get_state,
    group_of_parameters,
    parameter_names,
    set_state,
    to_tensors,
)
from skfed.utils._seeding import torch_seeded

Rates = tuple[float, ...]  # learning rates, one a parameter group


@dataclass(frozen=True)
class Task:
    """One client's share of a round."""

    name: str  # for error messages
    X: np.ndarray
    y: np.ndarray
    layers_rng: np.random.Generator  # for random layers
    batches: Minibatches | None = None  # to train on
    weights: torch.Tensor | None = None  # of the rows; None: all alike


def make_task(
    name: str,
    layers_rng: np.random.Generator,
    draw: Callable[[], Minibatches] | None,
    polled: Polled | None,
    rows: Rows,
    held: Sequence[np.ndarray],
) -> Task:
    """Return one client's task, on all of its rows or on those ``polled``."""
    (mine,) = held
    mine = mine if polled is None else chosen(mine, polled)
    return Task(name, rows.X[mine], rows.y[mine], layers_rng, draw and draw(), rows.weigh(mine))


def train_client(
    net_pool: NetPool, request: TrainRequest, member: np.ndarray, task: Task
) -> list[Updates]:
    """Train one member of a cohort; ``request`` is for this member alone."""
    try:
        own = train_alone(net_pool, request, task)
        return [collect(request, member, own.stack, own.losses, own.n_samples, [own.variate])]
    except MemoryError:
        raise
    except Exception as error:
        error = sendable(error)
        error.add_note(f"while training {task.name}")
        return [Updates.of_failed(member, error)]


class Trained(NamedTuple):
    """What one member has come to; arrays and tensors have a leading axis of length 1."""

    stack: State  # w_k
    losses: np.ndarray  # the mean over its local steps
    n_samples: np.ndarray  # rows seen
    variate: State | None  # SCAFFOLD's new c_k


def train_alone(net_pool: NetPool, request: TrainRequest, task: Task) -> Trained:
    """Train one member of a cohort with a fresh optimizer; ``request`` is for this member alone."""
    state, training = request.state, request.training
    correction = None if request.corrections is None else request.corrections[0]
    with (
        torch_seeded(task.layers_rng, net_pool.device),
        net_pool.borrowed() as net,
        one_torch_thread(),
    ):
        set_state(net, state)
        net.initialize_optimizer()
        net.history.clear()
        with _corrected(net, state, training.proximal_mu, correction):
            losses, rates, n_samples = _take_steps(net, training, task)
        trained = get_state(net)
        variate = None
        if correction is not None:
            own = {name: trained[name] for name in request.parameters}
            variate = new_variate(state, own, correction, _distances(net, rates))
        stack = {name: tensor.unsqueeze(0) for name, tensor in trained.items()}
        return Trained(stack, np.array([np.mean(losses)]), np.array([n_samples]), variate)


def evaluate_client(
    net_pool: NetPool, state: State, task: Task
) -> list[tuple[float, float, Exception | None]]:
    """Return one client's mean loss and error, 1 - accuracy, at ``state``; NaN if it raised."""
    try:
        with (
            torch_seeded(task.layers_rng, net_pool.device),
            net_pool.borrowed() as net,
            one_torch_thread(),
        ):
            set_state(net, state)
            loss, outputs = _evaluate(net, task.X, task.y, task.weights)
            wrong = errors(net, outputs, torch.from_numpy(task.y).to(outputs.device))
            error = wrong.mean() if task.weights is None else weighted_mean(wrong, task.weights)
            return [(loss, float(error), None)]
    except MemoryError:
        raise
    except Exception as error:
        error = sendable(error)
        error.add_note(f"while polling {task.name}")
        return [(np.nan, np.nan, error)]


def evaluate(
    net: NeuralNet, X: np.ndarray, y: np.ndarray, rng: np.random.Generator
) -> tuple[float, np.ndarray]:
    """Return the mean loss and the outputs of a net as it stands; ``rng`` is for its layers."""
    with torch_seeded(rng, net.device), one_torch_thread():
        loss, outputs = _evaluate(net, X, y)
        return loss, outputs.cpu().numpy()


def _take_steps(
    net: NeuralNet, training: LocalTraining, task: Task
) -> tuple[list[float], list[Rates], int]:
    """Take the local steps; return the loss and learning rates of each, and the rows seen."""
    X, y = to_tensors(net, task.X, task.y)
    net.notify("on_train_begin", X=X, y=y)
    net.notify("on_epoch_begin", dataset_train=None, dataset_valid=None)
    losses, rates, n_samples = [], [], 0
    for iteration, rows in task.batches or ():
        rates.append(_set_rates(net, training.rates, iteration))
        chosen = torch.from_numpy(rows).to(y.device)
        with weighed(net, None if task.weights is None else task.weights[chosen]):
            losses.append(_train_step(net, (X.index_select(0, chosen), y.index_select(0, chosen))))
        n_samples += len(rows)
    return losses, rates, n_samples


def _train_step(net: NeuralNet, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Take one step as skorch's own loop takes it, batch-level callbacks included."""
    net.notify("on_batch_begin", batch=batch, training=True)
    step = net.train_step(batch)
    loss = step["loss"].item()
    net.history.record_batch("train_loss", loss)
    net.history.record_batch("train_batch_size", len(batch[1]))
    net.notify("on_batch_end", batch=batch, training=True, **step)
    return loss


def _set_rates(net: NeuralNet, rates: Sequence[Rates] | None, iteration: int) -> Rates:
    """Set the learning rate of each parameter group in an iteration, and return them."""
    groups = net.optimizer_.param_groups
    if rates is not None:
        for group, rate in zip(groups, rates[iteration], strict=True):
            group["lr"] = rate
    return tuple(float(group["lr"]) for group in groups)


def _distances(net: NeuralNet, rates: Sequence[Rates]) -> dict[str, float]:
    """Return the sum of the learning rates of each trained parameter, those of its group."""
    sums = np.sum(rates, axis=0)
    return {name: float(sums[group]) for name, group in group_of_parameters(net).items()}


@contextmanager
def _corrected(
    net: NeuralNet, state: State, proximal_mu: float, correction: State | None
) -> Iterator[None]:
    """Add mu (w - w_t) and SCAFFOLD's c - c_k to the gradients, where there are such terms."""
    if not proximal_mu and not correction:
        yield
        return
    anchor = {name: state[name].to(net.device) for name in parameter_names(net)}
    shift = {name: tensor.to(net.device) for name, tensor in (correction or {}).items()}

    def extra(name: str, parameter: torch.Tensor) -> torch.Tensor:
        term = proximal_mu * (parameter - anchor[name])
        return term + shift[name] if name in shift else term

    undo = add_to_gradients(net, extra)
    try:
        yield
    finally:
        undo()


def _evaluate(
    net: NeuralNet, X: np.ndarray, y: np.ndarray, weights: torch.Tensor | None = None
) -> tuple[float, torch.Tensor]:
    """Return the mean loss over the rows, by their weights if they have any, and the outputs."""
    size = whole(batch_size(net, "iterator_valid"), len(y))
    loss, total, outputs = 0.0, 0.0, []
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        batch = to_tensors(net, X[rows], y[rows])
        mine = None if weights is None else weights[rows]
        with weighed(net, mine):
            step = net.validation_step(batch)
        n_rows = len(batch[1]) if mine is None else mine.sum().item()
        loss, total = loss + step["loss"].item() * n_rows, total + n_rows
        output = step["y_pred"]
        outputs.append(output[0] if isinstance(output, tuple) else output)
    return loss / (total or 1.0), torch.cat(outputs)


def errors(net: NeuralNet, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return 1 where a classifier is wrong, else 0; NaN for a regressor."""
    if isinstance(net, NeuralNetClassifier):
        return (output.argmax(1) != y).to(torch.double)
    return torch.full((len(y),), torch.nan, dtype=torch.double)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Compute with one torch thread: a product split over threads rounds in another request.

    So the result is the same whatever n_jobs; cores are used by clients side by side. Each thread
    has a number of its own.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
