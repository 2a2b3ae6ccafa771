"""The messages between server and clients.

========================  ==============================================================
message type              contents of the request, and of the reply
========================  ==============================================================
``query.skfed_hello``     whether the client is to send its ``classes``, and whether the
                          server has a Pipeline.
                          ``info``: see :class:`ClientInfo`
``query.skfed_steps``     ``asked``: the columns of all clients, the transformers that are
                          fitted so far, and what the next one asks for. ``statistics``:
                          what it sends. Before the first round, for a Pipeline
``query.skfed_moments``   ``of`` what, "columns", "targets" and "classes".
                          ``moments-columns``: mean, variance and largest distance from the
                          mean of each; ``moments-targets``: mean and variance;
                          ``moments-classes``: the share of each. Before the first round:
                          columns, and classes of a classifier, if the net standardises X;
                          targets of a regressor with the default net or
                          ``standardize_targets``
``query.skfed_norms``     ``scaling``: mean and scale of each column. ``norms``: the largest
                          norm of a scaled row, and the largest eigenvalue. Before the first
                          round, if the learning rate is to be safe for all
``query.skfed_poll``      ``state``, metric and bound. ``metrics``: the loss or error;
                          nothing above the bound
``query.skfed_sketch``    ``state``. ``sketch``: a projection of the gradient
``train``                 ``state``, and how to train. For each copy i of the client in the
                          cohort ``state-i`` and ``report-i``, its training loss; of a rule
                          with two phases ``report-i`` alone, with the norm of the update
``query.skfed_upload``    ``copies`` of the client. ``state-i`` of each, of the training before
``query.skfed_valuation`` ``state``, metric, and of each model j ``model-j``, its tensors that may
                          differ from the state's. ``metrics``: the loss or error of each model
``query.skfed_held_out``  ``state``, ``metrics``. ``metrics``: those of the rows that it keeps aside
``query.skfed_report``    ``report``: rows of the table of who took part. Nothing
========================  ==============================================================

A ``state`` that a client has in this round is not sent again; ``model`` tells it from that of a
trial. It lacks the tensors that training leaves alone: requests with a model name them, with
digests of their values, and have in ``fixed`` those that the client has not received before. One
that no longer has them says so, and gets the message again with all of them. A training whose
``keeps_state`` is true says that a valuation of its round may follow.

Where columns are shifted before they are cast, requests have ``columns``, their ``shift``.
SCAFFOLD adds a ``correction`` to the request of a training, and ``variate-i`` to its reply. With a
Pipeline, all requests after those of steps have ``steps``, its fitted transformers. The replies to
polls, sketches and trainings, but for empty ones, have ``times``: the seconds in which the client
has computed.

Each request has a ConfigRecord ``request``. A client that fails replies with a ``failure``: the
type of the exception, and its message only if it is a :class:`Refusal`, as others may contain data.
"""

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from skfed.flower._replies import FEW, FloodError, Size, check_size
from skfed.nets import State
from skfed.selection._past import SKETCH_SIZE
from skfed.server import SENT, Moments, Norms
from skfed.utils import _files

PROTOCOL = 6  # raised when the records of a message change
HELLO, MOMENTS = "query.skfed_hello", "query.skfed_moments"
NORMS, STEPS = "query.skfed_norms", "query.skfed_steps"
EVALUATE, TRAIN = "query.skfed_poll", "train"
SKETCH_QUERY, UPLOAD_QUERY = "query.skfed_sketch", "query.skfed_upload"
VALUATION_QUERY, REPORT_QUERY = "query.skfed_valuation", "query.skfed_report"
HELD_OUT_QUERY = "query.skfed_held_out"
TIMES = "times"


class Refusal(ValueError):
    """Why a client refuses a request, in a message without data."""


class LostTensors(RuntimeError):
    """A client no longer has tensors that it was sent before; it is sent them again."""


def check_protocol(protocol: Any) -> None:
    """Raise a Refusal if the other side has another version of the messages."""
    if protocol != PROTOCOL:
        raise Refusal(
            f"the server and the client have different versions of skfed (messages of version "
            f"{PROTOCOL} and {abbreviated(protocol)}): install the same version on both sides."
        )


def to_arrays(state: State) -> ArrayRecord:
    """Convert a state to the record that Flower sends, whose arrays are NumPy arrays."""
    arrays = {}
    for name, tensor in state.items():
        try:
            arrays[name] = Array(tensor.cpu().numpy())
        except TypeError as error:
            raise ValueError(
                f"{name} has dtype {tensor.dtype}, which Flower's arrays cannot hold: use a module "
                "with parameters of float32 or float16."
            ) from error
    return ArrayRecord(arrays)


def model_bytes_of(content: RecordDict) -> int:
    """Return the bytes of what a request has of models, but for what training leaves alone."""
    return sum(
        array.numpy().nbytes
        for name, record in content.items()
        if name.startswith(("state", "correction", "model-"))
        for array in record.values()
    )


def to_state(arrays: ArrayRecord, like: Mapping[str, torch.Tensor]) -> State:
    """Convert a received record to a state with the names, shapes and dtypes of ``like``."""
    if arrays.keys() != like.keys():
        raise ValueError(
            f"the message has tensors {abbreviated(sorted(arrays))}, but the net has "
            f"{abbreviated(sorted(like))}: use the same estimator on both sides."
        )
    state = {}
    for name, expected in like.items():
        try:
            tensor = _to_tensor(arrays[name])
        except Exception as error:  # the bytes may be anything
            raise ValueError(
                f"{abbreviated(name)} cannot be read: {type(error).__name__}: {str(error)[:200]}"
            ) from error
        if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
            raise ValueError(
                f"{name} in the message has shape {tuple(tensor.shape)} and dtype {tensor.dtype}, "
                f"but the net has {tuple(expected.shape)} and {expected.dtype}."
            )
        state[name] = tensor
    return state


def _to_tensor(array: Array) -> torch.Tensor:
    """Return an array that was received, whose bytes may be anything.

    NumPy would allocate what they declare before it reads them.
    """
    file = BytesIO(array.data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it is not written as NumPy does")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    n_bytes = len(array.data) - file.tell()
    if dtype.kind not in "biufc" or min(shape, default=0) < 0:
        raise ValueError(f"it has dtype {dtype} and shape {shape}")
    if prod(shape) * dtype.itemsize != n_bytes:
        raise ValueError(f"it has {n_bytes} bytes for shape {shape} and dtype {dtype}")
    # Copied, since torch needs memory that it may write to.
    return torch.from_numpy(np.array(array.numpy()))


def to_config(**values: Any) -> ConfigRecord:
    """Return a record of the values that are not None."""
    given = {name: value for name, value in values.items() if value is not None}
    return ConfigRecord({name: list(v) if isinstance(v, tuple) else v for name, v in given.items()})


def to_text(value: Any) -> str:
    """Encode labels as JSON that keeps their types."""
    return json.dumps(_files.to_json(value, {}))


def from_text(text: Any, loads: Callable = json.loads) -> Any:
    """Decode the JSON of ``to_text``, which ``loads`` reads."""
    try:
        return _files.from_json(loads(text), {})
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{abbreviated(text)} is not the JSON of labels: {str(error)[:200]}"
        ) from error


def to_records(name: str, value: Any) -> dict[str, ConfigRecord | ArrayRecord]:
    """Return the records of a plain value: its JSON, and its arrays."""
    tensors: _files.Tensors = {}
    text = json.dumps(_files.to_json(value, tensors))
    return {name: ConfigRecord({"json": text}), f"{name}-arrays": to_arrays(tensors)}


def from_records(content: RecordDict, name: str, loads: Callable = json.loads) -> Any:
    """Return the value of the records of ``to_records``; ValueError if they are not valid.

    ``loads`` reads the JSON.
    """
    text = get_record(content, name, ConfigRecord).get("json")
    arrays = get_record(content, f"{name}-arrays", ArrayRecord)
    try:
        tensors = {key: _to_tensor(one) for key, one in arrays.items()}
        return _files.from_json(loads(text), tensors)
    except Exception as error:  # the bytes may be anything
        raise ValueError(
            f"{name} cannot be read: {type(error).__name__}: {str(error)[:200]}"
        ) from error


def failure_of(error: Exception) -> RecordDict:
    """Return the reply of a client that failed."""
    failure = {"type": type(error).__name__}
    if isinstance(error, Refusal):
        failure["message"] = str(error)
    return RecordDict({"failure": ConfigRecord(failure)})


def content_of(reply: Message | Exception, asked: Size = FEW) -> RecordDict | Exception:
    """Return the content of a reply, or an exception if the client failed or sends far too much."""
    if isinstance(reply, Exception):
        return reply
    if reply.has_error():
        # The reason may contain a traceback, and so data.
        return ConnectionError(f"no answer: Flower's error code {reply.error.code}")
    try:
        check_size(reply.content, asked)
    except FloodError as error:
        return error
    if "failure" not in reply.content:
        return reply.content
    failure = reply.content["failure"]
    name, message = str(failure.get("type"))[:80], failure.get("message")
    if name == LostTensors.__name__:
        return LostTensors("the client has lost tensors that are sent once, and again")
    if isinstance(message, str):
        return RuntimeError(f"the client refuses: {abbreviated(message)}")
    return RuntimeError(f"the client failed with {name!r}: see its log.")


def get_record(content: RecordDict, name: str, kind: type) -> Any:
    """Return a record of a reply; ValueError if it is missing, or has another type."""
    record = content.get(name)
    if not isinstance(record, kind):
        raise ValueError(f"its reply has no {kind.__name__} {name!r}.")
    return record


def get_number(record: MetricRecord | ConfigRecord, name: str, kind: type = float) -> Any:
    """Return a number of a reply; ValueError if it is missing, or has another type."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"its reply has no number {name!r}.")
    if kind is int and not isinstance(value, int):
        raise ValueError(f"its reply has {name}={value!r}, which must be an integer.")
    return kind(value)


def get_numbers(record: MetricRecord, name: str, n_numbers: int) -> list[float]:
    """Return the finite numbers of a reply; ValueError if there are fewer, more or other ones."""
    values = record.get(name)
    if not isinstance(values, list) or len(values) != n_numbers:
        raise ValueError(
            f"its reply has {name}={abbreviated(values)} instead of {n_numbers} numbers."
        )
    if not np.isfinite(values).all():
        raise ValueError(f"its {name}={abbreviated(values)} are not all finite.")
    return [float(value) for value in values]


def to_moments(moments: Mapping[str, Moments]) -> RecordDict:
    """Return the reply with moments by name; see ``SENT``."""
    return RecordDict(
        {
            f"moments-{name}": to_arrays(
                {field: torch.from_numpy(getattr(one, field)) for field in SENT[name]}
            )
            for name, one in moments.items()
        }
    )


def get_moments(content: RecordDict, n_values: Mapping[str, int]) -> dict[str, Moments]:
    """Return the moments of a reply by name; ValueError if they are not valid."""
    return {name: _get_moments(content, name, n) for name, n in n_values.items()}


def _get_moments(content: RecordDict, name: str, n_values: int) -> Moments:
    like = torch.zeros(n_values, dtype=torch.double)
    record = get_record(content, f"moments-{name}", ArrayRecord)
    sent = to_state(record, dict.fromkeys(SENT[name], like))
    arrays = {field: tensor.numpy() for field, tensor in sent.items()}
    moments = Moments(**(dict.fromkeys(Moments._fields, np.zeros(n_values)) | arrays))
    finite = all(np.isfinite(array).all() for array in moments)
    if not (finite and (moments.variance >= 0).all() and (moments.largest >= 0).all()):
        raise ValueError("its moments are not finite, or a variance or distance is negative.")
    if name == "classes" and not ((moments.mean >= 0).all() and abs(moments.mean.sum() - 1) < 1e-6):
        raise ValueError("its shares of classes are negative, or their sum is not 1.")
    return moments


def get_norms(content: RecordDict) -> Norms:
    """Return the norms of a reply; ValueError if they are not valid."""
    record = get_record(content, "norms", MetricRecord)
    norms = Norms(*(get_number(record, field) for field in Norms._fields))
    # A row has a 1 for the intercept, and the eigenvalue is at least that of its mean.
    if not (1 <= norms.eigenvalue <= norms.largest * (1 + 1e-6) < np.inf):
        raise ValueError(f"its norms {tuple(norms)} are not those of rows.")
    return norms


def get_sketch(content: RecordDict) -> np.ndarray:
    """Return the sketch of a reply; ValueError if it is not valid."""
    like = {"sketch": torch.zeros(SKETCH_SIZE, dtype=torch.double)}
    sketch = to_state(get_record(content, "sketch", ArrayRecord), like)["sketch"].numpy()
    if not np.isfinite(sketch).all():
        raise ValueError("its sketch is not finite: lower the learning rate.")
    return sketch


def _cut(value: Any) -> Any:
    return value[:200] if isinstance(value, str | bytes) else value


def abbreviated(value: Any) -> str:
    """Return the repr of a received value, at most 200 characters of it."""
    # Cut first: the repr of a text may have ten characters for each of its own.
    if isinstance(value, list | tuple):
        value = type(value)([_cut(one) for one in value[:200]])
    text = repr(_cut(value))
    return text if len(text) <= 200 else f"{text[:200]}..."
