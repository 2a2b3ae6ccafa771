"""The start of a fit: columns and targets are standardised, and a safe learning rate is found.

Clients send statistics of their rows in at most two exchanges, which the fit's first round is
charged for: moments of columns and targets; then, of the default regressor, how long their rows are
once they are scaled. All of it is decided by the priority clients alone.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from skorch import NeuralNet

from skfed._federation import Federation
from skfed._problem import Guess
from skfed.exchanges import STATISTICS, Answers, Exchange, Exchanges, Message, Messages, Send
from skfed.modules import LinearModel, LinearRegression, Standardize
from skfed.nets import (
    State,
    cast,
    float_dtype,
    get_state,
    named_tensors,
    set_shift,
    standardize_layers,
    to_tensors,
)
from skfed.server._moments import (
    FAR,
    SENT,
    MomentsPool,
    Norms,
    Pooled,
    safe_rate,
)
from skfed.server._state import Best, ServerState
from skfed.server._statistics import StatisticsSource, rows_a_step
from skfed.utils._warnings import warn

_LARGE = 100.0  # values of X for which its columns should be scaled
_LEAST_ENTROPY = 0.01  # of classes of which nearly all rows have one: no net learns as much
_MOST_MOVED = 3.0  # deviations of logits by which those of the mean row may move


@dataclass(frozen=True)
class Wanted:
    """What the start of a fit needs of clients.

    Parameters
    ----------
    columns : bool
        Whether the net standardises X.
    targets : {"scale", "start"} or None
        Whether targets are standardised, or the intercept begins at their mean.
    n_classes : int
        The number of classes whose shares of the rows are asked for; 0: none are.
    rate : {"safe", "own"} or None
        Where the learning rate falls from: a rate that is safe for all priority clients, or that of
        the net. None: it does not fall by itself.
    """

    columns: bool = False
    targets: Literal["scale", "start"] | None = None
    n_classes: int = 0
    rate: Literal["safe", "own"] | None = None

    @property
    def names(self) -> list[str]:
        """What moments are asked of."""
        asked = {"columns": self.columns, "targets": self.targets, "classes": self.n_classes}
        return [name for name, is_asked in asked.items() if is_asked]


def start_fit(
    server: ServerState,
    federation: Federation,
    exchanges: Exchanges,
    source: StatisticsSource,
    wanted: Wanted,
    shape: tuple[int, ...],
    dtype: np.dtype,
    *,
    guess: Guess | None = None,
    accumulate: bool = False,
) -> None:
    """Ask clients for what is wanted, and set the net, the scale of targets and the rate.

    ``shape`` is that of a row of X, ``dtype`` that of X, and ``guess`` is known without clients. In
    a later fit of the same net, its layer is set anew, and its weights are converted; with
    ``accumulate``, by the moments of all rows so far. Where the moments are those of the last fit,
    clients have nothing to send: the fit's first round is charged for the other exchanges.
    """
    if wanted.columns:
        _check_first(server.net, shape)
    server.begun, server.best = server.round, None
    before, columns_before, is_same = server.guess, server.columns, False
    server.guess = guess
    if wanted.names:
        pools, exchange = _ask_moments(federation, exchanges, source, wanted)
        if "columns" in pools:
            _set_columns(server, pools["columns"], dtype, accumulate)
        if "targets" in pools:
            _set_targets(server, pools["targets"], wanted)
        if "classes" in pools:
            loss = _entropy(pools["classes"].mean)
            server.guess = Guess(loss, "the class shares") if loss > _LEAST_ENTROPY else guess
        if pools.keys() & {"columns", "classes"}:
            same_columns = "columns" not in pools or pools["columns"].equals(columns_before)
            is_same = server.guess == before and same_columns
        if not is_same:
            server.first_exchanges.append(exchange)
    rate_before, server.rate = server.rate, None if wanted.rate is None else server.own_rate
    if wanted.rate == "safe":
        server.rate, exchange = _ask_rate(server, federation, exchanges, source)
        if not (is_same and server.rate == rate_before):
            server.first_exchanges.append(exchange)


def warn_of_large_values(X: np.ndarray) -> None:
    """Warn if values of X are large where clients do not send moments of its columns."""
    if max(X.max(), -X.min()) > _LARGE:  # without a copy of X
        warn(
            "update_privacy is set, so clients do not send the means and variances of their "
            f"columns, and the net takes X as it is; but X has values above {_LARGE:g}: scale "
            "its columns by bounds that are known without a look at the data."
        )


def is_renewable(net: NeuralNet) -> bool:
    """Tell whether the weights of a net can be converted to columns of another scale."""
    own_forward = getattr(type(net.module_), "forward", None) is LinearModel.forward
    return own_forward and bool(standardize_layers(net))


def set_columns(net: NeuralNet, columns: Pooled, dtype: np.dtype) -> None:
    """Set the layers that standardise X, whose dtype is given."""
    loses_digits = not np.can_cast(dtype, float_dtype(net))
    shift = np.where(columns.is_far & loses_digits, columns.mean, 0.0)
    set_shift(net, shift if shift.any() else None)
    for layer in standardize_layers(net):
        layer.mean.copy_(torch.from_numpy(columns.mean - shift))
        layer.scale.copy_(torch.from_numpy(columns.scale))


def _ask_moments(
    federation: Federation, exchanges: Exchanges, source: StatisticsSource, wanted: Wanted
) -> tuple[dict[str, Pooled], Exchange]:
    """Return the pooled moments by name, none if no client has replied; and the exchange."""
    weights = (federation.priority_weights * federation.sizes)[federation.priority]
    pools = {name: MomentsPool() for name in wanted.names}

    def send(asked: np.ndarray) -> Answers:
        sent, times = source.moments(wanted.names)
        raised = {}
        for i, (client, weight) in enumerate(zip(sent, weights, strict=True)):
            if isinstance(client, Exception):
                raised[i] = client
                continue
            for name, moments in client.items():
                if name == "targets":  # messages do not have it
                    moments = moments._replace(largest=np.zeros_like(moments.largest))
                pools[name].add(moments, float(weight))
        return Answers.of_statistics(len(asked), raised, times)

    up = {name: len(SENT[name]) * source.n_values[name] for name in wanted.names}
    messages = Messages(up=Message(scalars=up))
    asked_for = f"moments of its {' and '.join(wanted.names)}"
    exchange = ask_priority_clients(federation, exchanges, messages, send, asked_for)
    if not exchange.replied.any():
        _refuse_silence(wanted)
    return {n: pool.pooled for n, pool in pools.items() if pool.pooled is not None}, exchange


def ask_priority_clients(
    federation: Federation,
    exchanges: Exchanges,
    messages: Messages,
    send: Send | None = None,
    asked_for: str | None = None,
) -> Exchange:
    """Ask each priority client for statistics of its rows; without ``send``, all have sent them."""
    # There may be very many, and the record is kept until the end of the first round.
    clients = np.flatnonzero(federation.priority).astype(np.int32)
    send = send or (lambda asked: Answers.of_statistics(len(asked)))
    return exchanges.ask(STATISTICS, messages, clients, send, asked_for=asked_for)


def _refuse_silence(wanted: Wanted) -> None:
    """Warn that no client has sent moments; raise where there is no way without them."""
    if wanted.targets == "scale":
        raise RuntimeError(
            "no priority client has sent the mean and variance of its targets, which "
            "standardize_targets needs: see the clients' logs, and start again."
        )
    warn(
        "no priority client has sent the means and variances of its columns, so the net takes "
        "X as it is: see the clients' logs, and scale X by bounds that are known without a "
        "look at the data."
    )


def _set_columns(server: ServerState, columns: Pooled, dtype: np.dtype, accumulate: bool) -> None:
    """Set the layers that standardise X; convert the weights of a net that is trained."""
    if not np.isfinite(columns.variance).all():
        name = float_dtype(server.net)
        raise ValueError(f"X has values too large for the module's dtype, {name}: scale X.")
    if accumulate and server.columns is not None:
        columns = server.columns.with_later(columns)
    server.columns = columns
    if not server.round:
        set_columns(server.net, columns, dtype)
        return
    (layer,) = standardize_layers(server.net)
    before = layer.in_units()
    set_columns(server.net, columns, dtype)
    if all(map(torch.equal, before, layer.in_units())):
        return
    (old_mean, old_scale), (mean, scale) = before, layer.in_units()
    shift, ratio = (mean - old_mean) / old_scale, scale / old_scale
    _convert(server.net.module_, shift, ratio)
    _convert_variates(server, shift, ratio)
    if (shift.abs() > 1).any() or ((ratio - 1).abs() > 0.5).any():
        server.optimizer_state = None  # of steps on columns of quite another scale


def _convert_variates(server: ServerState, shift: torch.Tensor, ratio: torch.Tensor) -> None:
    """Convert SCAFFOLD's variates, which are gradients by the weights of scaled columns."""
    weight, bias = names_of_linear(server.net)

    def converted(variate: State) -> State:
        if not {weight, bias} <= variate.keys():
            return variate
        of_weight, of_bias = variate[weight].double(), variate[bias].double()
        new = (of_weight - of_bias[:, None] * shift) / ratio
        return variate | {weight: new.to(variate[weight].dtype)}

    server.variate = converted(server.variate)
    server.variates = {key: converted(variate) for key, variate in server.variates.items()}


def _convert(module: LinearModel, shift: torch.Tensor, ratio: torch.Tensor) -> None:
    """Let a model predict as before its layer was set anew.

    ``shift`` are the deviations by which the mean of each column has moved, ``ratio`` the times
    that its scale has grown.

    Not where that is without meaning: a column that has moved by thousands of scales, or grown as
    much, is in another unit, and its weight on scaled values is kept. Nor do the logits of the mean
    row move by more than their deviations: the gradient of cross-entropy is bounded, so that a
    classifier that is sure of what is wrong needs too many rounds.
    """
    is_same = (shift.abs() <= FAR) & (ratio <= FAR)
    shift, ratio = torch.where(is_same, shift, 0.0), torch.where(is_same, ratio, 1.0)
    with torch.no_grad():
        weight, bias = module.linear.weight.double(), module.linear.bias.double()
        moved, new = weight @ shift, weight * ratio
        # Scaled columns have a variance of at most 1, so new.norm is about that of the logits.
        is_near = (moved.abs() <= _MOST_MOVED * new.norm(dim=1)).all()
        if is_near or isinstance(module, LinearRegression):
            module.linear.bias.copy_(bias + moved)
        module.linear.weight.copy_(new)


def _set_targets(server: ServerState, targets: Pooled, wanted: Wanted) -> None:
    """Set the loss of a model that predicts the mean; of a new net also where it begins."""
    net = server.net
    if not server.round:
        _set_start(server, targets, wanted)
    elif wanted.targets == "start":
        _move_start(server, targets)
    scale = 1.0 if server.target_scale is None else np.array(server.target_scale[1])
    if type(net.criterion_) is not torch.nn.MSELoss:
        return
    loss = float(np.mean(targets.variance / np.square(scale)))
    server.guess = Guess(loss, "the mean of the targets")
    if isinstance(net.module_, LinearModel):
        server.best = Best(loss, server.round, _guess(server, targets.mean), "loss")


def _move_start(server: ServerState, targets: Pooled) -> None:
    """Shift the targets of a later fit, where float32 has too few digits for them as they are.

    The intercept is converted, unless the targets are so far from those before that what the model
    predicts is without meaning: then it begins at their mean again.
    """
    before = np.array(server.target_scale[0]) if server.target_scale else np.zeros(1)
    bias = server.net.module_.linear.bias
    distance = targets.mean - before - bias.detach().cpu().double().numpy()
    is_other = np.abs(distance) > FAR * targets.deviation
    if not (targets.is_far | is_other).any():
        return
    mean = targets.mean if targets.is_far.any() else np.zeros_like(targets.mean)
    server.target_scale = mean.tolist(), np.ones(len(mean)).tolist()
    with torch.no_grad():
        kept = bias.cpu().double() + torch.from_numpy(before - mean)
        new = torch.from_numpy(np.where(is_other, targets.mean - mean, kept.numpy()))
        bias.copy_(new)


def _guess(server: ServerState, mean: np.ndarray) -> State:
    """Return the model that predicts a mean of the targets."""
    state, (weight, bias) = get_state(server.net), names_of_linear(server.net)
    if server.target_scale is not None:
        mean = (mean - server.target_scale[0]) / server.target_scale[1]
    state[weight].zero_()
    state[bias].copy_(torch.from_numpy(mean))
    return state


def _entropy(shares: np.ndarray) -> float:
    """Return the loss, cross-entropy, of a model that predicts the shares of classes."""
    known = shares[shares > 0]
    return float(-known @ np.log(known))


def names_of_linear(net: NeuralNet) -> tuple[str, str]:
    """Return the names of weight and bias in the state of a net that is a LinearModel."""
    own = {id(tensor): name for name, tensor in named_tensors(net).items()}
    return own[id(net.module_.linear.weight)], own[id(net.module_.linear.bias)]


def _set_start(server: ServerState, targets: Pooled, wanted: Wanted) -> None:
    """Set the scale of targets, or the intercept of the default net.

    Targets for which float32 has too few digits are shifted by their mean.
    """
    if wanted.targets == "scale" or targets.is_far.any():
        scale = targets.deviation if wanted.targets == "scale" else np.ones(len(targets.mean))
        server.target_scale = targets.mean.tolist(), scale.tolist()
        return
    with torch.no_grad():
        server.net.module_.linear.bias.copy_(torch.from_numpy(targets.mean))


def _ask_rate(
    server: ServerState, federation: Federation, exchanges: Exchanges, source: StatisticsSource
) -> tuple[float, Exchange]:
    """Return the rate that is safe for each priority client, at most the net's; and the exchange.

    It depends on the weights of rows too, so that it is asked for where no moment has changed.
    """
    sizes, rates = federation.sizes[federation.priority].tolist(), [server.own_rate]

    def send(asked: np.ndarray) -> Answers:
        sent, times = source.norms(server.net)
        raised = {}
        for i, (norms, size) in enumerate(zip(sent, sizes, strict=True)):
            if isinstance(norms, Exception):
                raised[i] = norms
            else:
                rates.append(safe_rate(norms, rows_a_step(server.net, size)))
        return Answers.of_statistics(len(asked), raised, times)

    n_columns = source.n_values["columns"]
    down = Message(scalars={"mean": n_columns, "scale": n_columns})
    up = Message(scalars=dict.fromkeys(Norms._fields, 1))
    exchange = ask_priority_clients(
        federation, exchanges, Messages(down, up), send, "norms of its rows"
    )
    return min(rates), exchange


def _check_first(net: NeuralNet, shape: tuple[int, ...]) -> None:
    """Check that the input of each layer is X, by a row of distinct numbers."""
    row = cast(net, np.linspace(1.0, 2.0, int(np.prod(shape))).reshape(1, *shape))

    def check(layer: Standardize, inputs: tuple[torch.Tensor, ...]) -> None:
        if not np.array_equal(inputs[0].detach().cpu().numpy().ravel(), row.ravel()):
            raise ValueError(
                f"estimator's module has Standardize(n_features={len(layer.mean)}) behind another "
                "layer, but it standardises X: make it the first layer."
            )

    hooks = [layer.register_forward_pre_hook(check) for layer in standardize_layers(net)]
    try:
        net.evaluation_step((*to_tensors(net, row), None))
    finally:
        for hook in hooks:
            hook.remove()
