"""Warnings that point at the line outside of skfed that called it."""

import contextlib
import sys
import warnings
from pathlib import Path

import sklearn.callback

# scikit-learn wraps fit in a function of its own; context managers are left through contextlib.
_INSIDE = (
    str(Path(__file__).parents[1]),
    str(Path(sklearn.callback.__file__).parent),
    contextlib.__file__,
)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, with the first line outside of this package as the place."""
    # warnings.warn(skip_file_prefixes=...) does it from Python 3.12 on.
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1)
