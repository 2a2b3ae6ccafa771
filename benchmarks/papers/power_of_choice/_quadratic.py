"""Power-of-choice on quadratic objectives (appendix F)."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from sklearn.utils import Bunch
from skorch import NeuralNetClassifier

from benchmarks.runs.problems import quadratic, quadratic_data
from benchmarks.runs.settings import N_LAST, Setting
from skfed import PowerOfChoice, RandomSelector
from skfed.modules import MeanOutput, Quadratic
from skfed.schedules import StepDecay

RAND, ADAPOWD = "rand", "adapow-d"
EVERY = 10


@dataclass(frozen=True, kw_only=True)
class QuadraticSetting(Setting):
    """A setting that measures F(w) - F* in closed form; there are no test rows.

    As there are many rounds, its table has one in ``EVERY``, and the last ones. The last round has
    the number of times that each client was selected.
    """

    n_clients: int

    @property
    def powds(self) -> list[str]:
        """Names of the power-of-choice strategies with a fixed d, by d."""
        return [name for name in self.strategies if name not in (RAND, ADAPOWD)]

    def data(self, seed):
        return self.problem(seed)  # never thinned: a client's size is its number of rows

    def measures(self, problem, device):
        data = quadratic_data(self.n_clients)
        h = self.curvatures(data)
        p = np.bincount(problem.clients) / len(problem.clients)

        def measure(net):
            w = net.module_.w.detach().cpu().numpy()
            squares = ((w - data.local_optima) ** 2).sum(axis=1)
            return {"global_gap": p @ (h / 2 * squares) - data.minimum}

        return measure

    def results(self, strategy, seed, history):
        frame = super().results(strategy, seed, history)
        counts = np.bincount(np.concatenate(history["cohort"].to_list()), minlength=self.n_clients)
        frame["selections"] = None
        frame.loc[frame.index[-1], "selections"] = " ".join(map(str, counts))
        t = frame["round"]
        return frame[(t % EVERY == 0) | (t >= self.n_rounds - N_LAST)]

    @staticmethod
    def curvatures(data: Bunch) -> np.ndarray:
        """Return h_k of each client."""
        first = np.unique(data.clients, return_index=True)[1]
        return data.X[first, 0]


def powd(d: int) -> str:
    return f"pow-d, d={d}"


def net() -> NeuralNetClassifier:
    """Return F_k(w) as a net; a batch is one row, as all rows of a client are equal."""
    return NeuralNetClassifier(
        Quadratic, module__n_dims=5, criterion=MeanOutput, lr=2e-5, batch_size=1
    )


def setting(n_clients: int, candidates: tuple[int, ...], n_rounds: int) -> QuadraticSetting:
    """Return K clients, of which a tenth takes tau=2 steps a round."""
    m = n_clients // 10
    # All rows of a client are equal, so the loss of one row is the loss of all.
    poll = partial(PowerOfChoice, clients_per_round=m, loss="batch")
    return QuadraticSetting(
        name=f"pow-quadratic-K{n_clients}",
        n_clients=n_clients,
        problem=partial(quadratic, n_clients=n_clients),
        net=net,
        training={"local_steps": 2, "engine": "stacked"},
        strategies={
            RAND: {"selector": RandomSelector(m)},
            **{powd(d): {"selector": poll(d=d)} for d in candidates},
            ADAPOWD: {"selector": poll(d=StepDecay(n_clients, 0.5, 5000))},
        },
        n_rounds=n_rounds,
    )


# adapow-d halves d every 5000 rounds, so that d is m after 20,000. At K=30 it is then farther from
# the optimum, and its gap reaches that of rand only after 25,000 rounds.
FEW = setting(30, (6, 15, 30), n_rounds=30_000)
MANY = setting(100, (15, 30, 100), n_rounds=25_000)
