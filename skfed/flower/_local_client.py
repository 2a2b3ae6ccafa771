"""One client's net and data, set up for one message."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from skorch import NeuralNet

from skfed._estimator import BaseFederated
from skfed._federation import make_federation
from skfed._fit import local_engine, round_config
from skfed._regressor import FederatedRegressor
from skfed.aggregation import WeightedMean
from skfed.engines import (
    EvaluateRequest,
    Evaluator,
    LocalTraining,
    LoopEngine,
    SketchRequest,
    Trained,
    TrainRequest,
    make_engine,
    update_norms,
)
from skfed.evaluation import Metric
from skfed.flower._messages import Refusal, from_text, to_arrays, to_state
from skfed.nets import (
    State,
    cast,
    cast_samples,
    left_alone,
    parameter_names,
    set_shift,
    set_state,
    standardize_layers,
)
from skfed.selection import Cohort
from skfed.server import (
    HeldOutRequest,
    HeldOutRows,
    Moments,
    Norms,
    class_shares,
    client_moments,
    client_norms,
    mean_and_scale,
    rows_a_step,
    safe_rate,
)


@dataclass(frozen=True)
class LocalClient:
    """A client that trains and evaluates in this process."""

    estimator: BaseFederated  # its privacy is applied to updates and training losses
    net: NeuralNet  # initialised, untrained
    raw: np.ndarray  # the rows
    X: np.ndarray  # in the dtype of the net
    y: np.ndarray  # their encoded targets
    engine: LoopEngine
    evaluator: Evaluator  # that of a simulation, so that equal losses are equal here too

    @classmethod
    def make(
        cls,
        estimator: BaseFederated,
        X: Any,
        y: Any,
        content: RecordDict,
        weighs_classes: bool = True,
    ) -> Self:
        """Check the data, and make the net and engines with the request's seed and classes.

        Rows have the weights of their classes, if the estimator has any, with ``weighs_classes``.
        """
        request = content["request"]
        classes, seed = from_text(request["classes"]), request["seed"]
        X, y = estimator._check_training_data(X, y, reset=True, classes=classes)
        _set_target_scale(estimator, request.get("target_scale"))
        problem = estimator._problem
        net = problem.make_net(estimator.estimator, X, seed)
        known = left_alone(net, cast(net, X[:1]))
        round_config(estimator, net, known, simulated=False)  # checks its own parameters
        if "columns" in content:
            like = torch.zeros(X[0].size, dtype=torch.double)
            set_shift(net, to_state(content["columns"], {"shift": like})["shift"].numpy())
        raw, X = X, cast_samples(net, X)
        federation = make_federation([request["client"]] * len(X), len(X))
        weights, budget = None, estimator.memory_budget
        if weighs_classes:
            weights = problem.row_weights(None, X, y, federation)
        engine = local_engine(
            *(problem, net, X, y, weights, federation), seed=seed, memory_budget=budget
        )
        evaluator, _ = make_engine(
            *(estimator.engine, engine.net_pool, X, engine.data.dataset.y, engine.batching),
            *(budget, 1, weights),
        )
        return cls(estimator, net, raw, X, y, engine, evaluator)

    @property
    def needed(self) -> list[str]:
        """The statistics that the server may ask for: "columns", "targets", "classes", "norms"."""
        if self.estimator.update_privacy is not None:
            return []
        is_told = self.estimator.loss_privacy is None
        is_regressor = isinstance(self.estimator, FederatedRegressor)
        is_default = is_regressor and self.estimator.estimator is None
        has_classes = not (is_regressor or self.estimator._problem.has_labels)
        answers = {
            "columns": bool(standardize_layers(self.net)),
            "targets": is_default or getattr(self.estimator, "standardize_targets", False),
            "classes": has_classes and bool(standardize_layers(self.net)) and is_told,
            "norms": is_default,
        }
        return [name for name, needed in answers.items() if needed]

    def moments(self, names: Sequence[str]) -> dict[str, Moments]:
        """Return the moments of "columns", "targets" and "classes"."""
        everything, weights = np.arange(len(self.y)), self.engine.data.dataset.weights
        n_classes = prod(self.estimator._problem.output_shape)
        find = {
            "columns": lambda: client_moments(self.raw, everything),
            "targets": lambda: client_moments(self.y, everything),
            "classes": lambda: class_shares(self.y, n_classes, everything, weights),
        }
        return {name: find[name]() for name in names}

    def norms(self, mean: np.ndarray, scale: np.ndarray) -> Norms:
        """Return the norms of the rows after these are subtracted, and divided by."""
        return client_norms(self.raw, np.arange(len(self.y)), mean, scale)

    def train(self, content: RecordDict, state: State) -> RecordDict:
        """Train as a message requests; return the records of the reply."""
        request = self._train_request(content, state)
        reply: dict[str, ArrayRecord | MetricRecord] = {}
        for copy, training in enumerate(self.engine.trainings(request)):
            trained = training.train(self.engine.data.local)
            reply |= self._records(request, copy, trained)
        return RecordDict(reply)

    def sketch(self, t: int, state: State, seed: int) -> np.ndarray:
        """Return the projection of the gradient of a state."""
        reply, sketches = self.engine.sketch(SketchRequest(t, state, np.array([0]), seed))
        if reply.raised:
            raise reply.raised[0]
        return sketches[0]

    def value(
        self, t: int, state: State, models: Sequence[ArrayRecord], metric: str
    ) -> list[float]:
        """Return the metric, on all rows, of models that have some tensors of their own."""
        values = []
        for arrays in models:
            own = to_state(arrays, {name: w for name, w in state.items() if name in arrays})
            request = EvaluateRequest(t, state | own, np.array([0]), metric)
            evaluation = self.evaluator.evaluate(request)
            if evaluation.raised:
                raise evaluation.raised[0]
            values.append(float(evaluation.values[0]))
        return values

    def metrics(self, t: int, state: State, names: Sequence[str]) -> dict[str, float]:
        """Return metrics of a state by name, on all rows."""
        problem, nobody = self.estimator._problem, np.zeros(1, dtype=int)
        metrics = [Metric.of(name, problem) for name in names]
        rows = HeldOutRows(self.evaluator, nobody, self.engine.batching.federation.sizes)
        found = rows.evaluate_held_out(HeldOutRequest(t, state, nobody, metrics))
        if found.raised:
            raise found.raised[0]
        return dict(zip(names, found.values[0].tolist(), strict=True))

    def _train_request(self, content: RecordDict, state: State) -> TrainRequest:
        """Return the request of a message, for the loop engine."""
        request, corrections = content["request"], None
        parameters, n_copies = parameter_names(self.net), request["n_copies"]
        if "correction" in content:
            if self.estimator.update_privacy is not None:
                raise Refusal("its update_privacy does not cover SCAFFOLD's variates.")
            arrays = content["correction"]
            like = {name: state[name] for name in parameters if name in arrays}
            corrections = [to_state(arrays, like)] * n_copies
        training = self._training(request)
        return TrainRequest(
            round=request["round"],
            state=state,
            parameters=parameters,
            cohort=Cohort.mean(np.zeros(n_copies, dtype=int)),
            training=training,
            aggregator=WeightedMean(),  # not used: the server aggregates
            needs=frozenset(request.get("needs", ())),
            corrections=corrections,
            rate_factors=self._rate_factors(request, training, state),
            fixed=frozenset(request.get("fixed", ())),
        )

    def _rate_factors(
        self, request: ConfigRecord, training: LocalTraining, state: State
    ) -> np.ndarray | None:
        """Return by what the rate of each copy is multiplied, so that it is safe for these rows."""
        if not request.get("limits_rate") or training.rates is None:
            return None
        set_state(self.net, state)
        norms = self.norms(*mean_and_scale(self.net))
        limit = safe_rate(norms, rows_a_step(self.net, len(self.y)))
        return np.full(request["n_copies"], min(1.0, limit / training.rates[0][0]))

    def _training(self, request: ConfigRecord) -> LocalTraining:
        """Return the epochs or steps and learning rates of a request."""
        training = LocalTraining(
            request["epochs"],
            request.get("steps"),
            request["proximal_mu"],
            max_norm=request.get("max_norm"),
            trial=request.get("trial"),
        )
        if "rates" not in request:
            return training
        rates = np.array(request["rates"], dtype=float)
        shape = training.n_iterations, len(self.net.optimizer_.param_groups)
        if rates.size != np.prod(shape):
            raise Refusal(
                f"the message has {rates.size} learning rates, but this client needs {shape[0]} "
                f"for each of its optimizer's {shape[1]} parameter groups: use the same estimator "
                "on both sides."
            )
        return replace(training, rates=tuple(map(tuple, rates.reshape(shape).tolist())))

    def _records(
        self, request: TrainRequest, copy: int, trained: Trained
    ) -> dict[str, ArrayRecord | MetricRecord]:
        """Return the records of one copy's update, with noise if the estimator has privacy."""
        stack, loss = trained.stack, float(trained.losses[0])
        update_privacy, loss_privacy = self.estimator.update_privacy, self.estimator.loss_privacy
        if update_privacy is not None:
            rng = np.random.default_rng()
            stack = update_privacy.of_updates(request.state, stack, request.parameters, [rng])
        if loss_privacy is not None:
            loss = loss_privacy.of_loss(loss, np.random.default_rng())
        report: dict[str, Any] = {"loss": loss, "n_samples": int(trained.n_samples[0])}
        report |= {name: float(values[0]) for name, values in trained.spread.items()}
        if "norms" in request.needs:
            (report["norm"],) = update_norms(request.subset(np.array([copy])), stack).tolist()
        records: dict[str, ArrayRecord | MetricRecord] = {
            f"state-{copy}": to_arrays({name: tensor[0] for name, tensor in stack.items()}),
            f"report-{copy}": MetricRecord(report),
        }
        if request.corrections is not None:
            records[f"variate-{copy}"] = to_arrays(trained.variate or {})
        return records


def _set_target_scale(estimator: BaseFederated, scale: Any) -> None:
    """Standardise targets by what the server sends, a text, if it does."""
    if scale is not None and isinstance(estimator, FederatedRegressor):
        estimator.target_mean_, estimator.target_scale_ = map(np.array, from_text(scale))
