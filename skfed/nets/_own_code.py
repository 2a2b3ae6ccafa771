"""Which code of a net is the user's: methods, callbacks and hooks."""

from collections.abc import Iterable

from skorch import (
    NeuralNet,
    NeuralNetBinaryClassifier,
    NeuralNetClassifier,
    NeuralNetRegressor,
)
from torch import nn

from skfed.utils._torch_context import HOOKS

#: Methods of skorch in which code of the user's may take part in a step.
STEP_METHODS = (
    "train_step", "train_step_single", "validation_step", "evaluation_step", "infer", "get_loss",
    "initialize_optimizer", "notify", "on_train_begin", "on_epoch_begin", "on_batch_begin",
    "on_batch_end", "on_grad_computed", "_set_training", "_step_optimizer",
    "_zero_grad_optimizer",
)  # fmt: skip
#: Methods of skorch in which it may take part in predictions.
FORWARD_METHODS = (
    "forward_iter", "get_dataset", "get_iterator", "evaluation_step", "infer", "_set_training",
)  # fmt: skip


def overridden(net: NeuralNet, methods: Iterable[str]) -> list[str]:
    """Return those of skorch's methods that the class of a net overrides."""
    bases = NeuralNetClassifier, NeuralNetBinaryClassifier
    base = next((base for base in bases if isinstance(net, base)), NeuralNetRegressor)
    return [name for name in methods if getattr(type(net), name) is not getattr(base, name)]


def has_plain_steps(net: NeuralNet) -> bool:
    """Tell whether skorch's own code alone takes the steps of a net, without ``torch.compile``."""
    return not (overridden(net, STEP_METHODS) or net.callbacks_ or net.compile)


def has_hooks(*modules: nn.Module) -> bool:
    """Tell whether functions of the user's are called with a module or with its gradients."""
    return any(getattr(module, name) for module in modules for name in HOOKS)
