"""A cell: data, a model and a condition, with runs of every rule. Tiers are lists of cells."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from time import perf_counter
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pandas as pd
import torch
from skorch import NeuralNetClassifier

from benchmarks.runs.settings import Measure, Measurements, logits, measured_history
from benchmarks.selection.conditions import CONDITIONS, Condition
from benchmarks.selection.data import DATA, Data
from benchmarks.selection.models import MODELS
from benchmarks.selection.rules import RULES, Rule
from benchmarks.selection.splits import Split
from benchmarks.selection.tuning import SEED, Candidate, all_candidates
from skfed import FederatedClassifier

N_POINTS = 20  # at which a run is measured
WORST = 0.1  # share of clients whose mean is that of the worst


@dataclass(frozen=True)
class Cell:
    """Data, a model and a condition; its runs are kept by ``benchmarks.runs``.

    Parameters
    ----------
    data, model, condition : str
        Names of ``DATA``, ``MODELS`` and ``CONDITIONS``.
    rules : mapping of str to Rule, default=RULES
        The rules, of which those take part that suit the condition.
    n_rounds : int, default=None
        Rounds of a run; None: those of the data.
    """

    data: str
    model: str
    condition: str
    rules: Mapping[str, Rule] = field(default_factory=lambda: RULES, compare=False)
    rounds: int | None = None

    @property
    def name(self) -> str:
        """The name of its table."""
        return f"{self.data}/{self.model}/{self.condition}"

    @property
    def of_data(self) -> Data:
        """Its data."""
        return DATA[self.data]

    @property
    def of_condition(self) -> Condition:
        """Its condition."""
        return CONDITIONS[self.condition]

    @property
    def n_rounds(self) -> int:
        """Rounds of a run."""
        return self.of_data.n_rounds if self.rounds is None else self.rounds

    @property
    def suitable(self) -> dict[str, Rule]:
        """The rules that suit its condition."""
        return {n: rule for n, rule in self.rules.items() if rule.suits(self.of_condition)}

    @cached_property
    def candidates(self) -> dict[str, Candidate]:
        """All candidates that a run may have, by name."""
        found = (all_candidates(n, rule, self.model) for n, rule in self.suitable.items())
        return {one.name: one for several in found for one in several}

    @cached_property
    def strategies(self) -> dict[str, dict[str, Any]]:
        """Parameters of FederatedClassifier by the candidate's name."""
        m = self.of_data.clients_per_round
        return {n: one.params(self.rules[one.rule], m) for n, one in self.candidates.items()}

    @property
    def training(self) -> dict[str, Any]:
        """Parameters of FederatedClassifier for all candidates."""
        return {"local_steps": self.of_data.local_steps, **self.of_condition.training(self.of_data)}

    def split(self, seed: int) -> Split:
        """Return the rows of a seed."""
        return _split(self.data, self.condition, seed)

    def run(
        self, strategy: str, seed: int, device: str = "cpu", tick: Callable[[], None] = int
    ) -> pd.DataFrame:
        """Train by one candidate; return a row for each round that was measured.

        A trial has no figures of test rows: what is chosen by it cannot have seen them.
        """
        started = perf_counter()
        split = self.split(seed)
        measure = _measure(split, device, self.n_rounds, seed == SEED, tick)
        n_classes = len(np.unique(split.y))
        net = MODELS[self.model](split.X.shape[1], n_classes, self.of_data.batch_size)
        model = FederatedClassifier(
            net.set_params(device=device, callbacks=[Measurements(measure)]),
            n_rounds=self.n_rounds,
            random_state=seed,
            priority=split.priority,
            **self.training | self.strategies[strategy],
        )
        with catch_warnings():
            simplefilter("ignore", UserWarning)  # a rule that diverges says so by its figures
            history = measured_history(model, split)
        return _rows(history, strategy, seed).assign(wall_run=perf_counter() - started)

    def describe(self) -> dict[str, Any]:
        """Return the configuration that its results depend on, as text."""
        data = self.of_data
        return {
            "n_rounds": self.n_rounds,
            "data": data.title,
            "condition": self.of_condition.title,
            "batch_size": data.batch_size,
            "clients_per_round": data.clients_per_round,
            "training": str(self.training),
            "strategies": {name: str(given) for name, given in self.strategies.items()},
        }


@lru_cache(maxsize=1)  # of many runs one after the other
def _split(data: str, condition: str, seed: int) -> Split:
    return CONDITIONS[condition].apply(DATA[data].split(seed), seed)


def _measure(
    split: Split, device: str, n_rounds: int, is_trial: bool, tick: Callable[[], None]
) -> Measure:
    """Return a function that measures a net after a round, where that is due."""
    parts = {"val": (split.X_val, split.y_val, split.clients_val)}
    if not is_trial:
        parts["test"] = (split.X_test, split.y_test, split.clients_test)
    priority, classes = split.priority, np.unique(split.y)
    due = {round(n) - 1 for n in np.linspace(1, n_rounds, min(N_POINTS, n_rounds))}
    rounds = iter(range(n_rounds))

    def measure(net: NeuralNetClassifier) -> dict[str, float]:
        found = {}
        if next(rounds) in due:
            for part, (X, y, clients) in parts.items():
                output = logits(net, torch.from_numpy(X).to(device))
                right = classes[output.argmax(1).cpu().numpy()] == y
                found |= {f"{part}_{n}": v for n, v in scores(right, clients, priority).items()}
        tick()
        return found

    return measure


def scores(
    right: np.ndarray, clients: np.ndarray, priority: np.ndarray | None = None
) -> dict[str, float]:
    """Return accuracies over clients, which count alike; those without rows do not count.

    Parameters
    ----------
    right : ndarray of shape (n_rows,), dtype=bool
        Where the prediction is right.
    clients : ndarray of shape (n_rows,)
        The client of each row.
    priority : ndarray, default=None
        The priority clients.
    """
    names, owners = np.unique(clients, return_inverse=True)
    means = np.bincount(owners, right) / np.bincount(owners)
    n_worst = max(1, round(WORST * len(means)))
    found = {
        "mean_accuracy": means.mean(),
        "worst_accuracy": np.sort(means)[:n_worst].mean(),
        "pooled_accuracy": right.mean(),
    }
    if priority is not None:
        found["priority_accuracy"] = means[np.isin(names, priority)].mean()
    return {name: float(value) for name, value in found.items()}


def _rows(history: pd.DataFrame, strategy: str, seed: int) -> pd.DataFrame:
    """Return the rounds that were measured, with what all rounds until then have cost."""
    measured = [c for c in history if c.startswith(("val_", "test_"))]
    frame = history[measured].copy()
    frame.insert(0, "strategy", strategy)
    frame.insert(1, "seed", seed)
    frame.insert(2, "round", history["round"] + 1)
    frame["bytes"] = (history["bytes_down"] + history["bytes_up"]).cumsum()
    frame["polls"] = history["n_polled"].cumsum()
    frame["seconds"] = history.get("elapsed", float("nan"))
    frame["wall_rounds"] = history["round_seconds"].cumsum()
    return frame[frame["val_mean_accuracy"].notna()]


SMALL_DATA = ["fashion-mnist-0.3", "wisdm", "synthetic-1-1", "flights-carrier"]
SMALL = [Cell(d, "linear", c) for d, c in product(SMALL_DATA, ["always", "devices"])]
FULL = [
    *SMALL,
    *(Cell(d, "linear", "always") for d in DATA if d not in SMALL_DATA),
    *(
        Cell(d, "linear", c)
        for d in SMALL_DATA
        for c in CONDITIONS
        if c not in ("always", "devices")
    ),
    *(Cell(d, "mlp", c) for d, c in product(SMALL_DATA, ["always", "devices"])),
    Cell("mnist-one-digit-100", "mlp", "always"),
    Cell("fashion-mnist-2", "mlp", "always"),  # of a published table
]
TIERS = {"small": (SMALL, 3), "full": (FULL, 5)}  # cells, and seeds of a reported run


def named_cells(names: Iterable[str]) -> list[Cell]:
    """Return the cells of names such as ``wisdm/linear/always``; ``*`` stands for all of a kind."""
    found = []
    for name in names:
        parts = name.split("/")
        known = (DATA, MODELS, CONDITIONS)
        if len(parts) != 3 or any(
            p != "*" and p not in k for p, k in zip(parts, known, strict=True)
        ):
            raise ValueError(f"there is no cell {name}: --list shows them, data/model/condition.")
        options = [list(k) if p == "*" else [p] for p, k in zip(parts, known, strict=True)]
        found += [Cell(*one) for one in product(*options)]
    return list(dict.fromkeys(found))


def with_rules(cells: Iterable[Cell], rules: Mapping[str, Rule]) -> list[Cell]:
    """Return the cells with these rules."""
    return [replace(cell, rules=rules) for cell in cells]
