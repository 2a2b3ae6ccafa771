"""Several labels a row: an indicator as the targets of a classifier."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from skfed._problem import Classification, like_output, log_likelihoods
from skfed.nets import LABELS, output_of


@dataclass(frozen=True)
class Labels(Classification):
    """Targets are an indicator of several labels a row; ``classes`` are its columns."""

    is_sparse: bool = False  # as the indicator of fit

    net_spec = LABELS
    has_labels = True

    @staticmethod
    def check_targets(y, name):
        shape = _shape(y)
        if len(shape) != 2:
            raise ValueError(
                f"{name} has shape {shape}, but fit had an indicator of several labels a row: pass "
                "shape (n_samples, n_labels)."
            )
        return y.toarray() if sparse.issparse(y) else y

    def encode(self, y, name="y"):
        y = np.asarray(y)
        if y.shape[1:] != self.output_shape:
            raise ValueError(
                f"{name} has {y.shape[1]} columns, but fit had an indicator of "
                f"{len(self.classes)} labels: pass one column a label."
            )
        wrong = (y != 0) & (y != 1)
        if wrong.any():
            row, column = np.argwhere(wrong)[0].tolist()
            raise ValueError(
                f"{name} has {y.shape[1]} columns, but is no indicator of labels, which has 0 and "
                f"1: it has {y[row, column].item()!r} in row {row}, column {column}. Of sets of "
                "labels, MultiLabelBinarizer makes one; for one of several classes in each column, "
                "fit a sklearn.multioutput.MultiOutputClassifier of this estimator."
            )
        return y.astype(np.int64)

    def decode(self, predicted):
        return sparse.csr_matrix(predicted) if self.is_sparse else predicted

    def row_losses(self, probabilities, y):
        return -log_likelihoods(np.where(y == 1, probabilities, 1 - probabilities)).mean(axis=1)

    def for_criterion(self, net, X, y):
        return like_output(output_of(net, X[:1]), y)

    def n_shares(self, net):
        return 0  # shares of labels, which have no sum, are not sent

    @property
    def n_outcomes(self):
        return 2  # of each label


def is_indicator(y: Any) -> bool:
    """Tell whether targets have several columns, as an indicator of labels has."""
    try:
        shape = _shape(y)
    except ValueError:  # rows of different lengths
        return False
    return len(shape) == 2 and shape[1] > 1


def _shape(y: Any) -> tuple[int, ...]:
    return y.shape if sparse.issparse(y) else np.asarray(y).shape
