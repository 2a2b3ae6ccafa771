"""The tensors of a net that training leaves alone."""

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from skfed.callbacks._skorch import acts_on_batches
from skfed.nets._dict_rows import DictRows, by_array
from skfed.nets._inputs import to_tensors
from skfed.nets._own_code import overridden
from skfed.nets._pool import ResetPoint, is_known
from skfed.nets._state import get_state, named_tensors, parameter_names, set_state
from skfed.utils._seeding import torch_seeded
from skfed.utils._torch_context import one_torch_thread

#: Methods of skorch by which a train step may change what the pass in it does not.
_AROUND_PASSES = (
    "train_step", "train_step_single", "notify", "on_train_begin", "on_epoch_begin",
    "on_batch_begin", "on_batch_end", "on_grad_computed", "_step_optimizer",
    "_zero_grad_optimizer",
)  # fmt: skip


def left_alone(net: NeuralNet, row: np.ndarray | DictRows) -> frozenset[str]:
    """Return the names of the tensors that a pass in training mode leaves alone.

    What has a gradient is among them: the optimizer changes it, not the pass. The net passes two
    rows of the shape and dtype of ``row``, and is then as before. Where its module does not take
    them, nothing is known of its buffers, and they are not among them. None are where code of the
    user's acts around the pass, as it may let a teacher follow there.
    """
    if _acts_around_passes(net):
        return frozenset()
    tensors, trained = named_tensors(net), set(parameter_names(net))
    if tensors.keys() == trained:
        return frozenset(trained)
    state, reset_point = get_state(net), ResetPoint(net)
    modules = [*net.module_.modules()]
    before = [(module.training, dict(module._buffers)) for module in modules]
    try:
        changed = _changed_by_pass(net, by_array(_two_rows, row))
    except Exception:  # whatever its layers raise
        changed = {name for name, w in tensors.items() if not isinstance(w, nn.Parameter)}
    finally:
        reset_point.reset()
        for module, (mode, buffers) in zip(modules, before, strict=True):
            module.training = mode
            module._buffers.update(buffers)  # those that were made anew
        set_state(net, state)
    # A running mean may stay as it is by chance, while its module's variance or count changes.
    owners = {_owner(name) for name in changed}
    return frozenset(
        name
        for name, w in tensors.items()
        if name not in changed and (isinstance(w, nn.Parameter) or _owner(name) not in owners)
    )


def _acts_around_passes(net: NeuralNet) -> bool:
    """Tell whether code of the user's acts in a train step before or after the pass."""
    own = (callback for _, callback in net.callbacks_ if not is_known(callback))
    return bool(overridden(net, _AROUND_PASSES)) or any(map(acts_on_batches, own))


def _changed_by_pass(net: NeuralNet, rows: np.ndarray | DictRows) -> set[str]:
    """Return the names of what a pass in training mode has changed, or written to."""
    before, tensors = get_state(net), named_tensors(net)
    writes = {name: tensor._version for name, tensor in tensors.items()}
    seeded = torch_seeded(np.random.default_rng(0), net.device)
    # Two rows take longer in several threads.
    with seeded, one_torch_thread(), torch.enable_grad():
        net.module_.train()
        net.infer(*to_tensors(net, rows))
    after = get_state(net)
    return {
        name
        for name, w in tensors.items()
        if w._version != writes[name] or not torch.equal(after[name], before[name])
    }


def _two_rows(row: np.ndarray) -> np.ndarray:
    """Return rows like one of X: normalisation over a batch needs two, that differ."""
    shape = 2, *row.shape[1:]
    if row.dtype.kind != "f":  # zero is an id that is in range
        return np.zeros(shape, row.dtype)
    return np.random.default_rng(0).normal(size=shape).astype(row.dtype)


def _owner(name: str) -> str:
    """Return the name of the module that has a tensor."""
    return name.rpartition(".")[0]
