"""The contract of federated transformers, and the exchanges by which the server fits one.

A transformer is fitted in exchanges. In each, the server sends a request, every client whose rows
count answers with statistics of its rows, and the server merges the answers in the order of the
clients' digests. So the result does not depend on who answers first, nor on how rows of several
clients are interleaved in X.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import validate_data

from skfed._dict_input import is_dict
from skfed._federation import Federation, make_federation, one_client
from skfed.exchanges import Exchanges, FailureLog
from skfed.preprocessing._exchanges import Statistics, ask_statistics, exchange_table
from skfed.utils._checks import Count
from skfed.utils._sklearn import safe_indexing

Requests = Generator[Statistics, Statistics, bool]

_fit_elsewhere: ContextVar[Callable[[Any, Any], None] | None] = ContextVar("fit", default=None)
_rows_are_made_up: ContextVar[bool] = ContextVar("made up", default=False)


class BaseFederatedTransformer(TransformerMixin, BaseEstimator, metaclass=ABCMeta):
    """Base class of federated transformers; listed before the scikit-learn class it fits.

    A subclass implements :meth:`client_statistics`, :meth:`merge` and :meth:`exchanges`, and
    overrides :meth:`validate_rows`, :meth:`take_rows` and :meth:`prepare` where scikit-learn's
    transformer takes other input than numbers without missing values, or where a client can do
    part of its work once for all exchanges.
    """

    __metadata_request__fit = {"clients": True}

    def fit(self, X, y=None, clients=None):
        """Fit the transformer by what each client computes from its own rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows of all clients. Sparse matrices are not taken.
        y : None
            Ignored.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row, as in the estimators' fit. None means one
            client, with a warning.

        Returns
        -------
        self
            The fitted transformer.

        Raises
        ------
        TypeError, ValueError
            If scikit-learn's transformer refuses the rows; the message names the column and the
            client. If ``clients`` or ``priority`` is not valid.
        """
        self._validate_params()
        rows = self._checked(X, clients)
        if (fit_elsewhere := _fit_elsewhere.get()) is not None:
            fit_elsewhere(self, rows)
            return self
        n_samples = len(rows[0]) if isinstance(rows, list) else len(rows)
        ids = one_client(n_samples, self.priority) if clients is None else clients
        federation = make_federation(ids, n_samples, self.priority)
        self._fit_here(rows, federation)
        return self

    def fit_transform(self, X, y=None, clients=None):
        """Fit the transformer, and transform the rows that it is fitted on.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The rows of all clients.
        y : None
            Ignored.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row.

        Returns
        -------
        array-like of shape (n_samples, n_features_out)
            The transformed rows.
        """
        return self.fit(X, y, clients=clients).transform(X)

    @property
    def partial_fit(self):
        """Not available: scikit-learn's would add rows without their clients."""
        raise AttributeError(
            f"{type(self).__name__} has no partial_fit: call fit with all rows and their clients."
        )

    def validate_rows(self, X: Any) -> Any:
        """Return the rows as scikit-learn's transformer sees them, and note X's columns.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_features) or list of n_features ndarrays
            The rows, or the columns where each has a dtype of its own.
        """
        return validate_data(self, X, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan")

    def take_rows(self, rows: Any, indices: np.ndarray) -> Any:
        """Return some of the rows that ``validate_rows`` returned."""
        return rows[indices]

    def prepare(self, rows: Any) -> Any:
        """Return what a client keeps of its rows for all exchanges of a fit."""
        return rows

    @abstractmethod
    def client_statistics(self, data: Any, request: Statistics) -> Statistics:
        """Return what a client sends.

        Parameters
        ----------
        data : object
            What ``prepare`` made of the client's rows.
        request : dict of str to ndarray
            What the server sent in this exchange.

        Returns
        -------
        dict of str to ndarray or list of ndarray
            The statistics. A key "suppressed" is true where the client left something out.
        """

    @abstractmethod
    def merge(self, statistics: list[Statistics]) -> Statistics:
        """Return the statistics of all clients' rows together.

        Parameters
        ----------
        statistics : list of dict
            Each client's statistics, in the order of the clients' digests.

        Returns
        -------
        dict
            The merged statistics.
        """

    def check_statistics(self, statistics: Statistics, example: Statistics, n_samples: int) -> None:
        """Raise a ValueError if no client of so many rows sends such statistics.

        It is called for each client's reply over a network, before ``merge``. The names, shapes and
        dtypes are those of ``example`` by then, and no number is infinite. By default an array with
        NaN or a negative integer is refused; lists of arrays are not looked at.

        Parameters
        ----------
        statistics : dict of str to ndarray or list of ndarray
            What the client sent.
        example : dict of str to ndarray or list of ndarray
            What a client of one made-up row would send.
        n_samples : int
            The number of the client's rows.

        Raises
        ------
        ValueError
            If they are not valid; the message has no values.
        """
        for name, like in example.items():
            if not isinstance(like, list):
                sent = np.asarray(statistics[name])
                is_negative = sent.dtype.kind == "i" and (sent < 0).any()
                if is_negative or (sent.dtype.kind == "f" and np.isnan(sent).any()):
                    raise ValueError(f"its {name} has NaN or a negative integer.")

    def check_exchanges(self, exchanges: list[tuple[Statistics, Statistics]]) -> None:
        """Raise a ValueError if what a client has sent contradicts itself.

        It is called after ``check_statistics``. By default nothing is refused.

        Parameters
        ----------
        exchanges : list of (dict, dict)
            The requests of a fit so far, and the client's statistics.

        Raises
        ------
        ValueError
            If the statistics cannot all be of the same rows; the message has no values.
        """

    @abstractmethod
    def exchanges(self) -> Requests:
        """Yield requests, get merged statistics, and set the fitted attributes at the end.

        Yields
        ------
        dict of str to ndarray
            What every client is sent in the next exchange; ``yield`` returns what was merged.

        Returns
        -------
        bool
            Whether the server suppressed part of what it got in the last exchange.
        """

    def privatize(self, statistics: Statistics, exchange: int, client: bytes) -> Statistics:
        """Return what leaves a client, given its statistics, the exchange and its digest."""
        return statistics

    def column_name(self, column: int) -> Hashable:
        """Return the name of a column of X, or its number if it has none."""
        return getattr(self, "feature_names_in_", np.arange(self.n_features_in_)).tolist()[column]

    def run_exchanges(self, ask: Callable[[Statistics], list[Statistics]]) -> bool:
        """Fit by what ``ask`` returns for each request: statistics, in the order of digests.

        Returns whether the server suppressed something.
        """
        server = self.exchanges()
        request = next(server)
        while True:
            try:
                request = server.send(self.merge(ask(request)))
            except StopIteration as end:
                return end.value

    def _fit_here(self, rows: Any, federation: Federation) -> None:
        """Fit by the clients whose rows are in this process."""
        members = members_of(federation)
        data = {k: self.prepare(self.take_rows(rows, federation.rows(k))) for k in members}
        exchanges = Exchanges(FailureLog(federation, fatal=True))

        def collect(request: Statistics) -> Iterator[Statistics]:
            for k in members:
                with naming_client(federation.names([k])[0]):
                    found = self.client_statistics(data[k], request)
                yield self.privatize(found, len(exchanges.settled), federation.digest(k))

        def ask(request: Statistics) -> list[Statistics]:
            return [*ask_statistics(exchanges, members, request, collect).values()]

        suppressed = self.run_exchanges(ask)
        self.exchange_ = exchange_table(exchanges.settled, federation, suppressed)

    def _checked(self, X: Any, clients: Any) -> Any:
        """Validate rows; an error names the first client and column that have one of their own."""
        if is_dict(X):
            raise ValueError(
                f"X is a dict with the keys {list(X)}, but {type(self).__name__} takes an array or "
                "a table: transform an array before it is put in the dict, which the model takes."
            )
        shape: tuple[int, ...] = getattr(X, "shape", ())
        if len(shape) > 2:
            raise ValueError(
                f"X has the shape {shape}, but {type(self).__name__} takes two dimensions: a row a "
                "sample, a column a feature. Pass X.reshape(len(X), -1). Of windows, of shape "
                "(n_samples, n_steps, n_features), FederatedStandardScaler scales each column; "
                "skfed.modules.Standardize, the first layer of a net, takes any shape."
            )
        try:
            return self.validate_rows(X)
        except (TypeError, ValueError) as error:
            where = self._place_of_error(X, clients)
            if where is None or type(error) not in (TypeError, ValueError):
                raise
            raise with_place(error, where) from error

    def _place_of_error(self, X: Any, clients: Any) -> str | None:
        """Return in which client's rows and column an error is, if it is in one."""
        if hasattr(X, "nnz"):  # a sparse matrix is refused as a whole
            return None
        X = X if hasattr(X, "shape") else np.asarray(X, dtype=object)
        if X.ndim != 2 or not len(X) or self._fails(np.zeros((1, X.shape[1]))):
            return None  # no rows, or parameters that fit none
        federation = make_federation(np.zeros(len(X), int) if clients is None else clients, len(X))
        for k in range(len(federation)):
            of_client = safe_indexing(X, federation.rows(k))
            if self._fails(of_client):
                for j, name in enumerate(getattr(X, "columns", range(X.shape[1]))):
                    if self._fails(safe_indexing(of_client, [j], axis=1)):
                        return place(name, None if clients is None else federation.names([k])[0])
        return None

    def _fails(self, X: Any) -> bool:
        try:
            clone(self).validate_rows(X)
        except (TypeError, ValueError):
            return True
        return False

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags


@contextmanager
def fitting_elsewhere(fit: Callable[[Any, Any], None], made_up: bool) -> Iterator[None]:
    """Context manager in which federated transformers are fitted by a function.

    It is called with the transformer and what ``validate_rows`` returned, and sets the fitted
    attributes. ``made_up`` tells whether the rows are those of no client.
    """
    tokens = _fit_elsewhere.set(fit), _rows_are_made_up.set(made_up)
    try:
        yield
    finally:
        _fit_elsewhere.reset(tokens[0])
        _rows_are_made_up.reset(tokens[1])


def fitted_elsewhere() -> bool:
    """Tell whether transformers are fitted by a function, and not to the rows given."""
    return _fit_elsewhere.get() is not None


def rows_are_made_up() -> bool:
    """Tell whether transformers are fitted elsewhere, to rows of no client."""
    return _rows_are_made_up.get()


def members_of(federation: Federation) -> list[int]:
    """Return the clients whose statistics count, in the order of their digests."""
    return sorted(np.flatnonzero(federation.priority).tolist(), key=federation.digest)


def place(column: Hashable, client: Hashable | None) -> str:
    """Return a sentence that says where an error is; client None if there is one client only."""
    return f"It is in column {column!r}" + ("." if client is None else f" of client {client!r}.")


def with_place(error: TypeError | ValueError, where: str) -> TypeError | ValueError:
    """Return the error with a further sentence, also as ``place``: where it is."""
    text = str(error).rstrip()
    if "\n" in text:
        text = f"{text}\n{where}"
    else:
        text = f"{text}{'' if text.endswith(('.', '!', '?')) else '.'} {where}"
    located = type(error)(text)
    vars(located)["place"] = where  # it has no data, unlike the rest of the message
    return located


@contextmanager
def naming_client(name: Hashable) -> Iterator[None]:
    """Context manager that adds the client to errors of what it computes."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error_type = TypeError if isinstance(error, TypeError) else ValueError
        raise error_type(f"client {name!r}: {error}") from error


class SuppressingTransformer(BaseFederatedTransformer):
    """Base class of transformers whose statistics may be values of single rows."""

    _suppression_constraints: dict = {"min_count": [Count()], "min_holders": [Count()]}
