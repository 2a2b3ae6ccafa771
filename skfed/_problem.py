"""What is learned, classes or numbers: its targets, weights of rows, nets and score."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.metrics import r2_score
from sklearn.utils import column_or_1d
from skorch import NeuralNet
from torch import nn

from skfed._class_weight import weights_of_classes
from skfed._federation import Federation
from skfed.engines import row_weights
from skfed.nets import (
    CLASSIFIER,
    LINEAR_ATTRIBUTES,
    REGRESSOR,
    NetSpec,
    Samples,
    as_inferred,
    is_by_logit,
    is_cross_entropy,
    is_single,
    linear_attributes,
    make_net,
    output_of,
    standardize_layers,
    wrong_rows,
)
from skfed.utils._checks import naming


class Guess(NamedTuple):
    """The loss of a model that predicts the same for all rows."""

    loss: float
    prediction: str
    is_best: bool = True  # of all such models; else none of them needs to have a higher loss


class Problem(ABC):
    """A classification or a regression problem."""

    net_spec: ClassVar[NetSpec]
    has_labels: ClassVar[bool] = False  # whether targets are an indicator of labels

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output for one row."""

    @staticmethod
    @abstractmethod
    def check_targets(y: Any, name: str) -> Any:
        """Check the shape of targets; errors call them ``name``."""

    @abstractmethod
    def encode(self, y: Any, name: str = "y") -> np.ndarray:
        """Encode targets whose shape has been checked."""

    @abstractmethod
    def score(self, predicted: np.ndarray, y: np.ndarray) -> float:
        """Score a net's predictions on encoded targets, as the estimator's ``score`` does."""

    @abstractmethod
    def client_scores(self, predicted: np.ndarray, y: np.ndarray, owners: np.ndarray) -> np.ndarray:
        """Score each client's predictions; NaN for one without rows, or whose score is not defined.

        ``owners`` has the index of each row's client. A rule for all clients at once, since a call
        of ``score`` for each of thousands takes longer than their round.
        """

    def linear_attributes(self, net: NeuralNet) -> dict[str, Any]:
        """Return ``coef_`` and ``intercept_`` by name; empty if the net is not linear."""
        return linear_attributes(net, self.output_shape)

    def make_net(self, estimator: Any, X: np.ndarray, seed: int) -> NeuralNet:
        """Initialise the net for the ``estimator`` parameter."""
        return make_net(self.net_spec, estimator, X, int(np.prod(self.output_shape)), seed)

    def for_criterion(self, net: NeuralNet, X: Samples, y: np.ndarray) -> np.ndarray:
        """Bring encoded targets to the shape and dtype of the net's criterion."""
        return y

    def row_weights(
        self, sample_weight: Any, X: np.ndarray, y: np.ndarray, federation: Federation
    ) -> np.ndarray | None:
        """Return the weights of rows with encoded targets; None: all equal."""
        return None if sample_weight is None else row_weights(sample_weight, X, federation)

    @property
    def n_counts(self) -> int:
        """How many counts of rows each priority client sends for the row weights."""
        return 0

    def n_shares(self, net: NeuralNet) -> int:
        """Return how many shares of classes clients send, whose loss the model is compared with."""
        return 0

    def guess(self, net: NeuralNet) -> Guess | None:
        """Return a prediction for all rows whose loss is known without clients."""
        return None


@dataclass(frozen=True)
class Classification(Problem):
    """Targets are labels, encoded as positions in ``classes``."""

    classes: np.ndarray
    class_weight: str | Mapping | None = None

    net_spec = CLASSIFIER

    @property
    def output_shape(self):
        return (len(self.classes),)

    def decode(self, predicted: np.ndarray) -> Any:
        """Return what a net predicts as targets are given."""
        return self.classes[predicted]

    def row_losses(self, probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the cross-entropy of each row of predict_proba, given encoded targets."""
        return -log_likelihoods(probabilities[np.arange(len(y)), y])

    def linear_attributes(self, net):
        return linear_attributes(net, None)

    @staticmethod
    def check_targets(y, name):
        shape = np.asarray(y).shape
        if shape[1:] not in ((), (1,)):
            raise ValueError(
                f"{name} has shape {shape}, but labels are one a row: pass shape (n_samples,)"
                f"; of one-hot rows, {name}.argmax(axis=1)."
            )
        return column_or_1d(y, warn=True)

    def encode(self, y, name="y"):
        unknown = np.setdiff1d(y, self.classes).tolist()
        if unknown:
            raise ValueError(
                f"{name} has the label {unknown[0]!r}, which is not among classes_ "
                f"{self.classes.tolist()}, the labels in fit: leave its rows out, or fit with rows "
                "of that label; name all classes in the first partial_fit."
            )
        return np.searchsorted(self.classes, y).astype(np.int64)

    def score(self, predicted, y):
        return float((~wrong_rows(predicted, y)).mean())

    def client_scores(self, predicted, y, owners):
        n_correct = np.bincount(owners, ~wrong_rows(predicted, y))
        with np.errstate(invalid="ignore"):  # 0 / 0 without rows
            return n_correct / np.bincount(owners)

    def make_net(self, estimator, X, seed):
        net = super().make_net(estimator, X, seed)
        net.check_data(None, np.arange(len(self.classes)))  # sets the net's classes_
        return net

    def for_criterion(self, net, X, y):
        if not is_by_logit(net):
            return y
        output = as_inferred(net, output_of(net, X[:1]))
        return like_output(output, y) if is_single(output) else y

    def row_weights(self, sample_weight, X, y, federation):
        weights = super().row_weights(sample_weight, X, y, federation)
        if self.class_weight is None:
            return weights
        by_class = weights_of_classes(self.class_weight, self.classes, y, federation)[y]
        product = by_class if weights is None else by_class * weights
        return row_weights(product, X, federation, "class_weight times sample_weight")

    @property
    def n_counts(self):
        return len(self.classes) if self.class_weight == "balanced" else 0

    def n_shares(self, net):
        # Clients of a net that standardises send statistics before round 0 anyway.
        return len(self.classes) if standardize_layers(net) and is_cross_entropy(net) else 0

    def guess(self, net):
        # That of equal probabilities, whatever the weights of rows and classes.
        criterion = getattr(net, "criterion_", None)  # a net of one's own may have none
        if isinstance(criterion, nn.CrossEntropyLoss | nn.NLLLoss):
            is_known = criterion.reduction == "mean"
        else:
            is_known = is_cross_entropy(net)
        if not is_known:
            return None
        return Guess(math.log(self.n_outcomes), "equal probabilities", is_best=False)

    @property
    def n_outcomes(self) -> int:
        """The outcomes of which a model gives probabilities that sum to 1."""
        return len(self.classes)


@dataclass(frozen=True)
class Regression(Problem):
    """Targets are numbers, encoded in shape (n_samples, n_targets)."""

    target_shape: tuple[int, ...]  # of one row
    mean: np.ndarray | None = None  # of targets, and by what they are divided, where the net
    scale: np.ndarray | None = None  # learns standardised ones

    net_spec = REGRESSOR

    def __post_init__(self):
        expected = (math.prod(self.target_shape),)
        for name in ("mean", "scale"):
            value = getattr(self, name)
            if value is not None and np.shape(value) != expected:
                raise ValueError(
                    f"target_{name}_ must have shape {expected}, got {np.shape(value)}."
                )

    @property
    def output_shape(self):
        return self.target_shape

    @staticmethod
    def check_targets(y, name):
        shape = np.asarray(y).shape
        if len(shape) > 2:
            raise ValueError(
                f"{name} has shape {shape}, but targets are one or several numbers a row: "
                "pass shape (n_samples,) or (n_samples, n_targets)."
            )
        return y

    def encode(self, y, name="y"):
        y = np.asarray(y)
        if y.shape[1:] != self.target_shape:
            raise ValueError(
                f"{name} has targets of shape {y.shape[1:]}, but those of fit have shape "
                f"{self.target_shape}."
            )
        return y.reshape(len(y), -1)

    def standardize(self, y: np.ndarray) -> np.ndarray:
        """Return targets of shape (n_samples, n_targets) as the net learns them."""
        return y if self.mean is None else (y - self.mean) / self.scale

    def in_units(self, outputs: np.ndarray) -> np.ndarray:
        """Return what the net predicts, of that shape, in units of y."""
        return outputs if self.mean is None else outputs * self.scale + self.mean

    def linear_attributes(self, net):
        found = super().linear_attributes(net)
        if self.mean is None or self.scale is None or not found:
            return found
        scale, mean = (one.reshape(self.target_shape) for one in (self.scale, self.mean))
        coef, intercept = (found[name] for name in LINEAR_ATTRIBUTES)
        values = coef * scale[..., None], (intercept * scale + mean)[()]
        return dict(zip(LINEAR_ATTRIBUTES, values, strict=True))

    def score(self, predicted, y):
        if not np.isfinite(predicted).all():  # of a net that has diverged
            return float("nan")
        return float(r2_score(y.astype(float), predicted.astype(float)))

    def client_scores(self, predicted, y, owners):
        if not np.isfinite(predicted).all():
            return np.full(owners.max() + 1, np.nan)
        y, predicted = (one.reshape(len(one), -1).astype(float) for one in (y, predicted))
        first = np.zeros(owners.max() + 1, dtype=int)
        first[owners[::-1]] = np.arange(len(owners))[::-1]
        y, errors = y - y[first[owners]], (y - predicted) ** 2  # equal targets become exactly 0
        means = _sums(y, owners) / np.maximum(np.bincount(owners), 1)[:, None]
        errors, spreads = _sums(errors, owners), _sums((y - means[owners]) ** 2, owners)
        varies = spreads > 0
        # Of several targets, one that does not vary counts as r2_score has it.
        scores = np.where(varies, 1 - errors / np.where(varies, spreads, 1.0), errors == 0)
        return np.where(varies.any(axis=1), scores.mean(axis=1), np.nan)

    def for_criterion(self, net, X, y):
        output = output_of(net, X[:1])
        with naming("y"), np.errstate(over="ignore"):
            return like_output(output, self.standardize(y))


def like_output(output: torch.Tensor, y: np.ndarray) -> np.ndarray:
    """Bring numbers to the dtype of a net's output for one row, and its shape of each row."""
    dtype = str(output.dtype).removeprefix("torch.")
    y = y.astype(dtype)
    if not np.isfinite(y).all():
        raise ValueError(f"y has values too large for the module's dtype, {dtype}: scale y.")
    return y.reshape(len(y), *output.shape[1:])


def log_likelihoods(likelihoods: np.ndarray) -> np.ndarray:
    """Return logarithms; of 0 that of the smallest positive number."""
    return np.log(likelihoods.clip(min=np.finfo(likelihoods.dtype).tiny))


def _sums(values: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Return the sum of each client's rows of ``values``, a row a client."""
    return np.stack([np.bincount(owners, column) for column in values.T], axis=1)
