"""The engine whose clients train and evaluate on nodes of Flower."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from skorch import NeuralNet

from skfed._federation import Federation
from skfed.engines import (
    CURRENT_MODEL,
    Batching,
    CombinationsRequest,
    EvaluateRequest,
    Evaluation,
    ReplyTimes,
    Report,
    SketchRequest,
    TrainRequest,
    Updates,
    balanced_tree,
    collect,
    enumerate_copies,
    fold,
    merge,
)
from skfed.exchanges import EVALUATION, POLL, REPORT, SKETCH, TRAINING, TRIAL, UPLOAD, Limits
from skfed.flower._answers import (
    get_metrics,
    get_spread,
    get_value,
    get_values,
    size_of_updates,
)
from skfed.flower._messages import (
    EVALUATE,
    HELD_OUT_QUERY,
    MOMENTS,
    NORMS,
    SKETCH_QUERY,
    TRAIN,
    UPLOAD_QUERY,
    VALUATION_QUERY,
    LostTensors,
    get_moments,
    get_norms,
    get_number,
    get_record,
    get_sketch,
    model_bytes_of,
    to_arrays,
    to_config,
    to_state,
)
from skfed.flower._nodes import Nodes
from skfed.flower._replies import FEW, Size
from skfed.flower._valuation import Valuation, messages_of_models
from skfed.flower._waiting import End, Replies, read_reply
from skfed.nets import State
from skfed.selection._past import SKETCH_SIZE
from skfed.server import SENT, ClientMoments, HeldOutRequest, Norms, ServerState, mean_and_scale

T = TypeVar("T")
NEW_MODEL = "new"  # the name of what a round has made


@dataclass
class MessageEngine:
    """Trains and evaluates clients by messages."""

    nodes: Nodes
    federation: Federation
    batching: Batching
    classes: str  # as text
    fit_id: str  # distinguishes the rounds of this fit from those of others
    steps: Mapping[str, ConfigRecord | ArrayRecord]  # a Pipeline's fitted transformers, if any
    limits: Limits
    n_values: Mapping[str, int]  # of a row, in "columns" and "targets"
    server: ServerState
    clients_add_noise: bool = field(default=True, init=False)
    measures_time: bool = field(default=True, init=False)
    target_scale: str | None = field(default=None, init=False)  # as text
    shift: np.ndarray | None = field(default=None, init=False)  # of X, before it is cast
    limits_rates: bool = field(default=False, init=False)  # to what is safe for each client
    validation_rows: int | None = field(default=None, init=False)
    _round: int = field(default=-1, init=False)
    _arrays: tuple[State, ArrayRecord] = field(default=({}, ArrayRecord()), init=False)
    # The last state of the round that was sent to each client, by the model's name.
    _held: dict[tuple[str, str], State] = field(default_factory=dict, init=False)

    def set_federation(self, federation: Federation) -> None:
        """Go on with the same clients, of which some have other sizes."""
        self.federation = federation
        self.batching = replace(self.batching, federation=federation)

    @property
    def held_out_sizes(self) -> np.ndarray:
        """How many rows each client keeps aside; 0 of one that has not joined."""
        infos = map(self.nodes.clients.get, self._names(range(len(self.federation))))
        return np.array([0 if info is None else info.n_held_out for info in infos])

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Poll clients; a client above the bound sends no value."""
        names = self._names(request.clients)
        bound = None if request.at_most is None else float(request.at_most)
        options = {
            "metric": str(request.metric),
            "max_samples": request.max_samples,
            "at_most": bound,
        }
        contents = {
            name: self._content(name, request.round, request.state, request.model, **options)
            for name in dict.fromkeys(names)
        }
        replies = self._exchange(contents, EVALUATE, partial(self.limits.end, POLL))
        read = partial(get_value, request=request)
        values = [read_reply(replies.contents[name], read) for name in names]
        raised = {i: value for i, value in enumerate(values) if isinstance(value, Exception)}
        silent = np.array([value is None for value in values], dtype=bool)
        known = [value if isinstance(value, float) else np.nan for value in values]
        n_evaluated = self.batching.n_polled(request.clients, request.max_samples)
        return Evaluation(np.array(known), n_evaluated, raised, silent, replies.times(names))

    def sketch(self, request: SketchRequest) -> tuple[Evaluation, np.ndarray]:
        """Ask clients for projections of their gradients."""
        names = self._names(request.clients)
        contents = {
            name: self._content(name, request.round, request.state) for name in dict.fromkeys(names)
        }
        replies = self._exchange(contents, SKETCH_QUERY, partial(self.limits.end, SKETCH))
        found = [read_reply(replies.contents[name], get_sketch) for name in names]
        raised = {i: one for i, one in enumerate(found) if isinstance(one, Exception)}
        nothing = np.full(SKETCH_SIZE, np.nan)
        sketches = np.array([nothing if i in raised else one for i, one in enumerate(found)])
        sketches = sketches.reshape(-1, SKETCH_SIZE)
        sizes = self.federation.sizes[request.clients]
        times = replies.times(names)
        return Evaluation(sketches.sum(1), sizes, raised, times=times), sketches

    def evaluate_combinations(self, request: CombinationsRequest) -> Evaluation:
        """Have clients evaluate models that are written here; each takes one message, or few."""
        names = self._names(request.clients)
        valuation = Valuation(names, self.limits)
        for models in messages_of_models(request):
            if not valuation.answering:
                break
            options: dict[str, Any] = {"metric": request.metric, "n_models": len(models)}
            contents = {
                name: self._content(name, request.round, request.state, **options)
                for name in valuation.answering
            }
            for content in contents.values():
                content.update({f"model-{j}": model for j, model in enumerate(models)})
            asked = Size(values=len(models))
            replies = self._exchange(contents, VALUATION_QUERY, valuation.end, asked)
            valuation.add(replies, partial(get_values, metric=request.metric, n_models=len(models)))
        n_samples = self.batching.n_polled(request.clients, None)
        return valuation.evaluation(names, len(request.coefficients), n_samples)

    def evaluate_held_out(self, request: HeldOutRequest) -> Evaluation:
        """Ask clients for metrics of a new model on the rows that they keep aside."""
        names, metrics = self._names(request.clients), [one.name for one in request.metrics]
        contents = {
            name: self._content(name, request.round, request.state, NEW_MODEL, metrics=metrics)
            for name in names
        }
        replies = self._exchange(contents, HELD_OUT_QUERY, partial(self.limits.end, EVALUATION))
        read = partial(get_metrics, names=metrics)
        found = [read_reply(replies.contents[name], read) for name in names]
        raised = {i: one for i, one in enumerate(found) if isinstance(one, Exception)}
        nothing = np.full(len(metrics), np.nan)
        values = np.array([nothing if i in raised else one for i, one in enumerate(found)])
        sizes, times = self.held_out_sizes[request.clients], replies.times(names)
        return Evaluation(values.reshape(-1, len(metrics)), sizes, raised, times=times)

    def moments(self, names: list[str]) -> tuple[list[ClientMoments | Exception], ReplyTimes]:
        """Return the moments of each priority client's "columns" and "targets", and its seconds."""
        n_values = {name: self.n_values[name] for name in names}
        asked = Size(array_bytes=sum(n * len(SENT[name]) * 8 for name, n in n_values.items()))
        return self._statistics(MOMENTS, partial(get_moments, n_values=n_values), asked, of=names)

    def norms(self, net: NeuralNet) -> tuple[list[Norms | Exception], ReplyTimes]:
        """Return the norms of each priority client's scaled rows, and its seconds."""
        mean, scale = map(torch.from_numpy, mean_and_scale(net))
        scaling = {"scaling": to_arrays({"mean": mean, "scale": scale})}
        return self._statistics(NORMS, get_norms, records=scaling)

    def _statistics(
        self,
        kind: str,
        read: Callable[[RecordDict], T],
        asked: Size = FEW,
        records: Mapping[str, ArrayRecord] | None = None,
        **options: Any,
    ) -> tuple[list[T | Exception], ReplyTimes]:
        """Ask each priority client for statistics before the first round; all are waited for."""
        federation = self.federation
        names = self._names(np.flatnonzero(federation.priority & (federation.sizes > 0)))
        contents = {name: self._content(name, 0, **options) for name in names}
        for content in contents.values():
            content.update(records or {})
        replies = self.nodes.exchange(contents, kind, asked=asked)
        found = [read_reply(replies.contents[name], read) for name in names]
        return found, replies.times(names)

    def train(self, request: TrainRequest) -> Updates:
        """Train a cohort.

        A client that is in the cohort twice gets one message, and sends two updates.
        """
        clients = request.cohort.clients
        copies = list(enumerate_copies(clients.tolist()))
        is_report, kind = "norms" in request.needs, TRAINING
        if request.training.trial is not None:
            kind = TRIAL
        elif is_report:
            kind = REPORT
        end = partial(self.limits.end, kind)
        asked = FEW if is_report else size_of_updates(request)
        replies = self._exchange(self._train_contents(request), TRAIN, end, asked)
        read_updates = self._reported if is_report else self._updates

        def read(i: int) -> Updates:
            k, copy = copies[i]
            return self._read_updates(request, np.array([i]), k, copy, replies, read_updates)

        tree = balanced_tree(self.batching.n_trained(request.training, clients).tolist())
        return fold(tree, read, partial(merge, request.aggregator))

    def upload(
        self, request: TrainRequest, parts: Sequence[tuple[np.ndarray, Any]], members: np.ndarray
    ) -> Updates:
        """Have some members send the updates that they have kept."""
        copies = list(enumerate_copies(request.cohort.clients.tolist()))
        wanted: dict[str, list[int]] = {}
        for i in members.tolist():
            (name,) = self._names([copies[i][0]])
            wanted.setdefault(name, []).append(copies[i][1])
        contents = {
            name: self._content(name, request.round, copies=own) for name, own in wanted.items()
        }
        end, asked = partial(self.limits.end, UPLOAD), size_of_updates(request)
        replies = self.nodes.exchange(contents, UPLOAD_QUERY, end, asked)
        kept = replace(request, needs=frozenset())
        updates = Updates([], [], frozenset())
        for i in members.tolist():
            k, copy = copies[i]
            one = self._read_updates(kept, np.array([i]), k, copy, replies, self._uploaded)
            updates = merge(request.aggregator, updates, one)
        return updates

    @cached_property
    def _index(self) -> dict[str, int]:
        """The index of each client by name."""
        return {name: k for k, name in enumerate(self._names(range(len(self.federation))))}

    def _names(self, clients: Iterable[int]) -> list[str]:
        return [str(name) for name in self.federation.names(clients)]

    def _train_contents(self, request: TrainRequest) -> dict[str, RecordDict]:
        """Return the content of the message to each client of a cohort."""
        names = self._names(request.cohort.clients)
        training = request.training
        options: dict[str, Any] = {
            "epochs": training.epochs,
            "steps": training.steps,
            "proximal_mu": float(training.proximal_mu),
            "rates": training.rates and tuple(chain.from_iterable(training.rates)),
            "max_norm": training.max_norm,
            "limits_rate": self.limits_rates or None,
            "keeps_state": request.keeps_models or None,
            "trial": training.trial,
            "needs": sorted(request.needs & {"norms", "spread"}) or None,
        }
        contents = {
            name: self._content(name, request.round, request.state, **options, n_copies=n_copies)
            for name, n_copies in Counter(names).items()
        }
        if request.corrections is not None:
            for name, content in contents.items():
                content["correction"] = to_arrays(request.corrections[names.index(name)])
        return contents

    def _content(
        self,
        name: str,
        t: int,
        state: State | None = None,
        model: str = CURRENT_MODEL,
        **options: Any,
    ) -> RecordDict:
        """Return the content of a message; a client gets the same state once in a round."""
        shared: dict[str, Any] = {"fit_id": self.fit_id, "seed": self.batching.seed}
        shared |= {"classes": self.classes, "target_scale": self.target_scale}
        if state is not None:
            shared["model"] = model
            if fixed := self.server.fixed.state:
                shared["fixed"] = list(fixed)
                shared["fixed_digests"] = [self.server.fixed.digests[key] for key in fixed]
        records: dict[str, ConfigRecord | ArrayRecord]
        records = {"request": to_config(client=name, round=t, **shared, **options), **self.steps}
        if self.shift is not None:
            records["columns"] = to_arrays({"shift": torch.from_numpy(self.shift)})
        if self._round != t:
            self._round, self._held = t, {}
        if state is not None and self._held.get((name, model)) is not state:
            self._held[name, model] = state
            if self._arrays[0] is not state:
                fixed = self.server.fixed.state
                own = {key: w for key, w in state.items() if key not in fixed}
                self._arrays = state, to_arrays(own)
            records["state"] = self._arrays[1]
            if tensors := self.server.fixed_tensors:
                lacking = tensors.names_lacking(self._index[name])
                if lacking:
                    records["fixed"] = self._fixed_arrays(lacking)
        return RecordDict(records)

    def _fixed_arrays(self, names: Iterable[str]) -> ArrayRecord:
        return to_arrays({name: self.server.fixed.state[name] for name in names})

    def _exchange(
        self, contents: dict[str, RecordDict], kind: str, end: End, asked: Size = FEW
    ) -> Replies:
        """Send messages with a model, and again to clients that have lost a part of it."""
        replies = self.nodes.exchange(contents, kind, end, asked)
        found = replies.contents.items()
        lost = [name for name, reply in found if isinstance(reply, LostTensors)]
        tensors = self.server.fixed_tensors
        if not lost or tensors is None:
            return replies
        fixed = {"fixed": self._fixed_arrays(self.server.fixed.state)}
        for name in lost:
            tensors.resend(self._index[name], model_bytes_of(contents[name]))
        others = [s for name, s in replies.seconds.items() if name not in lost]

        def end_again(own: np.ndarray) -> float:
            seconds = np.concatenate([others, own + replies.duration])
            return end(seconds) - replies.duration

        with_fixed = {name: RecordDict({**contents[name], **fixed}) for name in lost}
        again = self.nodes.exchange(with_fixed, kind, end_again, asked)
        return replies.followed_by(again)

    def _read_updates(
        self,
        request: TrainRequest,
        member: np.ndarray,
        k: int,
        copy: int,
        replies: Replies,
        read: Callable[[TrainRequest, np.ndarray, int, RecordDict], Updates],
    ) -> Updates:
        """Return the update of one copy of a client, or why there is none, with its seconds."""
        (name,) = self._names([k])
        updates = read_reply(replies.contents[name], partial(read, request, member, copy))
        if isinstance(updates, Exception):
            updates = Updates.of_failed(member, updates)
        (report,) = updates.reports
        return replace(updates, reports=[replace(report, times=replies.times([name]))])

    def _updates(
        self, request: TrainRequest, member: np.ndarray, copy: int, content: RecordDict
    ) -> Updates:
        """Read the report and the update of one copy of a client."""
        loss, n_samples, record = self._read_report(request, member, copy, content)
        spread = get_spread(request, record, loss)
        return self._collect(request, member, copy, content, loss, n_samples, spread)

    def _reported(
        self, request: TrainRequest, member: np.ndarray, copy: int, content: RecordDict
    ) -> Updates:
        """Read the report of one copy of a client that keeps its update."""
        loss, n_samples, record = self._read_report(request, member, copy, content)
        norm = get_number(record, "norm")
        finite = np.array([np.isfinite(loss) and np.isfinite(norm)])
        extras = {"norms": np.array([norm])} | get_spread(request, record, loss)
        report = Report(
            member, np.array([loss]), np.array([n_samples]), finite, [None], extras=extras
        )
        return Updates([report], [], frozenset())

    def _uploaded(
        self, request: TrainRequest, member: np.ndarray, copy: int, content: RecordDict
    ) -> Updates:
        """Read an update that a client has kept."""
        return self._collect(request, member, copy, content, 0.0, 0, {})

    def _read_report(
        self, request: TrainRequest, member: np.ndarray, copy: int, content: RecordDict
    ) -> tuple[float, int, MetricRecord]:
        """Return the loss and the rows of a training, and the record in which they are."""
        report = get_record(content, f"report-{copy}", MetricRecord)
        loss, n_samples = get_number(report, "loss"), get_number(report, "n_samples", int)
        (expected,) = self.batching.n_trained(
            request.training, request.cohort.clients[member]
        ).tolist()
        if n_samples != expected:
            raise ValueError(f"it reports training on {n_samples} rows instead of {expected}.")
        return loss, n_samples, report

    def _collect(
        self,
        request: TrainRequest,
        member: np.ndarray,
        copy: int,
        content: RecordDict,
        loss: float,
        n_samples: int,
        spread: Mapping[str, np.ndarray],
    ) -> Updates:
        """Return the update that a message has."""
        state = to_state(get_record(content, f"state-{copy}", ArrayRecord), request.sent_back)
        variate: State | None = None
        if request.corrections is not None:
            arrays = get_record(content, f"variate-{copy}", ArrayRecord)
            own = {name: request.state[name] for name in request.parameters if name in arrays}
            variate = to_state(arrays, own) or None  # parameters without a learning rate have none
        stack = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
        # The client has added the noise.
        alone = replace(request.subset(member), privacy=None, noise=None)
        numbers = np.array([loss]), np.array([n_samples])
        return collect(alone, member, stack, *numbers, [variate], spread)
