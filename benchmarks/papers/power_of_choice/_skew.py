"""Estimates of the selection skew (power-of-choice, Definition 3.2) on quadratic objectives."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.papers.power_of_choice._quadratic import QuadraticSetting
from benchmarks.runs.problems import quadratic_data
from skfed.diagnostics import skew_range

N_POINTS, N_DRAWS = 50, 10_000  # the paper draws as many cohorts; it does not state its grid


@dataclass(frozen=True, kw_only=True)
class SkewSetting(QuadraticSetting):
    """A setting whose table has a row for each point w of a grid, in place of a round.

    ``lowest`` is the least rho(S(pi, w), w') over the grid, ``at_optimum`` rho(S(pi, w), w*).
    """

    @classmethod
    def of(cls, setting: QuadraticSetting) -> "SkewSetting":
        """Return the estimates for the strategies of a setting."""
        kept = {key: getattr(setting, key) for key in setting.__dataclass_fields__}
        return cls(**kept | {"name": f"{setting.name}-skew", "n_rounds": N_POINTS})

    def run(self, strategy, seed, device="cpu", tick=int):
        data = quadratic_data(self.n_clients)
        h, sizes = self.curvatures(data), np.bincount(data.clients)

        def losses(w):
            return h / 2 * ((w - data.local_optima) ** 2).sum(axis=1)

        skews = skew_range(
            self.strategies[strategy]["selector"],
            [losses(w) for w in self._grid(seed, data)],
            np.zeros(self.n_clients),
            losses(data.optimum),
            sizes=sizes,
            n_draws=N_DRAWS * self.n_rounds // N_POINTS,  # fewer where a run is shortened
            random_state=seed,
        )
        for _ in range(self.n_rounds):
            tick()
        return pd.DataFrame(
            {"strategy": strategy, "seed": seed, "round": range(self.n_rounds), **skews}
        )

    def _grid(self, seed: int, data) -> np.ndarray:
        """Return points at distances from w* up to the farthest of the local optima and 0."""
        rng = np.random.default_rng(seed)
        directions = rng.normal(size=(self.n_rounds, len(data.optimum)))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        points = np.vstack([data.local_optima, np.zeros_like(data.optimum)])
        farthest = np.linalg.norm(points - data.optimum, axis=1).max()
        return data.optimum + directions * np.linspace(0, farthest, self.n_rounds)[:, None]
