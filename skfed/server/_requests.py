"""What a round's cohort is asked to do."""

from dataclasses import replace

import numpy as np

from skfed._federation import Federation
from skfed.aggregation import BaseAggregator
from skfed.aggregation._scaffold import correction
from skfed.engines import LocalTraining, TrainRequest, enumerate_copies, first_copy_of_trial
from skfed.nets import State, last_layer_of, parameter_names
from skfed.schedules import LinearDecay, value_at
from skfed.selection import BaseSelector, Cohort
from skfed.server._config import RoundConfig
from skfed.server._exchanges import noise_stream
from skfed.server._state import ServerState
from skfed.server._statistics import RateLimits
from skfed.utils._seeding import Purpose

_LARGEST_RATE = float(np.finfo(np.float32).max)


def make_train_request(
    server: ServerState,
    federation: Federation,
    config: RoundConfig,
    state: State,
    limits: RateLimits | None,
    cohort: Cohort,
    *,
    trial: int | None = None,
    keep: BaseAggregator | None = None,
) -> TrainRequest:
    """Return what a cohort is asked to do.

    ``limits`` are of the rates of clients. A ``trial``, of that number in the round, has no
    variates. ``keep`` keeps the updates of a rule with two phases, whose norms are reported.
    """
    training, factors = _training(server, config), None
    if limits is not None and training.rates is not None:
        factors = limits.factors(cohort.clients, training.rates[0][0])
    is_trial = trial is not None
    needs = frozenset() if is_trial else frozenset(config.selector.needs)
    if keep is not None:  # the server has no other update than those that it admits
        needs = needs & {"spread"} | {"norms"}
    return TrainRequest(
        round=server.round,
        state=state,
        parameters=parameter_names(server.net),
        cohort=cohort,
        training=replace(training, trial=trial),
        aggregator=config.aggregator if keep is None else keep,
        corrections=None if is_trial else _corrections(server, federation, config, cohort),
        privacy=config.update_privacy,
        noise=_update_noise(server, federation, config, cohort, trial),
        rate_factors=factors,
        needs=needs,
        seed=server.seed,
        # Of two phases, the server computes it of the uploads.
        last_layer=last_layer_of(server.net) if "last_layer" in config.selector.needs else "",
        keeps_models=not is_trial and config.values_updates(server.round),
        fixed=frozenset(server.fixed.state),
    )


def needs_of_updates(selector: BaseSelector) -> frozenset[str]:
    """Return what a rule needs of updates, which the server computes of them."""
    return frozenset(selector.needs) - {"spread"}


def _update_noise(
    server: ServerState,
    federation: Federation,
    config: RoundConfig,
    cohort: Cohort,
    trial: int | None,
) -> list[np.random.Generator] | None:
    """Return the noise of each member's update."""
    if config.update_privacy is None:
        return None
    members = enumerate_copies(cohort.clients.tolist())
    purpose, first = Purpose.UPDATE_NOISE, 0
    if trial is not None:
        purpose, first = Purpose.TRIAL_UPDATE_NOISE, first_copy_of_trial(trial)
    return [noise_stream(server, federation, purpose, k, first + copy) for k, copy in members]


def _training(server: ServerState, config: RoundConfig) -> LocalTraining:
    """Return how clients train in this round, learning rates included."""
    n_steps, schedule = config.training.n_iterations, config.lr_schedule
    t, n_rounds, max_norm = server.round, config.n_rounds, None
    if server.rate is not None and config.update_privacy is not None:
        max_norm = float(config.update_privacy.clip)  # since no rate is known to be safe
    if server.rate is not None and schedule is None:
        # At a rate that stays as it is, the clients whose rows are longest pull the model.
        start = server.rate / (1 + config.training.proximal_mu * server.rate)
        schedule = LinearDecay(start, start / 10)
    if schedule is None:
        now = server.rates_now()
        if now == server.rates:
            return config.training
        # A callback, such as skorch's LRScheduler, has changed them.
        return replace(config.training, rates=(now,) * n_steps)
    rates = tuple(
        _scaled(server, value_at(schedule, "lr_schedule", t, n_rounds, step, n_steps))
        for step in range(n_steps)
    )
    highest = max(max(of_groups) for of_groups in rates)
    if highest > _LARGEST_RATE:
        raise ValueError(
            f"lr_schedule is {highest} in round {t}: it must be at most "
            f"{_LARGEST_RATE:.2g}, the largest number that float32 holds, and so must the rate of "
            "each parameter group that it scales."
        )
    return replace(config.training, rates=rates, max_norm=max_norm)


def _scaled(server: ServerState, value: float) -> tuple[float, ...]:
    """Return each group's rate where the schedule says ``value`` of the net's own."""
    if len(set(server.rates)) == 1:
        return (value,) * len(server.rates)
    own = server.own_rate
    return tuple(value if rate == own else rate * value / own for rate in server.rates)


def _corrections(
    server: ServerState, federation: Federation, config: RoundConfig, cohort: Cohort
) -> list[State] | None:
    """Return SCAFFOLD's c - c_k of each member of the cohort."""
    if not config.aggregator.uses_variates:
        return None
    keys = map(federation.digest, cohort.clients)
    return [correction(server.variate, server.variates.get(key, {})) for key in keys]
