"""What a selector may poll. A new metric is one function and its line in ``POLL_METRICS``."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from skorch import NeuralNet
from torch import nn

from skfed.nets import (
    as_inferred,
    batch_weight,
    evaluate_net,
    final_predictions,
    has_labels,
    predicted_by,
    weighed,
    weighted_mean,
    wrong_rows,
)


@dataclass(frozen=True)
class Batches:
    """Batches of several clients' rows, one after the other, and the net's output for all."""

    net: NeuralNet  # its criterion in evaluation mode; its module may have another state
    y: torch.Tensor  # of the rows, one after the other, as output
    output: torch.Tensor  # of the module
    weights: torch.Tensor | None  # of the rows
    ends: np.ndarray  # where each batch ends, of shape (n_batches,)

    @property
    def starts(self) -> np.ndarray:
        """Where each batch starts."""
        return np.concatenate([[0], self.ends[:-1]])


@dataclass(frozen=True)
class PollMetric:
    """A number that a client computes from a net and its rows."""

    # Takes the net with the polled state, a client's X and y, and the weights of its rows or None.
    value: Callable[[NeuralNet, np.ndarray, np.ndarray, torch.Tensor | None], float]
    # For a mean over rows: returns the sum of the rows' values, by weight, of each batch. The
    # stacked engine evaluates clients one by one where there is none.
    batch_sums: Callable[[Batches], np.ndarray] | None = None
    by_prediction: bool = False  # ``batch_sums`` are for a net that ``predicts_by_outputs``
    # Whether the rows of a client have the weights that the criterion gives their classes.
    by_criterion: bool = False
    not_for_regressors: str = ""  # for a metric of classifiers: what a regressor is to do instead


def loss(net: NeuralNet, X: np.ndarray, y: np.ndarray, weights: torch.Tensor | None) -> float:
    """Return F_k(w), the mean loss."""
    return evaluate_net(net, X, y, weights)[0]


def error(net: NeuralNet, X: np.ndarray, y: np.ndarray, weights: torch.Tensor | None) -> float:
    """Return 1 - accuracy; of several labels, that of whole rows."""
    _, output = evaluate_net(net, X, y, weights)
    predicted = final_predictions(net, output.cpu(), X, has_labels(y))
    wrong = torch.from_numpy(wrong_rows(predicted, y)).to(torch.double)
    return float(wrong.mean() if weights is None else weighted_mean(wrong, weights))


def loss_sums(batches: Batches) -> np.ndarray:
    """Return the sum of the losses of each batch, by the weights that its rows have in a mean."""
    net, weights = batches.net, batches.weights
    if is_rowwise(net.criterion_):
        # With rows as the last axis it takes a fraction of the time.
        log_p = torch.log_softmax(batches.output.T.contiguous(), 0)
        losses = -log_p.gather(0, batches.y.unsqueeze(0)).squeeze(0).cpu().numpy()
        if weights is not None:
            losses = losses * weights.cpu().numpy()
        return np.add.reduceat(losses, batches.starts, dtype=float)
    sums = []
    for a, b in zip(batches.starts.tolist(), batches.ends.tolist(), strict=True):
        y, output = batches.y[a:b], as_inferred(net, batches.output[a:b])
        own = None if weights is None else weights[a:b]
        with weighed(net, own):
            mean = net.get_loss(output, y, X=None, training=False).item()
        share = batch_weight(net.criterion_, y) if own is None else own.sum().item()
        sums.append(mean * share if share else 0.0)  # where no row counts the mean is NaN
    return np.array(sums)


def error_sums(batches: Batches) -> np.ndarray:
    """Return the number of errors in each batch; outputs tell what is predicted."""
    net = batches.net
    differs = predicted_by(net, as_inferred(net, batches.output)) != batches.y
    rows = differs.flatten(1).any(1) if differs.dim() > 1 else differs
    wrong = rows.to(torch.double).cpu().numpy()
    if batches.weights is not None:
        wrong *= batches.weights.cpu().numpy()
    return np.add.reduceat(wrong, batches.starts)


def is_rowwise(criterion: nn.Module) -> bool:
    """Tell whether a criterion is the plain mean of its rows' cross-entropies."""
    return (
        type(criterion) is nn.CrossEntropyLoss
        and criterion.weight is None
        and criterion.label_smoothing == 0
        and criterion.reduction == "mean"
        and criterion.ignore_index < 0
    )


def metric_of(metric: str | PollMetric) -> PollMetric:
    """Return the metric of a request, where it may have a name."""
    return POLL_METRICS[metric] if isinstance(metric, str) else metric


POLL_METRICS = {
    "loss": PollMetric(loss, loss_sums, by_criterion=True),
    "error": PollMetric(
        error,
        error_sums,
        by_prediction=True,
        not_for_regressors=(
            "selector polls the error, 1 - accuracy, which a regressor does not have: let it use "
            "losses (FedAlignSelector(match='loss'), TiflSelector(metric='loss'))."
        ),
    ),
}
