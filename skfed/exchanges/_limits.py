"""When an exchange ends before all clients have answered; the same in a simulation and over Flower.

Bonawitz et al.: Towards Federated Learning at Scale: System Design, MLSys 2019 (the goal of
reports, section 2.2).
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from skfed.exchanges._kinds import Kind
from skfed.selection._counts import count_clients


@dataclass(frozen=True)
class Limits:
    """The deadline of each exchange, and the goal of reports of a training."""

    deadline: float | None
    report_goal: float | None

    def goal(self, kind: Kind, n_clients: int) -> float:
        """Return the number of clients with whose answers an exchange ends; infinity if all."""
        if not kind.has_goal or self.report_goal is None:
            return inf
        return min(count_clients(self.report_goal, n_clients), n_clients)

    def end(self, kind: Kind, seconds: np.ndarray) -> float:
        """Return the seconds after which an answer is late; infinity if none is.

        ``seconds`` are those of the answers of distinct clients, NaN without one.
        """
        goal, answers = self.goal(kind, len(seconds)), np.sort(seconds[~np.isnan(seconds)])
        reached = float(answers[int(goal) - 1]) if 0 < goal <= len(answers) else inf
        return reached if self.deadline is None else min(float(self.deadline), reached)
