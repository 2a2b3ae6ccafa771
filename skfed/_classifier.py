"""The federated classifier."""

import numpy as np
from scipy import sparse
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNetBinaryClassifier

from skfed._class_weight import check_class_weight, check_known_before_fit, check_one_label
from skfed._estimator import BaseFederated
from skfed._input import check_sample_shape, rows_to_score, validate_samples
from skfed._labels import Labels, is_indicator
from skfed._problem import Classification
from skfed.nets import predict_log, predictions, probabilities, sample_shape
from skfed.utils._checks import naming
from skfed.utils._sklearn import StrOptions


class FederatedClassifier(ClassifierMixin, BaseFederated):
    """A classifier trained over clients that keep their data (federated averaging).

    In each round the selector chooses a cohort, each of its clients trains the global model on
    its own rows, and the weighted mean of their models becomes the next global model. ``history_``
    has what that would cost on a network. The wrapped net defines what is trained and by which
    optimizer, the other parameters how it is federated. Rows have one of two or more classes, or
    several labels: then y is an indicator of 0 and 1 with a column for each, an array or a sparse
    matrix.

    Parameters
    ----------
    estimator : NeuralNetClassifier, NeuralNetBinaryClassifier, torch.nn.Module (class or \
instance) or None, default=None
        What every client trains. Of a skorch net the module, the criterion (a mean over samples),
        the optimizer, learning rate, batch size and device are used; ``max_epochs``,
        ``train_split`` and the shuffle setting are not. Its batch-level callbacks run on every
        client's batches, with ``on_train_begin`` and ``on_epoch_begin`` at the start of the
        client's training. Callbacks with an ``on_epoch_end`` or ``on_train_end``, such as
        EpochScoring, run on the global net, once a round; those that monitor a value skip the
        rounds that lack it. A warning names callbacks that do neither, and datasets and iterators
        of the net's own, which are not used. A torch module returns logits and is trained with SGD,
        learning rate 0.01 and batch size 128; a class is built without arguments, an instance is
        copied. With one output for two classes it is wrapped in a NeuralNetBinaryClassifier, with
        BCEWithLogitsLoss; else its loss is cross-entropy or, of several labels, the mean of
        BCEWithLogitsLoss over them. None: zero-initialised softmax regression on standardised
        columns (:class:`~skfed.modules.SoftmaxRegression` with ``standardize=True``), trained with
        SGD, learning rate 0.1 and batch size 16. Of several labels, its outputs are a logit each,
        and the rate is 0.1 times their number, as the loss is their mean. For four hospitals with
        raw columns, 36 phone users and 1,000 clients with 60 images each, its accuracy is within 5
        points of pooled logistic regression. Before round 0 each priority client sends three
        moments of its columns (see :class:`~skfed.modules.Standardize`) and its share of each
        class, and again in a later fit of the same model, if they have changed: the columns are
        scaled anew, and the weights converted. ``partial_fit`` scales by all rows so far.
    class_weight : dict, "balanced" or None, default=None
        Weights of the rows of each class in the loss of the default net, by label, 1 for a class
        that is not named; they multiply ``sample_weight``. "balanced": n_rows / (n_classes *
        n_rows_of_class), counted over the priority clients, each of which sends a count for each
        class before round 0, whose cost includes them. It is an error where rows have several
        labels.
    selector : BaseSelector, default=None
        Chooses the clients that train in a round; None is ``FedAlignSelector()`` if ``priority`` is
        given, else ``RandomSelector()``. A fit with ``priority`` warns of one that does not use it,
        unless it has ``ignore_priority=True``.
    priority : collection of client ids or mapping of them to weights, default=None
        The clients whose weighted loss F(w) is the objective (FedALIGN, equation 5); None means
        all. Ids must occur in ``clients``. A mapping has weights s_k in [0, 1], and 0 for the
        clients that it does not name: F = sum of s_k D_k F_k / sum of s_k D_k.
    n_rounds : int, default=100
        Communication rounds; with ``warm_start``, the number in total.
    local_epochs : int, default=1
        E, passes of a client over its rows in a round; each is a fresh permutation, the last
        partial batch kept.
    local_steps : int, default=None
        tau, minibatch steps of a client in a round, each of min(b, D_k) rows drawn afresh without
        replacement. If given, ``local_epochs`` is not used.
    lr_schedule : float, schedule or callable of the round, default=None
        Learning rate of local training, from ``skfed.schedules``; None keeps the net's own. Other
        rates of parameter groups of the net's optimizer are scaled with it.
    proximal_mu : float, default=0.0
        FedProx's mu: each client's loss has the term mu/2 ||w - w_t||^2 (Li et al. 2020).
    aggregator : BaseAggregator, default=None
        How updates are aggregated, from ``skfed.aggregation``: robust rules, or ``Scaffold()``;
        None is the mean by the weights of the selector's cohort.
    server_optimizer : ServerOptimizer, default=None
        Optimizer that steps from the global model towards the aggregate; None takes the aggregate
        as it is.
    availability : BaseAvailability, default=None
        Which clients can be reached in a round, and which do not reply, from
        ``skfed.availability``; None: all, always.
    on_client_error : {"drop", "raise"}, default="drop"
        "drop" leaves a client whose training or poll raises, or whose loss or update is not finite,
        out of the round; ``history_`` and the log have the cause. "raise" ends the fit with the
        cause.
    min_clients : int, default=1
        If fewer distinct clients succeed in a round, the model is kept.
    update_privacy, loss_privacy : GaussianMechanism, default=None
        Clipping and noise that clients apply to their updates, and to the losses that they report,
        before they send them, from ``skfed.privacy``.
    devices : BaseDevices, default=None
        How fast clients compute and communicate, from ``skfed.devices``: ``history_`` then has the
        simulated seconds of each round, the sum of its exchanges, and who was slowest. An exchange,
        such as a poll or the training, lasts until its last answer. None: no simulated time.
    deadline : float, default=None
        Seconds after which an exchange ends: simulated ones, which need ``devices``, or real ones
        over Flower. A client whose answer would come later is in ``failed`` with the cause "late":
        what was sent to it is charged, its update is lost, and what it reported in earlier rounds
        stays. It is not trained, and after a late poll not chosen.
    report_goal : int or float, default=None
        Clients with whose answers the training of a round ends (Bonawitz et al. 2019), or in (0, 1]
        a share of those chosen. Like ``deadline`` it needs ``devices``, except over Flower; the
        others are late, as there, and the weights of the cohort are scaled to sum to 1. A client
        drawn twice counts once, and a failure is an answer. None, or more than are chosen: all.
    validate_every : int, default=1
        Rounds from one validation on ``X_val`` to the next; the last round of a fit always has one.
        In rounds without, ``val_loss`` and the scores are NaN.
    contribution : BaseContribution, default=None
        How it is measured what each client's updates were worth, from ``skfed.contribution``, such
        as ``DataBanzhaf()``; the model stays the same, and who fails at it does not end the fit. It
        needs each client's update, so that ``update_privacy`` and rules with two phases are errors.
        None: it is not measured.
    evaluation : FederatedEvaluation, default=None
        By which metrics clients evaluate the model after each ``validate_every`` rounds, on rows
        that they keep aside (``X_val`` by ``clients_val``), from ``skfed.evaluation``; None: they
        do not.
    engine : {"auto", "stacked", "loop"}, default="auto"
        "loop" trains client by client with skorch. "stacked" trains many clients as one batch, with
        the same minibatches and, up to rounding, the same result. "auto" is "stacked" if that gives
        the same result and is not slower, else "loop"; ``engine_`` has the reason.
    memory_budget : int, default=2**30
        Bytes that stacked models and activations may take in each job. A larger cohort is split
        into chunks, which changes its result by rounding, and the masks of random layers.
    n_jobs : int, default=None
        Jobs that train in parallel, as joblib counts them: in threads or, with the loop engine, in
        processes, unless ``joblib.parallel_config`` sets a backend. Polls and trainings with little
        to compute are not shared. The result does not depend on it.
    checkpoint : str or path, default=None
        Directory to which ``fit`` writes its state every ``checkpoint_every`` rounds, in
        safetensors and JSON (``skfed.checkpoint``). A fit with the same parameters and data resumes
        there, with the same result, bit for bit, as without the interruption; n_jobs, verbose and,
        with ``warm_start``, n_rounds may differ. Candidates of a search may share the directory.
        Your own classes and functions are compared by their source text; functions and variables
        that they use by name are not: when these change, take another directory.
    checkpoint_every : int, default=1
        Rounds from one checkpoint to the next.
    warm_start : bool, default=False
        Let ``fit`` continue from the fitted model until ``n_rounds`` in total. Learning rate, batch
        size, optimizer, criterion, callbacks and device of ``estimator`` may change in between, but
        not its module; schedulers and callbacks that a change concerns start anew. The same holds
        for ``partial_fit``.
    random_state : int, RandomState instance or None, default=None
        Seed of all random draws: initial weights, selection, minibatches, random layers. With an
        int every fit has the same result; from an instance one number is drawn in each fit.
    verbose : int, default=0
        If positive, show a progress bar: rounds, objective, cohort, megabytes sent.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels; of an indicator of several labels the numbers of its columns.
    net_ : skorch.NeuralNetClassifier or skorch.NeuralNetBinaryClassifier
        The fitted net with the global model; it predicts positions in ``classes_``, or an
        indicator, from columns that are shifted as :class:`~skfed.modules.Standardize` says.
    clients_ : ndarray of shape (n_clients,)
        Client ids, sorted by type name and value.
    priority_ : ndarray of shape (n_clients,), dtype=bool
        Which of ``clients_`` have priority.
    sizes_ : ndarray of shape (n_clients,), dtype=int
        D_k, the number of samples of each client.
    fractions_ : ndarray of shape (n_clients,)
        p_k; they sum to 1 over the priority clients.
    engine_ : str
        "stacked" or "loop", and after a colon the reason.
    history_ : pandas.DataFrame
        One row a round: losses, cost, cohort, times; columns as in :mod:`skfed.history`.
    contributions_ : pandas.DataFrame
        ``value`` and its standard ``error`` of each client, sums over the rounds that were valued;
        only with ``contribution``. :func:`skfed.metrics.round_contributions` has those rounds.
    n_rounds_ : int
        Rounds trained.
    coef_ : ndarray of shape (n_classes, n_features)
        Weights of the features, in units of X; only if the net is linear: the default, and a
        ``torch.nn.Linear``. Samples of more dimensions are flattened. Each of two classes has a
        row, as in a softmax, whose difference is scikit-learn's single row; a net of one logit has
        that row.
    intercept_ : ndarray of shape (n_classes,)
        Intercepts, under the same condition.
    n_features_in_ : int
        Number of features seen in fit (the size of X's second dimension); not if X is a dict.
    feature_names_in_ : ndarray of shape (``n_features_in_``,)
        Names of features, if X has string column names.

    References
    ----------
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep
    Networks from Decentralized Data, AISTATS 2017.

    See Also
    --------
    skfed.FederatedRegressor : The same for targets that are numbers.
    skfed.make_pipeline : A Pipeline that passes clients to its steps.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier, FedAlignSelector
    >>> X, y = load_iris(return_X_y=True)
    >>> hospitals = [f"hospital {i % 5}" for i in range(len(X))]
    >>> model = FederatedClassifier(
    ...     selector=FedAlignSelector(eps=0.2),
    ...     priority=["hospital 0"],
    ...     n_rounds=20,
    ...     random_state=0,
    ... ).fit(X, y, clients=hospitals)
    >>> model.history_["n_aggregated"].max()
    np.int64(5)
    """

    _parameter_constraints: dict = {
        **BaseFederated._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        estimator=None,
        *,
        class_weight=None,
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
        self.class_weight = class_weight

    def _check_training_data(self, X, y, *, reset, classes=None):
        has_labels = is_indicator(y) if reset else self._problem.has_labels
        is_sparse = sparse.issparse(y)
        if has_labels:
            y = Labels.check_targets(y, "y")
        X, y = validate_samples(self, X, y, reset=reset, multi_output=has_labels)
        if reset:
            self._set_classes(y, classes, has_labels, is_sparse)
            self._sample_shape = sample_shape(X)
        check_sample_shape(self, X)
        return X, self._problem.encode(y)

    def _set_classes(self, y, classes, has_labels, is_sparse):
        """Set the classes, or the columns of an indicator."""
        self.__dict__.pop("_indicator", None)
        if has_labels:
            check_one_label(self.class_weight)
            self._indicator = "sparse" if is_sparse else "dense"
            self.classes_ = np.arange(y.shape[1])
            if classes is not None and not np.array_equal(classes, self.classes_):
                raise ValueError(
                    f"classes={classes!r}, but y is an indicator of {y.shape[1]} labels, which are "
                    f"the classes 0 to {y.shape[1] - 1}: leave classes out."
                )
            return
        check_classification_targets(y)
        with naming("y" if classes is None else "classes"):
            self.classes_ = np.unique(y if classes is None else classes)

    @property
    def _problem(self):
        indicator = getattr(self, "_indicator", None)
        if indicator is not None:
            return Labels(self.classes_, is_sparse=indicator == "sparse")
        return Classification(self.classes_, self.class_weight)

    def _validate_params(self):
        super()._validate_params()
        check_class_weight(self)

    def partial_fit(self, X, y, classes=None, clients=None, sample_weight=None):
        """Train for one more round, from the current model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...), or dict of array-like
            Training data; it may differ from call to call, and so may the clients.
        y : array-like of shape (n_samples,), or indicator of shape (n_samples, n_labels)
            Targets.
        classes : array-like of shape (n_classes,), default=None
            All classes that will occur; used by the first call only. None: those in y, or the
            columns of an indicator.
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
            As ``fit``; and if ``class_weight`` is "balanced", which needs all rows.
        """
        check_known_before_fit(self.class_weight)
        return self._partial_fit(X, y, clients, sample_weight, classes)

    def predict_proba(self, X):
        """Return the class probabilities of each sample.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...), or dict of array-like
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities, in the order of ``classes_``: of one class a row they sum to 1, of
            several labels each is that of the label.

        Raises
        ------
        ValueError
            If rows are no probabilities, as skorch does not know the net's criterion; a net with
            ``predict_nonlinearity`` or a predict_proba of its own says what makes them.
        """
        X = self._check_X(X)
        return probabilities(self.net_, X, self._problem.has_labels)

    def predict_log_proba(self, X):
        """Return the logarithms of the class probabilities of each sample.

        For a net that is trained with cross-entropy, or BCEWithLogitsLoss, they are computed from
        its logits, and are finite even if a probability rounds to 0; for other nets they are then
        -inf.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...), or dict of array-like
            Samples.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Logarithms of probabilities, in the order of ``classes_``.

        Raises
        ------
        ValueError
            As ``predict_proba``.
        """
        X = self._check_X(X)
        return predict_log(self.net_, X, self._problem.has_labels)

    def predict(self, X):
        """Return the most probable class of each sample, or its labels.

        A NeuralNetBinaryClassifier predicts the second class above its ``threshold``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...), or dict of array-like
            Samples.

        Returns
        -------
        ndarray of shape (n_samples,), or indicator of shape (n_samples, n_labels)
            Labels out of ``classes_``; an indicator of those whose probability is above 0.5,
            sparse if that of fit was.
        """
        X = self._check_X(X)
        problem = self._problem
        return problem.decode(predictions(self.net_, X, problem.has_labels))

    def score(self, X, y, sample_weight=None, clients=None):
        """Return the accuracy, over the rows of the priority clients if ``clients`` is given.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features, ...), or dict of array-like
            Samples.
        y : array-like of shape (n_samples,), or indicator of shape (n_samples, n_labels)
            Their labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each sample.
        clients : array-like of shape (n_samples,), default=None
            The client of each row; rows of clients without priority are left out.

        Returns
        -------
        float
            Fraction of correct predictions; of several labels, of rows where all are correct.

        Raises
        ------
        ValueError
            If ``clients`` does not fit X or names no priority client.
        """
        check_is_fitted(self)
        if self._problem.has_labels:
            y = Labels.check_targets(y, "y")
        X, y, sample_weight = rows_to_score(self, X, y, sample_weight, clients)
        with naming("X", "y", "sample_weight"):
            return super().score(X, y, sample_weight)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        is_binary = isinstance(self.estimator, NeuralNetBinaryClassifier)
        tags.classifier_tags.multi_class = not is_binary
        tags.classifier_tags.multi_label = not is_binary
        return tags
