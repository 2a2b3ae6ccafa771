"""Weights of classes: which a classifier may have, and what they are."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed.utils._checks import numbers


def check_class_weight(classifier: Any) -> None:
    """Check that ``class_weight`` of a federated classifier goes with its other parameters."""
    if classifier.class_weight is None:
        return
    if classifier.estimator is not None:
        raise ValueError(
            "class_weight is for the default net (estimator=None): set the weights of the "
            "criterion of your net, as criterion__weight=torch.tensor([...]) (of one logit, "
            "criterion__pos_weight), or pass sample_weight to fit."
        )
    mechanisms = ("update_privacy", "loss_privacy")
    private = [name for name in mechanisms if getattr(classifier, name) is not None]
    if private and classifier.class_weight == "balanced":
        raise ValueError(
            "class_weight='balanced' asks clients for the number of their rows of each class, "
            f"which {private[0]} does not cover: pass a dict of labels to weights."
        )


def check_one_label(class_weight: str | Mapping | None) -> None:
    """Check that weights of classes are not given where rows have several labels."""
    if class_weight is not None:
        raise ValueError(
            f"class_weight={class_weight!r} is for one label a row, but y is an indicator of "
            "several: set criterion__pos_weight of a net with criterion=BCEWithLogitsLoss, or pass "
            "sample_weight to fit."
        )


def check_known_before_fit(class_weight: str | Mapping | None) -> None:
    """Check that weights do not depend on all rows, of which ``partial_fit`` has only some."""
    if class_weight == "balanced":
        raise ValueError(
            "class_weight='balanced' needs the labels of all rows, and partial_fit has only "
            "some: pass a dict of labels to weights, or call fit."
        )


def weights_of_classes(
    class_weight: str | Mapping, classes: np.ndarray, y: np.ndarray, federation: Federation
) -> np.ndarray:
    """Return the weight of each class; ``y`` has positions in ``classes``."""
    if isinstance(class_weight, Mapping):
        return _by_label(class_weight, classes.tolist())
    priority = np.repeat(federation.priority_weights, federation.sizes)
    counts = np.bincount(y[federation.order], weights=priority, minlength=len(classes))
    balanced = counts.sum() / (len(counts) * np.where(counts, counts, 1))
    return np.where(counts > 0, balanced, 1.0)  # 1 for a class that no priority client has


def _by_label(class_weight: Mapping, labels: list) -> np.ndarray:
    """Return the weight of each label, 1 for those that ``class_weight`` does not name."""
    unnamed = [label for label in labels if label not in class_weight]
    unknown = [label for label in class_weight if label not in labels]
    # A mapping that names every class may name more: some classes may be missing in a fold.
    if unknown and unnamed:
        raise ValueError(
            f"class_weight names {unknown[0]!r}, which is not among classes_ {labels}: name labels "
            "of y."
        )
    weights = numbers([class_weight.get(label, 1.0) for label in labels], "class_weight")
    if (weights < 0).any():
        raise ValueError(f"class_weight={class_weight} has a negative weight: weights are >= 0.")
    return weights
