"""Views of arrays."""

import numpy as np


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of an array that cannot be changed."""
    view = array.view()
    view.flags.writeable = False
    return view
