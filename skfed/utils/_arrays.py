"""Arrays that cannot be changed."""

from typing import Any

import numpy as np


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of an array that cannot be changed; itself if it is one."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def freeze_arrays(record: Any) -> None:
    """Make the arrays among the fields of a frozen dataclass views that cannot be changed."""
    for name, value in vars(record).items():
        if isinstance(value, np.ndarray):
            object.__setattr__(record, name, read_only(value))
