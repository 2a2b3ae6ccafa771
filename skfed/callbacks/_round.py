"""The callback that gets the record of each round."""

from abc import ABC, abstractmethod
from typing import Any

from skfed.callbacks._sklearn import IdleFitCallback, callbacks_of


class RoundCallback(IdleFitCallback, ABC):
    """Base class of callbacks that are called with a record of each round.

    A subclass implements ``on_round_end``. ``model.set_callbacks(callback)`` of a federated
    estimator takes it, beside scikit-learn's own callbacks. Fitting a Pipeline or a search that was
    given one is a TypeError, and so is one in the ``callbacks`` of a net. It is called in ``fit``,
    ``partial_fit`` and over Flower, in the order of ``set_callbacks``, at the server, after all
    else in a round: the record is complete, and the checkpoint is written if it is due.

    Rounds that were read from a checkpoint are not reported again. A round is run and reported
    again only if the process ended before its checkpoint was written, as it may with
    ``checkpoint_every`` above 1; the records then have the same ``round``.

    An error ends the fit and reaches its caller with a note that names the callback and the round.
    As after Ctrl-C, the estimator keeps the finished rounds, that one too, and a fit with
    ``warm_start=True`` continues from it.

    Clones share the callback, so in a search it is called for each candidate and fold; with
    ``n_jobs`` in processes each has a copy, whose attributes are lost: write to a file or a server.

    See Also
    --------
    skorch.callbacks.Callback : Its ``on_epoch_end`` is called once a round with the global net.
    sklearn.callback.FitCallback : Called once a round with the model as an estimator, if it asks
        for ``fitted_estimator``.
    skfed.history : What the columns of a record mean.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.callbacks import RoundCallback
    >>> class Print(RoundCallback):
    ...     def on_round_end(self, estimator, record):
    ...         loss = round(record["train_loss"], 2)
    ...         print(f"round {record['round']}: {loss}")
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(n_rounds=2, random_state=0)
    >>> model.set_callbacks(Print()).fit(X, y, clients=y)
    round 0: 0.82
    round 1: 0.67
    FederatedClassifier(...)
    """

    def setup(self, estimator: Any, context: Any) -> None:
        """Raise a TypeError if the estimator has no rounds, as a Pipeline or a search."""
        if not hasattr(estimator, "n_rounds"):
            raise TypeError(
                f"{type(self).__name__} is called after each round, and {type(estimator).__name__} "
                "has none: call set_callbacks of the federated estimator in it."
            )

    @abstractmethod
    def on_round_end(self, estimator: Any, record: dict[str, Any]) -> None:
        """Called after each round.

        Parameters
        ----------
        estimator : FederatedClassifier or FederatedRegressor
            The estimator that is being fitted; its parameters say which run this is. Until the fit
            ends it has no fitted attributes, or those of the fit before.
        record : dict
            The round's row of ``history_``, by column. It may be changed.
        """


def call_on_round_end(estimator: Any, record: dict[str, Any]) -> None:
    """Call an estimator's RoundCallbacks, each with a copy of the record."""
    for callback in callbacks_of(estimator):
        if isinstance(callback, RoundCallback):
            try:
                callback.on_round_end(estimator, dict(record))
            except Exception as error:
                name = f"{type(callback).__name__}.on_round_end"
                error.add_note(f"{name}, called after round {record['round']}, raised this")
                vars(error)[_MARK] = True
                raise


_MARK = "_skfed_round_callback"


def is_of_callback(error: BaseException) -> bool:
    """Return whether an error was raised by a RoundCallback."""
    return _MARK in vars(error)
