"""Weights of classes: of their rows in the loss of the default net."""

from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed.utils._checks import numbers


def class_weights(
    class_weight: Any, classes: np.ndarray, y: np.ndarray, federation: Federation
) -> np.ndarray:
    """Return the weight of each class.

    Parameters
    ----------
    class_weight : "balanced" or dict
        Of labels to weights, 1 for the classes that it does not name; or the number of rows over
        that of classes and that of the class's rows, counted over the priority clients.
    classes : ndarray of shape (n_classes,)
        The labels.
    y : ndarray of shape (n_samples,)
        Each row's position in ``classes``.
    federation : Federation
        Who holds which rows.

    Raises
    ------
    ValueError
        If a weight is negative or not finite, or a label is that of none of the classes, while some
        class has none.
    """
    if isinstance(class_weight, str):
        priority = np.repeat(federation.priority_weights, federation.sizes)
        counts = np.bincount(y[federation.order], weights=priority, minlength=len(classes))
        # Of a class that no priority client has, nothing is known.
        return np.where(
            counts > 0, counts.sum() / (len(classes) * np.where(counts, counts, 1)), 1.0
        )
    labels = classes.tolist()
    unnamed = [label for label in labels if label not in class_weight]
    unknown = [label for label in class_weight if label not in labels]
    if unknown and unnamed:  # of all classes and more, some may be missing in a fold
        raise ValueError(
            f"class_weight names {unknown[0]!r}, which is not among classes_ {labels}: name labels "
            "of y."
        )
    weights = numbers([class_weight.get(label, 1.0) for label in labels], "class_weight")
    if (weights < 0).any():
        raise ValueError(f"class_weight={class_weight} has a negative weight: weights are >= 0.")
    return weights
