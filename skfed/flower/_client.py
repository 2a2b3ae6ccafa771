"""The side of one client: it holds its data, trains on them, answers polls, keeps the rules."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from skfed._classifier import FederatedClassifier
from skfed._estimator import BaseFederated
from skfed._federation import make_federation
from skfed.aggregation import WeightedMean
from skfed.engines import (
    Draws,
    EvaluateRequest,
    Evaluator,
    LocalTraining,
    LoopEngine,
    TrainRequest,
    batch_size,
    make_engine,
)
from skfed.engines._client import Trained, train_alone
from skfed.engines._data import Rows
from skfed.engines._worker_data import ClientRows
from skfed.engines._workers import Workers
from skfed.flower._messages import (
    HELLO,
    MOMENTS,
    POLL,
    TRAIN,
    Refusal,
    failure,
    from_text,
    to_arrays,
    to_config,
    to_model,
    to_text,
)
from skfed.nets import NetPool, State, cast, get_state, parameter_names
from skfed.selection import Cohort
from skfed.server._config import RoundConfig
from skfed.server._standardize import client_moments, layers_of

logger = logging.getLogger(__name__)

_MEMORY = "skfed"  # the name of what a client remembers, in the context's state


def client_app(
    estimator: BaseFederated, load_data: Callable[[Context], tuple[Any, Any]]
) -> ClientApp:
    """Make the ClientApp of clients that hold their own data.

    A client's name is ``client-name`` of its node's configuration (``flower-supernode
    --node-config 'client-name="site a"'``): it keys the client's random draws, and ``priority``
    names it.

    What leaves a client: its name, number of rows, shape of a row of X and of y, dtype and column
    names of X; the classes in its data, unless the server names them or this ``estimator`` has
    ``update_privacy`` or ``loss_privacy`` (then it refuses to say them); the mean and variance of
    each column, if it has priority, the net has a layer :class:`~skfed.modules.Standardize`, as
    the default net has, and there is no ``update_privacy``; for a poll its loss or error, unless
    that is above the bound asked (FedALIGN's F + eps) or not finite; for a training its model and
    training loss. A client that has kept silent in what the server calls a round neither trains in
    it nor answers a poll with a higher bound. ``update_privacy`` and ``loss_privacy`` of this
    ``estimator`` are applied here to each answer, with noise that nobody else can know, so runs
    with noise are not repeated by a seed; nothing counts the answers. Of an exception only the type
    is told; all of it is in the log.

    Parameters
    ----------
    estimator : FederatedClassifier or FederatedRegressor
        With the same net and privacy as the server's; it is not changed. The server's
        ``torch.autocast`` does not reach a client: a net that wants it says so in ``infer``.
    load_data : callable
        Takes Flower's ``Context`` (``node_config`` says what this node was started with) and
        returns X and y; rows have no weights here. It is called for each message, as Flower may run
        each in a new process.

    Returns
    -------
    flwr.clientapp.ClientApp
        Answers ``query.skfed_hello``, ``query.skfed_moments``, ``query.skfed_poll`` and ``train``.
    """
    checked_estimator(estimator)
    app = ClientApp()
    client = _Client(estimator, load_data)
    answers = {
        HELLO: client.greet,
        MOMENTS: client.say_moments,
        POLL: client.say_loss,
        TRAIN: client.train,
    }
    for kind, answer in answers.items():
        category, _, action = kind.partition(".")
        getattr(app, category)(*([action] if action else []))(_telling_failures(answer))
    return app


def checked_estimator(estimator: Any) -> BaseFederated:
    """Return an estimator, if it is one of skfed's."""
    if not isinstance(estimator, BaseFederated):
        raise TypeError(
            "estimator must be a FederatedClassifier or FederatedRegressor; got "
            f"{type(estimator).__name__}."
        )
    if getattr(estimator, "class_weight", None) == "balanced":
        raise ValueError(
            "class_weight='balanced' needs the label counts of all clients, which they do not send "
            "over Flower: pass a dict of labels to weights."
        )
    return estimator


def has_privacy(estimator: BaseFederated) -> bool:
    """Tell whether anything that clients send is private."""
    return estimator.update_privacy is not None or estimator.loss_privacy is not None


def _telling_failures(answer: Callable[[RecordDict, Context], RecordDict]) -> Callable:
    """Make a handler of messages that answers failures too."""

    @wraps(answer)
    def handle(message: Message, context: Context) -> Message:
        try:
            content = answer(message.content, context)
        except Exception as error:
            logger.exception("client %r fails", context.node_config.get("client-name"))
            content = failure(error)
        return Message(content, reply_to=message)

    return handle


@dataclass(frozen=True)
class _Local:
    """One client's data, ready to be trained on."""

    model: BaseFederated
    engine: LoopEngine
    polls: Evaluator  # of the kind that the simulation would take, so that equal losses are equal
    net_pool: NetPool
    weights: State  # of a new net: names, shapes and dtypes
    parameters: list[str]
    n_groups: int  # of parameters in the optimizer
    X: np.ndarray  # as the net takes it
    standardizes: bool  # whether the net has layers that standardise X


@dataclass(frozen=True)
class _Client:
    """Answers messages."""

    estimator: BaseFederated
    load_data: Callable[[Context], tuple[Any, Any]]

    def greet(self, asked: RecordDict, context: Context) -> RecordDict:
        """Say who this is, and what its data look like."""
        name = _name(context)
        X, y = self.load_data(context)
        y = np.asarray(y)
        if len(X) != len(y) or not len(y):
            raise Refusal(f"client {name!r} has {len(X)} rows of X and {len(y)} of y.")
        model = clone(self.estimator)
        X = validate_data(model, X, dtype="numeric", allow_nd=True)  # as fit does
        columns = getattr(model, "feature_names_in_", None)
        labels = None
        if isinstance(self.estimator, FederatedClassifier) and asked["asked"].get("classes"):
            if has_privacy(self.estimator):
                raise Refusal(
                    "its estimator has privacy, which does not cover the labels in its data: name "
                    "all labels by FederatedStrategy(classes=...)."
                )
            labels = to_text(np.unique(y).tolist())
        card = to_config(
            name=name,
            n_samples=len(y),
            shape=X.shape[1:],
            dtype=X.dtype.name,
            target_shape=y.shape[1:],
            columns=None if columns is None else columns.tolist(),
            classes=labels,
        )
        return RecordDict({"card": card})

    def say_moments(self, asked: RecordDict, context: Context) -> RecordDict:
        """Say the mean and variance of each column, by which the net standardises X."""
        local = self._prepare(asked["asked"], context)
        if local.model.update_privacy is not None or not local.standardizes:
            raise Refusal("its net asks for no means and variances, or update_privacy forbids it.")
        mean, variance = client_moments(local.X, np.arange(len(local.X)))
        moments = {"mean": torch.from_numpy(mean), "variance": torch.from_numpy(variance)}
        return RecordDict({"moments": to_arrays(moments)})

    def say_loss(self, asked: RecordDict, context: Context) -> RecordDict:
        """Say the loss or error at a model; nothing above the bound."""
        question = asked["question"]
        local = self._prepare(question, context)
        model = _recall(asked, context, local)
        metric, bound = question["metric"], question.get("at_most", np.inf)
        if _was_silent(context, question) and not bound <= context.state[_MEMORY]["bound"]:
            raise Refusal("it was silent in this round, above a lower bound.")
        _remember(context, question, model, silent=False)
        told = local.polls.evaluate(
            EvaluateRequest(
                question["round"], model, np.array([0]), metric, question.get("max_samples")
            )
        )
        if told.raised:
            raise told.raised[0]
        value = float(told.values[0])
        if not np.isfinite(value) and "at_most" not in question:
            raise Refusal("its loss is not finite: lower the learning rate, or scale X.")
        if local.model.loss_privacy is not None:
            value = local.model.loss_privacy.of_loss(value, np.random.default_rng())
        if not (np.isfinite(value) and value <= bound):
            _remember(context, question, model, silent=True)
            return RecordDict({})
        return RecordDict({"answer": MetricRecord({metric: value})})

    def train(self, asked: RecordDict, context: Context) -> RecordDict:
        """Train from a model; once for each copy of this client in the cohort."""
        how = asked["order"]
        local = self._prepare(how, context)
        model = _recall(asked, context, local)
        if _was_silent(context, how):
            raise Refusal("it was silent in this round, above the bound, and so does not train.")
        order = _order(local, asked, model)
        answer: dict[str, Any] = {}
        for i, (member, _, share) in enumerate(local.engine.trainings(order)):
            own = train_alone(local.net_pool, order.subset(member), share.here())
            answer |= _sent(local, order, i, own)
        return RecordDict(answer)

    def _prepare(self, config: ConfigRecord, context: Context) -> _Local:
        """Load the data and set the net up, as the server has."""
        name = _name(context)
        if config["client"] != name:
            raise Refusal(f"it is asked as {config['client']!r}, but is {name!r}.")
        model = clone(self.estimator)
        X, y = self.load_data(context)
        classes = from_text(config["classes"])
        X, y = model._check_training_data(X, y, reset=True, classes=classes)
        seed = config["seed"]
        net = model._problem.make_net(model.estimator, X, seed)
        RoundConfig.from_params(vars(model), net)  # checks this client's own parameters
        X = cast(net, X)
        net_pool = NetPool(net, X[:1])
        draws = Draws(make_federation([name] * len(X), len(X)), seed, batch_size(net))
        y = model._problem.for_criterion(net, X, y)
        weights = model._problem.row_weights(None, X, y, draws.federation)
        held = ClientRows(Rows(X, y, weights=weights), draws.federation, model.memory_budget)
        engine = LoopEngine(net_pool, held, draws, Workers(n_jobs=1))
        polls, _ = make_engine(model.engine, net_pool, X, y, draws, model.memory_budget, 1, weights)
        n_groups = len(net.optimizer_.param_groups)
        weights, names, standardizes = get_state(net), parameter_names(net), bool(layers_of(net))
        return _Local(model, engine, polls, net_pool, weights, names, n_groups, X, standardizes)


def _name(context: Context) -> str:
    name = context.node_config.get("client-name")
    if name is None or name == "":
        raise Refusal(
            "its node has no client-name: start it with flower-supernode --node-config "
            "'client-name=\"...\"'."
        )
    return str(name)


def _recall(asked: RecordDict, context: Context, local: _Local) -> State:
    """Return the model that was sent, or that of this round's poll."""
    arrays = asked.get("model", context.state.get(f"{_MEMORY}.model"))
    config = asked["order" if "order" in asked else "question"]
    if "model" not in asked and not _is_of(context, config):
        t = config["round"]
        raise Refusal(f"it has no model of round {t}: it was started anew since its poll.")
    return to_model(arrays, local.weights)


def _remember(context: Context, question: ConfigRecord, model: State, silent: bool) -> None:
    """Keep the model of a poll, for it is not sent again, and whether this client was silent."""
    bound = question.get("at_most", np.inf)
    if _was_silent(context, question):
        silent, bound = True, min(bound, context.state[_MEMORY]["bound"])
    kept = {"fit": question["fit"], "round": question["round"], "silent": silent, "bound": bound}
    context.state[_MEMORY] = ConfigRecord(kept)
    context.state[f"{_MEMORY}.model"] = to_arrays(model)


def _is_of(context: Context, config: ConfigRecord) -> bool:
    """Tell whether what is remembered is of the round of a message."""
    memory = context.state.get(_MEMORY)
    return memory is not None and all(memory[key] == config[key] for key in ("fit", "round"))


def _was_silent(context: Context, config: ConfigRecord) -> bool:
    return _is_of(context, config) and bool(context.state[_MEMORY]["silent"])


def _order(local: _Local, asked: RecordDict, model: State) -> TrainRequest:
    """Return what this client is asked to do, as the engines take it."""
    how = asked["order"]
    n_copies = how["n_copies"]
    correction = None
    if "correction" in asked:
        if local.model.update_privacy is not None:
            raise Refusal("its update_privacy does not cover SCAFFOLD's variates.")
        sent = asked["correction"]
        names = [name for name in local.parameters if name in sent]
        correction = to_model(sent, {name: local.weights[name] for name in names})
    return TrainRequest(
        round=how["round"],
        state=model,
        parameters=local.parameters,
        cohort=Cohort.mean(np.zeros(n_copies, dtype=int)),
        training=_training(local, how),
        aggregator=WeightedMean(),  # the server aggregates
        corrections=None if correction is None else [correction] * n_copies,
    )


def _training(local: _Local, how: ConfigRecord) -> LocalTraining:
    """Return how this client trains."""
    training = LocalTraining(how["epochs"], how.get("steps"), how["proximal_mu"])
    if "rates" not in how:
        return training
    rates = np.array(how["rates"], dtype=float)
    shape = training.n_iterations, local.n_groups
    if rates.size != np.prod(shape):
        raise Refusal(
            f"it is asked to train by {rates.size} learning rates, but takes {shape[0]} for each "
            f"of its optimizer's {shape[1]} parameter groups: use the same estimator on both sides."
        )
    return replace(training, rates=tuple(map(tuple, rates.reshape(shape).tolist())))


def _sent(local: _Local, order: TrainRequest, i: int, own: Trained) -> dict[str, Any]:
    """Return what is sent of one copy's training, with noise if this client's estimator says so."""
    stack, loss = own.stack, float(own.losses[0])
    if local.model.update_privacy is not None:
        rng = np.random.default_rng()
        stack = local.model.update_privacy.of_updates(order.state, stack, order.parameters, [rng])
    if local.model.loss_privacy is not None:
        loss = local.model.loss_privacy.of_loss(loss, np.random.default_rng())
    report = MetricRecord({"loss": loss, "n_samples": int(own.n_samples[0])})
    sent: dict[str, ArrayRecord | MetricRecord] = {
        f"model-{i}": to_arrays({name: tensor[0] for name, tensor in stack.items()}),
        f"report-{i}": report,
    }
    if order.corrections is not None:
        sent[f"variate-{i}"] = to_arrays(own.variate or {})
    return sent
