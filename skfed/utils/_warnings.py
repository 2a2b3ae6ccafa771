"""Warnings that point at the caller's line, however deep in skfed they arise."""

import contextlib
import sys
import warnings
from pathlib import Path

import sklearn.callback

# scikit-learn wraps fit in a function of its own; context managers leave through contextlib.
_INSIDE = (
    str(Path(__file__).parents[1]),
    str(Path(sklearn.callback.__file__).parent),
    contextlib.__file__,
)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn as from the first line outside this package."""
    # warnings.warn(skip_file_prefixes=...) does it from Python 3.12 on.
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1)
