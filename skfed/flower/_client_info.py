"""What a client says of itself at the beginning, checked."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from skfed.flower._messages import from_text, number, record, shortened

_MOST_ROWS = 2**40  # so that the sizes of all clients can be added up
_MOST_VALUES = 2**28  # in a row


@dataclass(frozen=True)
class ClientInfo:
    """What a client says of itself."""

    name: str
    n_samples: int
    shape: tuple[int, ...]  # of a row of X
    dtype: str  # of X
    target_shape: tuple[int, ...]  # of a row of y
    columns: tuple[str, ...] | None  # of X, if it has names
    classes: tuple[Any, ...] | None  # in its data, if asked

    @classmethod
    def of(cls, content: RecordDict) -> "ClientInfo":
        """Read an answer to a hello.

        Raises
        ------
        ValueError
            If it is none.
        """
        card = record(content, "card", ConfigRecord)
        name, n_samples = card.get("name"), number(card, "n_samples", int)
        columns, classes = card.get("columns"), card.get("classes")
        shape, target_shape = (_shape(card, key) for key in ("shape", "target_shape"))
        columns = None if columns is None else tuple(columns)
        right = {
            # NumPy would take the last NULs away.
            "name": isinstance(name, str) and 0 < len(name) <= 200 and "\0" not in name,
            "n_samples": 0 < n_samples <= _MOST_ROWS,
            "shape": len(shape) > 0 and np.prod(shape, dtype=float) <= _MOST_VALUES,
            "dtype": np.dtype(card.get("dtype")).kind in "biuf",
            "columns": columns is None or list(map(type, columns)) == [str] * shape[0],
        }
        for key, is_right in right.items():
            if not is_right:
                raise ValueError(f"its card says {key}={shortened(card.get(key))}.")
        labels = None if classes is None else _labels(from_text(classes))
        return cls(name, n_samples, shape, card["dtype"], target_shape, columns, labels)

    @property
    def kind_of_classes(self) -> str | None:
        """What the labels are: strings, truth values or numbers."""
        return None if self.classes is None else _kind(self.classes[0])

    def misfit(self, other: "ClientInfo") -> str | None:
        """Say in what the data of two clients differ that must be alike; None if in nothing."""
        for name in ("shape", "target_shape", "columns", "kind_of_classes"):
            one, two = getattr(self, name), getattr(other, name)
            if one != two:
                return f"{self.name!r} has {name} {shortened(one)}, {other.name!r} {shortened(two)}"
        return None


def _shape(card: ConfigRecord, key: str) -> tuple[int, ...]:
    shape = card.get(key) or []
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise ValueError(f"its card says {key}={shortened(shape)}.")
    return tuple(shape)


def _labels(classes: Any) -> tuple[Any, ...]:
    """Return labels that are all strings, all truth values or all numbers."""
    kinds = {_kind(label) for label in classes}
    if len(kinds) != 1 or None in kinds:
        raise ValueError(f"its card says classes={shortened(classes)}.")
    return tuple(classes)


def _kind(label: Any) -> str | None:
    """Name the kind of a label; integers and other numbers go together."""
    kinds = {str: "string", bool: "truth value", int: "number", float: "number"}
    return kinds.get(type(label))
