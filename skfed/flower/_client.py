"""The client: replies to the server's messages with what its own data give."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from skfed._classifier import FederatedClassifier
from skfed._estimator import BaseFederated
from skfed.engines import EvaluateRequest
from skfed.flower._local_client import LocalClient
from skfed.flower._messages import (
    HELLO,
    MOMENTS,
    POLL,
    PROTOCOL,
    TRAIN,
    Refusal,
    check_protocol,
    failure_of,
    to_arrays,
    to_config,
    to_state,
    to_text,
)
from skfed.nets import State, get_state
from skfed.server._standardize import client_moments, layers_of

logger = logging.getLogger(__name__)

_POLL, _STATE = "skfed.poll", "skfed.state"  # records of the last poll, in the context's state


def client_app(
    estimator: BaseFederated, load_data: Callable[[Context], tuple[Any, Any]]
) -> ClientApp:
    """Make the ClientApp of clients that hold their own data.

    A client's name is ``client-name`` of its node's configuration (``flower-supernode
    --node-config 'client-name="site a"'``). It is the key of the client's random draws, and
    ``priority`` refers to it.

    A client sends:

    - its name, number of rows, shape of a row of X and of y, dtype and column names of X;
    - the classes in its data, if the server requests them. It refuses if this ``estimator`` has
      ``update_privacy`` or ``loss_privacy``;
    - the mean and variance of each column, if it has priority and the net has a layer
      :class:`~skfed.modules.Standardize`, as the default net has. It refuses if this ``estimator``
      has ``update_privacy``;
    - for a poll its loss or error, unless that is above the bound of the request (FedALIGN's
      F + eps) or not finite;
    - for a training its model and training loss;
    - the type of an exception. Its message and traceback are only in the client's log.

    A client that was silent in a round, because its loss was above the bound, neither trains in it
    nor replies to a poll with a higher bound. It identifies rounds by the numbers that the server
    sends.

    ``update_privacy`` and ``loss_privacy`` of this ``estimator`` are applied at the client to each
    reply. The noise does not come from ``random_state``, so runs with noise are not reproducible.
    The number of replies is not limited.

    Parameters
    ----------
    estimator : FederatedClassifier or FederatedRegressor
        With the same net and privacy as the server's; it is not changed. ``torch.autocast`` at the
        server does not apply to clients: a net that needs it enters it in ``infer``.
    load_data : callable
        Takes Flower's ``Context``, whose ``node_config`` is the configuration of the node, and
        returns X and y; rows have no weights. It is called for each message, since Flower may run
        each in a new process.

    Returns
    -------
    flwr.clientapp.ClientApp
        Handles ``query.skfed_hello``, ``query.skfed_moments``, ``query.skfed_poll`` and ``train``.

    Raises
    ------
    TypeError
        If ``estimator`` is something else.
    ValueError
        If it has ``class_weight="balanced"``.
    """
    checked_estimator(estimator)
    app = ClientApp()
    client = _Client(estimator, load_data)
    handlers = {
        HELLO: client.hello,
        MOMENTS: client.moments,
        POLL: client.evaluate,
        TRAIN: client.train,
    }
    for message_type, handler in handlers.items():
        category, _, action = message_type.partition(".")
        getattr(app, category)(*([action] if action else []))(_with_failures(handler))
    return app


def checked_estimator(estimator: Any) -> BaseFederated:
    """Return an estimator that can run over Flower."""
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
    """Return whether clients add noise to what they send."""
    return estimator.update_privacy is not None or estimator.loss_privacy is not None


def _with_failures(handler: Callable[[RecordDict, Context], RecordDict]) -> Callable:
    """Return a handler of messages that replies with a failure if another raises."""

    @wraps(handler)
    def handle(message: Message, context: Context) -> Message:
        try:
            content = handler(message.content, context)
        except Exception as error:
            logger.exception("client %r fails", context.node_config.get("client-name"))
            content = failure_of(error)
        return Message(content, reply_to=message)

    return handle


@dataclass(frozen=True)
class _Client:
    """The handlers of a client's messages."""

    estimator: BaseFederated
    load_data: Callable[[Context], tuple[Any, Any]]

    def hello(self, content: RecordDict, context: Context) -> RecordDict:
        """Describe this client's data."""
        request = content.get("request", {})
        check_protocol(request.get("protocol"))
        name = _client_name(context)
        X, y = self.load_data(context)
        y = np.asarray(y)
        if len(X) != len(y) or not len(y):
            raise Refusal(f"client {name!r} has {len(X)} rows of X and {len(y)} of y.")
        estimator = clone(self.estimator)
        X = validate_data(estimator, X, dtype="numeric", allow_nd=True)  # as fit does
        columns = getattr(estimator, "feature_names_in_", None)
        info = to_config(
            protocol=PROTOCOL,
            name=name,
            n_samples=len(y),
            shape=X.shape[1:],
            dtype=X.dtype.name,
            target_shape=y.shape[1:],
            columns=None if columns is None else columns.tolist(),
            classes=self._classes(y) if request.get("classes") else None,
        )
        return RecordDict({"info": info})

    def moments(self, content: RecordDict, context: Context) -> RecordDict:
        """Return the mean and variance of each column, for a net that standardises X."""
        local = self._set_up(content["request"], context)
        if local.estimator.update_privacy is not None or not layers_of(local.net):
            raise Refusal("its net does not standardise X, or it has update_privacy.")
        mean, variance = client_moments(local.X, np.arange(len(local.X)))
        moments = {"mean": torch.from_numpy(mean), "variance": torch.from_numpy(variance)}
        return RecordDict({"moments": to_arrays(moments)})

    def evaluate(self, content: RecordDict, context: Context) -> RecordDict:
        """Return the loss or error of a state; nothing above the bound."""
        request = content["request"]
        local = self._set_up(request, context)
        state = _sent_or_stored_state(content, context, local)
        metric, bound = request["metric"], request.get("at_most", np.inf)
        if _was_silent(context, request) and not bound <= context.state[_POLL]["bound"]:
            raise Refusal("it was silent in this round, at a lower bound.")
        _store_poll(context, request, state, silent=False)
        evaluation = local.evaluator.evaluate(
            EvaluateRequest(
                request["round"], state, np.array([0]), metric, request.get("max_samples")
            )
        )
        if evaluation.raised:
            raise evaluation.raised[0]
        value = float(evaluation.values[0])
        if not np.isfinite(value) and "at_most" not in request:
            raise Refusal("its loss is not finite: lower the learning rate, or scale X.")
        if local.estimator.loss_privacy is not None:
            value = local.estimator.loss_privacy.of_loss(value, np.random.default_rng())
        if not (np.isfinite(value) and value <= bound):
            _store_poll(context, request, state, silent=True)
            return RecordDict({})
        return RecordDict({"metrics": MetricRecord({metric: value})})

    def train(self, content: RecordDict, context: Context) -> RecordDict:
        """Train from a state, once for each copy of this client in the cohort."""
        local = self._set_up(content["request"], context)
        state = _sent_or_stored_state(content, context, local)
        if _was_silent(context, content["request"]):
            raise Refusal("it was silent in this round, above the bound, and so does not train.")
        return local.train(content, state)

    def _classes(self, y: np.ndarray) -> str | None:
        if not isinstance(self.estimator, FederatedClassifier):
            return None
        if has_privacy(self.estimator):
            raise Refusal(
                "its estimator has privacy, which does not cover the labels in its data: pass all "
                "labels by FederatedStrategy(classes=...)."
            )
        return to_text(np.unique(y).tolist())

    def _set_up(self, request: ConfigRecord, context: Context) -> LocalClient:
        """Load the data and make the net."""
        name = _client_name(context)
        if request["client"] != name:
            raise Refusal(f"the message is for client {request['client']!r}, but it is {name!r}.")
        return LocalClient.make(clone(self.estimator), *self.load_data(context), request)


def _client_name(context: Context) -> str:
    name = context.node_config.get("client-name")
    if name is None or name == "":
        raise Refusal(
            "its node has no client-name: start it with flower-supernode --node-config "
            "'client-name=\"...\"'."
        )
    return str(name)


def _sent_or_stored_state(content: RecordDict, context: Context, local: LocalClient) -> State:
    """Return the state of a message, or else that of this round's poll."""
    request = content["request"]
    if "state" not in content and not _was_polled(context, request):
        t = request["round"]
        raise Refusal(f"it has no model of round {t}: it was restarted after its poll.")
    return to_state(content.get("state", context.state.get(_STATE)), get_state(local.net))


def _store_poll(context: Context, request: ConfigRecord, state: State, silent: bool) -> None:
    """Store the state of a poll, which is not sent again, and whether this client was silent."""
    bound = request.get("at_most", np.inf)
    if _was_silent(context, request):
        silent, bound = True, min(bound, context.state[_POLL]["bound"])
    poll = {key: request[key] for key in ("fit_id", "round")} | {"silent": silent, "bound": bound}
    context.state[_POLL] = ConfigRecord(poll)
    context.state[_STATE] = to_arrays(state)


def _was_polled(context: Context, request: ConfigRecord) -> bool:
    """Return whether the stored poll is of the request's round."""
    poll = context.state.get(_POLL)
    return poll is not None and all(poll[key] == request[key] for key in ("fit_id", "round"))


def _was_silent(context: Context, request: ConfigRecord) -> bool:
    return _was_polled(context, request) and bool(context.state[_POLL]["silent"])
