"""FedCor: clients whose changes of the loss tell most about those of all others.

Tang, Ning, Wang, Sun, Wang, Li, Chen: FedCor: Correlation-Based Active Client Selection Strategy
for Heterogeneous Federated Learning, CVPR 2022 (arXiv:2103.13822).
"""

from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, cohort_size
from skfed.selection._gaussian_process import DIMENSION, fitted_embeddings, greedy_picks
from skfed.utils._blas import one_blas_thread
from skfed.utils._sklearn import Interval

# Beyond it a change is as none: its square is finite, and so is all that is made of it.
_LARGEST_CHANGE = 1e50


class FedCorSelector(BaseSelector):
    r"""Take one by one the clients whose change of the loss goes with that of the objective.

    What a round changes in the clients' losses is taken for a draw from a Gaussian of mean 0 with
    the covariance Sigma = X X' + sigma^2 I, where X has a row of 15 numbers, an embedding, for each
    client, and sigma = 0.01. The clients that train are picked one after the other, each as

    .. math::

       \arg\max_k \; \alpha_k \frac{\sum_i p_i \Sigma_{ik}}{\sqrt{\Sigma_{kk}}}

    among the available ones; Sigma is then conditioned on the change of the one that was picked,
    and the next is picked. Ties are broken at random. p_i is the part of client i in the objective:
    D_i / sum of D without priority; with it, s_i D_i over the sum of these, so that free clients
    are picked for what they tell about the priority clients. alpha_k begins with 1, and is
    multiplied by ``discount`` each time that client k is picked. Updates are averaged with equal
    weights.

    X is fitted at the end of a warm-up, in which cohorts are drawn uniformly, and again every
    ``interval`` rounds. All alpha are 1 again then.

    Parameters
    ----------
    clients_per_round : int, float or None, default=None
        m; a float in (0, 1] is a fraction of all clients, rounded down, at least 1. Capped by the
        number of available clients. None is a tenth of the clients, but at least ten, and at most
        half of them: 2 of 4 clients, 10 of 40, 400 of 4,000. The authors' experiments take 5 of
        100.
    warmup : int, default=15
        The number of rounds before X is fitted. A fit of no more rounds than that draws all of its
        cohorts uniformly, and ends with a warning. 15 is in the authors' README for Fashion-MNIST,
        as are the defaults below; 20 for CIFAR-10.
    interval : int, default=10
        The number of rounds from one fit to the next; the paper's Delta t. 50 for CIFAR-10.
    discount : float, default=0.95
        The paper's beta, in (0, 1]. 1 discounts nobody. 0.9 for CIFAR-10.
    gamma : float, default=0.95
        How much less a sample counts in a fit for each round of its age, in (0, 1]. 0.99 for
        CIFAR-10.
    kept_rounds : int, default=100
        The age in rounds up to which samples are kept. 500 for CIFAR-10.

    See Also
    --------
    skfed.PowerOfChoice : Polls candidates for their loss alone, in every round.

    Notes
    -----
    Samples are changes of the loss of all clients in reach, by a cohort drawn uniformly:

    - In the warm-up all in reach are polled in each round, and once more in the round after. A
      sample is the change from one poll to the next, by the round's own cohort.
    - Later, in every ``interval``-th round, m clients train on trial, all in reach are polled
      before and after, and that model is thrown away. A client that fails in a trial is left out
      of the round's cohort.

    A round is one in which this rule was asked: one in which nobody was available changes nothing.

    A fit maximises the likelihood of the samples, each weighted by ``gamma`` to the power of its
    age in rounds. If everybody answered each time, the maximum is known in closed form, from a
    singular value decomposition of the samples (that of probabilistic principal component analysis
    with a known sigma). A client that did not answer is left out of a sample, which has the
    marginal distribution of the others then; from the closed form with 0 for what is missing, up to
    50 steps of L-BFGS-B descend.

    - A client that answered in none of the samples kept has the embedding 0: it is independent of
      the others, and comes after those that tell something, by p_k.
    - A sample in which no loss changed, since nobody came back, is no sample. While there are none,
      or changes are so small beside sigma that X is 0, cohorts are drawn uniformly.
    - A change that is not finite, or above 1e50, is as no answer.
    - Sigma is never singular, as sigma^2 is added. Since X has rank 15, little but sigma^2 is left
      of it after some dozens of picks: the next go mainly by p_k.
    - If fewer than m clients are available, all of them train.

    The text of the paper could not be read for this. The rules are those of its authors' code
    (Yoruko-Tang/FedCor, branch fedcor_new, ``src/GPR.py`` and ``src/federated_main.py``), which
    differs in this: its warm-up has one round more; it fits by Adam, with a rate of 0.01, from a
    random X first and the last X later, 1,000 steps after the warm-up (or 150 in each of its
    rounds) and 100 in each later fit; it fits in rounds of an index that ``interval`` divides,
    after the training; and with ``--update_mean``, which its README has but is not its default,
    the mean of the samples is taken off them. Its options are by default 25, 5, 0.9, 0.8 and 10 for
    ``warmup``, ``interval``, ``discount``, ``gamma`` and ``kept_rounds``. A published mistake is to
    leave out p_i.

    A poll of all sends the model to each and 8 bytes back. There are ``warmup`` + 1 of them, in as
    many rounds, and then two in each ``interval``-th round, in which m clients also train and
    upload once more. With defaults and K clients, a fit of 100 rounds polls 32 K times and trains
    8 m times on trial. Other rounds cost nothing more.

    A selection takes time in proportion to K m, and a fit in proportion to K: 0.015 s both for
    1,000 clients with m = 100, if all answered (``python -m pytest benchmarks -k selection``); a
    fit with gaps takes many times as long. The memory has K (17 + the number of samples kept)
    numbers.

    Examples
    --------
    >>> from skfed import FedCorSelector
    >>> FedCorSelector(clients_per_round=10, warmup=5)
    FedCorSelector(clients_per_round=10, warmup=5)
    """

    _parameter_constraints = {
        "clients_per_round": [*CLIENT_COUNT, None],
        "warmup": [Interval(Integral, 1, None, closed="left")],
        "interval": [Interval(Integral, 1, None, closed="left")],
        "discount": [Interval(Real, 0, 1, closed="right")],
        "gamma": [Interval(Real, 0, 1, closed="right")],
        "kept_rounds": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        clients_per_round=None,
        warmup=15,
        interval=10,
        discount=0.95,
        gamma=0.95,
        kept_rounds=100,
    ):
        self.clients_per_round = clients_per_round
        self.warmup = warmup
        self.interval = interval
        self.discount = discount
        self.gamma = gamma
        self.kept_rounds = kept_rounds

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return m / K and who is polled in the warm-up; later rounds depend on earlier ones."""
        n_clients, t = len(round.sizes), round.memory.get("n_rounds", 0)
        if t >= self.warmup:
            return {}
        m = cohort_size(self.clients_per_round, round)
        polled = np.full(n_clients, float(self._is_observed(t)))
        return {"polled": polled, "chosen": np.full(n_clients, m / n_clients)}

    def warning_after(self, rows, free, n_rounds):
        """Return a warning if no round came after the warm-up."""
        if n_rounds > self.warmup:
            return None
        return (
            f"FedCorSelector(warmup={self.warmup}) drew the cohorts of all {n_rounds} rounds "
            "uniformly: raise n_rounds, or lower warmup."
        )

    def _select(self, round: Round) -> Cohort:
        m = cohort_size(self.clients_per_round, round)
        memory = _initial(len(round.sizes)) | dict(round.memory)
        t = memory["n_rounds"]
        if self._is_observed(t):
            memory |= self._observed(round, memory, m)
        if self._is_fitted(t):
            memory |= self._fitted(memory)
        if t < self.warmup or not memory["embeddings"].any():
            chosen = round.draw(m, by_size=False)
        else:
            chosen = self._picks(round, memory, m)
            memory["discounts"] = memory["discounts"].copy()
            memory["discounts"][chosen] *= self.discount
        return replace(Cohort.mean(chosen), memory=memory | {"n_rounds": t + 1})

    def _is_fitted(self, t: int) -> bool:
        return t >= self.warmup and (t - self.warmup) % self.interval == 0

    def _is_observed(self, t: int) -> bool:
        """Tell whether losses are asked for, as those of a sample that is kept."""
        oldest = self.warmup - self.kept_rounds
        return oldest - 1 <= t < self.warmup or self._is_fitted(t)

    def _observed(self, round: Round, memory: dict[str, Any], m: int) -> dict[str, np.ndarray]:
        """Return the samples with the one that this round's polls give, and the losses."""
        clients, t = np.flatnonzero(round.available), memory["n_rounds"]
        losses = np.full(len(round.sizes), np.nan)
        losses[clients] = round.poll(clients)
        before, after = memory["losses"], losses
        if t > self.warmup:
            trial = round.trial(Cohort.mean(round.draw(m, by_size=False)))
            before, after = losses, np.full(len(losses), np.nan)
            after[clients] = trial.poll(clients)
        with np.errstate(invalid="ignore", over="ignore"):
            change = after - before
        change[~(np.abs(change) <= _LARGEST_CHANGE)] = np.nan
        observed = {"losses": losses if t < self.warmup else np.full(len(losses), np.nan)}
        if np.nan_to_num(change).any():
            observed["changes"] = np.column_stack([memory["changes"], change])
            observed["rounds"] = np.append(memory["rounds"], t)
        return observed

    def _fitted(self, memory: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the samples that are kept, X fitted to them, and alpha = 1."""
        ages = memory["n_rounds"] - memory["rounds"]
        kept = ages <= self.kept_rounds
        changes, embeddings = memory["changes"][:, kept], memory["embeddings"]
        if kept.any():
            # The newest counts 1, so that not all weights can be rounded to 0.
            weights = np.power(float(self.gamma), ages[kept] - ages[kept].min())
            with one_blas_thread():
                embeddings = fitted_embeddings(changes, weights)
        return {
            "changes": changes,
            "rounds": memory["rounds"][kept],
            "embeddings": embeddings,
            "discounts": np.ones(len(embeddings)),
        }

    def _picks(self, round: Round, memory: dict[str, Any], m: int) -> np.ndarray:
        shares = round.priority_weights * round.fractions
        embeddings, discounts = memory["embeddings"], memory["discounts"]
        with one_blas_thread():
            return greedy_picks(embeddings, shares, discounts, round.available, m, round.rng)


def _initial(n_clients: int) -> dict[str, Any]:
    """Return the memory before the first round."""
    return {
        "n_rounds": 0,
        "losses": np.full(n_clients, np.nan),
        "changes": np.empty((n_clients, 0)),
        "rounds": np.empty(0, dtype=np.int64),
        "embeddings": np.zeros((n_clients, DIMENSION)),
        "discounts": np.ones(n_clients),
    }
