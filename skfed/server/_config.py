"""From an estimator's parameters to the rules of its rounds: defaults filled in, and checked."""

from typing import TYPE_CHECKING

import torch
from skorch import NeuralNet

from skfed._federation import Federation
from skfed.aggregation import BaseAggregator, WeightedMean
from skfed.availability import Always
from skfed.engines import LocalTraining
from skfed.nets import buffer_names
from skfed.selection import BaseSelector, FedAlignSelector, RandomSelector
from skfed.server._state import RoundConfig
from skfed.utils._warnings import warn

if TYPE_CHECKING:
    from skfed._estimator import BaseFederated


def make_round_config(model: "BaseFederated", net: NeuralNet) -> RoundConfig:
    """Return the rules by which an estimator trains a net.

    Raises
    ------
    ValueError
        If a part has a parameter out of range, or does not go with the net or another part.
    """
    aggregator = WeightedMean() if model.aggregator is None else model.aggregator
    for part in (aggregator, model.update_privacy, model.loss_privacy):
        if part is not None:
            part._validate_params()
    if aggregator.uses_variates:
        _check_plain_sgd(aggregator, net.optimizer_)
    if model.update_privacy is not None:
        _check_nothing_leaks(aggregator, net)
    if model.lr_schedule is not None:
        _check_scalable(net.optimizer_)
    return RoundConfig(
        selector=selector_of(model),
        aggregator=aggregator,
        server_optimizer=model.server_optimizer,
        availability=Always() if model.availability is None else model.availability,
        training=_local_training(model),
        lr_schedule=model.lr_schedule,
        n_rounds=model.n_rounds,
        drop_failing=model.on_client_error == "drop",
        min_clients=model.min_clients,
        update_privacy=model.update_privacy,
        loss_privacy=model.loss_privacy,
    )


def selector_of(model: "BaseFederated") -> BaseSelector:
    """Return who selects; priority that is given is to play a part."""
    if model.selector is not None:
        return model.selector
    return RandomSelector() if model.priority is None else FedAlignSelector()


def warn_of_ignored_priority(selector: BaseSelector, federation: Federation, told: set) -> None:
    """Warn, once a server, if some clients have priority and the selector pays no heed to it.

    ``told`` is what the server has told before; it grows.
    """
    n_free = int((federation.priority_weights < 1).sum())
    meant = selector.uses_priority or getattr(selector, "ignore_priority", False)
    if meant or not n_free:
        return
    name = type(selector).__name__
    has_parameter = "ignore_priority" in selector.get_params(deep=False)
    declared = (
        f"{name}(ignore_priority=True)" if has_parameter else f"{name}.ignore_priority = True"
    )
    text = (
        f"priority has no influence on who trains, since {name} selects without it; {n_free} of "
        f"{len(federation)} clients do not have full priority. Use FedAlignSelector(), which is "
        f"what selector=None stands for; or, if this is meant, {declared}."
    )
    if (b"", text) not in told:
        told.add((b"", text))
        warn(text)


def _local_training(model: "BaseFederated") -> LocalTraining:
    steps = model.local_steps
    # Counts may be other integers than int, True for one.
    steps = None if steps is None else int(steps)
    return LocalTraining(int(model.local_epochs), steps, model.proximal_mu)


def _check_plain_sgd(aggregator: BaseAggregator, optimizer: torch.optim.Optimizer) -> None:
    is_sgd = isinstance(optimizer, torch.optim.SGD)
    if not is_sgd or any(group["momentum"] for group in optimizer.param_groups):
        raise ValueError(
            f"aggregator={aggregator} needs clients that train by SGD without momentum, but "
            f"estimator's optimizer is {optimizer}: set optimizer=torch.optim.SGD."
        )


def _check_scalable(optimizer: torch.optim.Optimizer) -> None:
    """Check that each parameter group's rate can be scaled as the net's own is."""
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1 and optimizer.defaults["lr"] == 0:
        raise ValueError(
            "lr_schedule scales the rates of parameter groups as it scales the net's own lr, but "
            f"estimator's lr is 0 and its parameter groups have {sorted(rates)}: set estimator__lr."
        )


def _check_nothing_leaks(aggregator: BaseAggregator, net: NeuralNet) -> None:
    """Check that clients send nothing besides the update that update_privacy covers."""
    if aggregator.uses_variates:
        raise ValueError(
            f"update_privacy does not cover what aggregator={aggregator} sends besides: "
            "SCAFFOLD's variates. Use another aggregator, or no update_privacy."
        )
    if buffers := buffer_names(net):
        raise ValueError(
            f"update_privacy does not cover what is not trained by gradients: {buffers[0]}. "
            "Use a module without buffers, such as GroupNorm in place of BatchNorm."
        )
