"""Scores of a model client by client, for which clients it is useful, and what it cost.

Classifiers are measured by accuracy, regressors by R^2.

A fair federation, in the sense of FedALIGN (its introduction and Figure 3), is one whose model is
useful to many of all clients: better than what each could train alone. Where clients differ,
:func:`personalised_scores` scores a copy of the model for each, which it has fine-tuned.

The scorers for ``scoring=`` in a search or a cross-validation are, for accuracy and for R^2,
that of the priority clients' rows (``priority_accuracy``, ``priority_r2``), that of the other
clients' rows (``free_``), and the mean (``mean_client_``) and the lowest (``worst_client_``) over
clients; ``priority_neg_log_loss`` is minus the objective. To add a scorer, define a
``ClientScorer`` in ``_scorers.py`` and name it below.
"""

from skfed.metrics._clients import client_scores, summarise_clients, usefulness
from skfed.metrics._contributions import round_contributions
from skfed.metrics._costs import client_evaluations, client_exchanges, cost_to
from skfed.metrics._cross import cross_client_scores
from skfed.metrics._personalised import personalised_scores
from skfed.metrics._scorers import (
    free_accuracy,
    free_r2,
    mean_client_accuracy,
    mean_client_r2,
    priority_accuracy,
    priority_neg_log_loss,
    priority_r2,
    worst_client_accuracy,
    worst_client_r2,
)

__all__ = [
    "client_evaluations",
    "client_exchanges",
    "client_scores",
    "cost_to",
    "cross_client_scores",
    "free_accuracy",
    "free_r2",
    "mean_client_accuracy",
    "mean_client_r2",
    "personalised_scores",
    "priority_accuracy",
    "priority_neg_log_loss",
    "priority_r2",
    "round_contributions",
    "summarise_clients",
    "usefulness",
    "worst_client_accuracy",
    "worst_client_r2",
]
