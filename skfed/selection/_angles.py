"""Angles between the updates of clients, and trees of clients by distances."""

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from skfed.utils._blas import one_blas_thread

#: What rounding leaves of a cosine of 1: angles below 1.4e-6 are 0.
_ROUNDING = 1e-12


def angles_between(vectors: np.ndarray) -> np.ndarray:
    """Return the square matrix of the angles between rows, arccos of the cosines.

    A row of zeros has no direction: it is at a right angle to the others, and at 0 to itself and to
    other rows of zeros.
    """
    norms = np.linalg.norm(vectors, axis=1)
    zero = norms == 0
    directions = vectors / np.where(zero, 1.0, norms)[:, None]
    with one_blas_thread():
        cosines = directions @ directions.T
    cosines[np.ix_(zero, zero)] = 1.0
    cosines[cosines > 1 - _ROUNDING] = 1.0
    return np.arccos(np.maximum(cosines, -1.0, out=cosines), out=cosines)


def ward_tree(distances: np.ndarray) -> np.ndarray:
    """Return Ward's tree of clients, given the square matrix of the distances between them."""
    return linkage(squareform(distances, checks=False), method="ward")
