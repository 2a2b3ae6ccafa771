"""The description that a client sends of its data, and checks of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from skfed._dict_input import difference
from skfed.flower._columns import Columns, compare_names
from skfed.flower._messages import abbreviated, check_protocol, from_text, get_number, get_record
from skfed.flower._replies import check_texts, limited_json
from skfed.nets import SampleShape

_MAX_ROWS = 2**40  # so that the sum over all clients does not overflow
_MAX_VALUES = 2**26  # in a row of X
_MAX_TARGETS = 2**20  # in a row of y
_MAX_DIMENSIONS = 32
# In an array each text takes as much as the longest, and a net has an output for each label.
_MAX_LABELS, _MAX_NAME = 10_000, 200


@dataclass(frozen=True)
class ClientInfo:
    """The description of a client's data."""

    name: str
    n_samples: int
    shape: SampleShape  # of a row of X
    dtype: str  # of X; "" if it is a dict, whose shape has them
    target_shape: tuple[int, ...]  # of a row of y
    columns: tuple[str, ...] | None  # names of the columns of X, if it is a table
    classes: tuple[Any, ...] | None  # labels in y, if requested
    raw: Columns | None = None  # the columns of X, if a Pipeline transforms it
    n_held_out: int = 0  # rows that it keeps aside

    @classmethod
    def of(cls, content: RecordDict) -> "ClientInfo":
        """Read the reply to a hello; ValueError if it is not valid."""
        info = get_record(content, "info", ConfigRecord)
        check_protocol(info.get("protocol"))
        name, n_samples = info.get("name"), get_number(info, "n_samples", int)
        n_held_out = get_number(info, "n_held_out", int) if "n_held_out" in info else 0
        columns, classes = info.get("columns"), info.get("classes")
        if columns is not None:
            if not isinstance(columns, list) or not all(isinstance(one, str) for one in columns):
                raise _invalid("columns", columns)
            check_texts(columns)
        target_shape = _shape(info, "target_shape")
        is_dict = "arrays" in info
        shape: Any = _dict_shape(info["arrays"]) if is_dict else _shape(info, "shape")
        columns = None if columns is None else tuple(columns)
        raw = None if info.get("contents") is None else _raw_columns(info, columns, shape)
        valid = {
            "name": _is_name(name),
            "n_samples": 0 < n_samples <= _MAX_ROWS,
            "n_held_out": 0 <= n_held_out <= _MAX_ROWS,
            "arrays" if is_dict else "shape": len(shape) > 0 and _n_values(shape) <= _MAX_VALUES,
            "target_shape": _n_values(target_shape) <= _MAX_TARGETS,
            "dtype": raw is not None or is_dict or np.dtype(info.get("dtype")).kind in "biuf",
            "columns": columns is None or len(columns) == shape[0],
        }
        for key, is_valid in valid.items():
            if not is_valid:
                raise _invalid(key, info.get(key))
        labels = None if classes is None else _labels(from_text(classes, limited_json))
        dtype = "object" if raw is not None else info.get("dtype", "")
        of_rows = shape, dtype, target_shape, columns, labels, raw
        return cls(name, n_samples, *of_rows, n_held_out)

    @property
    def label_type(self) -> str | None:
        """The type of the labels: string, boolean or number."""
        return None if self.classes is None else _label_type(self.classes[0])

    def mismatch(self, other: "ClientInfo") -> str | None:
        """Describe how the data of two clients are incompatible; None if they are not."""
        if self.columns and other.columns and self.columns != other.columns:
            how = compare_names(self.columns, other.columns)
            return f"{self.name!r} {how}, unlike {other.name!r}"
        found = difference(self.shape, other.shape)
        if found is not None and dict in map(type, (self.shape, other.shape)):
            return (
                f"{self.name!r} has {found[0]}, {other.name!r} has {found[1]}: let load_data "
                "return the same keys at all clients, with values of the same kinds and shapes"
            )
        for name in ("shape", "target_shape", "columns", "label_type"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                return (
                    f"{self.name!r} has {name} {abbreviated(mine)}, "
                    f"{other.name!r} has {abbreviated(its)}"
                )
        if self.raw is None or other.raw is None:
            return None
        return self.raw.mismatch(other.raw, (self.name, other.name))


def _raw_columns(info: ConfigRecord, names: tuple | None, shape: Any) -> Columns:
    contents, dtypes = (tuple(info.get(key) or ()) for key in ("contents", "dtypes"))
    return Columns.received(
        names=names, is_frame=info.get("frame"), contents=contents, dtypes=dtypes, shape=shape
    )


def _shape(info: ConfigRecord, key: str) -> tuple[int, ...]:
    shape = info.get(key) or []
    if not isinstance(shape, list) or not _are_lengths(shape):
        raise _invalid(key, shape)
    return tuple(shape)


def _are_lengths(shape: Sequence[Any]) -> bool:
    return len(shape) <= _MAX_DIMENSIONS and all(type(n) is int and n > 0 for n in shape)


def _is_name(name: Any) -> bool:
    # NumPy strips trailing NULs.
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME and "\0" not in name


def _dict_shape(text: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the shape of the samples of a dict of arrays, which is sent as a text."""
    shape = from_text(text, limited_json)
    if not isinstance(shape, dict) or not all(map(_is_array, shape.items())):
        raise _invalid("arrays", text)
    return shape


def _is_array(item: tuple[Any, Any]) -> bool:
    """Tell whether a key is a name, and its value the kind of an array and the shape of a row."""
    match item:
        case str(), ("bool" | "int64" | "float64", tuple(own)):
            return _are_lengths(own)
    return False


def _n_values(shape: SampleShape) -> float:
    """Return the number of values of a row."""
    shapes = [own for _, own in shape.values()] if isinstance(shape, dict) else [shape]
    return sum(np.prod(own, dtype=float) for own in shapes)


def _labels(classes: Any) -> tuple[Any, ...]:
    """Return labels that are all strings, all booleans or all numbers."""
    types = {_label_type(label) for label in classes}
    if len(types) != 1 or None in types:
        raise _invalid("classes", classes)
    if len(classes) > _MAX_LABELS:
        raise ValueError(
            f"its info has {len(classes):,} labels, and at most {_MAX_LABELS:,} are taken: pass "
            "all labels by FederatedStrategy(classes=...)."
        )
    return tuple(classes)


def _label_type(label: Any) -> str | None:
    if isinstance(label, str) and len(label) > _MAX_NAME:
        return None
    if isinstance(label, int | float) and not -(2.0**63) <= label < 2.0**63:
        return None
    types = {str: "string", bool: "boolean", int: "number", float: "number"}
    return types.get(type(label))


def claimed_name(reply: Message | Exception) -> str | None:
    """Return the name in the reply to a hello, whatever else it has; None without one."""
    if isinstance(reply, Exception) or not reply.has_content():
        return None
    info = reply.content.get("info")
    name = info.get("name") if isinstance(info, ConfigRecord) else None
    return name if _is_name(name) else None


def _invalid(key: str, value: Any) -> ValueError:
    return ValueError(f"its info has {key}={abbreviated(value)}.")
