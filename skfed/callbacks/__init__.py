"""Callbacks once a round.

:class:`~skfed.callbacks.RoundCallback` is for a record of each round as it ends.

The callbacks of skorch, in the net, and of scikit-learn are called once a round too. The rest of
this package adapts them, and has the progress bar.
"""

from skfed.callbacks._round import RoundCallback

__all__ = ["RoundCallback"]
