"""How the rounds of a fit are run, and whether its components fit each other and the net."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from skorch import NeuralNet

from skfed._federation import Federation
from skfed._mechanism import GaussianMechanism
from skfed.aggregation import BaseAggregator, ServerOptimizer
from skfed.availability import BaseAvailability
from skfed.contribution import BaseContribution
from skfed.devices import BaseDevices
from skfed.engines import LocalTraining
from skfed.evaluation import FederatedEvaluation
from skfed.exchanges import Limits
from skfed.nets import (
    CLASSIFIERS,
    STEP_METHODS,
    overridden,
    parameter_names,
    tells_rows,
    untrained_names,
)
from skfed.schedules import Scheduled
from skfed.selection import BaseSelector, FedAlignSelector, RandomSelector
from skfed.selection._base import admission_of
from skfed.selection._past import NEEDS
from skfed.utils._warnings import warn


@dataclass(frozen=True, kw_only=True)
class RoundConfig:
    """How rounds are run."""

    selector: BaseSelector
    aggregator: BaseAggregator
    server_optimizer: ServerOptimizer | None
    availability: BaseAvailability
    training: LocalTraining
    lr_schedule: Scheduled | None
    n_rounds: int  # over which schedules run
    drop_failing: bool = True  # else the first failure of a client ends the fit
    min_clients: int = 1  # with fewer that succeed, the model is kept
    update_privacy: GaussianMechanism | None = None
    loss_privacy: GaussianMechanism | None = None
    devices: BaseDevices | None = None  # None: no simulated time
    deadline: float | None = None  # seconds of an exchange
    report_goal: float | None = None  # with so many answers a training ends; a float is a share
    contribution: BaseContribution | None = None  # None: updates are not valued
    evaluation: FederatedEvaluation | None = None  # None: clients do not evaluate new models

    @property
    def limits(self) -> Limits:
        """When exchanges end before all clients have answered."""
        return Limits(self.deadline, self.report_goal)

    def values_updates(self, t: int) -> bool:
        """Tell whether it is valued what the updates of round t were worth."""
        return self.contribution is not None and self.contribution.is_due(t)

    def check(self, net: NeuralNet, left_alone: Collection[str], *, simulated: bool = True) -> None:
        """Check that components' parameters are in range, and that they fit each other and a net.

        ``left_alone`` are the names of the tensors that a pass in training mode leaves alone.
        Clients that are not ``simulated`` take their own time.
        """
        _check_trains(net)
        if simulated:
            _check_clock(self)
        privacy = self.update_privacy, self.loss_privacy
        for component in (self.selector, self.aggregator, *privacy, self.contribution):
            if component is not None:
                component._validate_params()
        _check_needs(self, net)  # which may depend on a parameter
        if self.aggregator.uses_variates:
            _check_plain_sgd(self.aggregator, net.optimizer_)
        if self.update_privacy is not None:
            _check_nothing_leaks(self.aggregator, net, left_alone)
        if self.lr_schedule is not None:
            _check_scalable(net.optimizer_)
        if self.contribution is not None:
            _check_contribution(self, self.contribution, net)
        if self.evaluation is not None and self.loss_privacy is not None:
            raise ValueError(
                f"evaluation={self.evaluation} asks clients for metrics that loss_privacy does not "
                "cover: leave out evaluation, or loss_privacy."
            )


def selector_of(selector: BaseSelector | None, priority: Any) -> BaseSelector:
    """Return the selector of an estimator with these parameters."""
    if selector is not None:
        return selector
    return RandomSelector() if priority is None else FedAlignSelector()


def warn_of_ignored_priority(selector: BaseSelector, federation: Federation, logged: set) -> None:
    """Warn if some clients have priority and the selector does not use it.

    ``logged`` has the warnings of the server so far; this one is given once and added.
    """
    n_free = int((federation.priority_weights < 1).sum())
    intended = selector.uses_priority or getattr(selector, "ignore_priority", False)
    if intended or not n_free:
        return
    name = type(selector).__name__
    has_parameter = "ignore_priority" in selector.get_params(deep=False)
    declared = (
        f"{name}(ignore_priority=True)" if has_parameter else f"{name}.ignore_priority = True"
    )
    text = (
        f"priority has no influence on who trains, since {name} selects without it; {n_free} of "
        f"{len(federation)} clients do not have full priority. Use FedAlignSelector(), which is "
        f"the meaning of selector=None; or, if this is meant, {declared}."
    )
    if (b"", text) not in logged:
        logged.add((b"", text))
        warn(text)


def _check_clock(config: RoundConfig) -> None:
    """Check that there are seconds where a parameter needs them."""
    for name in ("deadline", "report_goal"):
        value = getattr(config, name)
        if value is not None and config.devices is None:
            raise ValueError(
                f"{name}={value} needs devices, which say how fast clients answer: pass devices "
                "of skfed.devices, or leave it out."
            )


def _check_needs(config: RoundConfig, net: NeuralNet) -> None:
    """Check that a rule may have what it needs of clients."""
    selector, needs = config.selector, config.selector.needs
    if isinstance(needs, str):
        raise ValueError(f"{type(selector).__name__}.needs is {needs!r}: write ({needs!r},).")
    if unknown := sorted(set(needs) - NEEDS.keys()):
        raise ValueError(
            f"{type(selector).__name__}.needs has {unknown[0]!r}: it may have "
            f"{', '.join(map(repr, NEEDS))}."
        )
    refused = {"loss_privacy": {"spread"}, "update_privacy": {"updates", "last_layer"}}
    for name, words in refused.items():
        if getattr(config, name) is not None and (found := sorted(words & set(needs))):
            raise ValueError(
                f"{name} does not cover {found[0]!r}, which {selector} needs of clients: use "
                f"another selector, or no {name}."
            )
    if "spread" in needs and not tells_rows(net):
        warn(
            f"{selector} looks at the losses of rows, which the criterion of estimator does not "
            "tell: past.loss_rms is over minibatches instead."
        )
    if config.update_privacy is not None and admission_of(selector) is not None:
        raise ValueError(
            f"update_privacy does not cover the norms of updates by which {selector} admits them: "
            "use another selector, or no update_privacy."
        )


def _check_contribution(
    config: RoundConfig, contribution: BaseContribution, net: NeuralNet
) -> None:
    """Check that updates can be valued."""
    if config.update_privacy is not None:
        raise ValueError(
            f"contribution={contribution} looks at single updates, of which the noise of "
            "update_privacy hides what they are worth: leave out contribution, or update_privacy."
        )
    if config.loss_privacy is not None and contribution.evaluate_on == "priority":
        raise ValueError(
            f"contribution={contribution} asks priority clients for very many losses, for which "
            "loss_privacy does not account: set contribution__evaluate_on='validation', or leave "
            "out loss_privacy."
        )
    if admission_of(config.selector) is not None:
        raise ValueError(
            f"contribution={contribution} needs the update of each client that has trained, but "
            f"{config.selector} has only some uploaded: use another selector, or no contribution."
        )
    if contribution.metric == "accuracy" and not isinstance(net, CLASSIFIERS):
        raise ValueError(
            "contribution__metric='accuracy' is not defined for a regressor: set it to 'loss'."
        )


def _check_plain_sgd(aggregator: BaseAggregator, optimizer: torch.optim.Optimizer) -> None:
    is_sgd = isinstance(optimizer, torch.optim.SGD)
    if not is_sgd or any(group["momentum"] for group in optimizer.param_groups):
        raise ValueError(
            f"aggregator={aggregator} needs clients that train by SGD without momentum, but "
            f"estimator's optimizer is {optimizer}: set optimizer=torch.optim.SGD."
        )


def _check_scalable(optimizer: torch.optim.Optimizer) -> None:
    """Check that the rates of parameter groups can be scaled with the net's own."""
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1 and optimizer.defaults["lr"] == 0:
        raise ValueError(
            "lr_schedule scales the rates of parameter groups as it scales the net's own lr, but "
            f"estimator's lr is 0 and its parameter groups have {sorted(rates)}: set estimator__lr."
        )


def _check_trains(net: NeuralNet) -> None:
    """Check that a net has parameters to train, unless code of the user's trains it."""
    if not parameter_names(net) and not overridden(net, STEP_METHODS):
        raise ValueError(
            "estimator has nothing to train, as all parameters of its module are frozen: call "
            "requires_grad_() of those that are to be trained, such as those of its last layer."
        )


def _check_nothing_leaks(
    aggregator: BaseAggregator, net: NeuralNet, left_alone: Collection[str]
) -> None:
    """Check that clients send only what update_privacy covers."""
    if aggregator.uses_variates:
        raise ValueError(
            f"update_privacy does not cover SCAFFOLD's variates, which clients send with "
            f"aggregator={aggregator}: use another aggregator, or no update_privacy."
        )
    if sent := [name for name in untrained_names(net) if name not in left_alone]:
        raise ValueError(
            "update_privacy does not cover what changes without gradients, and estimator's "
            f"{sent[0]} may: use a module without such tensors, such as GroupNorm in place of "
            "BatchNorm, or keep BatchNorm in evaluation mode."
        )
