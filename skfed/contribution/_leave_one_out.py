"""What is lost without a client."""

import numpy as np

from skfed.contribution._base import BaseContribution, Gains, Values


class LeaveOneOut(BaseContribution):
    """What the round's gain would lack without a client: v(N) - v(N without i).

    Parameters
    ----------
    metric : {"loss", "accuracy"}, default="loss"
        What the gain is of: a lower loss, or a higher accuracy.
    evaluate_on : {"priority", "validation"}, default="priority"
        Where models are evaluated: by the priority clients in reach, which is charged, or by the
        server on ``X_val``.
    every : int, default=1
        Rounds from one that is valued to the next.

    See Also
    --------
    DataBanzhaf : Asks also what a client adds to fewer others.

    Notes
    -----
    It guarantees that a client that changes no subset's model, such as one of weight 0, is worth 0,
    and that clients whose updates and weights are the same are worth the same. Nothing is drawn:
    the errors are 0.

    A round of m clients costs m + 1 models, evaluated side by side (1 of a client alone).

    Known against it: of two clients that can stand in for each other neither is worth anything,
    though the federation needs one of them. In the example A and B alike give .4 and C adds .2 to
    either, but A and B are worth 0. The values do not sum to the round's gain.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.contribution import LeaveOneOut
    >>> def gains(subsets):  # of A, B and C
    ...     a_or_b = subsets[:, :2].any(axis=1)
    ...     return 0.4 * a_or_b + 0.2 * (a_or_b & subsets[:, 2])
    >>> worth = LeaveOneOut().values(gains, 3, np.random.default_rng(0))
    >>> worth.values.round(4).tolist()
    [0.0, 0.0, 0.2]
    """

    def _values(self, gains: Gains, n_players: int, rng: np.random.Generator) -> Values:
        without = ~np.eye(n_players, dtype=bool)
        everyone = np.ones((1, n_players), dtype=bool)
        total, *rest = gains(np.concatenate([everyone, without]))
        return Values(total - np.array(rest), np.zeros(n_players))
