"""Base class of the federated estimators: parameters, fit, fitted attributes, save and load."""

from abc import ABCMeta, abstractmethod
from collections.abc import Iterable
from numbers import Integral, Real
from os import PathLike
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet

from skfed._federation import Federation
from skfed._fit import Simulation, round_config
from skfed._input import check_held_out, check_rows, check_training_data
from skfed._mechanism import GaussianMechanism
from skfed._problem import Problem
from skfed.aggregation import BaseAggregator, ServerOptimizer
from skfed.availability import BaseAvailability
from skfed.callbacks._sklearn import CallbackMixin, with_callbacks
from skfed.checkpoint import (
    fitted_state,
    from_fitted_state,
    is_saved,
    open_run,
    read_fitted,
    warn_of_lost_state,
    write_fitted,
)
from skfed.contribution import BaseContribution
from skfed.devices import BaseDevices
from skfed.evaluation import FederatedEvaluation
from skfed.exchanges import sum_contributions
from skfed.history import to_frame
from skfed.nets import (
    LINEAR_ATTRIBUTES,
    Samples,
    cast_samples,
    row_of_shape,
    standardize_layers,
)
from skfed.schedules import BaseSchedule
from skfed.selection import BaseSelector
from skfed.selection._counts import CLIENT_COUNT
from skfed.server import (
    ServerState,
    Wanted,
    has_more_rounds,
    is_renewable,
    new_state,
    reset_on_failure,
    resumed_state,
)
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
        "contribution": [BaseContribution, None],
        "evaluation": [FederatedEvaluation, None],
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
        contribution=None,
        evaluation=None,
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
        self.contribution = contribution
        self.evaluation = evaluation
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
        X : array-like of shape (n_samples, n_features, ...), or dict of array-like
            Training data of all clients. A dict has arrays of shape (n_samples, ...) by the names
            of the arguments of ``forward`` of a net's module, as skorch takes them: booleans and
            integers stay what they are (bool and int64), floats get the module's dtype. Later data
            must have its keys. A search slices a dict if it is a
            :class:`skorch.helper.SliceDict`.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets: several numbers, or an indicator of several labels, have columns.
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
            classes, or, where clients do not send them, as of several labels, equal probabilities;
            if it ends above that
            of the first round; if from some round on every client in the cohorts failed.
        UserWarning
            If ``clients`` was not given; if ``priority`` is ignored; if no free client has matched.

        Raises
        ------
        ValueError
            If a parameter is out of range, arrays of a dict differ in length or are not numbers,
            ``clients`` does not fit X, or ``priority`` is empty or
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
            data = check_training_data(self, X, y, clients, sample_weight, reset=not resume)
            server = self._server_state(data.X, resume)
            if resume and not has_more_rounds(server, self.n_rounds):
                return self
            held_out = check_held_out(self, X_val, y_val, clients_val)
            arrays = data.arrays() | {"classes": getattr(self, "classes_", None)} | held_out
            n_before = server.round
            with open_run(type(self), self.get_params(), server, data.federation, arrays) as run:
                config = round_config(self, server.net, server.left_alone)
                simulation = Simulation(self, server, data, config, held_out)
                if server.round == n_before:  # else a run is resumed, which has begun so
                    simulation.begin()
                self._set_target_scale(server)
                validation = simulation.validation()
                callbacks = simulation.sklearn_callbacks(task)
                simulation.train(self.n_rounds, validation, [callbacks], run)
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
        self._set_linear(self.net_)  # those of the net, whatever the file says

    def _partial_fit(self, X, y, clients, sample_weight, classes=None) -> Self:
        """Train for one more round."""
        self._validate_params()
        resume = hasattr(self, "net_")
        with reset_on_failure(self.__dict__, resume):
            data = check_training_data(
                self, X, y, clients, sample_weight, reset=not resume, classes=classes
            )
            server = self._server_state(data.X, resume)
            server.stopped = 0  # also after a callback has stopped a fit
            config = round_config(self, server.net, server.left_alone)
            simulation = Simulation(self, server, data, config)
            simulation.begin(accumulate=True)
            self._set_target_scale(server)
            simulation.train(server.round + 1)
        return self

    @abstractmethod
    def _check_training_data(self, X, y, *, reset, classes=None):
        """Return X and encoded targets; with ``reset``, set what later data must conform to."""

    @property
    @abstractmethod
    def _problem(self) -> Problem:
        """The problem with the classes, or the shape of targets, of fit."""

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
        X = row_of_shape(self._sample_shape)
        return new_state(self._problem, self.estimator, X, seed)

    def _wanted(self, server: ServerState) -> Wanted:
        """Return what the start of a fit needs of clients."""
        net = server.net
        is_set = bool(standardize_layers(net)) and (not server.round or is_renewable(net))
        is_told = self.update_privacy is None
        n_shares = self._problem.n_shares(net) if is_told and self.loss_privacy is None else 0
        return Wanted(columns=is_set and is_told, n_classes=n_shares)

    def _set_target_scale(self, server: ServerState) -> None:
        """Set how targets are standardised, if they are."""

    def _set_fitted(self, server: ServerState, federation: Federation) -> None:
        """Set the fitted attributes from the finished rounds."""
        self._server, self.net_ = server, server.net
        self.clients_, self.priority_ = federation.ids, federation.priority
        self.sizes_, self.fractions_ = federation.sizes, federation.fractions
        self.history_, self.n_rounds_ = to_frame(server.rows), server.round
        self._set_linear(server.net)

    @property
    def contributions_(self) -> pd.DataFrame:
        """What each client's updates were worth, summed over the rounds that were valued."""
        rows = self._server.rows if hasattr(self, "_server") else []
        if not any("contributions" in row for row in rows):
            raise AttributeError(
                f"no round of this {type(self).__name__} was valued: fit it with contribution, "
                "such as skfed.contribution.DataBanzhaf(), and n_rounds of its every or more. "
                "If it was, the log says why rounds have no contributions."
            )
        return sum_contributions(rows, self.clients_)

    def _set_linear(self, net: NeuralNet) -> None:
        """Set ``coef_`` and ``intercept_``, which only a linear net has."""
        for name in LINEAR_ATTRIBUTES:
            self.__dict__.pop(name, None)
        self.__dict__.update(self._problem.linear_attributes(net))

    def _sk_visual_block_(self) -> Any:
        return visual_block(self)

    def _check_X(self, X) -> Samples:
        """Validate samples and return them in the net's dtype."""
        X = check_rows(self, X)
        return cast_samples(self.net_, X)
