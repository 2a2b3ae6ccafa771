"""The client: replies to the server's messages with what its own data give."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from time import perf_counter
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from skfed._classifier import FederatedClassifier
from skfed._estimator import BaseFederated
from skfed._labels import is_indicator
from skfed.engines import EvaluateRequest
from skfed.flower._columns import describe
from skfed.flower._kept import (
    UPDATES,
    forget_other_rounds,
    is_of_round,
    keep_state,
    keep_updates,
    known_model,
    sent_or_stored_state,
)
from skfed.flower._local_client import LocalClient
from skfed.flower._messages import (
    EVALUATE,
    HELD_OUT_QUERY,
    HELLO,
    MOMENTS,
    NORMS,
    PROTOCOL,
    REPORT_QUERY,
    SKETCH_QUERY,
    STEPS,
    TIMES,
    TRAIN,
    UPLOAD_QUERY,
    VALUATION_QUERY,
    LostTensors,
    Refusal,
    abbreviated,
    check_protocol,
    failure_of,
    to_arrays,
    to_config,
    to_moments,
    to_state,
    to_text,
)
from skfed.flower._pipeline import check_estimator, split
from skfed.flower._report import OnReport, receive_report
from skfed.flower._samples import describe_samples, with_rows
from skfed.flower._steps import client_statistics, transform

logger = logging.getLogger(__name__)

#: Returns X and y, or these and X and y of the rows that the client keeps aside.
LoadData = Callable[[Context], tuple[Any, ...]]


def client_app(
    estimator: BaseFederated | Pipeline,
    load_data: LoadData,
    *,
    on_report: OnReport | None = None,
) -> ClientApp:
    """Make the ClientApp of clients that hold their own data.

    A client's name is ``client-name`` of its node's configuration (``flower-supernode
    --node-config 'client-name="site a"'``). It is the key of the client's random draws, and
    ``priority`` refers to it.

    A client sends:

    - its name, number of rows, shape of a row of X and of y, dtype and column names of X, or of a
      dict its keys, and the shape of a row and kind of numbers of each array; with a
      Pipeline, for each column also the dtype, and whether it has numbers, text or nothing;
    - the classes in its data, if the server requests them. It refuses if this ``estimator`` has
      ``update_privacy`` or ``loss_privacy``. Of an indicator of several labels it sends the number
      of columns alone;
    - of a Pipeline, the statistics of its federated transformers, in exchanges before the first
      round; not the categories, most frequent values and extremes that their ``min_count`` in this
      Pipeline suppresses. For medians and quantiles it sends counts of any size;
    - the mean, the variance and the largest distance from the mean of each column, if it has
      priority and the net has a layer :class:`~skfed.modules.Standardize`, as the default net has.
      It refuses this and the next three if this ``estimator`` has ``update_privacy``;
    - its share of each class, if it has priority, and this ``estimator`` is a classifier with such
      a net, of one label a row. It refuses if this ``estimator`` has ``loss_privacy``;
    - the mean and variance of its targets, if it has priority, and this ``estimator`` is a
      regressor with the default net or ``standardize_targets``;
    - the largest norm of its scaled rows, and the largest eigenvalue of their second moment, if it
      has priority, and this ``estimator`` is a regressor with the default net;
    - for a poll its loss or error and the seconds that it took, unless the loss is above the bound
      of the request (FedALIGN's F + eps) or not finite;
    - for a training its model, training loss and seconds; of a rule with two phases, its training
      loss, the norm of its update and seconds, and its model if it is asked for it. If the rule
      needs it, the spread of its losses too. It refuses that if this ``estimator`` has
      ``loss_privacy``;
    - if the rule asks for it, a random projection of the gradient to 64 numbers. It refuses if this
      ``estimator`` has ``update_privacy`` or ``loss_privacy``;
    - if the server values a round's updates, the losses or errors of models that the server has
      made of them, and the seconds that they took. It refuses if this ``estimator`` has
      ``loss_privacy``, or if it was silent in this round;
    - if the server's estimator has ``evaluation``, its metrics of each new model on the rows that
      it keeps aside. It refuses if this ``estimator`` has ``loss_privacy``;
    - the type of an exception. Its message and traceback are only in the client's log.

    A client that was silent in a round, because its loss was above the bound, neither trains in it
    nor replies to a poll with a higher bound. It identifies rounds by the numbers that the server
    sends.

    ``update_privacy`` and ``loss_privacy`` of this ``estimator`` are applied at the client to each
    reply. The noise does not come from ``random_state``, so runs with noise are not reproducible.
    The number of replies is not limited.

    Parameters
    ----------
    estimator : FederatedClassifier, FederatedRegressor or Pipeline
        With the same steps, net and privacy as the server's; it is not changed.
        ``torch.autocast`` at the server does not apply to clients: a net that needs it enters it in
        ``infer``.
    load_data : callable
        Takes Flower's ``Context``, whose ``node_config`` is the configuration of the node, and
        returns X (a DataFrame, an array, or a dict of arrays) and y; rows have no weights. For
        ``evaluation`` it returns four: X, y, and X_val and y_val of rows that are kept aside. It is
        called for each message, since Flower may run each in a new process.
    on_report : callable, default=None
        Takes the DataFrame that a server with ``report`` sends after the last round, with the row
        of this client or those of all, and Flower's ``Context``. The table is logged in any case.
        A run that is started again after its end sends it again.

    Returns
    -------
    flwr.clientapp.ClientApp
        Handles ``query.skfed_hello``, ``query.skfed_steps``, ``query.skfed_moments``,
        ``query.skfed_norms``, ``query.skfed_poll``, ``query.skfed_sketch``, ``train``,
        ``query.skfed_upload``, ``query.skfed_valuation``, ``query.skfed_held_out`` and
        ``query.skfed_report``.

    Raises
    ------
    TypeError
        If ``estimator`` is something else, or a step of the Pipeline can only be fitted on the rows
        of all clients.
    ValueError
        If it has ``class_weight="balanced"``, or a step has ``scope="client"`` or ``privacy``.
    """
    check_estimator(estimator)
    app = ClientApp()
    app.estimator, app.load_data = estimator, load_data  # for skfed.flower.check
    client = _Client(*split(estimator), load_data, on_report)
    handlers = {
        HELLO: client.hello,
        STEPS: client.statistics,
        MOMENTS: client.moments,
        NORMS: client.norms,
        EVALUATE: client.evaluate,
        SKETCH_QUERY: client.sketch,
        TRAIN: client.train,
        UPLOAD_QUERY: client.upload,
        VALUATION_QUERY: client.value,
        HELD_OUT_QUERY: client.evaluate_held_out,
        REPORT_QUERY: client.report,
    }
    for message_type, handler in handlers.items():
        category, _, action = message_type.partition(".")
        getattr(app, category)(*([action] if action else []))(_with_failures(handler))
    return app


def has_privacy(estimator: BaseFederated) -> bool:
    """Return whether clients add noise to what they send."""
    return estimator.update_privacy is not None or estimator.loss_privacy is not None


def _with_failures(handler: Callable[[RecordDict, Context], RecordDict]) -> Callable:
    """Return a handler of messages that replies with a failure if another raises."""

    @wraps(handler)
    def handle(message: Message, context: Context) -> Message:
        try:
            content = handler(message.content, context)
        except LostTensors as error:
            logger.info("client %r: %s", context.node_config.get("client-name"), error)
            content = failure_of(error)
        except Exception as error:
            logger.exception("client %r fails", context.node_config.get("client-name"))
            content = failure_of(error)
        return Message(content, reply_to=message)

    return handle


@dataclass(frozen=True)
class _Client:
    """The handlers of a client's messages."""

    steps: Pipeline | None  # before the estimator, if it is that of a Pipeline
    estimator: BaseFederated
    load_data: LoadData
    on_report: OnReport | None

    def hello(self, content: RecordDict, context: Context) -> RecordDict:
        """Describe this client's data."""
        request = content.get("request", {})
        check_protocol(request.get("protocol"))
        if bool(request.get("pipeline")) != (self.steps is not None):
            raise Refusal(
                "one of the server and this client has a Pipeline, the other has none: use the "
                "same estimator on both sides."
            )
        name = _client_name(context)
        X, y, *held_out = self._load(context)
        X, y = with_rows(X, name), y.toarray() if sparse.issparse(y) else np.asarray(y)
        if len(X) != len(y) or not len(y):
            raise Refusal(f"client {name!r} has {len(X)} rows of X and {len(y)} of y.")
        description = self._describe(X)
        if held_out:
            self._check_held_out(description, *held_out)
        info = to_config(
            protocol=PROTOCOL,
            name=name,
            n_samples=len(y),
            n_held_out=_n_rows(held_out[1]) if held_out else None,
            target_shape=y.shape[1:],
            **description,
            classes=self._classes(y) if request.get("classes") else None,
        )
        return RecordDict({"info": info})

    def statistics(self, content: RecordDict, context: Context) -> RecordDict:
        """Return what a transformer of the Pipeline asks of this client's rows."""
        _check_name(content["request"], context)
        if self.steps is None:
            raise Refusal("its estimator is no Pipeline.")
        return client_statistics(self.steps, self._load(context)[0], content)

    def moments(self, content: RecordDict, context: Context) -> RecordDict:
        """Return the moments of columns and targets, where the estimator needs them."""
        local = self._set_up(content, context)
        names = list(content["request"].get("of", []))
        if not set(names) <= set(local.needed):
            raise Refusal(
                "its estimator does not standardise them, or has update_privacy, or, of classes, "
                "loss_privacy."
            )
        return to_moments(local.moments(names))

    def norms(self, content: RecordDict, context: Context) -> RecordDict:
        """Return the norms of rows that are scaled as the server says, where they are needed."""
        local = self._set_up(content, context)
        if "norms" not in local.needed:
            raise Refusal("its estimator needs no norms of rows, or it has update_privacy.")
        like = torch.zeros(local.X[0].size, dtype=torch.double)
        scaling = to_state(content["scaling"], {"mean": like, "scale": like})
        norms = local.norms(scaling["mean"].numpy(), scaling["scale"].numpy())
        return RecordDict({"norms": MetricRecord(norms._asdict())})

    def evaluate(self, content: RecordDict, context: Context) -> RecordDict:
        """Return the loss or error of a state; nothing above the bound."""
        request = content["request"]
        local = self._set_up(content, context)
        state = sent_or_stored_state(content, context, local)
        metric, bound = request["metric"], request.get("at_most", np.inf)
        known = known_model(context, request)
        if known is not None and known["silent"] and not bound <= known["bound"]:
            raise Refusal("it was silent in this round, at a lower bound.")
        keep_state(context, request, state, silent=False)
        evaluate = EvaluateRequest(
            request["round"], state, np.array([0]), metric, request.get("max_samples")
        )
        began = perf_counter()
        evaluation = local.evaluator.evaluate(evaluate)
        times = _times_since(began)
        if evaluation.raised:
            raise evaluation.raised[0]
        value = float(evaluation.values[0])
        if not np.isfinite(value) and "at_most" not in request:
            raise Refusal("its loss is not finite: lower the learning rate.")
        if local.estimator.loss_privacy is not None:
            value = local.estimator.loss_privacy.of_loss(value, np.random.default_rng())
        if not (np.isfinite(value) and value <= bound):
            keep_state(context, request, state, silent=True)
            return RecordDict({})
        return RecordDict({"metrics": MetricRecord({metric: value}), TIMES: times})

    def sketch(self, content: RecordDict, context: Context) -> RecordDict:
        """Return the projection of the gradient of a state."""
        if has_privacy(self.estimator):
            raise Refusal("its estimator has privacy, which does not cover gradients.")
        local, request = self._set_up(content, context), content["request"]
        state = sent_or_stored_state(content, context, local)
        keep_state(context, request, state, silent=False)
        began = perf_counter()
        sketch = local.sketch(request["round"], state, request["seed"])
        arrays = to_arrays({"sketch": torch.from_numpy(sketch)})
        return RecordDict({"sketch": arrays, TIMES: _times_since(began)})

    def train(self, content: RecordDict, context: Context) -> RecordDict:
        """Train from a state, once for each copy of this client in the cohort."""
        local, request = self._set_up(content, context), content["request"]
        state = sent_or_stored_state(content, context, local)
        if "spread" in request.get("needs", ()) and self.estimator.loss_privacy is not None:
            raise Refusal("its loss_privacy does not cover the spread of losses.")
        known = known_model(context, request)
        if known is not None and known["silent"]:
            raise Refusal("it was silent in this round, above the bound, and so does not train.")
        if "trial" in request or request.get("keeps_state"):
            keep_state(context, request, state, silent=False)
        began = perf_counter()
        reply = local.train(content, state)
        if "norms" in request.get("needs", ()):
            keep_updates(context, request, reply)
        reply[TIMES] = _times_since(began)
        return reply

    def upload(self, content: RecordDict, context: Context) -> RecordDict:
        """Return the updates of this round that were kept, once each."""
        request = content["request"]
        _check_name(request, context)
        if self.estimator.update_privacy is not None:
            raise Refusal("its update_privacy does not cover updates that are kept.")
        reply, t = RecordDict(), request["round"]
        for copy in request["copies"]:
            key = f"{UPDATES}state-{copy}"
            if not is_of_round(context, UPDATES, request) or key not in context.state:
                raise Refusal(
                    f"it has no update of round {t}: it was restarted after its training."
                )
            for name in (f"state-{copy}", f"variate-{copy}"):
                if UPDATES + name in context.state:
                    reply[name] = context.state.pop(UPDATES + name)
        return reply

    def value(self, content: RecordDict, context: Context) -> RecordDict:
        """Return the losses or errors of models that have some tensors of their own."""
        if self.estimator.loss_privacy is not None:
            raise Refusal("its loss_privacy does not cover the losses of many models.")
        local, request = self._set_up(content, context), content["request"]
        state, metric = sent_or_stored_state(content, context, local), request["metric"]
        known = known_model(context, request)
        if known is not None and known["silent"]:
            raise Refusal("it was silent in this round, above the bound, and so values no model.")
        keep_state(context, request, state, silent=False)
        models = [content[f"model-{j}"] for j in range(request["n_models"])]
        began = perf_counter()
        values = local.value(request["round"], state, models, metric)
        times = _times_since(began)
        if not np.isfinite(values).all():
            raise Refusal(f"the {metric} of a model is not finite: lower the learning rate.")
        return RecordDict({"metrics": MetricRecord({metric: values}), TIMES: times})

    def evaluate_held_out(self, content: RecordDict, context: Context) -> RecordDict:
        """Return metrics of a model on the rows that are kept aside."""
        if self.estimator.loss_privacy is not None:
            raise Refusal("its loss_privacy does not cover metrics.")
        local, request = self._set_up(content, context, held_out=True), content["request"]
        state = sent_or_stored_state(content, context, local)
        began = perf_counter()
        metrics = local.metrics(request["round"], state, request["metrics"])
        return RecordDict({"metrics": MetricRecord(metrics), TIMES: _times_since(began)})

    def report(self, content: RecordDict, context: Context) -> RecordDict:
        """Log the table of who took part, and give it to the user."""
        _check_name(content["request"], context)
        receive_report(content, context, self.on_report)
        return RecordDict({})

    def _classes(self, y: np.ndarray) -> str | None:
        if not isinstance(self.estimator, FederatedClassifier):
            return None
        if is_indicator(y):  # whose columns are the labels, whether it has them or not
            return to_text(list(range(y.shape[1])))
        if has_privacy(self.estimator):
            raise Refusal(
                "its estimator has privacy, which does not cover the labels in its data: pass all "
                "labels by FederatedStrategy(classes=...)."
            )
        return to_text(np.unique(y).tolist())

    def _describe(self, X: Any) -> dict[str, Any]:
        return describe_samples(self.estimator, X) if self.steps is None else describe(X)

    def _check_held_out(self, description: dict[str, Any], X: Any, y: Any) -> None:
        """Check that rows that are kept aside are like those of the training."""
        rows = with_rows(X, "X_val")
        if len(rows) != _n_rows(y):
            raise Refusal(f"load_data returns {len(rows)} rows of X_val and {_n_rows(y)} of y_val.")
        if not len(rows):
            return
        own = self._describe(rows)
        for name in ("arrays", "shape", "columns"):
            if own.get(name) != description.get(name):
                raise Refusal(
                    f"load_data returns X_val with {name} {abbreviated(own.get(name))}, and X with "
                    f"{abbreviated(description.get(name))}."
                )

    def _load(self, context: Context) -> tuple[Any, ...]:
        """Return what the user's function loads: X and y, or these of two kinds of rows."""
        loaded = tuple(self.load_data(context))
        if len(loaded) not in (2, 4):
            raise Refusal(
                f"load_data returns {len(loaded)} values: return X and y, or X, y, X_val and y_val."
            )
        return loaded

    def _set_up(self, content: RecordDict, context: Context, held_out: bool = False) -> LocalClient:
        """Load and transform the data, and make the net; with ``held_out`` for rows kept aside."""
        request = content["request"]
        _check_name(request, context)
        forget_other_rounds(context, request)
        loaded = self._load(context)
        if held_out and len(loaded) == 2:
            raise Refusal("it keeps no rows aside: let load_data return X, y, X_val and y_val.")
        X, y = loaded[2:] if held_out else loaded[:2]
        X = transform(self.steps, X, content)
        return LocalClient.make(clone(self.estimator), X, y, content, weighs_classes=not held_out)


def _check_name(request: ConfigRecord, context: Context) -> None:
    name = _client_name(context)
    if request["client"] != name:
        raise Refusal(f"the message is for client {request['client']!r}, but it is {name!r}.")


def _client_name(context: Context) -> str:
    name = context.node_config.get("client-name")
    if name is None or name == "":
        raise Refusal(
            "its node has no client-name: start it with flower-supernode --node-config "
            "'client-name=\"...\"'."
        )
    return str(name)


def _n_rows(y: Any) -> int:
    """Return the rows of targets."""
    return y.shape[0] if sparse.issparse(y) else len(y)


def _times_since(began: float) -> MetricRecord:
    """Return the record of the seconds of a computation, without those of reading the data."""
    return MetricRecord({"computing": perf_counter() - began})
