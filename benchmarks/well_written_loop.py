"""The baseline of the timings: a round written by hand in torch, client by client.

It works on tensors: no loader, rows by ``index_select``, and one forward for each client polled.
``train_optimizer`` uses a module and an optimizer of torch; ``train_autograd`` uses neither;
``train_by_hand`` has the derivatives of linear layers written out and its updates part of the
matrix products; ``train_channels_last`` keeps images as convolutions on a CPU read them fastest.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d

try:
    from benchmarks.torch_models import make_module, make_optimizer
    from benchmarks.workloads import WORKLOADS, Workload
except ImportError:  # run from this folder
    from torch_models import make_module, make_optimizer
    from workloads import WORKLOADS, Workload

Params = list[torch.Tensor]  # weight (out, in, ...) and bias of each layer, alternating
WARMUP = 2


def forward(params: Params, X: torch.Tensor) -> torch.Tensor:
    """Return the logits of linear layers with ReLU between them."""
    for i in range(0, len(params), 2):
        X = linear(X.relu() if i else X, params[i], params[i + 1])
    return X


def convolve(params: Params, X: torch.Tensor) -> torch.Tensor:
    """Return the logits of the CNN for images (n, 1, 28, 28)."""
    for i in (0, 2):
        X = max_pool2d(conv2d(X, params[i], params[i + 1], padding=2), 2).relu()
    return linear(X.flatten(1), *params[4:])


def minibatches(rows: np.ndarray, work: Workload, rng: np.random.Generator) -> Iterator:
    """Yield the rows of each local step."""
    if work.local_steps is not None:
        size = min(work.batch_size, len(rows))
        for _ in range(work.local_steps):
            yield torch.from_numpy(rng.choice(rows, size, replace=False))
    else:
        for _ in range(work.local_epochs):
            yield from torch.from_numpy(rng.permutation(rows)).split(work.batch_size)


def train_optimizer(X, y, rows, params: Params, work: Workload, rng) -> Params:
    """Return the parameters after a client's local steps, by a module and an optimizer."""
    model, optimizer = module_and_optimizer(work)
    optimizer.state.clear()
    with torch.no_grad():
        torch._foreach_copy_(list(model.parameters()), params)
    for batch in minibatches(rows, work, rng):
        optimizer.zero_grad()
        cross_entropy(model(X.index_select(0, batch)), y.index_select(0, batch)).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@cache
def module_and_optimizer(work: Workload):
    """Return a module and its optimizer, shared by all clients."""
    model = make_module(work.model)
    return model, make_optimizer(work, model.parameters())


def train_autograd(X, y, rows, params: Params, work: Workload, rng) -> Params:
    """Return the parameters after a client's local steps of SGD."""
    if work.model.name == "CNN":
        return descend(convolve, X.view(-1, 1, 28, 28), y, rows, params, work, rng)
    return descend(forward, X, y, rows, params, work, rng)


def train_channels_last(X, y, rows, params: Params, work: Workload, rng) -> Params:
    """Return the parameters after a client's local steps of SGD, with images (n, 28, 28, 1)."""

    def logits(params: Params, images: torch.Tensor) -> torch.Tensor:
        return convolve(params, images.permute(0, 3, 1, 2))

    params = [p.contiguous(memory_format=torch.channels_last) if p.ndim == 4 else p for p in params]
    return descend(logits, X.view(-1, 28, 28, 1), y, rows, params, work, rng)


def descend(forward: Callable, X, y, rows, params: Params, work: Workload, rng) -> Params:
    """Return the parameters after steps of SGD whose gradients are autograd's."""
    params = [p.clone().requires_grad_() for p in params]
    for batch in minibatches(rows, work, rng):
        logits = forward(params, X.index_select(0, batch))
        grads = torch.autograd.grad(cross_entropy(logits, y.index_select(0, batch)), params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-work.lr)
    return [p.detach() for p in params]


@torch.no_grad()
def train_by_hand(X, y, rows, params: Params, work: Workload, rng) -> Params:
    """Return the parameters of linear layers after a client's local steps, without autograd."""
    params = [p.clone() for p in params]
    weights, biases = params[::2], params[1::2]
    for batch in minibatches(rows, work, rng):
        inputs = [X.index_select(0, batch)]  # of each layer
        for weight, bias in zip(weights[:-1], biases, strict=False):
            inputs.append(linear(inputs[-1], weight, bias).relu_())
        error = linear(inputs[-1], weights[-1], biases[-1]).softmax(dim=1)
        error[torch.arange(len(batch)), y.index_select(0, batch)] -= 1
        step = work.lr / len(batch)
        for i in reversed(range(len(weights))):
            below = (error @ weights[i]).mul_(inputs[i] > 0) if i else None
            weights[i].addmm_(error.t(), inputs[i], alpha=-step)
            biases[i].sub_(error.sum(dim=0), alpha=step)
            error = below
    return params


def loops(work: Workload) -> dict[str, Callable[..., Params]]:
    """Return the ways to train a client that there are for a workload, by name."""
    found = {"torch loop, optimizer": train_optimizer}
    if work.optimizer == "SGD":
        found["torch loop, autograd"] = train_autograd
    if work.model.layers:
        found["torch loop, by hand"] = train_by_hand
    if work.model.name == "CNN":
        found["torch loop, channels last"] = train_channels_last
    return found


@torch.no_grad()
def choose(X, y, rows_of_clients, params: Params, work: Workload, rng) -> np.ndarray:
    """Return the cohort: at random, or the candidates of highest loss of linear layers."""
    if work.candidates is None:
        return rng.choice(len(rows_of_clients), work.clients_per_round, replace=False)
    sizes = np.array([len(rows) for rows in rows_of_clients])
    candidates = rng.choice(len(sizes), work.candidates, replace=False, p=sizes / sizes.sum())
    losses = []
    for k in candidates:
        rows = torch.from_numpy(rows_of_clients[k])
        logits = forward(params, X.index_select(0, rows))
        losses.append(cross_entropy(logits, y.index_select(0, rows)).item())
    return candidates[np.argsort(losses)[::-1][: work.clients_per_round]]


def one_round(
    X: torch.Tensor,
    y: torch.Tensor,
    rows_of_clients: Sequence[np.ndarray],
    params: Params,
    workload: Workload,
    rng: np.random.Generator,
    train: Callable[..., Params] = train_optimizer,
) -> Params:
    """Return the global parameters after a round: choose, train, and average by size."""
    cohort = choose(X, y, rows_of_clients, params, workload, rng)
    sizes = np.array([len(rows_of_clients[k]) for k in cohort])
    total = [torch.zeros_like(p) for p in params]
    for k, share in zip(cohort, sizes / sizes.sum(), strict=True):
        trained = train(X, y, rows_of_clients[k], params, workload, rng)
        torch._foreach_add_(total, trained, alpha=float(share))
    return total


def time_rounds(
    workload: str, data_dir: str | Path, rounds: int, train: Callable = train_optimizer
) -> list[float]:
    """Return the seconds of each round on one thread, after ``WARMUP`` rounds."""
    work = WORKLOADS[workload]
    X, y, clients = (np.load(Path(data_dir) / f"{name}.npy") for name in ("X", "y", "clients"))
    rows_of_clients = [np.flatnonzero(clients == k) for k in range(work.n_clients)]
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    params = [p.detach().clone() for p in make_module(work.model).parameters()]
    rng, seconds = np.random.default_rng(0), []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(WARMUP + rounds):
            started = time.perf_counter()
            params = one_round(X, y, rows_of_clients, params, work, rng, train)
            seconds.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return seconds[WARMUP:]
