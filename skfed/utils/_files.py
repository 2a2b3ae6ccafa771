"""Values as JSON and tensors in a safetensors file with a checksum; reading executes nothing.

A file is replaced as a whole, so that a crash at any instant leaves the previous one.
"""

import json
import os
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

VERSION = 1

_PLAIN = (type(None), bool, int, float, str)
_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict}
_SEQUENCES: dict[str, type] = {"tuple": tuple, "frozenset": frozenset, "set": set}

Tensors = dict[str, torch.Tensor]


def write(path: Path, value: Any) -> None:
    """Write a value to a file, which is replaced as a whole, or not at all on an error."""
    tensors: Tensors = {}
    text = json.dumps([VERSION, to_json(value, tensors)])
    metadata = {"skfed": text, "sha256": checksum(text, tensors)}
    replace(path, save(tensors, metadata))


def read(path: Path) -> Any:
    """Read a value; a file that is damaged, or not from ``write``, is a ValueError."""
    with open(path, "rb"):  # safetensors' own errors do not name the file
        pass
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            # Cloned, since they are views of the file, which Windows does not replace meanwhile.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no file of skfed's, or damaged: {error}") from error
    text = metadata.get("skfed")
    if text is None or metadata.get("sha256") != checksum(text, tensors):
        raise ValueError(f"{path} is no file of skfed's, or damaged: its checksum does not fit.")
    try:
        version, value = json.loads(text)
        if version == VERSION:
            return from_json(value, tensors)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    raise ValueError(
        f"{path} has version {version} of the format, this skfed reads {VERSION}: read it with the "
        "skfed that wrote it."
    )


def replace(path: Path, data: bytes) -> None:
    """Replace a file: write a temporary one, flush it to disk, then rename it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system allows it."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def to_json(value: Any, tensors: Tensors) -> Any:
    """Return a value as JSON, and add its tensors to ``tensors`` under new names.

    Objects are ``{"kind": content}``, so that types are kept: tuples, bytes, keys of any type.
    """
    if isinstance(value, np.generic):
        value = pd.Timestamp(value) if isinstance(value, np.datetime64) else value.item()
    if type(value) in _PLAIN:
        return value
    if type(value) is list:  # no subclass, since what is read would be another type
        return [to_json(one, tensors) for one in value]
    if type(value) in _MAPPINGS.values():
        pairs = [[to_json(k, tensors), to_json(v, tensors)] for k, v in value.items()]
        return {type(value).__name__: pairs}
    if type(value) in _SEQUENCES.values():
        members = value if type(value) is tuple else sorted(value, key=repr)
        return {type(value).__name__: [to_json(one, tensors) for one in members]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, torch.Tensor):
        return _tensor_to_json(value, tensors)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufmMUSO":
        return _array_to_json(value, tensors)
    if isinstance(value, np.dtype) and value.fields is None:
        return {"dtype": value.str}
    if isinstance(value, slice):
        return {"slice": [to_json(one, tensors) for one in (value.start, value.stop, value.step)]}
    if isinstance(value, pd.Timestamp):
        return {"timestamp": [value.isoformat(), value.unit, _zone_of(value)]}
    if isinstance(value, pd.Timedelta):
        return {"timedelta": [value.isoformat(), value.unit]}
    raise TypeError(
        f"{value!r} is a {type(value).__name__}, which is not written to files: numbers, strings, "
        "bytes, timestamps, and tuples, lists and sets of them are."
    )


def from_json(value: Any, tensors: Tensors) -> Any:
    """Return the value that ``to_json`` was given; anything else is a ValueError."""
    if not isinstance(value, list | dict):
        return value
    if isinstance(value, list):
        return [from_json(one, tensors) for one in value]
    try:
        ((kind, content),) = value.items()
        return _from_kind(kind, content, tensors)
    except (TypeError, KeyError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"no value can be read from {str(value)[:80]}: {error}") from error


def _from_kind(kind: str, content: Any, tensors: Tensors) -> Any:
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]((from_json(k, tensors), from_json(v, tensors)) for k, v in content)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](from_json(one, tensors) for one in content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "tensor":
        return tensors[content]
    if kind == "complex":
        return torch.view_as_complex(tensors[content])
    if kind == "array":
        return tensors[content].numpy()
    if kind == "times":
        dtype, name = np.dtype(content[0]), content[1]
        if dtype.kind not in "mM":
            raise ValueError(f"{dtype} is no dtype of times.")
        return tensors[name].numpy().astype(dtype)
    if kind == "strings":
        return np.array(content, dtype=np.str_)
    if kind == "bytestrings":
        return np.char.encode(np.array(content, dtype=np.str_), "latin-1")
    if kind == "objects":
        members = from_json(content, tensors)
        return np.fromiter(members, dtype=object, count=len(members))
    if kind == "dtype":
        return np.dtype(content)
    if kind == "slice":
        return slice(*(from_json(one, tensors) for one in content))
    if kind == "timestamp":
        return _timestamp(*content)
    if kind == "timedelta":
        text, unit = content
        return pd.Timedelta(text).as_unit(unit)
    raise KeyError(kind)


def _timestamp(text: str, unit: Any, zone: str | None) -> pd.Timestamp:
    stamp = pd.Timestamp(text).as_unit(unit)
    return stamp if zone is None else stamp.tz_convert(zone)


def _zone_of(value: pd.Timestamp) -> str | None:
    """Return the name by which pandas finds a timestamp's zone."""
    if value.tz is None:
        return None
    zone = repr(value).partition(", tz='")[2].removesuffix("')")
    with suppress(ValueError, LookupError):  # no zone has this name
        if repr(_timestamp(value.isoformat(), value.unit, zone)) == repr(value):
            return zone
    raise TypeError(
        f"{value!r} has a time zone that cannot be found by its name, {zone!r}, and so is not "
        "written to files: use one of zoneinfo."
    )


def _array_to_json(value: np.ndarray, tensors: Tensors) -> dict[str, Any]:
    if value.dtype.kind == "U":
        return {"strings": value.tolist()}
    if value.dtype.kind == "S":
        return {"bytestrings": np.char.decode(value, "latin-1").tolist()}
    if value.dtype.kind == "O":
        return {"objects": [to_json(one, tensors) for one in value]}
    if value.dtype.kind in "mM":
        return {"times": [value.dtype.str, _add(torch.from_numpy(value.astype(np.int64)), tensors)]}
    value = value if value.flags.writeable else value.copy()  # torch would warn
    return {"array": _add(torch.as_tensor(value), tensors)}


def _tensor_to_json(value: torch.Tensor, tensors: Tensors) -> dict[str, Any]:
    if value.is_complex():  # safetensors has no complex128
        return {"complex": _add(torch.view_as_real(value.detach().resolve_conj()), tensors)}
    return {"tensor": _add(value, tensors)}


def _add(tensor: torch.Tensor, tensors: Tensors) -> str:
    """Add a tensor to ``tensors`` under a new name, which is returned."""
    name = str(len(tensors))
    # Cloned, since safetensors refuses tensors that share memory.
    tensors[name] = tensor.detach().cpu().contiguous().clone()
    return name


def checksum(text: str, tensors: Tensors) -> str:
    """Return the SHA-256 of a text and of named tensors, in hexadecimal digits."""
    digest = sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # an empty one cannot be viewed as bytes, whatever its strides
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
