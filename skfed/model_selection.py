"""Splitters for federations: which clients, and which of their rows, are held out.

All take the client of each row as ``groups``. With metadata routing on they request it as
``clients``, so that a search passes one array to splitter, estimator and scorer.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_consistent_length, check_random_state, check_scalar
from sklearn.utils.multiclass import type_of_target

from skfed._dict_input import sliceable
from skfed._federation import Federation, make_federation
from skfed.utils._checks import labels_of, naming

__all__ = [
    "LeaveClientsOut",
    "WithinClientKFold",
    "WithinClientStratifiedKFold",
    "WithinClientTimeSeriesSplit",
]

Pairs = Iterator[tuple[np.ndarray, np.ndarray]]  # the rows of train and test of each fold


class _FederatedSplitter(BaseEstimator, BaseCrossValidator):
    """Base class of splitters by client; a subclass implements ``_split``.

    It is a ``BaseEstimator``, so that a search shows and sets its parameters (``cv__n_splits``).
    """

    __metadata_request__split = {"groups": "clients"}

    n_splits: int
    priority: Iterable | None = None  # a parameter of LeaveClientsOut

    def split(self, X, y=None, groups=None) -> Pairs:
        """Yield the rows of train and test of each fold.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...), or dict of array-like
            Data, of which only the length is used.
        y : array-like of shape (n_samples,), default=None
            Labels, which only WithinClientStratifiedKFold uses.
        groups : array-like of shape (n_samples,)
            The client of each row: any hashable ids.

        Yields
        ------
        train, test : ndarray of int
            Row numbers.

        Raises
        ------
        TypeError
            If ``n_splits`` is not an integer, or ``shuffle`` not a bool.
        ValueError
            If ``n_splits`` is below 2, ``random_state`` is given with ``shuffle=False``, ``groups``
            is missing or does not fit X, a fold would have no test rows, or the labels that are
            used are missing, do not fit X, or are numbers that are not classes.
        """
        check_scalar(self.n_splits, "n_splits", Integral, min_val=2)
        X = sliceable(X)
        with naming("X"):
            check_consistent_length(X)
            n_samples = X.shape[0] if hasattr(X, "shape") else len(X)
        if groups is None:
            raise ValueError(
                f"{type(self).__name__} splits by client: pass groups=, one client id a row of X. "
                "In a search, pass groups= to fit, or clients= with metadata routing on."
            )
        with naming("groups", "priority"):
            federation = make_federation(groups, n_samples, self.priority)
        yield from self._split(federation, y, n_samples)

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
    def _split(self, federation: Federation, y, n_samples: int) -> Pairs:
        """Yield the rows of train and test of each fold."""


class _FederatedKFold(_FederatedSplitter):
    """Base class of splitters whose test folds do not overlap; a subclass implements ``_folds``."""

    def __init__(self, n_splits=5, *, shuffle=True, random_state=None):
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state

    def _split(self, federation, y, n_samples):
        check_scalar(self.shuffle, "shuffle", (bool, np.bool_))
        if not self.shuffle and self.random_state is not None:
            raise ValueError(
                f"random_state={self.random_state!r} has no effect with shuffle=False: leave "
                "random_state at None, or set shuffle=True."
            )
        folds = self._folds(federation, y, n_samples, check_random_state(self.random_state))
        n_tested = np.bincount(folds[folds >= 0], minlength=self.n_splits)
        if not n_tested.all():
            raise ValueError(
                f"n_splits={self.n_splits} leaves {np.sum(n_tested == 0)} fold(s) without test "
                f"rows: groups has {len(federation)} client(s), the largest of which has "
                f"{federation.sizes.max()} row(s). Lower n_splits, or hold out whole clients by "
                "LeaveClientsOut."
            )
        for fold in range(self.n_splits):
            yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)

    @abstractmethod
    def _folds(
        self, federation: Federation, y, n_samples: int, rng: np.random.RandomState
    ) -> np.ndarray:
        """Return the fold that tests each row; -1 for none."""


class WithinClientKFold(_FederatedKFold):
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
        Seed of the assignment; only with ``shuffle``.

    See Also
    --------
    skfed.model_selection.WithinClientStratifiedKFold : Gives folds each client's labels.
    skfed.model_selection.WithinClientTimeSeriesSplit : Tests on rows after those of train.
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

    def _folds(self, federation, y, n_samples, rng):
        folds = np.full(n_samples, -1)
        for k in range(len(federation)):
            rows = federation.rows(k)
            if len(rows) == 1:
                continue
            # A random first fold, so that the rows of small clients are not all in fold 0.
            first = rng.randint(self.n_splits) if self.shuffle else 0
            rows = rng.permutation(rows) if self.shuffle else rows
            folds[self._in_turn(rows, y)] = (first + np.arange(len(rows))) % self.n_splits
        return folds

    def _in_turn(self, rows, y):
        """Return a client's rows in the order in which they are given to the folds in turn."""
        return rows


class WithinClientStratifiedKFold(WithinClientKFold):
    """Split every client's rows into folds that have its labels in equal proportions.

    The folds of a client differ by one row at most, and so do the rows of each of its labels in
    them.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds. A label of which a client has fewer rows is tested in as many folds as it
        has rows, and a client with a single row in none.
    shuffle : bool, default=True
        Assign a client's rows of a label to folds at random; else in turn.
    random_state : int, RandomState instance or None, default=None
        Seed of the assignment; only with ``shuffle``.

    See Also
    --------
    skfed.model_selection.WithinClientKFold : Splits without regard to labels.
    sklearn.model_selection.StratifiedGroupKFold : Holds out whole groups.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.model_selection import WithinClientStratifiedKFold
    >>> clients = np.array(["a", "a", "a", "a", "b", "b", "b", "b"])
    >>> y = np.array([0, 0, 1, 1, 0, 1, 1, 1])
    >>> splitter = WithinClientStratifiedKFold(n_splits=2, shuffle=False)
    >>> for _, test in splitter.split(clients, y, groups=clients):
    ...     print(clients[test], y[test])
    ['a' 'a' 'b' 'b'] [0 1 0 1]
    ['a' 'a' 'b' 'b'] [0 1 1 1]
    """

    def _folds(self, federation, y, n_samples, rng):
        if y is None:
            raise ValueError(
                f"{type(self).__name__} splits by label: pass y, one label a row of X."
            )
        labels = labels_of(y, "y")
        with naming("X", "y"):
            check_consistent_length(range(n_samples), labels)
        if type_of_target(labels) not in ("binary", "multiclass"):
            raise ValueError(
                f"y has {type_of_target(labels)} targets, which {type(self).__name__} cannot "
                "stratify: use WithinClientKFold."
            )
        return super()._folds(federation, labels, n_samples, rng)

    def _in_turn(self, rows, y):
        return rows[np.argsort(y[rows], kind="stable")]


class WithinClientTimeSeriesSplit(_FederatedSplitter):
    """Test each client on rows that come after those that it trains on.

    The rows of each client are to be in the order of time, whatever rows of other clients are
    between them. Each is split as :class:`~sklearn.model_selection.TimeSeriesSplit` splits it
    alone: a later fold trains on more rows. Clients are not compared in time: in one fold, the test
    rows of one may be older than the training rows of another.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds. A client with D rows is tested on D // (n_splits + 1) in each; one that
        has no more rows than folds, on a single one in the last folds. Its first row is in each
        train.

    See Also
    --------
    skfed.model_selection.WithinClientKFold : For rows without an order.
    sklearn.model_selection.TimeSeriesSplit : Splits without regard to clients.

    Examples
    --------
    >>> import numpy as np
    >>> from skfed.model_selection import WithinClientTimeSeriesSplit
    >>> clients = np.array(["a", "b", "a", "b", "a", "b", "b"])
    >>> splitter = WithinClientTimeSeriesSplit(n_splits=2)
    >>> for train, test in splitter.split(clients, groups=clients):
    ...     print(train, test)
    [0 1 3] [2 5]
    [0 1 2 3 5] [4 6]
    """

    def __init__(self, n_splits=5):
        self.n_splits = n_splits

    def _split(self, federation, y, n_samples):
        if (largest := federation.sizes.max()) <= self.n_splits:
            raise ValueError(
                f"n_splits={self.n_splits} needs a client with {self.n_splits + 1} rows, but the "
                f"largest in groups has {largest}: lower n_splits."
            )
        for fold in range(self.n_splits):
            train, test = [], []
            for k in range(len(federation)):
                rows = federation.rows(k)
                n_tested = max(len(rows) // (self.n_splits + 1), 1)
                start = len(rows) - (self.n_splits - fold) * n_tested
                train.append(rows[: max(start, 1)])
                test.append(rows[start : start + n_tested] if start > 0 else rows[:0])
            yield np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


class LeaveClientsOut(_FederatedKFold):
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
        Seed of the assignment; only with ``shuffle``.

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

    def _folds(self, federation, y, n_samples, rng):
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
