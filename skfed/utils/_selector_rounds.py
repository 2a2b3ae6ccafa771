"""The mock rounds in which selectors are checked."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from skfed.selection import BaseSelector
from skfed.selection._mock_round import MockRound, mock_round
from skfed.selection._past import NEEDS, SKETCH_SIZE

N_CLIENTS = 12
SEED = 7  # of the generators of all rounds
N_OF_FIT = 3  # how often a fit goes through the settings

# Clients of different sizes, losses and seconds. With a third of them with priority, some free
# clients' losses are near those of the priority clients, some far. The losses reported last are
# ordered otherwise than those of now.
SIZES = np.array([5, 40, 10, 25, 15, 30, 20, 35, 8, 12, 28, 18])
LOSSES = np.array([1.103, 1.71, 1.389, 1.297, 1.004, 1.93, 1.57, 1.178, 2.11, 1.461, 2.02, 1.833])
REPORTED = np.array([1.62, 1.21, 2.07, 1.35, 1.88, 1.13, 1.76, 2.2, 1.05, 1.94, 1.48, 1.28])
SECONDS = np.array([3.1, 0.9, 12.0, 5.2, 1.4, 20.0, 2.2, 7.5, 0.6, 4.3, 9.1, 16.0])

# Of six clients each, and repeated, so that each client has an equal, six further.
THIRD = (1, 0, 0, 1, 0, 0)
PARTLY = (1, 0, 0.5, 1, 0, 0.5)
EACH = (1, 1, 1, 1, 1, 1)
NONE = (0, 0, 0, 0, 0, 0)
LATER_HALF = (0, 0, 0, 1, 1, 1)
NOT_TWO = (1, 0, 1, 1, 0, 1)
FIFTH, SIXTH = (0, 0, 0, 0, 1, 0), (0, 0, 0, 0, 0, 1)


@dataclass(frozen=True)
class Setting:
    """What a selector meets in a round, apart from its clients' sizes, losses and seconds.

    ``new`` clients have not reported yet, the training of ``failed`` ones has failed, and the
    seconds of ``timed`` ones are known. With ``devices``, the round tells expected seconds.
    """

    index: int
    n_rounds: int
    priority: tuple[float, ...] = THIRD
    new: tuple[int, ...] = NONE
    failed: tuple[int, ...] = NONE
    timed: tuple[int, ...] = NONE
    available: tuple[int, ...] = EACH
    devices: bool = False

    def __str__(self):
        known = "all" if self.timed == EACH else "no" if self.timed == NONE else "some"
        return f"round {self.index} of {self.n_rounds} with {known} seconds known"

    def of_clients(self, name: str) -> np.ndarray:
        """Return a field for all clients."""
        values = np.tile(getattr(self, name), N_CLIENTS // 6)
        return values.astype(float if name == "priority" else bool)

    def groups(self) -> list[np.ndarray]:
        """Return the groups of available clients that differ in no field."""
        fields = ("priority", "new", "failed", "timed", "available")
        kinds = list(zip(*(self.of_clients(name).tolist() for name in fields), strict=True))
        return [
            np.array([k for k in range(N_CLIENTS) if kinds[k] == kind])
            for kind in sorted(set(kinds))
            if kind[-1]
        ]


SETTINGS = [
    Setting(0, 10, new=EACH),
    Setting(5, 10),
    Setting(1, 10, new=FIFTH, failed=SIXTH),
    Setting(3, 10, new=FIFTH, failed=SIXTH, timed=LATER_HALF, devices=True),
    Setting(2, 10, timed=EACH, available=NOT_TWO),
    Setting(5, 10, EACH, timed=EACH, devices=True),
    Setting(7, 10, PARTLY, available=NOT_TWO),
    Setting(8, 10),
    Setting(9, 10, EACH, timed=LATER_HALF),
    Setting(10, 10),  # a fit that goes on after its last round
    Setting(0, 1, EACH, new=EACH, devices=True),
    Setting(40, 100, EACH),
    Setting(99, 100, PARTLY, timed=EACH, devices=True),
    Setting(500, 100, new=FIFTH, failed=SIXTH, timed=LATER_HALF),
]


def settings_for(selector: BaseSelector) -> list[Setting]:
    """Return the settings, all of them with devices if the selector cannot do without."""
    try:
        for setting in SETTINGS[:2]:
            clone(selector).select(make_round(replace(setting, devices=False)))
    except ValueError as error:
        if str(error).startswith("expected_seconds needs devices"):
            return [replace(setting, devices=True) for setting in SETTINGS]
    return SETTINGS


def fit_and_others(selector: BaseSelector) -> list[Setting]:
    """Return the settings of the rounds of a fit, one after the other, and those of others."""
    settings = settings_for(selector)
    n_rounds = N_OF_FIT * len(settings)
    fit = [replace(s, index=t, n_rounds=n_rounds) for t, s in enumerate(N_OF_FIT * settings)]
    return [*fit, *settings]


def make_round(setting: Setting, seed: int = 0, **view) -> MockRound:
    """Return one round of :func:`round_maker`."""
    return round_maker(setting, **view)(seed)


def round_maker(
    setting: Setting,
    *,
    losses: np.ndarray = LOSSES,
    sizes: np.ndarray = SIZES,
    reported: np.ndarray = REPORTED,
    seconds: np.ndarray = SECONDS,
    available: np.ndarray | None = None,
    order: np.ndarray | None = None,
    memory: Mapping[str, Any] | None = None,
    needs: Iterable[str] = tuple(NEEDS),
    same_past: bool = False,
    scale: np.ndarray | None = None,
) -> Callable[[int], MockRound]:
    """Return a function of the seed that makes rounds of the clients above.

    ``order`` renumbers them. With ``same_past``, clients that are alike in the setting have been
    chosen and polled equally often, in the same rounds, and have the same updates and gradients. A
    loss that is reported as NaN is that of a client whose training failed, in any setting. Updates,
    gradients and norms are multiplied by the ``scale`` of their clients.
    """
    order = np.arange(N_CLIENTS) if order is None else order
    available = setting.of_clients("available") if available is None else available
    failed = setting.of_clients("failed") | np.isnan(reported)
    known = np.where(setting.of_clients("new"), np.inf, reported)
    past = _past(setting, reported, seconds, same_past)
    scale = np.ones(N_CLIENTS) if scale is None else scale
    past |= {name: past[name] * scale[:, None] for name in ("updates", "last_layer")}
    arguments: dict[str, Any] = {
        "losses": losses[order],
        "sizes": sizes[order],
        "priority_weights": setting.of_clients("priority")[order],
        "available": available[order],
        "reported": np.where(failed, np.nan, known)[order],
        "seconds": np.where(setting.of_clients("timed"), seconds, np.nan)[order],
        "expected_seconds": seconds[order] if setting.devices else None,
        "index": setting.index,
        "n_rounds": setting.n_rounds,
        "sketches": (scale[:, None] * _vectors(2, SKETCH_SIZE, same_past))[order],
        "norms": (scale * (1.0 if same_past else losses * sizes))[order],
        "past": {name: values[order] for name, values in past.items()},
        "memory": memory,
        "needs": needs,
    }
    return lambda seed: mock_round(**arguments, rng=np.random.default_rng((SEED, seed)))


def _past(
    setting: Setting, reported: np.ndarray, seconds: np.ndarray, same: bool
) -> dict[str, np.ndarray]:
    """Return the past of the clients: nothing of new ones, and no time of those not timed."""
    new, timed = setting.of_clients("new"), setting.of_clients("timed")
    ranks = np.zeros(N_CLIENTS, int) if same else np.arange(N_CLIENTS)
    known = {
        "loss_mean": reported,
        "loss_std": 0.1 * reported,
        "loss_rms": 1.05 * reported,
        "updates": _vectors(0, SKETCH_SIZE, same),
        "last_layer": _vectors(1, 3, same),
    }
    masks = {name: new.reshape(-1, *[1] * (np.ndim(v) - 1)) for name, v in known.items()}
    return {
        "n_polled": np.where(new, 0, ranks % 4),
        "n_chosen": np.where(new, 0, 1 + ranks % 3),
        "last_chosen": np.where(new, -1, np.maximum(setting.index - 1 - ranks % 5, 0)),
        "seconds": np.where(timed & ~new, seconds, np.nan),
    } | {name: np.where(masks[name], np.nan, values) for name, values in known.items()}


def _vectors(seed: int, n: int, same: bool) -> np.ndarray:
    """Return a vector for each client, which are equal or not."""
    vectors = np.random.default_rng(seed).normal(size=(N_CLIENTS, n))
    return np.tile(vectors[0], (N_CLIENTS, 1)) if same else vectors


def shuffled_losses(seed: int) -> dict[str, Any]:
    """Return other losses of the clients, answered and reported."""
    rng = np.random.default_rng(seed)
    return {"losses": rng.permutation(LOSSES), "reported": rng.permutation(REPORTED)}
