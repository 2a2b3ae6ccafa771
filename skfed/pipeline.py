"""A scikit-learn Pipeline that passes clients and validation data to its steps.

``fit(X, y, clients=ids, X_val=X_val, y_val=y_val)`` works with metadata routing on and off.
scikit-learn's Pipeline, without routing, needs ``fit(X, y, model__clients=ids)``, and does not
transform validation rows by the earlier steps.
"""

from typing import Any

from sklearn import get_config
from sklearn.utils.metadata_routing import MetadataRequest, MetadataRouter
from sklearn.utils.metaestimators import available_if

from skfed.preprocessing._pooled_steps import warning_of_pooling
from skfed.utils._routing import fit_request, parameters, takes_clients_in, takes_in_fit
from skfed.utils._sklearn import OpenPipeline, name_steps

__all__ = ["FederatedPipeline", "make_pipeline"]

_ROUTED = ("clients", "X_val", "y_val", "clients_val")


def _last_has(method: str):
    return available_if(lambda self: hasattr(self.steps[-1][1], method))


def transform_by_clients(pipeline: Any, X: Any, clients: Any) -> Any:
    """Transform X by all steps of a Pipeline; those that take clients in transform get them."""
    for _, step in pipeline.steps:
        if step is not None and not isinstance(step, str):
            given = {"clients": clients} if takes_clients_in("transform", step) else {}
            X = step.transform(X, **given)
    return X


class FederatedPipeline(OpenPipeline):
    """A Pipeline that passes clients and validation data to the steps that take them.

    A step takes ``clients``, ``X_val``, ``y_val`` or ``clients_val`` if its ``fit`` has a parameter
    of that name, or its metadata request names it, unless the request is False. Like X, ``X_val``
    is transformed by the earlier steps. The rest is as in scikit-learn's
    :class:`~sklearn.pipeline.Pipeline`; an argument ``step__parameter`` is passed to that step
    unchanged.

    Parameters
    ----------
    steps : list of (str, estimator)
        The names of the steps and the steps.
    transform_input : list of str, default=None
        Further arguments of fit to be transformed by the earlier steps; needs metadata routing.
    memory : str or joblib.Memory, default=None
        Where fitted transformers are cached.
    verbose : bool, default=False
        Whether to print the time that each step takes.

    See Also
    --------
    skfed.make_pipeline : Names the steps by their classes.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skfed import FederatedClassifier
    >>> from skfed.pipeline import FederatedPipeline
    >>> from skfed.preprocessing import FederatedStandardScaler
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(n_rounds=5)
    >>> pipe = FederatedPipeline(
    ...     [("scale", FederatedStandardScaler()), ("model", model)]
    ... )
    >>> pipe = pipe.fit(X, y, clients=[i % 6 for i in range(150)])
    >>> len(pipe["scale"].exchange_), len(pipe["model"].clients_)
    (6, 6)
    """

    def fit(self, X, y=None, **params):
        """Fit the steps in order, each on X transformed by the earlier steps.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data of all clients.
        y : array-like of shape (n_samples,), default=None
            Targets.
        **params : dict
            ``clients``, of shape (n_samples,): the id of the client that holds each row.
            ``X_val``, ``y_val`` and ``clients_val``: validation data, as in the estimators' fit.
            Others as in scikit-learn's Pipeline: ``step__parameter`` with metadata routing off,
            what the steps request with it on.

        Returns
        -------
        self
            The fitted Pipeline.

        Warns
        -----
        UserWarning
            If ``clients`` is given, and a step is fitted on all rows as if they were in one place:
            a transformer that takes no clients, needs to be fitted, and is not marked by
            :func:`skfed.preprocessing.pooled`.

        Raises
        ------
        TypeError
            If no step takes one of ``clients``, ``X_val``, ``y_val`` and ``clients_val``.
        """
        with warning_of_pooling(self, params):
            return super().fit(X, y, **params)

    def fit_transform(self, X, y=None, **params):
        """Fit the steps in order, and return X transformed by all of them.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data of all clients.
        y : array-like of shape (n_samples,), default=None
            Targets.
        **params : dict
            As in ``fit``.

        Returns
        -------
        array-like of shape (n_samples, n_features_out)
            The transformed rows.
        """
        with warning_of_pooling(self, params):
            return super().fit_transform(X, y, **params)

    @_last_has("predict")
    def predict(self, X, *, clients=None, **params):
        """Return the last step's predictions on X transformed by the earlier steps.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Samples.
        clients : array-like of shape (n_samples,), default=None
            The client of each row, for transformers with ``scope="client"``.
        **params : dict
            As in scikit-learn's Pipeline.

        Returns
        -------
        ndarray
            The predictions.
        """
        return self._call_last("predict", X, clients, params)

    @_last_has("predict_proba")
    def predict_proba(self, X, *, clients=None, **params):
        """Return the last step's probabilities on X transformed by the earlier steps.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Samples.
        clients : array-like of shape (n_samples,), default=None
            The client of each row, for transformers with ``scope="client"``.
        **params : dict
            As in scikit-learn's Pipeline.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            The probabilities.
        """
        return self._call_last("predict_proba", X, clients, params)

    @available_if(OpenPipeline._can_transform)
    def transform(self, X, *, clients=None, **params):
        """Return X transformed by all steps.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Samples.
        clients : array-like of shape (n_samples,), default=None
            The client of each row, for transformers with ``scope="client"``.
        **params : dict
            As in scikit-learn's Pipeline.

        Returns
        -------
        array-like of shape (n_samples, n_features_out)
            The transformed rows.
        """
        if clients is None:
            return super().transform(X, **params)
        self._check_scope("transform")
        return transform_by_clients(self, X, clients)

    @_last_has("score")
    def score(self, X, y=None, sample_weight=None, *, clients=None, **params):
        """Return the last step's score on X transformed by the earlier steps.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Samples.
        y : array-like of shape (n_samples,), default=None
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples.
        clients : array-like of shape (n_samples,), default=None
            The client of each row: for transformers with ``scope="client"``, and for a federated
            estimator, of which only the rows of the priority clients are scored. With routing on,
            a Pipeline with such transformers scores all rows, unless its last step requests
            ``clients`` (``set_score_request(clients=True)``): so a search scores alike in both
            modes.
        **params : dict
            What the steps request, with metadata routing on.

        Returns
        -------
        float
            The score.

        Raises
        ------
        TypeError
            If ``clients`` is given and the last step's ``score`` does not take it.
        """
        if clients is None:
            return super().score(X, y, sample_weight=sample_weight, **params)
        name, last = self.steps[-1]
        earlier = self[:-1] if len(self) > 1 else None
        by_client = earlier is not None and takes_clients_in("transform", earlier)
        given = {} if sample_weight is None else {"sample_weight": sample_weight}
        if "clients" in parameters(last.score):
            routed = get_config()["enable_metadata_routing"] and by_client
            if not routed or takes_clients_in("score", last):
                given["clients"] = clients
        elif not by_client:
            raise TypeError(
                f"step {name!r}, a {type(last).__name__}, takes no clients in score: omit clients."
            )
        if by_client:
            X = transform_by_clients(earlier, X, clients)
        elif earlier is not None:
            X = earlier.transform(X, **params)
        return last.score(X, y, **given)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return which step requests which metadata.

        Returns
        -------
        MetadataRouter
            As in scikit-learn's Pipeline. In addition, a step whose ``fit`` takes ``clients`` or
            validation data requests them, unless it has a request of its own.
        """
        router = super().get_metadata_routing()
        for name, pair in router:
            if isinstance(pair.router, MetadataRequest) and name in self.named_steps:
                for param in _ROUTED:
                    if fit_request(self.named_steps[name], pair.router, param) is None:
                        pair.router.fit.add_request(param=param, alias=True)
        return router

    def _call_last(self, method: str, X: Any, clients: Any, params: dict[str, Any]) -> Any:
        """Call a method of the last step; transformers with ``scope="client"`` get clients."""
        if clients is None:
            return getattr(super(), method)(X, **params)
        self._check_scope(method)
        if get_config()["enable_metadata_routing"]:
            return getattr(super(), method)(X, clients=clients, **params)
        X = transform_by_clients(self[:-1], X, clients)
        return getattr(self.steps[-1][1], method)(X, **params)

    def _check_scope(self, method: str) -> None:
        if not takes_clients_in("transform", self):
            raise TypeError(
                f"no step takes clients in {method}, as a transformer with scope='client' does: "
                "omit clients."
            )

    def _assign_params(self, params: dict[str, Any]) -> dict[str, Any]:
        params = {k: v for k, v in params.items() if k not in _ROUTED or v is not None}
        if get_config()["enable_metadata_routing"]:
            return params
        assigned = {name: value for name, value in params.items() if name not in _ROUTED}
        unused = []
        for param in (name for name in _ROUTED if name in params):
            steps = [name for _, name, step in self._iter() if takes_in_fit(step, param)]
            assigned |= {f"{name}__{param}": params[param] for name in steps}
            unused += [] if steps else [param]
        if unused:
            raise TypeError(
                f"no step takes {', '.join(unused)}: omit it, or end the Pipeline in a federated "
                "estimator."
            )
        return assigned

    def _transform_step_params(
        self, step_idx: int, params: dict[str, Any], step_params: Any
    ) -> Any:
        X_val = params.get("X_val")
        methods = [name for name, values in step_params.items() if values.get("X_val") is X_val]
        if X_val is None or not step_idx or not methods:
            return step_params
        # All earlier steps are fitted by now.
        earlier, owners = self[:step_idx], params.get("clients_val")
        if owners is not None and takes_clients_in("transform", earlier):
            X_val = transform_by_clients(earlier, X_val, owners)
        else:
            X_val = earlier.transform(X_val)
        return {**step_params, **{name: {**step_params[name], "X_val": X_val} for name in methods}}


def make_pipeline(
    *steps, memory=None, transform_input=None, verbose: bool = False
) -> FederatedPipeline:
    """Chain estimators into a Pipeline that passes clients and validation data to its steps.

    Like :func:`sklearn.pipeline.make_pipeline`, for a :class:`~skfed.pipeline.FederatedPipeline`.

    Parameters
    ----------
    *steps : estimators
        Transformers and a final estimator; a step's name is that of its class in lower case.
    memory : str or joblib.Memory, default=None
        Where fitted transformers are cached.
    transform_input : list of str, default=None
        Further arguments of fit to be transformed by the earlier steps; needs metadata routing.
        ``X_val`` always is, and need not be listed.
    verbose : bool, default=False
        Whether to print the time that each step takes.

    Returns
    -------
    FederatedPipeline
        The Pipeline.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_wine
    >>> from skfed import FederatedClassifier, RandomSelector, make_pipeline
    >>> from skfed.preprocessing import FederatedStandardScaler
    >>> X, y = load_wine(return_X_y=True)
    >>> clients = np.arange(len(y)) % 10
    >>> model = FederatedClassifier(
    ...     selector=RandomSelector(5), n_rounds=10, random_state=0
    ... )
    >>> pipe = make_pipeline(FederatedStandardScaler(), model)
    >>> pipe = pipe.fit(
    ...     X[50:], y[50:], clients=clients[50:], X_val=X[:50], y_val=y[:50]
    ... )
    >>> bool(
    ...     pipe[-1].history_["val_score"].iloc[-1]
    ...     == pipe.score(X[:50], y[:50])
    ... )
    True
    """
    return FederatedPipeline(
        name_steps(steps), transform_input=transform_input, memory=memory, verbose=verbose
    )
