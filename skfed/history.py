"""What a round costs, and the table of all rounds, ``history_``.

Every round is charged what a real federation would pay. A model is the bytes of its parameters
and buffers, a scalar 8 bytes. There are two exchanges a round: the poll (the model down, a scalar
up) and the training (the model up; it is not sent down again to who was just polled). A client
drawn twice gets one model and returns two. The training loss travels with the update and is not
charged.

The table, ``history_``, has these columns, and what ``scheduled`` of a selector of one's own adds.
"X_val" means with validation data in fit; "FedALIGN" and "pow-d", with
:class:`~skfed.FedAlignSelector` and :class:`~skfed.PowerOfChoice`.

===================== ======= ======== ============================================================
column                unit    there    what it is
===================== ======= ======== ============================================================
``round``             index   always   t, from 0
``objective``         loss    always   F(w_t) over the priority clients in reach; NaN if not polled
``train_loss``        loss    always   the cohort's mean, weighted as its updates; NaN without any
``val_loss``          loss    X_val    of the model after the round; NaN between two validations
``val_score``         score   X_val    accuracy or R^2, likewise
``lr``                rate    always   the net's own, of the first local iteration
``eps``               loss    FedALIGN eps_t; an error, 1 - accuracy, with match="accuracy"
``d``                 clients pow-d    d_t, candidates
``models_down``       models  always   sent to clients, SCAFFOLD's variates too
``models_up``         models  always   sent by clients, SCAFFOLD's variates too
``scalars_down``      scalars always   bounds sent with a poll
``scalars_up``        scalars always   answers to polls; in round 0 also what was asked before it
``bytes_down``        bytes   always   of models and scalars down
``bytes_up``          bytes   always   of models and scalars up
``samples_evaluated`` rows    always   evaluated in polls
``samples_trained``   rows    always   trained on, a row as often as it stood in a minibatch
``n_polled``          clients always   asked for their loss or error
``n_trained``         updates always   trained to the end; of a client drawn twice, two
``n_aggregated``      updates always   aggregated; of a client drawn twice, two
``n_failed``          clients always   silent, or failed in the poll or in training; each once
``polled``            ids     always   who was asked, in that order
``cohort``            ids     always   whose updates were aggregated; a repeated draw stands twice
``failed``            ids     always   who failed, each once
``causes``            texts   always   why, one for each in ``failed``
``select_seconds``    seconds always   wall time of the selection and its polls
``train_seconds``     seconds always   wall time of training and aggregation
``round_seconds``     seconds always   wall time of the whole round, validation too
===================== ======= ======== ============================================================
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

SCALAR_BYTES = 8


@dataclass
class Ledger:
    """The account of one round.

    Parameters
    ----------
    model_bytes : int
        Bytes of one model.
    """

    model_bytes: int
    models_down: int = 0
    models_up: int = 0
    scalars_down: int = 0
    scalars_up: int = 0
    samples_evaluated: int = 0
    samples_trained: int = 0
    polled: list[int] = field(default_factory=list)  # client indices, in the order asked
    holders: set[int] = field(default_factory=set)  # who has this round's model

    def charge_poll(
        self, clients: np.ndarray, answered: np.ndarray, n_samples: np.ndarray, with_bound: bool
    ) -> None:
        """Charge a poll of ``clients``, of whom those in the mask ``answered`` sent a scalar."""
        self._send_model(clients)
        self.scalars_down += len(clients) if with_bound else 0
        self.scalars_up += int(answered.sum())
        self.samples_evaluated += int(n_samples.sum())
        self.polled.extend(clients.tolist())

    def charge_training(
        self, clients: np.ndarray, answers: np.ndarray, n_samples: int, with_variates: bool
    ) -> None:
        """Charge the training of ``clients``, of whom those in the mask ``answers`` sent a model.

        A client that stands twice trains twice. SCAFFOLD's variates are one more model each way.
        """
        self._send_model(clients)
        self.models_up += int(answers.sum())
        self.samples_trained += n_samples
        if with_variates:
            self.models_down += len(np.unique(clients))
            self.models_up += int(answers.sum())

    def _send_model(self, clients: np.ndarray) -> None:
        new = set(clients.tolist()) - self.holders
        self.models_down += len(new)
        self.holders |= new

    def totals(self) -> dict[str, int]:
        """Return the columns of ``history_`` that say what the round cost."""
        return {
            "models_down": self.models_down,
            "models_up": self.models_up,
            "scalars_down": self.scalars_down,
            "scalars_up": self.scalars_up,
            "bytes_down": self.models_down * self.model_bytes + self.scalars_down * SCALAR_BYTES,
            "bytes_up": self.models_up * self.model_bytes + self.scalars_up * SCALAR_BYTES,
            "samples_evaluated": self.samples_evaluated,
            "samples_trained": self.samples_trained,
        }


def to_frame(rows: list[dict[str, Hashable]]) -> pd.DataFrame:
    """Return the history as a table, one row a round; its columns are in the module's text."""
    return pd.DataFrame(rows)
