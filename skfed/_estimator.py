"""The shared face of the federated estimators: parameters, validation, fit, predict, score."""

from abc import ABCMeta, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, validate_data

from skfed._federation import Federation, make_federation
from skfed._problem import Problem
from skfed.aggregation import BaseAggregator, ServerOptimizer
from skfed.availability import BaseAvailability
from skfed.callbacks._sklearn import (
    CallbackSupportMixin,
    SklearnCallbacks,
    callback_attributes,
    with_callbacks,
)
from skfed.checkpoint._run import Run, open_run
from skfed.checkpoint._save import is_saved, load, save
from skfed.engines import Draws, batch_size, make_engine
from skfed.nets import LINEAR_ATTRIBUTES, NetPool, cast
from skfed.privacy import GaussianMechanism
from skfed.schedules import BaseSchedule
from skfed.selection import BaseSelector
from skfed.server._config import RoundConfig
from skfed.server._fitting import fitted_attributes, open_rounds, snapshot_attributes
from skfed.server._standardize import standardize
from skfed.server._state import ServerState
from skfed.server._validation import Validation, make_validation, priority_rows
from skfed.server._warm_start import has_more_rounds, new_state, resumed_state
from skfed.utils._checks import naming
from skfed.utils._seeding import draw_seed
from skfed.utils._sklearn import Interval, StrOptions, safe_indexing, visual_block
from skfed.utils._warnings import warn

_POSITIVE_INT = Interval(Integral, 1, None, closed="left")


class BaseFederated(CallbackSupportMixin, BaseEstimator, metaclass=ABCMeta):
    """What federated classifiers and regressors share."""

    # With metadata routing on, fit takes what it is given, and a search scores as it does with
    # routing off: by the rows as they are, unless a scorer asks for clients.
    __metadata_request__fit = {"clients": True, "X_val": True, "y_val": True, "clients_val": True}
    __metadata_request__partial_fit = {"clients": True}
    __metadata_request__score = {"clients": False}

    _parameter_constraints: dict = {
        "estimator": "no_validation",  # make_net names what it accepts
        "selector": [BaseSelector, None],
        "priority": [Iterable, None],
        "n_rounds": [_POSITIVE_INT],
        "local_epochs": [_POSITIVE_INT],
        "local_steps": [_POSITIVE_INT, None],
        "lr_schedule": [Interval(Real, 0, None, closed="left"), BaseSchedule, callable, None],
        "proximal_mu": [Interval(Real, 0, None, closed="left")],
        "aggregator": [BaseAggregator, None],
        "server_optimizer": [ServerOptimizer, None],
        "availability": [BaseAvailability, None],
        "on_client_error": [StrOptions({"drop", "raise"})],
        "min_clients": [_POSITIVE_INT],
        "update_privacy": [GaussianMechanism, None],
        "loss_privacy": [GaussianMechanism, None],
        "validate_every": [_POSITIVE_INT],
        "engine": [StrOptions({"auto", "stacked", "loop"})],
        "memory_budget": [_POSITIVE_INT],
        "n_jobs": [Integral, None],
        "checkpoint": [str, PathLike, None],
        "checkpoint_every": [_POSITIVE_INT],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        estimator=None,
        *,
        selector=None,
        priority=None,
        n_rounds=100,
        local_epochs=1,
        local_steps=None,
        lr_schedule=None,
        proximal_mu=0.0,
        aggregator=None,
        server_optimizer=None,
        availability=None,
        on_client_error="drop",
        min_clients=1,
        update_privacy=None,
        loss_privacy=None,
        validate_every=1,
        engine="auto",
        memory_budget=2**30,
        n_jobs=None,
        checkpoint=None,
        checkpoint_every=1,
        warm_start=False,
        random_state=None,
        verbose=0,
    ):
        self.estimator = estimator
        self.selector = selector
        self.priority = priority
        self.n_rounds = n_rounds
        self.local_epochs = local_epochs
        self.local_steps = local_steps
        self.lr_schedule = lr_schedule
        self.proximal_mu = proximal_mu
        self.aggregator = aggregator
        self.server_optimizer = server_optimizer
        self.availability = availability
        self.on_client_error = on_client_error
        self.min_clients = min_clients
        self.update_privacy = update_privacy
        self.loss_privacy = loss_privacy
        self.validate_every = validate_every
        self.engine = engine
        self.memory_budget = memory_budget
        self.n_jobs = n_jobs
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks
    def fit(
        self,
        X,
        y,
        clients=None,
        *,
        X_val=None,
        y_val=None,
        clients_val=None,
        sample_weight=None,
    ) -> Self:
        """Train the global model over the clients' data for ``n_rounds`` rounds.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...)
            Training data of all clients.
        y : array-like of shape (n_samples,)
            Targets.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row: any hashable values. Without it, all rows
            belong to one client, and a warning says so.
        X_val, y_val : array-like, default=None
            Validation data; ``history_`` then has ``val_loss`` and ``val_score`` (as ``score``) of
            the global model after each round, or every ``validate_every`` rounds. In a Pipeline
            ``X_val`` is to be transformed as X is, as by :func:`skfed.make_pipeline`: a warning
            names columns that are far from those of X.
        clients_val : array-like, default=None
            The client of each validation row; only those of priority clients then count.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight w_i of each row: the loss of a minibatch is the sum of w_i l_i over the sum of
            w_i, without gradient and 0 where these are all 0; so are the losses F_k and errors that
            clients are asked for. D_k, p_k and all draws go on counting rows, and validation counts
            them alike. The net's criterion must be the mean over its rows. With metadata routing
            on, a search passes it on after ``set_fit_request(sample_weight=True)``.

        Returns
        -------
        self
            The fitted estimator. After Ctrl-C it has the model of the last finished round.
            An update or an aggregate that is not finite is not taken; if in the end no client
            reaches a finite loss any more, the last model from which one did is kept.

        Warns
        -----
        ConvergenceWarning
            If a loss in ``history_`` has grown a thousandfold, or from some round on every client
            that was asked failed.
        UserWarning
            If ``clients`` was not given; if the selector ignores ``priority``; if FedALIGN matched
            no free client in any round.

        Raises
        ------
        ValueError
            If a parameter is out of range, ``clients`` does not fit X, or ``priority`` is empty or
            names an unknown client; if every update is not finite in every round, or every
            aggregate; if the run in ``checkpoint`` has been damaged; if ``warm_start`` finds
            another module; if weights of rows are negative, not finite or, in some client, all 0,
            or the net's loss does not allow them.
        TypeError
            If a parameter cannot be told from others, with ``checkpoint``.
        OSError
            If ``checkpoint`` cannot be written to.
        """
        self._validate_params()
        task = {"estimator": self, "X": X, "y": y}
        resume = self.warm_start and hasattr(self, "net_")
        with self._kept_on_failure(resume):
            with naming("X", "y"):
                X, y = self._check_training_data(X, y, reset=not resume)
            federation = self._federation(clients, len(X))
            weights = self._problem.row_weights(sample_weight, X, y, federation)
            server = self._server_state(X, resume)
            if resume and not has_more_rounds(server, self.n_rounds):
                return self
            validation = self._validation(X, X_val, y_val, clients_val, federation, server)
            data = {"X": X, "y": y, "sample_weight": weights}
            data["classes"] = getattr(self, "classes_", None)
            if validation is not None:
                data["X_val"], data["y_val"] = validation.rows
            with open_run(type(self), self.get_params(), server, federation, data) as run:
                rounds = range(server.round, self.n_rounds)
                callbacks = SklearnCallbacks(
                    self._init_callback_context(
                        max_subtasks=len(rounds), sequential_subtasks=False
                    ),
                    task,
                    rounds,
                    lambda: snapshot_attributes(server, federation, self._problem.output_shape, X),
                )
                return self._advance(
                    server, federation, X, y, weights, self.n_rounds, validation, [callbacks], run
                )

    def save(self, path) -> None:
        """Write what fit has learned to a file of safetensors and JSON.

        Parameters
        ----------
        path : str or path
            The file; one that is there is replaced as a whole.

        Raises
        ------
        NotFittedError
            If there has been no fit.
        OSError
            If the file cannot be written.
        TypeError
            If classes, client ids or the state of a callback are not plain: numbers, strings,
            timestamps, and tuples of them are.
        """
        check_is_fitted(self)
        save(path, type(self).__name__, vars(self), self._server)

    def load(self, path) -> Self:
        """Take what an estimator has learned from a file that ``save`` has written.

        Nothing in the file is executed, so it holds no parameters, and no net's class: call this
        on an estimator with the parameters of the one that was saved. It predicts as that one
        does, and ``partial_fit`` and, with ``warm_start``, ``fit`` go on from it.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        self
            The estimator, fitted.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If it was not written by ``save``, has been damaged, or is of another net.
        """
        self._validate_params()
        with self._kept_on_failure(resume=False):
            self.__dict__.update(load(path, type(self).__name__, self._unfitted_server))
        return self

    def _partial_fit(self, X, y, clients, sample_weight, classes=None) -> Self:
        """Train for one more round."""
        self._validate_params()
        resume = hasattr(self, "net_")
        with self._kept_on_failure(resume):
            with naming("X", "y"):
                X, y = self._check_training_data(X, y, reset=not resume, classes=classes)
            federation = self._federation(clients, len(X))
            weights = self._problem.row_weights(sample_weight, X, y, federation)
            server = self._server_state(X, resume)
            server.stopped = 0  # it is asked for one more
            return self._advance(server, federation, X, y, weights, server.round + 1)

    @contextmanager
    def _kept_on_failure(self, resume: bool) -> Iterator[None]:
        """Leave the estimator as it was when a fit from scratch fails.

        A fit that is interrupted, or that goes on from an earlier one, keeps the rounds that it
        finished.
        """
        before = dict(vars(self))
        try:
            yield
        except BaseException as error:
            n_rounds = vars(self).get("n_rounds_", 0)
            fitted = vars(self).get("_server") is not before.get("_server") or resume
            if isinstance(error, KeyboardInterrupt) and fitted and n_rounds:
                warn(
                    f"interrupted: the model of the last finished round, {n_rounds} of "
                    f"{self.n_rounds}, is kept; fit goes on from it with warm_start=True."
                )
            elif not resume:
                before |= callback_attributes(vars(self))
                self.__dict__.clear()
                self.__dict__.update(before)
            raise

    @abstractmethod
    def _check_training_data(self, X, y, *, reset, classes=None):
        """Validate X and y, set what they teach, and return X with encoded targets."""

    @property
    @abstractmethod
    def _problem(self) -> Problem:
        """The problem that fit has found in y."""

    def _scored(self, X, y, sample_weight, clients) -> tuple:
        """Return what of X, y and their weights is scored: rows of priority clients, if asked."""
        check_is_fitted(self)
        with naming("X", "y", "sample_weight"):
            check_consistent_length(X, y, sample_weight)
        if clients is None:
            return X, y, sample_weight
        rows = priority_rows(clients, len(y), self.clients_, self.priority_)
        with naming("X", "y", "sample_weight"):
            weights = None if sample_weight is None else safe_indexing(sample_weight, rows)
            return safe_indexing(X, rows), safe_indexing(y, rows), weights

    def _federation(self, clients, n_samples: int) -> Federation:
        if clients is None:
            if self.priority is not None:
                raise ValueError(
                    "priority names clients, but clients was not given: pass clients= to fit, one "
                    "id a row of X (step__clients= to a Pipeline of scikit-learn's own)."
                )
            warn(
                "clients was not given, so all rows belong to one client: pass clients= to fit, "
                "one id a row of X."
            )
            clients = np.zeros(n_samples, dtype=int)
        return make_federation(clients, n_samples, self.priority)

    def _server_state(self, X: np.ndarray, resume: bool) -> ServerState:
        """Return a new state, or that of the last fit with the changes to ``estimator`` since."""
        if not resume:
            return new_state(self._problem, self.estimator, X, draw_seed(self.random_state))
        return resumed_state(self._server, self._problem, self.estimator, X)

    def _unfitted_server(self, attributes: dict[str, Any], seed: int) -> ServerState:
        """Set fitted attributes that were read from a file; return a server with a new net."""
        for name in [name for name in vars(self) if is_saved(name)]:  # of an earlier fit
            delattr(self, name)
        self.__dict__.update(attributes)
        X = np.zeros((1, *self._sample_shape), dtype=np.int64)
        return new_state(self._problem, self.estimator, X, seed)

    def _validation(
        self, X, X_val, y_val, clients_val, federation: Federation, server: ServerState
    ) -> Validation | None:
        """Return what measures a net after each round; a subclass may measure something else."""
        if X_val is None and y_val is None and clients_val is None:
            return None
        if X_val is None or y_val is None:
            raise ValueError("X_val and y_val go together: pass both or neither.")
        with naming("X_val", "y_val"):
            y_val = self._problem.check_targets(y_val, "y_val")
            X_val, y_val = validate_data(
                self, X_val, y_val, reset=False, dtype="numeric", allow_nd=True, multi_output=True
            )
            self._check_sample_shape(X_val, "X_val")
            y_val = self._problem.encode(y_val, "y_val")
        return make_validation(
            server,
            self._problem,
            federation,
            X,
            (X_val, y_val, clients_val),
            names=getattr(self, "feature_names_in_", None),
            every=self.validate_every,
            n_rounds=self.n_rounds,
        )

    def _advance(
        self,
        server: ServerState,
        federation: Federation,
        X: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray | None,
        until: int,
        validation: Validation | None = None,
        more: Sequence[SklearnCallbacks] = (),
        run: Run | None = None,
    ) -> Self:
        """Run rounds up to ``until`` and publish the result."""
        X = cast(server.net, X)
        y = self._problem.for_criterion(server.net, X, y)
        if not server.round:
            standardize(server, federation, X, private=self.update_privacy is not None)
            server.first_exchanges += self._problem.first_exchanges(federation)
        net_pool = NetPool(server.net, X[:1])
        draws = Draws(federation, server.seed, batch_size(server.net))
        engine, self.engine_ = make_engine(
            self.engine, net_pool, X, y, draws, self.memory_budget, self.n_jobs, weights
        )
        config = RoundConfig.from_params(vars(self), server.net)
        rounds = open_rounds(
            *(server, federation, engine, config),
            until=until,
            train=(X, y),
            validation=validation,
            callbacks=more,
            run=run,
            verbose=self.verbose,
        )
        try:
            with rounds as opened:
                opened.run()
        finally:
            self._set_fitted(server, federation)
        return self

    def _set_fitted(self, server: ServerState, federation: Federation) -> None:
        """Set the fitted attributes by the rounds that were finished."""
        for name in LINEAR_ATTRIBUTES:  # of an earlier fit, whose net was linear
            self.__dict__.pop(name, None)
        attributes = fitted_attributes(server, federation, self._problem.output_shape)
        self.__dict__.update(attributes)

    def _sk_visual_block_(self) -> Any:
        return visual_block(self)

    def _check_X(self, X) -> np.ndarray:
        """Validate samples to predict and bring them to the net's dtype."""
        check_is_fitted(self)
        with naming("X"):
            X = validate_data(self, X, reset=False, dtype="numeric", allow_nd=True)
        self._check_sample_shape(X)
        return cast(self.net_, X)

    def _check_sample_shape(self, X: np.ndarray, name: str = "X") -> None:
        """Check the dimensions beyond the second, which scikit-learn leaves to us."""
        if X.shape[1:] != self._sample_shape:
            raise ValueError(
                f"{name} has samples of shape {X.shape[1:]}, but {type(self).__name__} was fitted "
                f"on samples of shape {self._sample_shape}."
            )
