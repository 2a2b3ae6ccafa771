"""A scikit-learn Pipeline that knows which of its steps want the client of each row.

scikit-learn's own has to be told: without metadata routing by ``fit(X, y, model__clients=ids)``,
and validation rows given so are not transformed by the earlier steps. Here ``fit(X, y,
clients=ids, X_val=X_val, y_val=y_val)`` is enough, with metadata routing on and off.
"""

import inspect
from typing import Any

from sklearn import get_config
from sklearn.utils.metadata_routing import MetadataRequest, MetadataRouter, get_routing_for_object
from sklearn.utils.metaestimators import available_if

from skfed.utils._sklearn import OpenPipeline, name_steps

__all__ = ["FederatedPipeline", "make_pipeline"]

_SHARED = ("clients", "X_val", "y_val", "clients_val")


def _last_has_score(pipeline: "FederatedPipeline") -> bool:
    return hasattr(pipeline.steps[-1][1], "score")


class FederatedPipeline(OpenPipeline):
    """A Pipeline that hands clients and validation data to the steps that take them.

    A step takes ``clients``, ``X_val``, ``y_val`` or ``clients_val`` if its ``fit`` has a parameter
    of that name, or its metadata request names it, unless the request is False. ``X_val`` comes to
    a step as X does: transformed by the earlier steps. All else is as in scikit-learn's
    :class:`~sklearn.pipeline.Pipeline`; what is given as ``step__parameter`` goes to that step
    as it is.

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
    skfed.make_pipeline : Names the steps by itself.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skfed import FederatedClassifier
    >>> from skfed.pipeline import FederatedPipeline
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier(n_rounds=5)
    >>> pipe = FederatedPipeline([("scale", StandardScaler()), ("model", model)])
    >>> pipe = pipe.fit(X, y, clients=[i % 6 for i in range(150)])
    >>> len(pipe["model"].clients_)
    6
    """

    def fit(self, X, y=None, **params):
        """Fit the steps one after the other, each on what the ones before make of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Training data of all clients.
        y : array-like of shape (n_samples,), default=None
            Targets.
        **params : dict
            ``clients``, of shape (n_samples,): the id of the client that holds each row.
            ``X_val``, ``y_val`` and ``clients_val``: validation data, as the estimators' fit takes
            them. Others as scikit-learn's Pipeline takes them: ``step__parameter`` with metadata
            routing off, what the steps request with it on.

        Returns
        -------
        self
            The fitted Pipeline.

        Raises
        ------
        TypeError
            If no step takes one of ``clients``, ``X_val``, ``y_val`` and ``clients_val``.
        """
        return super().fit(X, y, **params)

    @available_if(_last_has_score)
    def score(self, X, y=None, sample_weight=None, *, clients=None, **params):
        """Return the last step's score on what the earlier ones make of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Samples.
        y : array-like of shape (n_samples,), default=None
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples.
        clients : array-like of shape (n_samples,), default=None
            The client of each row, for a federated estimator: the score is then that of the rows
            of its priority clients.
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
        if "clients" not in _parameters(last.score):
            raise TypeError(
                f"step {name!r} takes no clients in score, since a {type(last).__name__} does not: "
                "leave clients out."
            )
        earlier = self[:-1]
        Xt = earlier.transform(X, **params) if len(earlier) else X
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return last.score(Xt, y, clients=clients, **weights)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return which step asks for which metadata.

        Returns
        -------
        MetadataRouter
            As in scikit-learn's Pipeline; also, a step that says nothing of ``clients`` or
            validation data, and whose ``fit`` takes them, asks for them.
        """
        router = super().get_metadata_routing()
        for name, pair in router:
            if isinstance(pair.router, MetadataRequest) and name in self.named_steps:
                for param in _SHARED:
                    if _request(self.named_steps[name], pair.router, param) is None:
                        pair.router.fit.add_request(param=param, alias=True)
        return router

    def _given(self, params: dict[str, Any]) -> dict[str, Any]:
        params = {k: v for k, v in params.items() if k not in _SHARED or v is not None}
        if get_config()["enable_metadata_routing"]:
            return params
        takers = {
            param: [name for _, name, step in self._iter() if _takes(step, param)]
            for param in _SHARED
            if param in params
        }
        if unused := [param for param, names in takers.items() if not names]:
            raise TypeError(
                f"no step takes {', '.join(unused)}: leave it out, or end the Pipeline in a "
                "federated estimator."
            )
        given = {name: value for name, value in params.items() if name not in takers}
        for param, names in takers.items():
            given |= {f"{name}__{param}": params[param] for name in names}
        return given

    def _given_to(self, step_idx: int, params: dict[str, Any], given: Any) -> Any:
        X_val = params.get("X_val")
        raw = [method for method, values in given.items() if values.get("X_val") is X_val]
        if X_val is None or not step_idx or not raw:
            return given
        # The last of the earlier steps has just been fitted.
        X_val = self[:step_idx].transform(X_val)
        return {**given, **{method: {**given[method], "X_val": X_val} for method in raw}}


def make_pipeline(
    *steps, memory=None, transform_input=None, verbose: bool = False
) -> FederatedPipeline:
    """Chain estimators into a Pipeline that hands clients and validation data to its steps.

    It is :func:`sklearn.pipeline.make_pipeline`, with a :class:`~skfed.pipeline.FederatedPipeline`.

    Parameters
    ----------
    *steps : estimators
        Transformers, and a last estimator; a step's name is that of its class in lower case.
    memory : str or joblib.Memory, default=None
        Where fitted transformers are cached.
    transform_input : list of str, default=None
        Further arguments of fit to be transformed by the earlier steps; needs metadata routing.
        ``X_val`` always is, and need not be named.
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
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skfed import FederatedClassifier, RandomSelector, make_pipeline
    >>> X, y = load_wine(return_X_y=True)
    >>> clients = np.arange(len(y)) % 10
    >>> model = FederatedClassifier(selector=RandomSelector(5), n_rounds=10, random_state=0)
    >>> pipe = make_pipeline(StandardScaler(), model)
    >>> pipe = pipe.fit(X[50:], y[50:], clients=clients[50:], X_val=X[:50], y_val=y[:50])
    >>> bool(pipe[-1].history_["val_score"].iloc[-1] == pipe.score(X[:50], y[:50]))
    True
    """
    return FederatedPipeline(
        name_steps(steps), transform_input=transform_input, memory=memory, verbose=verbose
    )


def _parameters(method: Any) -> Any:
    return inspect.signature(method).parameters


def _request(step: Any, routing: MetadataRequest, param: str) -> Any:
    """Return what a step's fit says of a parameter: None if only its signature has it."""
    default = None if param in _parameters(step.fit) else False
    return routing.fit.requests.get(param, default)


def _takes(step: Any, param: str) -> bool:
    """Tell whether a step's fit takes a parameter, for itself or for what it wraps."""
    routing = get_routing_for_object(step)
    if isinstance(routing, MetadataRequest):
        return _request(step, routing, param) is not False
    return _wrapped_take(routing, param)


def _wrapped_take(routing: MetadataRequest | MetadataRouter, param: str) -> bool:
    if isinstance(routing, MetadataRequest):
        return routing.fit.requests.get(param, False) is not False
    return any(_wrapped_take(pair.router, param) for _, pair in routing)
