"""Base class of the federated estimators: parameters, checks of data, fit, save and load."""

from abc import ABCMeta, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from skfed._federation import Federation, make_federation, one_client
from skfed._fit import begin, round_config, rounds_of
from skfed._mechanism import GaussianMechanism
from skfed._problem import Problem, TrainingData
from skfed.aggregation import BaseAggregator, ServerOptimizer
from skfed.availability import BaseAvailability
from skfed.callbacks._sklearn import CallbackMixin, SklearnCallbacks, with_callbacks
from skfed.checkpoint import (
    Run,
    fitted_state,
    from_fitted_state,
    is_saved,
    open_run,
    read_fitted,
    warn_of_lost_state,
    write_fitted,
)
from skfed.devices import BaseDevices
from skfed.engines import Batching, clients_with_weight, make_engine
from skfed.history import to_frame
from skfed.nets import (
    LINEAR_ATTRIBUTES,
    NetPool,
    Samples,
    batch_size,
    cast,
    cast_samples,
    get_state,
    set_state,
    standardize_layers,
)
from skfed.schedules import BaseSchedule
from skfed.selection import BaseSelector
from skfed.selection._counts import CLIENT_COUNT
from skfed.server import (
    LocalStatistics,
    RateLimits,
    RoundConfig,
    ServerState,
    Validation,
    Wanted,
    has_more_rounds,
    is_renewable,
    make_validation,
    new_state,
    reset_on_failure,
    resumed_state,
    warn_of_large_values,
)
from skfed.utils._checks import naming
from skfed.utils._seeding import draw_seed
from skfed.utils._sklearn import Interval, StrOptions, visual_block

_POSITIVE_INT = Interval(Integral, 1, None, closed="left")


class BaseFederated(CallbackMixin, BaseEstimator, metaclass=ABCMeta):
    """Base class of federated classifiers and regressors."""

    # With metadata routing on, a search passes these to fit. It scores all rows, as with routing
    # off, unless a scorer requests clients.
    __metadata_request__fit = {"clients": True, "X_val": True, "y_val": True, "clients_val": True}
    __metadata_request__partial_fit = {"clients": True}
    __metadata_request__score = {"clients": False}

    _parameter_constraints: dict = {
        "estimator": "no_validation",  # make_net checks it
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
        "devices": [BaseDevices, None],
        "deadline": [Interval(Real, 0, None, closed="neither"), None],
        "report_goal": [*CLIENT_COUNT, None],
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
        devices=None,
        deadline=None,
        report_goal=None,
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
        self.devices = devices
        self.deadline = deadline
        self.report_goal = report_goal
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
        self, X, y, clients=None, *, X_val=None, y_val=None, clients_val=None, sample_weight=None
    ) -> Self:
        """Train the global model over the clients' data for ``n_rounds`` rounds.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...)
            Training data of all clients.
        y : array-like of shape (n_samples,)
            Targets.
        clients : array-like of shape (n_samples,), default=None
            The id of each row's client: any hashable values. None: one client, with a warning.
        X_val, y_val : array-like, default=None
            Validation data; ``history_`` then has ``val_loss`` and ``val_score`` (as ``score``) of
            the global model after each round, or every ``validate_every`` rounds. In a Pipeline
            ``X_val`` must be transformed as X is, as :func:`skfed.make_pipeline` does; a warning
            names columns that are far from those of X.
        clients_val : array-like, default=None
            The client of each validation row; then only rows of priority clients count, and
            ``history_`` has the lowest score of such a client, ``val_score_worst``, and its id,
            ``val_worst``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight w_i of each row: the loss of a minibatch is the sum of w_i l_i over the sum of
            w_i, and 0 without gradient if all w_i are 0; likewise the losses F_k and errors of
            polls. D_k, p_k, all draws and the validation do not use weights. A client whose
            weights are all 0 takes no part, as with the draws of a BaggingClassifier. The net's
            criterion must be the mean over its rows. With metadata routing on, a search passes
            weights after ``set_fit_request(sample_weight=True)``.

        Returns
        -------
        self
            The fitted estimator. After Ctrl-C it has the model of the last finished round.
            An update or an aggregate that is not finite is dropped. In a fit that has diverged, so
            that it warns, the model of which the lowest loss was reported is kept; in any other the
            last.

        Warns
        -----
        ConvergenceWarning
            If a loss in ``history_`` has grown a thousandfold; if the loss of the priority clients
            ends above that of a model that predicts the mean of the targets, the shares of the
            classes, or, where clients do not send them, equal probabilities; if it ends above that
            of the first round; if from some round on every client in the cohorts failed.
        UserWarning
            If ``clients`` was not given; if ``priority`` is ignored; if no free client has matched.

        Raises
        ------
        ValueError
            If a parameter is out of range, ``clients`` does not fit X, or ``priority`` is empty or
            names an unknown client; if in every round no update, or no aggregate, is finite; if the
            run in ``checkpoint`` is damaged; if the module has changed, with ``warm_start``; if
            weights of rows are negative, not finite or, in some client, all 0, or the net's loss
            does not allow them.
        TypeError
            With ``checkpoint``, if a parameter cannot be told from another value.
        OSError
            If ``checkpoint`` cannot be written to.
        """
        self._validate_params()
        task = {"estimator": self, "X": X, "y": y}  # as scikit-learn's callbacks take it
        resume = self.warm_start and hasattr(self, "net_")
        with reset_on_failure(self.__dict__, resume):
            data = self._training_data(X, y, clients, sample_weight, not resume)
            server = self._server_state(data.X, resume)
            if resume and not has_more_rounds(server, self.n_rounds):
                return self
            held_out = self._held_out(X_val, y_val, clients_val)
            arrays = data.arrays() | {"classes": getattr(self, "classes_", None)} | held_out
            n_before = server.round
            with open_run(type(self), self.get_params(), server, data.federation, arrays) as run:
                config = round_config(self, server.net)
                if server.round == n_before:  # else a run is resumed, which has begun so
                    self._start_fit(server, data, config)
                self._set_target_scale(server)
                validation = self._validation(data, server, held_out)
                callbacks = self._sklearn_callbacks(task, server, data)
                self._train(server, data, config, self.n_rounds, validation, [callbacks], run)
        return self

    def save(self, path) -> None:
        """Write the fitted state to a file of safetensors and JSON.

        Parameters
        ----------
        path : str or path
            The file; an existing one is replaced as a whole.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        OSError
            If the file cannot be written.
        TypeError
            If classes, client ids or the state of a callback are not numbers, strings, timestamps,
            or tuples of them.
        """
        check_is_fitted(self)
        write_fitted(path, type(self).__name__, self._fitted_state())

    def load(self, path) -> Self:
        """Read the fitted state from a file that ``save`` has written.

        The file has neither parameters nor code, and nothing in it is executed: call this on an
        estimator with the parameters of the saved one. It then predicts like that one, and
        ``partial_fit`` and, with ``warm_start``, ``fit`` continue from it.

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
            If it was not written by ``save``, is damaged, or is of another net.
        """
        with reset_on_failure(self.__dict__, resume=False):
            read_fitted(path, type(self).__name__, self._restore_fitted)
        return self

    def _fitted_state(self) -> dict[str, Any]:
        warn_of_lost_state(self._server)
        return fitted_state(vars(self), self._server)

    def _restore_fitted(self, fitted: dict[str, Any]) -> None:
        self._validate_params()
        self.__dict__.update(from_fitted_state(fitted, self._unfitted_server))
        # Those of the net, whatever the file says; only a linear one has any.
        for name in ("coef_", "intercept_"):
            self.__dict__.pop(name, None)
        self.__dict__.update(self._problem.linear_attributes(self.net_))

    def _partial_fit(self, X, y, clients, sample_weight, classes=None) -> Self:
        """Train for one more round."""
        self._validate_params()
        resume = hasattr(self, "net_")
        with reset_on_failure(self.__dict__, resume):
            data = self._training_data(X, y, clients, sample_weight, not resume, classes)
            server = self._server_state(data.X, resume)
            server.stopped = 0  # also after a callback has stopped a fit
            config = round_config(self, server.net)
            self._start_fit(server, data, config, accumulate=True)
            self._set_target_scale(server)
            self._train(server, data, config, server.round + 1)
        return self

    @abstractmethod
    def _check_training_data(self, X, y, *, reset, classes=None):
        """Return X and encoded targets; with ``reset``, set what later data must conform to."""

    @property
    @abstractmethod
    def _problem(self) -> Problem:
        """The problem with the classes, or the shape of targets, of fit."""

    def _training_data(
        self, X, y, clients, sample_weight, reset: bool, classes=None
    ) -> TrainingData:
        """Validate the arguments of fit."""
        with naming("X", "y"):
            X, y = self._check_training_data(X, y, reset=reset, classes=classes)
        if clients is None:
            clients = one_client(len(X), self.priority)
        federation = make_federation(clients, len(X), self.priority)
        if sample_weight is not None:
            federation = clients_with_weight(sample_weight, X, federation)
        weights = self._problem.row_weights(sample_weight, X, y, federation)
        return TrainingData(X, y, weights, federation)

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

    def _wanted(self, server: ServerState) -> Wanted:
        """Return what the start of a fit needs of clients."""
        net = server.net
        is_set = bool(standardize_layers(net)) and (not server.round or is_renewable(net))
        return Wanted(columns=is_set and self.update_privacy is None)

    def _start_fit(
        self,
        server: ServerState,
        data: TrainingData,
        config: RoundConfig,
        accumulate: bool = False,
    ) -> None:
        """Ask clients for what the fit begins with, which its first round is charged for."""
        with naming("y"):
            y = data.y if data.y.dtype.kind in "biuf" else data.y.astype(float)
        wanted = self._wanted(server)
        source = LocalStatistics(data.X, y, data.weights, data.federation, wanted.n_classes)
        begin(
            *(server, data.federation, config, self._problem, source, wanted),
            shape=data.X.shape[1:],
            dtype=data.X.dtype,
            accumulate=accumulate,
        )
        is_private = self.update_privacy is not None
        if is_private and not server.round and standardize_layers(server.net):
            warn_of_large_values(data.X)

    def _set_target_scale(self, server: ServerState) -> None:
        """Set how targets are standardised, if they are."""

    def _held_out(self, X_val, y_val, clients_val) -> dict[str, Any]:
        """Return the validated validation data by name; empty without."""
        if X_val is None and y_val is None and clients_val is None:
            return {}
        if X_val is None or y_val is None:
            raise ValueError("X_val and y_val go together: pass both or neither.")
        with naming("X_val", "y_val"):
            y_val = self._problem.check_targets(y_val, "y_val")
            X_val, y_val = validate_data(
                self, X_val, y_val, reset=False, dtype="numeric", allow_nd=True, multi_output=True
            )
            self._check_sample_shape(X_val, "X_val")
            y_val = self._problem.encode(y_val, "y_val")
        return {"X_val": X_val, "y_val": y_val, "clients_val": clients_val}

    def _validation(
        self, data: TrainingData, server: ServerState, held_out: dict[str, Any]
    ) -> Validation | None:
        """Return the validation of the global model, None without validation data."""
        if not held_out:
            return None
        rows, names = tuple(held_out.values()), getattr(self, "feature_names_in_", None)
        return make_validation(vars(self), server, self._problem, data, rows, names)

    def _sklearn_callbacks(
        self, task: dict[str, Any], server: ServerState, data: TrainingData
    ) -> SklearnCallbacks:
        """Return scikit-learn's callbacks for the rounds that are left."""
        rounds = range(server.round, self.n_rounds)
        context = self._init_callback_context(max_subtasks=len(rounds), sequential_subtasks=False)
        return SklearnCallbacks(context, task, rounds, partial(self._snapshot, server, data))

    def _snapshot(self, server: ServerState, data: TrainingData) -> dict[str, Any]:
        """Return the fitted attributes with a copy of the model as it is now."""
        net = NetPool(server.net, cast(server.net, data.X[:1])).set_up()
        set_state(net, get_state(server.net))
        fitted = copy(self)
        fitted._set_fitted(replace(server, net=net, rows=list(server.rows)), data.federation)
        return {k: v for k, v in vars(fitted).items() if vars(self).get(k) is not v}

    def _train(
        self,
        server: ServerState,
        data: TrainingData,
        config: RoundConfig,
        until: int,
        validation: Validation | None = None,
        callbacks: Sequence[SklearnCallbacks] = (),
        run: Run | None = None,
    ) -> None:
        """Run rounds until ``until`` are finished, and set the fitted attributes."""
        X = cast_samples(server.net, data.X)
        y = self._problem.for_criterion(server.net, X, data.y)
        net_pool = NetPool(server.net, X[:1])
        batching = Batching(data.federation, server.seed, batch_size(server.net))
        engine, self.engine_ = make_engine(
            self.engine, net_pool, X, y, batching, self.memory_budget, self.n_jobs, data.weights
        )
        rounds = rounds_of(
            *(self, server, data.federation, engine, config),
            until=until,
            train=(X, y),
            validation=validation,
            limits=self._rate_limits(server, data),
            callbacks=callbacks,
            keep=None if run is None else run.keep,
        )
        with closing(engine), rounds as running:
            running.run()

    def _rate_limits(self, server: ServerState, data: TrainingData) -> RateLimits | None:
        """Return the limits of clients' rates, where the rate is that of the priority clients."""
        if server.rate is None or self.update_privacy is not None:
            return None
        source = LocalStatistics(data.X, data.y, data.weights, data.federation)
        return RateLimits(source, server.net)

    def _set_fitted(self, server: ServerState, federation: Federation) -> None:
        """Set the fitted attributes from the finished rounds."""
        self._server, self.net_ = server, server.net
        self.clients_, self.priority_ = federation.ids, federation.priority
        self.sizes_, self.fractions_ = federation.sizes, federation.fractions
        self.history_, self.n_rounds_ = to_frame(server.rows), server.round
        for name in LINEAR_ATTRIBUTES:  # coef_ and intercept_, where the net is linear
            self.__dict__.pop(name, None)
        self.__dict__.update(self._problem.linear_attributes(server.net))

    def _sk_visual_block_(self) -> Any:
        return visual_block(self)

    def _check_X(self, X) -> Samples:
        """Validate samples and return them in the net's dtype."""
        X = self._check_rows(X)
        return cast_samples(self.net_, X)

    def _check_rows(self, X) -> np.ndarray:
        """Validate samples."""
        check_is_fitted(self)
        with naming("X"):
            X = validate_data(self, X, reset=False, dtype="numeric", allow_nd=True)
        self._check_sample_shape(X)
        return X

    def _check_sample_shape(self, X: np.ndarray, name: str = "X") -> None:
        """Check the dimensions beyond the second, which scikit-learn does not."""
        if X.shape[1:] != self._sample_shape:
            raise ValueError(
                f"{name} has samples of shape {X.shape[1:]}, but {type(self).__name__} was fitted "
                f"on samples of shape {self._sample_shape}."
            )
