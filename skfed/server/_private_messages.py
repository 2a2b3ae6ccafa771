"""The messages that clients have sent with privacy, counted for :func:`privacy_spent`."""

from collections import Counter
from collections.abc import Sequence

from skfed._federation import Federation
from skfed.exchanges import POLL, Exchange
from skfed.server._config import RoundConfig
from skfed.server._state import ServerState


def count_messages(
    server: ServerState,
    federation: Federation,
    exchanges: Sequence[Exchange],
    config: RoundConfig,
) -> None:
    """Count the updates and losses sent with privacy in a round; each update comes with a loss."""
    if config.update_privacy is None and config.loss_privacy is None:
        return
    of_update, of_loss = (
        0.0 if mechanism is None else float(mechanism.noise_multiplier)
        for mechanism in (config.update_privacy, config.loss_privacy)
    )
    # Clients that trained to the end, and so sent an update. A report has the norm of one, without
    # noise: a rule with two phases is refused under update_privacy. It counts as the update, and
    # the upload, which follows it, does not count again.
    trained = [k for e in exchanges if e.kind.trains for k in e.clients[e.was_sent]]
    polled = [k for e in exchanges if e.kind is POLL for k in e.clients[e.was_sent]]
    sent: dict[bytes, Counter[tuple[str, float]]] = {}
    for k in trained:
        sent.setdefault(federation.digest(k), Counter())["update", of_update] += 1
    for k in (*trained, *polled):
        sent.setdefault(federation.digest(k), Counter())["loss", of_loss] += 1
    server.messages = server.messages | {
        key: Counter(server.messages.get(key, {})) + n for key, n in sent.items()
    }
    server.private_rounds = (*server.private_rounds, server.round)
