"""What a fit goes back to where it fails: the state after the last whole round."""

from skfed.callbacks._skorch import RoundCallbacks
from skfed.nets import State, get_state, set_state
from skfed.server._state import ServerState


class LastRound:
    """Keeps the state of a server and of its net's callbacks after a round that is whole.

    Before the first round of a fit it is that before the fit.
    """

    def __init__(self, server: ServerState, callbacks: RoundCallbacks):
        self.server, self.callbacks = server, callbacks
        self.keep()

    def keep(self) -> None:
        """Make the rounds so far those that are kept."""
        server = self.server
        fields, model = dict(vars(server)), get_state(server.net)
        # One assignment: an interrupt finds all of a round kept, or nothing of it.
        self._kept = len(server.rows), fields, model, self.callbacks.kept()

    @property
    def model(self) -> State:
        """A copy of the model, not to be changed."""
        return self._kept[2]

    def current_model(self) -> State:
        """Return the net's model, copied anew only where the net's callbacks may have changed it.

        Between rounds nothing else does.
        """
        return get_state(self.server.net) if self.callbacks.callbacks else self.model

    def restore(self) -> None:
        """Undo what has happened since ``keep``."""
        n_rounds, fields, model, restore_callbacks = self._kept
        vars(self.server).update(fields)
        self.server.past.undo(n_rounds)
        del self.server.rows[n_rounds:]
        set_state(self.server.net, model)
        restore_callbacks()
