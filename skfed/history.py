"""What a round costs, and the table of all rounds, ``history_``.

Every round is charged what a real federation would pay. A model is the bytes of its parameters
and buffers, a scalar 8 bytes. There are two exchanges a round: the poll (the model down, a scalar
up) and the training (the model up; it is not sent down again to who was just polled). A client
drawn twice gets one model and returns two. SCAFFOLD's variates are one more model each way. The
training loss travels with the update and is not charged.

The columns of ``history_``, a row a round:

``round``
    t, from 0.
``objective``
    F(w_t) over the priority clients in reach, before the round, where all of them were polled for
    their loss; else NaN.
``train_loss``
    Mean of the cohort's training losses, weighted as their updates.
``val_loss``, ``val_score``
    On the validation data of the priority clients, after the round; there with ``X_val`` only.
``lr``
    The learning rate of the round's first local iteration.
``eps``, ``d``
    The selector's scheduled values, where it has them.
``models_down``, ``models_up``
    Models sent to clients, and by them.
``scalars_down``, ``scalars_up``
    Numbers sent to clients (the bound that FedALIGN sends along), and by them (answers to a poll).
``bytes_down``, ``bytes_up``
    Both of the above in bytes.
``samples_evaluated``, ``samples_trained``
    Rows that clients evaluated for polls, and rows that they trained on, once for each pass.
``n_polled``, ``n_trained``, ``n_aggregated``, ``n_failed``
    Clients asked, trained, aggregated, and failed: chosen without an answer, or with an exception,
    a loss or an update that is not finite.
``polled``, ``cohort``, ``failed``
    The ids of those polled, aggregated and failed, as tuples; a repeated draw stands twice.
``causes``
    Why those in ``failed`` failed.
``select_seconds``, ``train_seconds``, ``round_seconds``
    Wall time; selection includes its polls.
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
    """Return the history as a table, one row a round, with the columns named above."""
    return pd.DataFrame(rows)
