"""Splitters for federations: which clients, and which of their rows, are held out.

Both take the client of each row as ``groups``. With metadata routing on they request it as
``clients``, so that a search passes one array to splitter, estimator and scorer.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_consistent_length, check_random_state, check_scalar

from skfed._federation import Federation, make_federation
from skfed.utils._checks import naming

__all__ = ["LeaveClientsOut", "WithinClientKFold"]


class _FederatedSplitter(BaseEstimator, BaseCrossValidator):
    """Base class of splitters by client; a subclass implements ``_folds``.

    It is a ``BaseEstimator``, so that a search shows and sets its parameters (``cv__n_splits``).
    """

    __metadata_request__split = {"groups": "clients"}

    priority: Iterable | None = None  # a parameter of LeaveClientsOut

    def __init__(self, n_splits=5, *, shuffle=True, random_state=None):
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state

    def split(self, X, y=None, groups=None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the rows of train and test of each fold.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Data, of which only the length is used.
        y : object, default=None
            Not used.
        groups : array-like of shape (n_samples,)
            The client of each row: any hashable ids.

        Yields
        ------
        train, test : ndarray of int
            Row numbers.

        Raises
        ------
        ValueError
            If ``groups`` is missing or does not fit X, or there are too few clients.
        """
        check_scalar(self.n_splits, "n_splits", Integral, min_val=2)
        check_scalar(self.shuffle, "shuffle", (bool, np.bool_))
        with naming("X"):
            check_consistent_length(X)
            n_samples = X.shape[0] if hasattr(X, "shape") else len(X)
        if groups is None:
            raise ValueError(
                f"{type(self).__name__} splits by client: pass groups=, one client id a row of X. "
                "In a search, pass groups= to fit, or clients= with metadata routing on."
            )
        rng = check_random_state(self.random_state)
        with naming("groups", "priority"):
            federation = make_federation(groups, n_samples, self.priority)
        folds = self._folds(federation, n_samples, rng)
        for fold in range(self.n_splits):
            yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)

    def get_n_splits(self, X=None, y=None, groups=None) -> int:
        """Return the number of folds.

        Parameters
        ----------
        X, y, groups : object, default=None
            Not used.

        Returns
        -------
        int
            ``n_splits``.
        """
        return self.n_splits

    @abstractmethod
    def _folds(
        self, federation: Federation, n_samples: int, rng: np.random.RandomState
    ) -> np.ndarray:
        """Return the fold that tests each row; -1 for none."""


class WithinClientKFold(_FederatedSplitter):
    """Split every client's rows into folds, so that each client is in train and in test.

    It estimates the score on new data of the clients that a model was trained with.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds. A client with fewer rows is tested in as many folds as it has rows, one
        with a single row in none.
    shuffle : bool, default=True
        Assign a client's rows to folds at random; else in turn.
    random_state : int, RandomState instance or None, default=None
        Seed of the assignment.

    See Also
    --------
    skfed.model_selection.LeaveClientsOut : Holds out whole clients.
    sklearn.model_selection.KFold : Folds without regard to clients.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.model_selection import WithinClientKFold
    >>> clients = np.array(["a", "a", "b", "b", "b", "b"])
    >>> folds = WithinClientKFold(n_splits=2, random_state=0).split(
    ...     clients, groups=clients
    ... )
    >>> [clients[test].tolist() for _, test in folds]
    [['a', 'b', 'b'], ['a', 'b', 'b']]
    """

    def _folds(self, federation, n_samples, rng):
        folds = np.full(n_samples, -1)
        for k in range(len(federation)):
            rows = federation.rows(k)
            if len(rows) == 1:
                continue
            # A random first fold, so that the rows of small clients are not all in fold 0.
            first = rng.randint(self.n_splits) if self.shuffle else 0
            rows = rng.permutation(rows) if self.shuffle else rows
            folds[rows] = (first + np.arange(len(rows))) % self.n_splits
        return folds


class LeaveClientsOut(_FederatedSplitter):
    """Hold out whole clients, but none that has priority.

    It estimates the score for clients that a model has not seen. Since no test fold has rows of a
    priority client, use the scorers ``free_accuracy``, ``mean_client_accuracy`` and
    ``worst_client_accuracy`` (``_r2`` of a regressor) of :mod:`skfed.metrics`.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds; each client without priority is tested in one of them.
    priority : collection of client ids, default=None
        Clients that are always in train; None is no client.
    shuffle : bool, default=True
        Assign the clients to folds at random; else in their order.
    random_state : int, RandomState instance or None, default=None
        Seed of the assignment.

    See Also
    --------
    skfed.model_selection.WithinClientKFold : Splits the rows of each client.
    sklearn.model_selection.LeaveOneGroupOut : Holds out each group once.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.model_selection import LeaveClientsOut
    >>> clients = np.array(["paying", "x", "y", "y"])
    >>> splitter = LeaveClientsOut(
    ...     n_splits=2, priority=["paying"], shuffle=False
    ... )
    >>> [
    ...     clients[test].tolist()
    ...     for _, test in splitter.split(clients, groups=clients)
    ... ]
    [['x'], ['y', 'y']]
    """

    def __init__(
        self, n_splits=5, *, priority: Iterable | None = None, shuffle=True, random_state=None
    ):
        super().__init__(n_splits, shuffle=shuffle, random_state=random_state)
        self.priority = priority

    def _folds(self, federation, n_samples, rng):
        free = np.arange(len(federation))
        if self.priority is not None:
            free = np.flatnonzero(~federation.priority)
        if len(free) < self.n_splits:
            raise ValueError(
                f"n_splits={self.n_splits} needs as many clients without priority, but groups has "
                f"{len(free)}: lower n_splits."
            )
        free = rng.permutation(free) if self.shuffle else free
        folds = np.full(n_samples, -1)
        for fold, clients in enumerate(np.array_split(free, self.n_splits)):
            for k in clients:
                folds[federation.rows(k)] = fold
        return folds
