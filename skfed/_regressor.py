"""The federated regressor."""

from dataclasses import replace
from typing import Literal

import numpy as np
from sklearn.base import RegressorMixin

from skfed._estimator import BaseFederated
from skfed._input import check_sample_shape, rows_to_score, validate_samples
from skfed._problem import Regression
from skfed.nets import predictions, sample_shape
from skfed.utils._checks import naming


class FederatedRegressor(RegressorMixin, BaseFederated):
    """A regressor trained over clients that keep their data (federated averaging).

    As :class:`FederatedClassifier`, with a net that predicts numbers. Selectors that match
    accuracies are refused.

    Parameters
    ----------
    estimator : NeuralNetRegressor, torch.nn.Module (class or instance) or None, default=None
        What every client trains. A torch module returns predictions of shape (n_samples,
        n_targets), or (n_samples,) for one target, and is trained with squared error, SGD,
        learning rate 0.01 and batch size 128; a class is built without arguments, an instance is
        copied. None: linear regression on columns standardised as in :class:`FederatedClassifier`,
        from zero weights and an intercept at the priority clients' mean target, with batch size 16.
        Its learning rate is the same for all priority clients, and so low that no rows of theirs
        make it diverge, at most 1 / (n_features + 1); it falls linearly to a tenth over
        ``n_rounds``, unless ``lr_schedule`` is given. Free clients train at a lower rate where
        their own rows need one. Before a fit each priority client sends the mean and the variance
        of its targets and then, given the scale of the columns, two norms of its rows. If in the
        last round the loss may be above that of the mean target, the priority clients are polled
        for it. With ``update_privacy`` nothing is sent: the rate is 1 / (n_features + 1) at first,
        and each gradient is clipped to the norm that updates are clipped to.
    standardize_targets : bool, default=False
        Whether the net learns standardised targets. Before the first round, each priority client
        sends the mean and the variance of its targets, which are charged to that round; from then
        on losses, ``val_loss`` and ``eps`` are in units of the pooled variance. ``predict`` and
        ``coef_`` are in units of y, the outputs of ``net_`` are not. Without it ``eps`` is in
        squared units of y, and a net with hidden layers hardly learns targets far from 0. It is a
        ``ValueError`` with ``update_privacy``, which does not cover what clients send.
    selector, priority, n_rounds, local_epochs, local_steps, lr_schedule, proximal_mu, aggregator, \
server_optimizer, availability, on_client_error, min_clients, \
update_privacy, loss_privacy, devices, deadline, report_goal, validate_every, contribution, \
evaluation, \
engine, memory_budget, n_jobs, checkpoint, checkpoint_every, warm_start, random_state, verbose
        As in :class:`FederatedClassifier`.

    Attributes
    ----------
    net_ : skorch.NeuralNetRegressor
        The fitted net with the global model.
    target_mean_, target_scale_ : ndarray of shape (n_targets,)
        What is subtracted from targets, and by what they are divided: with ``standardize_targets``,
        or, with a scale of 1, where targets are so far from 0 that float32 has too few digits.
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Weights of the features, in units of X and y; only if the net is linear: the default, and a
        ``torch.nn.Linear``. Samples of more dimensions are flattened.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercepts, under the same condition.
    clients_, priority_, sizes_, fractions_, engine_, history_, contributions_, n_rounds_, \
n_features_in_, feature_names_in_
        As in :class:`FederatedClassifier`.

    See Also
    --------
    skfed.FederatedClassifier : The same for classes.
    skfed.make_pipeline : A Pipeline that passes clients to its steps.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skfed import FederatedRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> hospitals = [f"hospital {i % 5}" for i in range(len(X))]
    >>> model = FederatedRegressor(
    ...     n_rounds=50, standardize_targets=True, random_state=0
    ... )
    >>> round(model.fit(X, y, clients=hospitals).score(X, y), 1)
    0.5
    """

    _parameter_constraints: dict = {
        **BaseFederated._parameter_constraints,
        "standardize_targets": ["boolean"],
    }

    def __init__(
        self,
        estimator=None,
        *,
        standardize_targets=False,
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
        super().__init__(
            estimator,
            selector=selector,
            priority=priority,
            n_rounds=n_rounds,
            local_epochs=local_epochs,
            local_steps=local_steps,
            lr_schedule=lr_schedule,
            proximal_mu=proximal_mu,
            aggregator=aggregator,
            server_optimizer=server_optimizer,
            availability=availability,
            on_client_error=on_client_error,
            min_clients=min_clients,
            update_privacy=update_privacy,
            loss_privacy=loss_privacy,
            devices=devices,
            deadline=deadline,
            report_goal=report_goal,
            validate_every=validate_every,
            contribution=contribution,
            evaluation=evaluation,
            engine=engine,
            memory_budget=memory_budget,
            n_jobs=n_jobs,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
        )
        self.standardize_targets = standardize_targets

    def _validate_params(self):
        super()._validate_params()
        if self.standardize_targets and self.update_privacy is not None:
            raise ValueError(
                "standardize_targets asks clients for the mean and variance of their targets, "
                "which update_privacy does not cover: scale y by bounds that are known without a "
                "look at the data."
            )

    def _check_training_data(self, X, y, *, reset, classes=None):
        y = Regression.check_targets(y, "y")
        X, y = validate_samples(self, X, y, reset=reset, multi_output=True, y_numeric=True)
        if reset:
            self._sample_shape, self._target_shape = sample_shape(X), y.shape[1:]
            for name in ("target_mean_", "target_scale_"):
                self.__dict__.pop(name, None)
        check_sample_shape(self, X)
        return X, self._problem.encode(y)

    @property
    def _problem(self):
        mean, scale = (getattr(self, f"target_{name}_", None) for name in ("mean", "scale"))
        return Regression(self._target_shape, mean, scale)

    def _wanted(self, server):
        is_default, is_private = self.estimator is None, self.update_privacy is not None
        targets: Literal["scale", "start"] | None = "start" if is_default else None
        if self.standardize_targets and (is_default or not server.round):
            targets = "scale"
        rate: Literal["safe", "own"] | None = None
        if is_default and is_private:
            rate = "own"
        elif is_default and self.lr_schedule is None:
            rate = "safe"
        targets = None if is_private else targets
        return replace(super()._wanted(server), targets=targets, rate=rate)

    def _set_target_scale(self, server):
        if server.target_scale is not None:
            self.target_mean_, self.target_scale_ = map(np.array, server.target_scale)

    def partial_fit(self, X, y, clients=None, sample_weight=None):
        """Train for one more round, from the current model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...), or dict of array-like
            Training data; it may differ from call to call, and so may the clients.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        clients : array-like of shape (n_samples,), default=None
            The id of the client that holds each row.
        sample_weight : array-like of shape (n_samples,), default=None
            As ``fit``.

        Returns
        -------
        self
            The estimator after the round.

        Raises
        ------
        ValueError
            As ``fit``.
        """
        return self._partial_fit(X, y, clients, sample_weight)

    def predict(self, X):
        """Return the predictions for each sample.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...), or dict of array-like
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_targets), dtype=float64
            Predictions, in the shape of the targets of fit.
        """
        X = self._check_X(X)
        predicted = predictions(self.net_, X).astype(float)  # as scikit-learn's regressors do
        predicted = predicted.reshape(len(X), -1)
        return self._problem.in_units(predicted).reshape(len(X), *self._target_shape)

    def score(self, X, y, sample_weight=None, clients=None):
        """Return R^2, over the rows of the priority clients if ``clients`` is given.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...), or dict of array-like
            Samples.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Their targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each sample.
        clients : array-like of shape (n_samples,), default=None
            The client of each row; rows of clients without priority are left out.

        Returns
        -------
        float
            The coefficient of determination, 1 at best.

        Raises
        ------
        ValueError
            If ``clients`` does not fit X or names no priority client.
        """
        X, y, sample_weight = rows_to_score(self, X, y, sample_weight, clients)
        with naming("X", "y", "sample_weight"):
            return super().score(X, y, sample_weight)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
