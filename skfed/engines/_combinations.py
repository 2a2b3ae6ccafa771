"""Evaluations of linear combinations of models, such as the averages of subsets of a cohort.

The outputs of a net's first linear layer are linear in its weights. So the stacked engine
multiplies rows by the weights of all models, side by side, and these products by the coefficients
of all combinations, which are more than the models.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Self

import numpy as np
import torch
from skorch import NeuralNet
from torch.nn import functional as F

from skfed.engines._batching import Positions, take_positions
from skfed.engines._evaluate import cut_into_products
from skfed.engines._memory import Memory, MemoryPool
from skfed.engines._replies import Evaluation
from skfed.engines._requests import CombinationsRequest, EvaluateRequest
from skfed.engines.products._evaluated_layers import EvaluatedLayers
from skfed.engines.products._linear import Layers, Linear, WithBuffer
from skfed.engines.workers._work import Load, Work
from skfed.nets import NetPool, State, by_member, moved
from skfed.selection._poll_metrics import Batches
from skfed.utils._products import PRODUCTS
from skfed.utils._torch_context import deterministic_cudnn, one_torch_thread

_VALUES_A_SUM = 2**22  # of models and combinations, that are in float64 at once
_DTYPES = torch.float32, torch.float64  # in which outputs may be combined instead of weights


def combine(stack: torch.Tensor, coefficients: np.ndarray) -> torch.Tensor:
    """Return combinations of the tensors of some models, added in float64.

    Parameters
    ----------
    stack : Tensor of shape (n_models, ...)
        One tensor of each.
    coefficients : ndarray of shape (n_combinations, n_models)
        Of each combination.

    Returns
    -------
    Tensor of shape (n_combinations, ...)
        In the dtype of the stack; a unit vector gives the model's own tensor, bit for bit.
    """
    flat, dtype = by_member(stack), torch.promote_types(stack.dtype, torch.float64)
    factors = moved(torch.from_numpy(coefficients), stack.device).to(dtype)
    combined = flat.new_empty(len(coefficients), flat.shape[1])
    n_columns = max(1, _VALUES_A_SUM // sum(coefficients.shape))
    for a in range(0, flat.shape[1], n_columns):
        columns = slice(a, a + n_columns)
        combined[:, columns] = _weighted_sums(factors, flat[:, columns].to(dtype))
    for j, i in zip(*_unit_vectors(coefficients), strict=True):
        combined[j] = flat[i]
    return combined.view(len(coefficients), *stack.shape[1:])


def _unit_vectors(coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows are unit vectors, and where each of them is 1."""
    is_unit = (np.count_nonzero(coefficients, axis=1) == 1) & (coefficients.max(1) == 1)
    return np.flatnonzero(is_unit), coefficients[is_unit].argmax(1)


def _weighted_sums(
    coefficients: torch.Tensor, flat: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sums of the rows of a matrix by coefficients; those of 0 have no part in it."""
    sums = torch.mm(coefficients, flat, out=out)
    if not flat.sum().isfinite():  # 0 times infinity is NaN
        for total, own in zip(sums, coefficients, strict=True):
            total.copy_(own[own != 0] @ flat[own != 0])
    return sums


def combined_states(request: CombinationsRequest) -> Iterator[State]:
    """Yield the state of each combination."""
    for own in request.coefficients[:, None]:
        with one_torch_thread():
            models = {name: combine(stack, own)[0] for name, stack in request.models.items()}
        yield {**request.state, **models}


def evaluate_each(
    request: CombinationsRequest,
    evaluate: Callable[[EvaluateRequest], Evaluation],
    n_samples: np.ndarray,
) -> Evaluation:
    """Evaluate the state of each combination; who fails once has no values.

    ``n_samples`` are the rows of each client.
    """
    t, clients, metric = request.round, request.clients, request.metric
    values = np.empty((len(clients), len(request.coefficients)))
    raised: dict[int, Exception] = {}
    for j, state in enumerate(combined_states(request)):
        found = evaluate(EvaluateRequest(t, state, clients, metric))
        values[:, j] = found.values
        raised = {**found.raised, **raised}
    values[list(raised)] = np.nan
    return Evaluation(values, n_samples, raised)


@dataclass(frozen=True)
class CombinedLayers:
    """The layers of a module, evaluated with many combinations of its weights.

    Parameters
    ----------
    shared : EvaluatedLayers
        The layers before the first one that models differ in.
    first : Linear
        That layer.
    others : list of Linear, WithBuffer or callable
        The layers after it.
    end : callable or None
        The function at the end, such as a softmax, which needs the axes of the module's outputs.
    state : dict of str to Tensor
        What all models share.
    models : dict of str to Tensor of shape (n_models, ...)
        The tensors that they differ in.
    coefficients : ndarray of shape (n_combinations, n_models)
        Of each combination.
    """

    shared: EvaluatedLayers
    first: Linear
    others: Layers
    end: Callable[[torch.Tensor], torch.Tensor] | None
    state: State
    models: State
    coefficients: np.ndarray

    @classmethod
    def of(cls, layers: EvaluatedLayers | None, request: CombinationsRequest) -> Self | None:
        """Return the layers for a request; None where only whole states can be evaluated."""
        if layers is None or not len(request.coefficients):
            return None
        names = {name for layer in layers.layers for name in _names(layer)}
        models = {name: stack for name, stack in request.models.items() if name in names}
        differ = [
            i for i, one in enumerate(layers.layers) if not models.keys().isdisjoint(_names(one))
        ]
        linear = all(isinstance(layers.layers[i], Linear) for i in differ)
        if not differ or not linear or any(w.dtype not in _DTYPES for w in models.values()):
            return None
        coefficients = request.coefficients
        if len(coefficients) <= coefficients.shape[1]:  # these are fewer products
            with one_torch_thread():
                models = {name: combine(stack, coefficients) for name, stack in models.items()}
            coefficients = np.eye(len(coefficients))
        at, last = differ[0], layers.layers[-1]
        first, end = layers.layers[at], None if isinstance(last, Linear | WithBuffer) else last
        assert isinstance(first, Linear)
        others = layers.layers[at + 1 : -1 if end else None]
        state = {name: request.state[name] for name in names - models.keys()}
        shared = EvaluatedLayers(layers.layers[:at])
        return cls(shared, first, others, end, state, models, coefficients)

    @property
    def first_bytes(self) -> int:
        """Bytes of a row's outputs of the first layer, of all models."""
        weight = f"module.{self.first.weight}"
        if weight in self.models:
            return self.models[weight][..., 0].nbytes
        return self.state[weight][:, 0].nbytes

    def combination_bytes(self, n_rows: int) -> int:
        """Return the bytes of a combination's later weights, and of activations of rows.

        The activations are those of the widest layer, thrice.
        """
        later = [layer for layer in self.others if isinstance(layer, Linear)]
        weights = [self._one(f"module.{layer.weight}") for layer in (self.first, *later)]
        widest = max(weight[:, 0].nbytes for weight in weights)
        return 3 * widest * n_rows + sum(weight.nbytes for weight in weights[1:])

    def _one(self, name: str) -> torch.Tensor:
        return self.models[name][0] if name in self.models else self.state[name]

    def on(self, device: torch.device) -> Self:
        """Return the layers with their tensors on a device."""
        state, models = (
            {name: moved(tensor, device) for name, tensor in some.items()}
            for some in (self.state, self.models)
        )
        return replace(self, state=state, models=models)

    def products(
        self, X: Iterable[torch.Tensor], n_rows: int, most_rows: int, memory: Memory
    ) -> torch.Tensor:
        """Return the first layer's weights of all models times rows, without biases.

        Parameters
        ----------
        X : iterable of Tensor
            Parts of the rows, each valid until the next is taken.
        n_rows : int
            Their number.
        most_rows : int
            See ``EvaluatedLayers.output``.
        memory : Memory
            Where the products are, which are valid until the next call.

        Returns
        -------
        Tensor of shape (n_models * n_outputs, n_rows)
            Of one model where models differ only in the layer's bias.
        """
        name = f"module.{self.first.weight}"
        weight = self.models[name].flatten(0, 1) if name in self.models else self.state[name]
        products = memory.empty("products", (len(weight), n_rows), weight.dtype, weight.device)
        start = 0
        for rows in X:
            h = self.shared.output(self.state, rows, most_rows)
            columns = slice(start, start + len(rows))
            PRODUCTS.by_output(h, weight, most_rows, products[:, columns])
            start = columns.stop
        return products

    def outputs(self, products: torch.Tensor, these: slice, memory: Memory) -> torch.Tensor:
        """Return the outputs of some combinations, (n_combinations * n_rows, n_outputs).

        They may be in ``memory``, and are valid until the next call.
        """
        coefficients = self.coefficients[these]
        h = self._first_outputs(products, coefficients, memory)
        for layer in self.others:
            h = self._next(layer, h, coefficients)
        output = h.transpose(0, 1).flatten(1).T  # rows as the last axis, as ``loss_sums`` has them
        return output if self.end is None else self.end(output)

    def _first_outputs(
        self, products: torch.Tensor, coefficients: np.ndarray, memory: Memory
    ) -> torch.Tensor:
        """Return the outputs of the first layer, (n_combinations, n_outputs, n_rows)."""
        n_outputs, n_rows = len(self._one(f"module.{self.first.weight}")), products.shape[1]
        shape = len(coefficients), n_outputs, n_rows
        h = memory.empty("combined", shape, products.dtype, products.device)
        if f"module.{self.first.weight}" in self.models:
            flat = products.view(-1, n_outputs * n_rows)
            factors = torch.from_numpy(coefficients).to(flat)
            _weighted_sums(factors, flat, out=h.flatten(1))
        else:
            h.copy_(products)
        return self._add_bias(self.first, h, coefficients)

    def _add_bias(self, layer: Linear, h: torch.Tensor, coefficients: np.ndarray) -> torch.Tensor:
        """Add a layer's bias to its products, in place."""
        if layer.bias is None:
            return h
        return h.add_(self._combined(layer.bias, coefficients).unsqueeze(-1))

    def _combined(self, name: str, coefficients: np.ndarray) -> torch.Tensor:
        """Return a tensor of the module in some combinations: one for all where models share it."""
        name = f"module.{name}"
        return combine(self.models[name], coefficients) if name in self.models else self.state[name]

    def _next(self, layer: object, h: torch.Tensor, coefficients: np.ndarray) -> torch.Tensor:
        """Return the output of a later layer, for activations (combination, feature, row)."""
        if isinstance(layer, Linear):
            h = torch.matmul(self._combined(layer.weight, coefficients), h)
            return self._add_bias(layer, h, coefficients)
        if isinstance(layer, WithBuffer):
            return layer.function(h, self.state[f"module.{layer.buffer}"].unsqueeze(1))
        assert callable(layer)
        return h.relu_() if layer is F.relu else layer(h)


def _names(layer: object) -> list[str]:
    """Return the names in a state of the tensors of a layer."""
    if isinstance(layer, Linear):
        return [f"module.{name}" for name in layer.names]
    return [f"module.{layer.buffer}"] if isinstance(layer, WithBuffer) else []


@dataclass(frozen=True, kw_only=True)
class CombinationsEvaluation:
    """The evaluation of combinations on batches of some clients, side by side (a ``Work``).

    Parameters
    ----------
    net_pool, memory_pool, batch_sums, clients, positions, product_rows, most_rows
        See ``BatchEvaluation``.
    layers : CombinedLayers
        What computes the outputs.
    n_together : int
        Combinations whose outputs are computed at once.
    """

    net_pool: NetPool
    memory_pool: MemoryPool
    layers: CombinedLayers
    batch_sums: Callable[[Batches], np.ndarray]
    clients: Sequence[int]
    positions: Sequence[Positions]
    product_rows: int
    most_rows: int
    n_together: int

    @property
    def cost(self) -> int:
        """The number of rows."""
        return sum(map(len, self.positions))

    def run(self, load: Load) -> list[tuple[np.ndarray, Exception | None]]:
        """Return the sums of the metric over the rows of each batch, one a combination."""
        dataset, rows = load(self.clients)
        numbers = np.concatenate(list(map(take_positions, rows, self.positions)))
        ends = np.cumsum([len(positions) for positions in self.positions])
        with (
            self.net_pool.borrowed() as net,
            self.memory_pool.borrowed() as memory,
            one_torch_thread(),
            deterministic_cudnn(self.net_pool.device),
            torch.no_grad(),
        ):
            net.criterion_.eval()
            layers = self.layers.on(dataset.device)
            prepared, y = dataset.prepare(numbers)
            weights = dataset.weigh(numbers)
            X = (
                dataset.take(prepared[start:end], memory)
                for start, end in cut_into_products(len(numbers), self.product_rows)
            )
            products = layers.products(X, len(numbers), self.most_rows, memory)
            sums = [
                self.batch_sums(self._batches(net, y, weights, ends, output)).reshape(-1, len(ends))
                for output in self._outputs(layers, products, memory)
            ]
            return [(own, None) for own in np.concatenate(sums).T]

    def _outputs(
        self, layers: CombinedLayers, products: torch.Tensor, memory: Memory
    ) -> Iterator[torch.Tensor]:
        """Yield the outputs of combinations, some at a time, in parts of much the same size."""
        n = len(layers.coefficients)
        ends = np.linspace(0, n, -(-n // self.n_together) + 1).astype(int).tolist()
        for start, end in pairwise(ends):
            yield layers.outputs(products, slice(start, end), memory)

    def _batches(
        self,
        net: NeuralNet,
        y: torch.Tensor,
        weights: torch.Tensor | None,
        ends: np.ndarray,
        output: torch.Tensor,
    ) -> Batches:
        """Return the batches of some combinations, one combination after the other."""
        n = len(output) // len(y)
        y = y.expand(n, *y.shape).flatten(0, 1)
        weights = None if weights is None else weights.expand(n, len(weights)).flatten()
        all_ends = (np.arange(n)[:, None] * ends[-1] + ends).ravel()
        return Batches(net, y, output, weights, all_ends)

    def recover(
        self, run: Callable[[Work], list], error: Exception
    ) -> list[tuple[np.ndarray, Exception | None]]:
        """Evaluate each batch alone; return the sums of one that has failed alone."""
        if len(self.clients) == 1:
            return [(np.full(len(self.layers.coefficients), np.nan), error)]
        pairs = zip(self.clients, self.positions, strict=True)
        each = (replace(self, clients=[k], positions=[rows]) for k, rows in pairs)
        return list(chain.from_iterable(map(run, each)))
