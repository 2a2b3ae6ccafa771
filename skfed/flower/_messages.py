"""What stands in the messages between server and clients.

========================  ==============================================================
message                   what is in it, and in its answer
========================  ==============================================================
``query.skfed_hello``     whether ``classes`` are asked. A card: name, number of rows,
                          shape, classes if asked
``query.skfed_moments``   nothing. The mean and variance of each column, as the net takes it;
                          only of nets that standardise X, and before round 0
``query.skfed_poll``      the model, round and question. The loss or error; or nothing,
                          above the bound
``train``                 the model, unless polled in this round, and how to train. The
                          models, one a copy of the client, with their training losses
========================  ==============================================================

A client that cannot do what it is asked answers with a failure, which tells the kind of the cause
and, unless it is one of the :class:`Refusal` below, not its words: they may hold data.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from skfed.nets import State
from skfed.utils import _files

HELLO, MOMENTS = "query.skfed_hello", "query.skfed_moments"
POLL, TRAIN = "query.skfed_poll", "train"


class Refusal(ValueError):
    """Why a client does not do what it is asked, in words that tell nothing of its data."""


def to_arrays(model: State) -> ArrayRecord:
    """Return a model as Flower sends it.

    Raises
    ------
    ValueError
        If a tensor has a dtype that NumPy, in whose arrays Flower sends, has not.
    """
    arrays = {}
    for name, tensor in model.items():
        try:
            arrays[name] = Array(tensor.cpu().numpy())
        except TypeError as error:
            raise ValueError(
                f"{name} has dtype {tensor.dtype}, which Flower's arrays cannot hold: use a module "
                "with parameters of float32 or float16."
            ) from error
    return ArrayRecord(arrays)


def to_model(arrays: ArrayRecord, like: Mapping[str, torch.Tensor]) -> State:
    """Return a model that was sent, if it has the names, shapes and dtypes of another.

    Raises
    ------
    ValueError
        If it has not, or cannot be read.
    """
    if arrays.keys() != like.keys():
        raise ValueError(
            f"a model of {shortened(sorted(arrays))} was sent, but the net has "
            f"{shortened(sorted(like))}: use the same estimator on both sides."
        )
    model = {}
    for name, expected in like.items():
        try:
            # Copied, since torch wants memory that it may write to.
            tensor = torch.from_numpy(np.array(arrays[name].numpy()))
        except Exception as error:  # whatever bytes come
            raise ValueError(f"{name} cannot be read: {type(error).__name__}") from error
        if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
            raise ValueError(
                f"{name} of shape {tuple(tensor.shape)} and dtype {tensor.dtype} was sent, but the "
                f"net has {tuple(expected.shape)} and {expected.dtype}."
            )
        model[name] = tensor
    return model


def to_config(**values: Any) -> ConfigRecord:
    """Return plain values as Flower sends them; None is left out."""
    given = {name: value for name, value in values.items() if value is not None}
    return ConfigRecord({name: list(v) if isinstance(v, tuple) else v for name, v in given.items()})


def to_text(value: Any) -> str:
    """Return labels, names and the like as text, by which their types come back."""
    return json.dumps(_files.to_json(value, {}))


def from_text(text: Any) -> Any:
    """Return what ``to_text`` was given.

    Raises
    ------
    ValueError
        If it was given nothing like it.
    """
    try:
        return _files.from_json(json.loads(text), {})
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(text)[:80]!r} is no text of a value") from error


def failure(error: Exception) -> RecordDict:
    """Return what a client answers that has failed."""
    told = {"kind": type(error).__name__}
    if isinstance(error, Refusal):
        told["words"] = str(error)
    return RecordDict({"failure": ConfigRecord(told)})


def content_of(reply: Message | None) -> RecordDict | Exception:
    """Return what a reply says, or what stands for its lack."""
    if reply is None:
        return TimeoutError("no answer")
    if reply.has_error():
        # The reason may hold a traceback, and so data.
        return ConnectionError(f"no answer: Flower's error code {reply.error.code}")
    return cause_of(reply.content) or reply.content


def cause_of(content: RecordDict) -> Exception | None:
    """Return what an answer says of a failure, or None."""
    if "failure" not in content:
        return None
    told = content["failure"]
    kind, words = str(told.get("kind"))[:80], told.get("words")
    if isinstance(words, str):
        return RuntimeError(f"it says: {shortened(words)}")
    return RuntimeError(f"it failed with {kind!r}: its own log says more.")


def record(content: RecordDict, name: str, kind: type) -> Any:
    """Return a record of an answer.

    Raises
    ------
    ValueError
        If it is not there, or is another kind of record.
    """
    found = content.get(name)
    if not isinstance(found, kind):
        raise ValueError(f"its answer has no {kind.__name__} {name!r}.")
    return found


def to_moments(content: RecordDict, n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the means and variances that a client has sent.

    Raises
    ------
    ValueError
        If they are not there, of another length, not finite, or a variance is negative.
    """
    arrays = record(content, "moments", ArrayRecord)
    like = torch.zeros(n_features, dtype=torch.double)
    sent = to_model(arrays, {"mean": like, "variance": like})
    mean, variance = sent["mean"].numpy(), sent["variance"].numpy()
    if not (np.isfinite(mean).all() and np.isfinite(variance).all() and (variance >= 0).all()):
        raise ValueError("its means or variances are not finite, or a variance is negative.")
    return mean, variance


def number(metrics: MetricRecord | ConfigRecord, name: str, kind: type = float) -> Any:
    """Return a number of an answer.

    Raises
    ------
    ValueError
        If it is not there, or none.
    """
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"its answer has no number {name!r}.")
    if kind is int and not isinstance(value, int):
        raise ValueError(f"its answer has {name}={value!r}, which must be an integer.")
    return kind(value)


def shortened(value: Any) -> str:
    """Return a text for a message; what others send may be long, or hold control characters."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
