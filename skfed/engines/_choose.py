"""Choose the engine of a fit: stacked where it gives the loop engine's result, else the loop."""

import logging
from dataclasses import dataclass
from types import UnionType
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn
from torch.utils._pytree import tree_leaves

from skfed.engines._batching import Batching
from skfed.engines._data import Dataset, check_gives_row_losses
from skfed.engines._layers import layers_of, on_meta, row_bytes
from skfed.engines._loop import LoopEngine
from skfed.engines._probe import CannotStack, Probe, few_rows, first_line, spread_rows
from skfed.engines._stacked import Plan, StackedEngine
from skfed.engines._stacked_steps import STACKABLE_OPTIMIZERS, Method
from skfed.engines.products._linear import CriterionLoss, CrossEntropy, LinearLayers
from skfed.engines.products._vmap import BatchedModule
from skfed.engines.workers._net_cost import NetCost
from skfed.engines.workers._workers import Workers
from skfed.nets import (
    STEP_METHODS,
    NetPool,
    Samples,
    averages_rows,
    batch_size,
    by_array,
    has_hooks,
    has_plain_steps,
    model_bytes,
    overridden,
    parameter_names,
    predicts_by_outputs,
    weighs_rows,
)
from skfed.selection._poll_metrics import is_rowwise
from skfed.utils._seeding import TORCH_GENERATOR, torch_seeded
from skfed.utils._torch_context import without_cudnn

logger = logging.getLogger(__name__)

# They act on each element by itself: a step costs little beside its passes. LBFGS evaluates the
# loss several times, Muon multiplies matrices.
_ELEMENTWISE_OPTIMIZERS = (
    *STACKABLE_OPTIMIZERS,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Rprop,
)
_AVERAGES = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
_PRESUMED_ROWS = 128  # of a client, where a batch is all its rows
# Bytes of a client's model and batch beyond which a net is not stacked on a CPU: most of a step is
# then computing, not dispatch. A net with some of these layers has the smallest of their limits.
_LARGE_STEP = 2**20
_LARGE_BY_LAYER: dict[type | UnionType, int] = {
    nn.Conv1d | nn.Conv2d | nn.Conv3d: _LARGE_STEP,
    nn.RNN: 4 * 2**20,
    nn.GRU: 8 * 2**20,
}
# Bytes of a model and values of a row up to which a module takes less time on a few rows than on
# meta tensors, even with attention between all values of a row.
_SMALL_MODEL, _SHORT_ROW = 2**15, 2**7


def make_engine(
    wanted: str,
    net_pool: NetPool,
    X: Samples,
    y: np.ndarray,
    batching: Batching,
    memory_budget: int,
    n_jobs: int | None,
    weights: np.ndarray | None = None,
) -> tuple[LoopEngine | StackedEngine, str]:
    """Return the engine, and its name with the reason for it.

    Parameters
    ----------
    wanted : {"auto", "stacked", "loop"}
        The estimator's ``engine``.
    net_pool, X, y, batching, memory_budget, n_jobs
        See the engines.
    weights : ndarray of shape (n_samples,), default=None
        Weights of the rows in the loss; None: all alike.

    Raises
    ------
    ValueError
        If ``wanted`` is "stacked" and the result would not be the loop engine's, or if rows have
        weights and the net's loss is not the mean of the losses of rows.
    """
    if weights is not None:
        net = net_pool.set_up()
        check_gives_row_losses(net, *few_rows(net, X, y, batching.batch_size))

    reason = "engine='loop'"
    if wanted != "loop":
        try:
            plan, kind = _plan(wanted, net_pool, X, y, batching.batch_size, weights)
        except CannotStack as error:
            if wanted == "stacked":
                raise ValueError(
                    f"engine='stacked' cannot run this estimator: {error}. Pass engine='auto' or "
                    "engine='loop'."
                ) from None
            reason = str(error)
            logger.info("engine='auto' takes the loop engine: %s", reason)
        else:
            logger.info("engine=%r takes the stacked engine: %s", wanted, kind)
            dataset, workers = Dataset(X, y, net_pool.device, weights), Workers(n_jobs)
            engine = StackedEngine(net_pool, dataset, batching, plan, memory_budget, workers)
            return engine, f"stacked: {kind}"
    workers = Workers(n_jobs, prefer="processes")
    dataset = Dataset(X, y, weights=weights)
    data = workers.client_data(dataset, batching.federation, memory_budget)
    net_cost = _net_cost(net_pool, X, y, batching) if workers.are_optional else None
    return LoopEngine(net_pool, data, batching, workers, net_cost), f"loop: {reason}"


def _net_cost(net_pool: NetPool, X: Samples, y: np.ndarray, batching: Batching) -> NetCost | None:
    """Return what a pass through the net costs; None where a step may be more than its passes."""
    net = net_pool.set_up()
    if (
        torch.device(net_pool.device).type != "cpu"
        or not has_plain_steps(net)
        or type(net.optimizer_) not in _ELEMENTWISE_OPTIMIZERS
    ):
        return None
    sizes = batching.federation.sizes
    # The batch that a row is in, on average: clients of few rows take few of the steps.
    n_rows = round(np.average(batching.rows_a_step(sizes), weights=sizes))
    return NetCost.of(net, *spread_rows(net, X, y, n_rows))


def _plan(
    wanted: str,
    net_pool: NetPool,
    X: Samples,
    y: np.ndarray,
    batch: int,
    weights: np.ndarray | None,
) -> tuple[Plan, str]:
    """Return how clients are stacked, and the kind of method in words; raise CannotStack."""
    net = net_pool.set_up()
    if net_pool.torch_context.autocast:
        raise CannotStack("torch.autocast is on, and stacked products round otherwise")
    _check_settings(net)
    speed = None
    if wanted == "auto" and torch.device(net_pool.device).type == "cpu":
        speed = _Speed.of(net, _PRESUMED_ROWS if batch == -1 else batch)
    few_X, few_y = few_rows(net, X, y, batch)
    if speed is not None:
        _check_shapes(net, few_X, speed)
    try:
        # cuDNN rounds by more than the probe lets differ. The lock keeps other threads from
        # recording CUDA graphs meanwhile, which would stay without cuDNN.
        with TORCH_GENERATOR, without_cudnn(net_pool.device):
            plan, kind = _make_plan(net, Probe(net, few_X, few_y), speed)
    except CannotStack:
        raise
    except Exception as error:  # from the module's code; the loop raises it again, if it does
        raise CannotStack(f"the module fails on a few rows: {first_line(error)}") from error
    if weights is not None:
        _check_weights(net)
    return plan, kind


@dataclass(frozen=True)
class _Speed:
    """Where the loop was measured to be as fast on a CPU (``benchmarks``).

    This depends on the net alone, not on the clients' sizes: else the rows of one client could
    change the rounding of all. It is not asked of stacks of linear layers.

    Parameters
    ----------
    model_bytes : int
        Bytes of a model.
    n_rows : int
        Rows of a batch.
    limit : int
        Bytes of a client's model and rows beyond which nothing is gained.
    """

    model_bytes: int
    n_rows: int
    limit: int

    @classmethod
    def of(cls, net: NeuralNet, n_rows: int) -> "_Speed":
        """Return what is known of a net before it is run, whose batches have ``n_rows``."""
        limits = (limit for kind, limit in _LARGE_BY_LAYER.items() if _has(net, kind))
        return cls(model_bytes(net), n_rows, min(limits, default=_LARGE_STEP))

    def check_size(self, row_bytes: int) -> None:
        """Raise CannotStack where a client's model and rows are large."""
        if self.model_bytes + self.n_rows * row_bytes > self.limit:
            raise CannotStack("on a CPU, a step with so much to compute gains nothing")

    def check_padding(self, ignored: int | None) -> None:
        """Raise CannotStack where no target is ignored."""
        if ignored is None:
            raise CannotStack(
                "on a CPU, clients whose last batches have other sizes gain nothing if batches "
                "cannot be filled up: rows influence each other, or the criterion has no "
                "ignore_index"
            )


def _check_shapes(net: NeuralNet, X: Any, speed: _Speed) -> None:
    """Raise CannotStack where shapes alone show that the loop is as fast: no row is computed.

    Recurrent modules, and small ones with short rows, are left out: on meta tensors they take
    longer than on a few rows.
    """
    n_values = sum(one[0].numel() for one in tree_leaves(X))
    small = speed.model_bytes <= _SMALL_MODEL and n_values <= _SHORT_ROW
    if small or _has(net, nn.RNNBase):
        return
    with torch_seeded(np.random.default_rng(0)):
        try:
            module, X = on_meta(net.module_).train(), by_array(lambda one: one.to("meta"), X)
            found = row_bytes(module, X) if layers_of(module, X) is None else None
        except Exception:  # the module's code needs values, or cannot be copied
            return
    if found is not None:
        speed.check_size(found)


def _make_plan(net: NeuralNet, probe: Probe, speed: _Speed | None) -> tuple[Plan, str]:
    """Return the plan that a probe finds, and the kind of method in words."""
    probe.check()
    row_bytes = probe.row_bytes()
    method, kind = _method(net, probe, row_bytes, speed)
    plan = Plan(
        method=method,
        evaluated_layers=probe.evaluated_layers() if isinstance(method, LinearLayers) else None,
        random=probe.random,
        rowwise=is_rowwise(net.criterion_),
        evaluation_batch=batch_size(net, "iterator_valid") if averages_rows(net) else -1,
        predicts_by_outputs=predicts_by_outputs(net),
        weighing=net.criterion_ if weighs_rows(net.criterion_) else None,
        model_bytes=model_bytes(net),
        state_bytes=probe.state_bytes(),
        row_bytes=row_bytes,
    )
    return plan, kind


def _method(
    net: NeuralNet, probe: Probe, row_bytes: int, speed: _Speed | None
) -> tuple[Method, str]:
    """Return how losses and gradients are computed: by products alone if the module allows it."""
    layers, ignored = probe.layers(), _ignore_index(net)
    if layers is not None:
        rowwise = layers[1] is None and is_rowwise(net.criterion_)
        linear = LinearLayers(layers[0], CrossEntropy() if rowwise else CriterionLoss(layers[1]))
        if probe.difference(linear) is None:
            return linear, "linear layers"
    elif speed is not None:  # before a trial, which takes longer
        speed.check_size(row_bytes)
        speed.check_padding(ignored)
    by_autograd = _has(net, nn.RNNBase)
    for fill in dict.fromkeys([ignored, None]):
        batched = BatchedModule(fill, by_autograd)
        difference = probe.difference(batched)
        if difference is None:
            if speed is not None:
                speed.check_size(row_bytes)
                speed.check_padding(batched.ignored)
            return batched, "torch.func"
    raise CannotStack(difference or "")


def _has(net: NeuralNet, kinds: type | UnionType) -> bool:
    return any(isinstance(module, kinds) for module in net.module_.modules())


def _check_weights(net: NeuralNet) -> None:
    """Raise CannotStack where the criterion may not give the losses of rows when it is batched."""
    if not type(net.criterion_).__module__.startswith("torch.nn.modules."):
        raise CannotStack("rows have weights, and the criterion is not one of torch's")


def _check_settings(net: NeuralNet) -> None:
    """Raise CannotStack where the net's settings rule out stacking."""
    own = overridden(net, STEP_METHODS)
    if not isinstance(net.criterion_, nn.Module):
        raise CannotStack("the criterion is not a torch module")
    if _has(net, nn.LSTM):
        raise CannotStack("the module has an nn.LSTM, which only the loop trains")
    if net._modules != ["module"] or net._criteria != ["criterion"]:
        raise CannotStack("estimator has more than one module or criterion")
    optimizer, module = net.optimizer_, net.module_
    hooked = has_hooks(*module.modules()) or any(
        p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
        for p in module.parameters()
    )
    reasons = {
        f"estimator overrides {', '.join(own)}": own,
        f"callbacks act on batches: {', '.join(dict(net.callbacks_))}": net.callbacks_,
        "the criterion has parameters": any(True for _ in net.criterion_.parameters()),
        f"{type(optimizer).__name__} is not an optimizer known to act on each element by itself": (
            type(optimizer) not in STACKABLE_OPTIMIZERS
        ),
        "the optimizer has parameter groups": len(optimizer.param_groups) > 1,
        "the module is compiled": net.compile,
        "the module has hooks": hooked,
        "the module has nothing to train": not parameter_names(net),
    }
    for reason, holds in reasons.items():
        if holds:
            raise CannotStack(reason)


def _ignore_index(net: NeuralNet) -> int | None:
    """Return the criterion's ignore_index, if batches may be padded with it.

    Not with batch normalisation, which averages over the rows; the probe checks other modules.
    """
    criterion = net.criterion_
    fills = type(criterion) in (nn.CrossEntropyLoss, nn.NLLLoss) and criterion.reduction == "mean"
    return criterion.ignore_index if fills and not _has(net, _AVERAGES) else None
