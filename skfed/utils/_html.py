"""An estimator's parts, nested in its HTML; scikit-learn nests only what has fit."""

import torch
from sklearn.base import BaseEstimator

from skfed.utils._sklearn import VisualBlock


def visual_block(estimator: BaseEstimator) -> VisualBlock:
    """Return an estimator with its net, selector and the like beside one another."""
    parts = {
        name: part
        for name, part in estimator.get_params(deep=False).items()
        if isinstance(part, BaseEstimator | torch.nn.Module)
    }
    if not parts:
        name = type(estimator).__name__
        return VisualBlock("single", estimator, names=name, name_details=str(estimator))
    return VisualBlock(
        "parallel",
        list(parts.values()),
        names=[f"{name}: {type(part).__name__}" for name, part in parts.items()],
        name_details=[str(part) for part in parts.values()],
    )
