"""Which engine runs a net: stacked when it gives the same result, else the loop, and why."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skfed._nets import (
    Model,
    Workbench,
    get_model,
    model_bytes,
    parameter_names,
    set_model,
    to_tensors,
)
from skfed.engines._batched import BatchedModule
from skfed.engines._draws import Draws, batch_size
from skfed.engines._linear import CriterionLoss, LinearStack, cross_entropy
from skfed.engines._loop import LoopEngine
from skfed.engines._polls import is_rowwise
from skfed.engines._rows import Rows
from skfed.engines._stack import Method
from skfed.engines._stacked import Plan, StackedEngine
from skfed.engines._trace import layers_of
from skfed.utils._seeding import torch_seeded

logger = logging.getLogger(__name__)

Engine = LoopEngine | StackedEngine

_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
)
_STEP = (
    "train_step", "train_step_single", "validation_step", "evaluation_step", "infer", "get_loss",
    "run_single_epoch", "forward", "forward_iter",
)  # fmt: skip
_PROBED_ROWS = 4
_PRESUMED_ROWS = 128  # of a client whose batch is all it has
_LARGE_STEP = 2**20  # bytes of a client's model and rows; beyond, dispatch is a small part


class _CannotStack(Exception):
    """Says why the loop engine is needed."""


def make_engine(
    wanted: str,
    bench: Workbench,
    X: np.ndarray,
    y: np.ndarray,
    draws: Draws,
    memory_budget: int,
    n_jobs: int | None,
) -> tuple[Engine, str]:
    """Return the engine, and its name with the reason for it.

    Parameters
    ----------
    wanted : {"auto", "stacked", "loop"}
        The estimator's ``engine``.
    bench, X, y, draws, memory_budget, n_jobs
        See the engines.

    Raises
    ------
    ValueError
        If the stacked engine is wanted and would not give the loop engine's result.
    """
    if wanted == "loop":
        return LoopEngine(bench, X, y, draws, n_jobs), "loop: engine='loop'"
    try:
        plan, kind = _plan(bench, X, y)
        if wanted == "auto":
            _check_speed(plan, bench.device, draws.batch_size)
    except _CannotStack as reason:
        if wanted == "stacked":
            raise ValueError(
                f"engine='stacked' cannot run this estimator: {reason}. Pass engine='auto' or "
                "engine='loop'."
            ) from None
        logger.info("engine='auto' takes the loop engine: %s", reason)
        return LoopEngine(bench, X, y, draws, n_jobs), f"loop: {reason}"
    logger.info("engine=%r takes the stacked engine: %s", wanted, kind)
    rows = Rows(X, y, bench.device)
    return StackedEngine(bench, rows, draws, plan, memory_budget, n_jobs), f"stacked: {kind}"


def _plan(bench: Workbench, X: np.ndarray, y: np.ndarray) -> tuple[Plan, str]:
    """Return how clients can be stacked; raise _CannotStack if they cannot."""
    with bench.borrowed() as net:
        _check_settings(net)
        probe = _Probe(net, X, y)
        method, kind = _method(net, probe)
        plan = Plan(
            method=method,
            random=probe.draws(training=True),
            rowwise=is_rowwise(net.criterion_),
            evaluation_batch=batch_size(net, "iterator_valid"),
            model_bytes=model_bytes(net),
            row_bytes=probe.row_bytes(),
        )
    return plan, kind


def _method(net: NeuralNetClassifier, probe: "_Probe") -> tuple[Method, str]:
    """Return how losses and gradients are had: the lean way if the module allows it."""
    probe.check()
    net._set_training(True)  # what is traced is what trains
    layers = layers_of(net.module_)
    if layers is not None:
        rowwise = layers[1] is None and is_rowwise(net.criterion_)
        lean = LinearStack(layers[0], cross_entropy if rowwise else CriterionLoss(layers[1]))
        if probe.difference(lean) is None:
            return lean, "linear layers"
    general = BatchedModule(_ignored(net, probe))
    difference = probe.difference(general)
    if difference is not None:
        raise _CannotStack(difference)
    return general, "torch.func"


def _check_speed(plan: Plan, device: str, batch: int) -> None:
    """Raise _CannotStack where the loop was measured to be as fast (``benchmarks``).

    By the net alone, never by the clients: else one client could change another's rounding.
    """
    if isinstance(plan.method, LinearStack) or torch.device(device).type != "cpu":
        return
    rows = _PRESUMED_ROWS if batch == -1 else batch
    if plan.model_bytes + rows * plan.row_bytes > _LARGE_STEP:
        raise _CannotStack("on a CPU, a step with so much to compute gains nothing")
    if plan.method.ignored is None:
        raise _CannotStack(
            "on a CPU, clients whose last batches have other sizes gain nothing if batches cannot "
            "be filled up: rows influence each other, or the criterion has no ignore_index"
        )


def _check_settings(net: NeuralNetClassifier) -> None:
    """Raise _CannotStack for what shows in the net's settings."""
    own = [
        name for name in _STEP if getattr(type(net), name) is not getattr(NeuralNetClassifier, name)
    ]
    optimizer, module = net.optimizer_, net.module_
    hooked = any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
        for m in module.modules()
    )
    reasons = {
        f"estimator overrides {', '.join(own)}": own,
        f"callbacks act on batches: {', '.join(dict(net.callbacks_))}": net.callbacks_,
        "estimator has more than one module or criterion": len(net._modules + net._criteria) > 2,
        "the criterion has parameters": any(True for _ in net.criterion_.parameters()),
        f"{type(optimizer).__name__} is not an optimizer known to act on each element by itself": (
            type(optimizer) not in _ELEMENTWISE
        ),
        "the optimizer has parameter groups": len(optimizer.param_groups) > 1,
        "the module is compiled": net.compile,
        "the module has hooks": hooked,
        "the module has nothing to train": not parameter_names(net),
    }
    for reason, holds in reasons.items():
        if holds:
            raise _CannotStack(reason)


def _ignored(net: NeuralNetClassifier, probe: "_Probe") -> int | None:
    """Return the target that the criterion leaves out, if a batch may be filled up with it."""
    criterion = net.criterion_
    fills = type(criterion) in (nn.CrossEntropyLoss, nn.NLLLoss) and criterion.reduction == "mean"
    return criterion.ignore_index if fills and probe.rows_are_apart() else None


class _Probe:
    """Tries a net on a few rows of X."""

    def __init__(self, net: NeuralNetClassifier, X: np.ndarray, y: np.ndarray):
        rows = np.arange(_PROBED_ROWS) % len(X)
        self.net = net
        self.X, self.y = to_tensors(net, X[rows], y[rows])

    def check(self) -> None:
        """Raise _CannotStack for what shows when the module computes."""
        if self.draws(training=False):
            raise _CannotStack("the module draws random numbers when it is evaluated")
        if self.remembers():
            raise _CannotStack("the module changes attributes of its own when it computes")

    def difference(self, method: Method) -> str | None:
        """Say why two stacked clients do not get the losses and gradients of each; None if so."""
        names = parameter_names(self.net)
        models = [get_model(self.net)]
        models.append({n: t + 0.01 if n in names else t.clone() for n, t in models[0].items()})
        alone = [self._alone(model, names) for model in models]
        set_model(self.net, models[0])
        try:
            # An operation without a rule for batches would be repeated, with a warning of torch.
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                together = self._together(method, models, names)
        except Exception as error:  # whatever the module's code raises when it is batched
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"torch.func cannot batch the module or criterion: {first}"
        if self.draws(training=True):
            return None  # other draws, other gradients
        for mine, theirs in zip(alone, together, strict=True):
            if any(not _close(mine[name], theirs[name]) for name in mine):
                return "batched gradients differ from those of one client"
        return None

    def draws(self, training: bool) -> bool:
        """Tell whether the module draws random numbers."""
        with self._quietly(training):
            generator = _generator(self.net.device)
            before = generator.get_state()
            self.net.module_(self.X)
            return not torch.equal(before, generator.get_state())

    def remembers(self) -> bool:
        """Tell whether the module keeps anything but buffers from one batch to the next."""
        with self._quietly(training=True):
            before = [dict(vars(module)) for module in self.net.module_.modules()]
            self.net.module_(self.X)
            after = [vars(module) for module in self.net.module_.modules()]
            return any(
                old.keys() != new.keys() or any(old[key] is not new[key] for key in old)
                for old, new in zip(before, after, strict=True)
            )

    def rows_are_apart(self) -> bool:
        """Tell whether the output of a row is the same whatever the other rows are."""
        others = self.X.clone()
        others[1:] = self.X.max() - self.X[1:]
        outputs = []
        for X in (self.X, others):
            with self._quietly(training=True):
                output = self.net.module_(X)
                outputs.append(output[0] if isinstance(output, tuple) else output)
        return torch.equal(outputs[0][0], outputs[1][0])

    def row_bytes(self) -> int:
        """Return the bytes of a row of X with all activations."""
        total = self.X.nbytes
        leaves = [m for m in self.net.module_.modules() if not list(m.children())]

        def count(module, args, output):
            nonlocal total
            outputs = output if isinstance(output, tuple) else (output,)
            total += sum(o.nbytes for o in outputs if torch.is_tensor(o))

        handles = [leaf.register_forward_hook(count) for leaf in leaves]
        with self._quietly(training=False):
            self.net.module_(self.X)
        for handle in handles:
            handle.remove()
        return total // len(self.X)

    @contextmanager
    def _quietly(self, training: bool) -> Iterator[None]:
        """Leave weights, buffers and torch's generator as they are."""
        model = get_model(self.net)
        with torch_seeded(np.random.default_rng(0), self.net.device), torch.no_grad():
            self.net._set_training(training)
            yield
        set_model(self.net, model)

    def _alone(self, model: Model, names: list[str]) -> Model:
        """Return one client's loss, gradients and buffers, as the loop engine has them."""
        with self._quietly(training=True), torch.enable_grad():
            set_model(self.net, model)
            self.net.module_.zero_grad()
            loss = self.net.train_step_single((self.X, self.y))["loss"].detach()
            after = get_model(self.net)
            tensors = dict(self.net.module_.named_parameters())
            for name in names:
                grad = tensors[name.removeprefix("module.")].grad
                after[name] = torch.zeros_like(after[name]) if grad is None else grad.cpu()
            self.net.module_.zero_grad()
        return after | {"loss": loss.cpu()}

    def _together(self, method: Method, models: list[Model], names: list[str]) -> list[Model]:
        """Return the same of all clients, from one step of the stack."""
        stack = {
            name.removeprefix("module."): torch.stack([m[name] for m in models]).to(self.X.device)
            for name in models[0]
        }
        params = {n: t for n, t in stack.items() if f"module.{n}" in names}
        buffers = {n: t for n, t in stack.items() if n not in params}
        X, y = (t.expand(len(models), *t.shape).clone() for t in (self.X, self.y))
        with self._quietly(training=True):
            losses, grads = method.bind(self.net, params, buffers).gradients(X, y, None)
        whole = {f"module.{n}": t.detach().cpu() for n, t in {**buffers, **grads}.items()}
        return [
            {n: t[i] for n, t in whole.items()} | {"loss": losses[i].detach().cpu()}
            for i in range(len(models))
        ]


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare up to rounding."""
    one, other = one.double(), other.double()
    scale = one.abs().max() if one.numel() else torch.tensor(0.0)
    return bool(((one - other).abs() <= 1e-4 * scale + 1e-6).all())


def _generator(device: str) -> torch.Generator:
    kind = torch.device(device)
    if kind.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if kind.index is None else kind.index
    return torch.cuda.default_generators[index]
