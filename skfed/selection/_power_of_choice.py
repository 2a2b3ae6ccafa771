"""Power-of-choice selection and its variants.

Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
Selection Strategies, 2020 (arXiv:2010.01243), section 4 and appendix F.
"""

import numpy as np

from skfed.schedules import BaseSchedule, value_at
from skfed.selection._base import BaseSelector, Cohort, Round
from skfed.selection._counts import CLIENT_COUNT, count_clients, count_or_default
from skfed.selection._sampling import inclusion_probabilities
from skfed.utils._sklearn import StrOptions

_MAX_SAMPLES = {"full": None, "batch": "batch"}


class PowerOfChoice(BaseSelector):
    """Poll d candidates for their loss and train the m of highest loss (pi_pow-d, section 4).

    The d candidates are drawn without replacement by p_k; the m with the highest loss of the
    current global model train, ties broken at random, and their updates are averaged with equal
    weights. Priority is not used: candidates are drawn by D_k over all available clients.

    Parameters
    ----------
    d : int, float, schedule, callable of the round or None, default=None
        Number of candidates, m <= d <= K; a float in (0, 1] is a fraction of all clients, rounded
        down, at least 1. Larger d converges faster, to a higher error floor. None is twice m, or
        all clients: 4 of 4 clients, 20 of 40, 800 of 4,000. Scheduled (adapow-d),
        it is a number of clients, rounded to the nearest integer and not less than m:
        ``StepDecay(K, 0.5, milestones=5000)`` halves it every 5000 rounds, and
        ``StepDecay(K, m / K, milestones=[0.5])`` takes it to m at half of the rounds.
    clients_per_round : int, float or None, default=None
        m, the number of clients that train; an int, or a fraction like ``d``. None is a tenth of
        the clients, but at least ten, and at most half of the candidates: 2 of 4 clients, 10 of
        40, 400 of 4,000; 3 with ``d=6``.
    loss : {"full", "batch", "reported"}, default="full"
        "full" polls the loss over all of a candidate's data (pow-d). "batch" polls it over
        min(b, D_k) random rows, for the net's batch size b (cpow-d). "reported" does not poll: it
        takes the mean minibatch loss that a client sent with its last update, +inf before its
        first (rpow-d).
    ignore_priority : bool, default=False
        If True, there is no warning that ``priority`` does not affect the choice.

    Raises
    ------
    ValueError
        If d > K, or if d < m for a d that is not scheduled. Both are capped by the number of
        clients available in a round.

    See Also
    --------
    skfed.RandomSelector : Random selection, with which it is compared.
    skfed.FedAlignSelector : For a model for some of the clients.

    Examples
    --------
    >>> from skfed import PowerOfChoice
    >>> PowerOfChoice(d=6, clients_per_round=3)
    PowerOfChoice(clients_per_round=3, d=6)
    """

    _parameter_constraints = {
        "d": [*CLIENT_COUNT, BaseSchedule, callable, None],
        "clients_per_round": [*CLIENT_COUNT, None],
        "loss": [StrOptions({"full", "batch", "reported"})],
        "ignore_priority": ["boolean"],
    }
    uses_priority = False

    def __init__(self, d=None, clients_per_round=None, loss="full", ignore_priority=False):
        self.d = d
        self.clients_per_round = clients_per_round
        self.loss = loss
        self.ignore_priority = ignore_priority

    def scheduled(self, round: Round) -> dict[str, float]:
        """Return d_t, in clients."""
        return {"d": self._counts(round)[0]}

    def marginals(self, round: Round) -> dict[str, np.ndarray]:
        """Return each candidate's inclusion by p_k; of tied candidates, m in d are chosen."""
        d, m = self._counts(round)
        candidates = inclusion_probabilities(round.sizes / round.sizes.sum(), d)
        polled = np.zeros_like(candidates) if self.loss == "reported" else candidates
        return {"polled": polled, "chosen": candidates * m / d}

    def _select(self, round: Round) -> Cohort:
        d, m = self._counts(round)
        # Shuffled before the stable sort, so that ties are broken at random whatever the order of
        # the draw.
        candidates = round.rng.permutation(round.draw(d))
        highest = np.argsort(-self._losses(round, candidates), kind="stable")[:m]
        return Cohort.mean(candidates[highest])

    def _losses(self, round: Round, candidates: np.ndarray) -> np.ndarray:
        """Return the losses that rank candidates; -inf if the client or its training failed."""
        if self.loss == "reported":  # +inf, never selected, ranks first
            losses = round.reported[candidates]
            return np.where(np.isnan(losses), -np.inf, losses)
        losses = round.poll(candidates, max_samples=_MAX_SAMPLES[self.loss])
        return np.where(np.isfinite(losses), losses, -np.inf)

    def _counts(self, round: Round) -> tuple[int, int]:
        """Return d and m as numbers of clients."""
        n_clients = len(round.sizes)
        if self.d is None:
            m = count_or_default(self.clients_per_round, n_clients)
            return min(2 * m, n_clients), m
        if isinstance(self.d, BaseSchedule) or callable(self.d):
            m = count_or_default(self.clients_per_round, n_clients)
            value = value_at(self.d, "d", round.index, round.n_rounds)
            d = max(int(min(value, n_clients + 1) + 0.5), min(m, n_clients))
        else:
            d = count_clients(self.d, n_clients)
            m = count_or_default(self.clients_per_round, n_clients, d)
            if d < m:
                raise ValueError(
                    f"d={self.d} gives {d} candidates, fewer than the {m} clients to train "
                    f"(clients_per_round={self.clients_per_round}): raise d or lower "
                    "clients_per_round."
                )
        if d > n_clients:
            raise ValueError(
                f"d={self.d} asks for more candidates than the {n_clients} clients there are: "
                f"pass d <= {n_clients}, or a fraction."
            )
        return d, m
