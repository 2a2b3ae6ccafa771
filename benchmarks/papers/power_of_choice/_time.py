"""Simulated time of power-of-choice on Fashion-MNIST: devices, settings, columns, claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.papers.claims import Equal, of_seeds
from benchmarks.papers.experiment import Column
from benchmarks.papers.power_of_choice._images import CALIBRATED_LR, fashion_mnist
from benchmarks.runs.settings import Setting
from skfed.devices import BaseDevices, LognormalDevices

_INSTANT = 1e12  # bytes a second


def computing(rows_per_second: float, spread: float) -> LognormalDevices:
    """Return devices on which computation alone takes time, as in the paper's t_comp."""
    return LognormalDevices(
        rows_per_second,
        _INSTANT,
        _INSTANT,
        rows_sigma=spread,
        bytes_down_sigma=0.0,
        bytes_up_sigma=0.0,
    )


@dataclass(frozen=True, kw_only=True)
class Clocked(Setting):
    """A setting with devices, whose table has ``elapsed``, the simulated seconds so far."""

    def results(self, strategy, seed, history):
        frame = super().results(strategy, seed, history)
        return frame.assign(elapsed=history["elapsed"])


def clocked(
    name: str,
    alpha: float,
    devices: BaseDevices,
    strategies: Mapping[str, Mapping[str, Any]],
    n_rounds: int,
) -> Clocked:
    """Return the setting of Tables 1 and 2 with devices."""
    whole = fashion_mnist(alpha, CALIBRATED_LR)
    kept = {key: getattr(whole, key) for key in Setting.__dataclass_fields__}
    return Clocked(
        **kept
        | {
            "name": f"{whole.name}-{name}",
            "training": {**whole.training, "devices": devices},
            "strategies": strategies,
            "n_rounds": n_rounds,
            "loss_every": n_rounds,
        }
    )


def seconds_a_round(table: pd.DataFrame, strategy: str) -> np.ndarray:
    """Return each seed's mean simulated seconds of a round."""
    elapsed = of_seeds(table, strategy, "elapsed")
    return elapsed.iloc[-1].to_numpy() / len(elapsed)


def seconds_to(table: pd.DataFrame, strategy: str, level: float) -> np.ndarray:
    """Return each seed's simulated seconds until a test accuracy was reached; NaN if it was not."""
    reached = of_seeds(table, strategy, "test_accuracy") >= level
    elapsed = of_seeds(table, strategy, "elapsed").to_numpy()
    first = elapsed[reached.to_numpy().argmax(axis=0), np.arange(elapsed.shape[1])]
    return np.where(reached.any(), first, np.nan)


def seconds_over(strategy: str, than: str, level: float) -> Callable[[pd.DataFrame], np.ndarray]:
    """Measure the seconds of a strategy to a test accuracy as a share of another's.

    If the other never reaches it, the seconds of all its rounds are taken.
    """

    def measure(table: pd.DataFrame) -> np.ndarray:
        others = seconds_to(table, than, level)
        whole = of_seeds(table, than, "elapsed").iloc[-1].to_numpy()
        return seconds_to(table, strategy, level) / np.where(np.isnan(others), whole, others)

    return measure


SIMULATED = Column("simulated seconds a round", seconds_a_round, "{:.3f}", with_share=True)
SECONDS_TO_60 = Column(
    "simulated seconds to 60%",
    lambda table, strategy: seconds_to(table, strategy, 0.6),
    "{:.0f}",
    with_share=True,
)


@dataclass(frozen=True, kw_only=True)
class Printed(Equal):
    """The paper prints a number of two digits.

    It holds when the mean is within a standard error of it, half of its last digit allowed.
    """

    half_digit: float = 0.005

    def verdict(self, mean, error):
        return super().verdict(mean, error + self.half_digit)
