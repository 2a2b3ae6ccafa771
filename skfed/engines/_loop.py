"""The reference engine: skorch, client by client.

Each client starts from the global model with a fresh optimizer and takes the wrapped net's own
train steps. Every faster engine is checked against this one.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.utils.parallel import Parallel, delayed
from skorch import NeuralNetClassifier

from skfed._federation import Federation
from skfed._nets import Model, Workbench, add_to_gradients, get_model, parameter_names, set_model
from skfed.engines._minibatches import minibatches
from skfed.utils._seeding import Purpose, stream, torch_seeded


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains in a round."""

    epochs: int = 1  # E
    steps: int | None = None  # tau; wins over epochs when given
    proximal_mu: float = 0.0  # FedProx's mu
    rates: tuple[float, ...] | None = None  # learning rate of each iteration; None: the net's own

    @property
    def n_iterations(self) -> int:
        """Local iterations of a round: steps where they are given, else epochs."""
        return self.epochs if self.steps is None else self.steps


@dataclass(frozen=True)
class Update:
    """What a client sends back after training."""

    model: Model  # w_k, on the CPU
    loss: float  # mean minibatch loss over the local steps
    n_samples: int  # rows seen in the local steps, repeats counted
    variate: Model | None = None  # SCAFFOLD's new c_k


@dataclass
class LoopEngine:
    """Train and poll the clients of a federation, one after the other or through joblib.

    Parameters
    ----------
    bench : Workbench
        The net that does the work.
    X : ndarray of shape (n_samples, ...)
        In the dtype of the module.
    y : ndarray of shape (n_samples,)
        Encoded targets.
    federation : Federation
        Who holds which rows.
    seed : int
        Seed of all streams.
    n_jobs : int, default=None
        Clients served side by side, through joblib.
    """

    bench: Workbench
    X: np.ndarray
    y: np.ndarray
    federation: Federation
    seed: int
    n_jobs: int | None = None

    def train(
        self,
        model: Model,
        clients: np.ndarray,
        round: int,
        training: LocalTraining,
        corrections: Sequence[Model] | None = None,
    ) -> list[Update]:
        """Train each client from the same model; one that stands twice trains twice, afresh.

        ``corrections`` are SCAFFOLD's c - c_k, one a client.
        """
        drawn: Counter[int] = Counter()
        copies = []
        for k in clients:
            copies.append(drawn[k])
            drawn[k] += 1
        tasks = (
            delayed(_train_client)(
                self.bench,
                model,
                *self._data(k),
                self._stream(Purpose.MINIBATCHES, round, k, copy),
                self._stream(Purpose.RANDOM_LAYERS, round, k, copy),
                training,
                None if corrections is None else corrections[i],
            )
            for i, (k, copy) in enumerate(zip(clients, copies, strict=True))
        )
        return self._run(tasks)

    def evaluate(
        self,
        model: Model,
        clients: np.ndarray,
        round: int,
        metric: str = "loss",
        max_samples: int | str | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each client's mean loss or error at ``model``, and on how many rows."""
        rows = [self._sample(k, round, max_samples) for k in clients]
        tasks = (
            delayed(_poll_client)(self.bench, model, self.X[chosen], self.y[chosen], metric)
            for chosen in rows
        )
        return np.array(self._run(tasks), float), np.array([len(r) for r in rows], dtype=int)

    def _run(self, tasks: Iterator) -> list:
        with _one_thread():
            return Parallel(n_jobs=self.n_jobs)(tasks)

    def _data(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.federation.rows(k)
        return self.X[rows], self.y[rows]

    def _sample(self, k: int, round: int, max_samples: int | str | None) -> np.ndarray:
        """Return the client's rows, or as many of them as a poll may use."""
        rows = self.federation.rows(k)
        if max_samples is None:
            return rows
        limit = (
            _batch_size(self.bench.net, len(rows)) if max_samples == "batch" else int(max_samples)
        )
        rng = self._stream(Purpose.POLL, round, k)
        return rows if len(rows) <= limit else rng.choice(rows, size=limit, replace=False)

    def _stream(self, purpose: Purpose, round: int, k: int, copy: int = 0) -> np.random.Generator:
        return stream(self.seed, purpose, round, self.federation.digest(k), copy)


def evaluate(net: NeuralNetClassifier, X: np.ndarray, y: np.ndarray, metric: str) -> float:
    """Return the mean loss, or 1 - accuracy, of a net as it stands."""
    with _one_thread():
        return _evaluate(net, X, y, metric)


def _train_client(
    bench: Workbench,
    model: Model,
    X: np.ndarray,
    y: np.ndarray,
    rows_rng: np.random.Generator,
    layers_rng: np.random.Generator,
    training: LocalTraining,
    correction: Model | None,
) -> Update:
    """Train one client from ``model``."""
    torch.set_num_threads(1)  # see _one_thread; a worker process or thread has its own setting
    # The lock inside also keeps threads that share the bench from using it at once.
    with torch_seeded(layers_rng, bench.device):
        net = bench.net
        X_k, y_k = _to_tensors(net, X, y)
        batch_size = _batch_size(net, len(y))
        set_model(net, model)
        net.initialize_optimizer()
        net.history.clear()
        net.history.new_epoch()
        losses, n_samples, distance = [], 0, 0.0
        with _corrected(net, model, training.proximal_mu, correction):
            for iteration, rows in minibatches(
                rows_rng, len(y), batch_size, training.epochs, training.steps
            ):
                distance += _set_rate(net, training.rates, iteration)
                chosen = torch.from_numpy(rows).to(y_k.device)
                batch = X_k.index_select(0, chosen), y_k.index_select(0, chosen)
                losses.append(_train_step(net, batch))
                n_samples += len(rows)
        trained = get_model(net)
        variate = (
            None if correction is None else _variate(net, model, trained, correction, distance)
        )
        return Update(trained, float(np.mean(losses)), n_samples, variate)


@contextmanager
def _corrected(
    net: NeuralNetClassifier, model: Model, proximal_mu: float, correction: Model | None
) -> Iterator[None]:
    """Add mu (w - w_t) and SCAFFOLD's c - c_k to the gradients, where there are such terms."""
    if not proximal_mu and not correction:
        yield
        return
    anchor = {name: model[name].to(net.device) for name in parameter_names(net)}
    shift = {name: tensor.to(net.device) for name, tensor in (correction or {}).items()}

    def extra(name: str, parameter: torch.Tensor) -> torch.Tensor:
        term = proximal_mu * (parameter - anchor[name])
        return term + shift[name] if name in shift else term

    undo = add_to_gradients(net, extra)
    try:
        yield
    finally:
        undo()


def _set_rate(net: NeuralNetClassifier, rates: tuple[float, ...] | None, iteration: int) -> float:
    """Set the learning rate of an iteration and return it."""
    if rates is not None:
        for group in net.optimizer_.param_groups:
            group["lr"] = rates[iteration]
    return float(net.optimizer_.param_groups[0]["lr"])


def _variate(
    net: NeuralNetClassifier, model: Model, trained: Model, correction: Model, distance: float
) -> Model:
    """Return c_k - c + (w_t - w_k) / (sum of the learning rates): SCAFFOLD's option II."""
    moved = {name: (model[name] - trained[name]) / distance for name in parameter_names(net)}
    return {n: m - correction[n] if n in correction else m for n, m in moved.items()}


def _poll_client(
    bench: Workbench, model: Model, X: np.ndarray, y: np.ndarray, metric: str
) -> float:
    """Return one client's mean loss or error at ``model``."""
    set_model(bench.net, model)
    return _evaluate(bench.net, X, y, metric)


def _train_step(net: NeuralNetClassifier, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Take one step as skorch's own loop takes it, batch-level callbacks included."""
    net.notify("on_batch_begin", batch=batch, training=True)
    step = net.train_step(batch)
    loss = step["loss"].item()
    net.history.record_batch("train_loss", loss)
    net.history.record_batch("train_batch_size", len(batch[1]))
    net.notify("on_batch_end", batch=batch, training=True, **step)
    return loss


def _evaluate(net: NeuralNetClassifier, X: np.ndarray, y: np.ndarray, metric: str) -> float:
    """Return the mean over the rows of the loss or of the errors."""
    torch.set_num_threads(1)
    size = _batch_size(net, len(y), iterator="iterator_valid")
    total = 0.0
    for start in range(0, len(y), size):
        Xb, yb = _to_tensors(net, X[start : start + size], y[start : start + size])
        step = net.validation_step((Xb, yb))
        if metric == "loss":
            total += step["loss"].item() * len(yb)
        else:
            output = step["y_pred"]
            output = output[0] if isinstance(output, tuple) else output
            total += (output.argmax(1) != yb).sum().item()
    return total / len(y)


def _to_tensors(net: NeuralNetClassifier, *arrays: np.ndarray) -> Sequence[torch.Tensor]:
    return [torch.from_numpy(array).to(net.device) for array in arrays]


def _batch_size(net: NeuralNetClassifier, n_samples: int, iterator="iterator_train") -> int:
    """Return the batch size that skorch's own iterator would use on so many rows."""
    size = net.get_params_for(iterator).get("batch_size", net.batch_size)
    return n_samples if size == -1 else size


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one torch thread: a product split over threads rounds in another order.

    So the result is the same whatever n_jobs; cores are used by clients side by side.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
