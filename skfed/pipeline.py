"""A scikit-learn Pipeline that passes clients and validation data to its steps.

``fit(X, y, clients=ids, X_val=X_val, y_val=y_val)`` works with metadata routing on and off.
scikit-learn's Pipeline, without routing, needs ``fit(X, y, model__clients=ids)``, and does not
transform validation rows by the earlier steps.
"""

import inspect
from collections.abc import Iterator
from typing import Any

from sklearn import get_config
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRequest, MetadataRouter, get_routing_for_object
from sklearn.utils.metaestimators import available_if

from skfed import preprocessing
from skfed.preprocessing import PooledTransformer
from skfed.utils._sklearn import OpenPipeline, name_steps
from skfed.utils._warnings import warn

__all__ = ["FederatedPipeline", "make_pipeline"]

_FEDERATED = preprocessing.__all__
_ROUTED = ("clients", "X_val", "y_val", "clients_val")


def _last_has_score(pipeline: "FederatedPipeline") -> bool:
    return hasattr(pipeline.steps[-1][1], "score")


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
    >>> pipe = FederatedPipeline([("scale", FederatedStandardScaler()), ("model", model)])
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
        if any(n.endswith("clients") and v is not None for n, v in params.items()):
            _warn_of_pooling(self)
        return super().fit(X, y, **params)

    @available_if(_last_has_score)
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
            The client of each row, for a federated estimator: only the rows of its priority
            clients are scored.
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
                f"step {name!r}, a {type(last).__name__}, takes no clients in score: omit clients."
            )
        earlier = self[:-1]
        Xt = earlier.transform(X, **params) if len(earlier) else X
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return last.score(Xt, y, clients=clients, **weights)

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
                    if _request(self.named_steps[name], pair.router, param) is None:
                        pair.router.fit.add_request(param=param, alias=True)
        return router

    def _assign_params(self, params: dict[str, Any]) -> dict[str, Any]:
        params = {k: v for k, v in params.items() if k not in _ROUTED or v is not None}
        if get_config()["enable_metadata_routing"]:
            return params
        assigned = {name: value for name, value in params.items() if name not in _ROUTED}
        unused = []
        for param in (name for name in _ROUTED if name in params):
            steps = [name for _, name, step in self._iter() if _takes(step, param)]
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
        X_val = self[:step_idx].transform(X_val)
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
    >>> model = FederatedClassifier(selector=RandomSelector(5), n_rounds=10, random_state=0)
    >>> pipe = make_pipeline(FederatedStandardScaler(), model)
    >>> pipe = pipe.fit(X[50:], y[50:], clients=clients[50:], X_val=X[:50], y_val=y[:50])
    >>> bool(pipe[-1].history_["val_score"].iloc[-1] == pipe.score(X[:50], y[:50]))
    True
    """
    return FederatedPipeline(
        name_steps(steps), transform_input=transform_input, memory=memory, verbose=verbose
    )


def _warn_of_pooling(pipeline: FederatedPipeline) -> None:
    """Warn of transformers that are fitted on the rows of all clients together."""
    plain = list(dict.fromkeys(type(step).__name__ for step in _parts(pipeline) if _pools(step)))
    if not plain:
        return
    ready = [name for name in (f"Federated{name}" for name in plain) if name in _FEDERATED]
    warn(
        f"{', '.join(plain)}: fitted on the rows of all clients, as if they were in one place. "
        + (f"Use {', '.join(ready)} of skfed.preprocessing, or " if ready else "Use ")
        + f"skfed.preprocessing.pooled({plain[0]}(...)) if this is meant."
    )


def _parts(step: Any) -> Iterator[Any]:
    """Yield the estimators in a Pipeline, ColumnTransformer or FeatureUnion, or the step itself."""
    for name in ("steps", "transformer_list", "transformers"):
        if hasattr(step, name):
            for part in getattr(step, name):
                yield from _parts(part[1])
            yield from _parts(getattr(step, "remainder", None))
            return
    if step is not None and not isinstance(step, str):
        yield step


def _pools(step: Any) -> bool:
    """Tell whether a step is a transformer that is fitted on rows, and does not take clients."""
    if isinstance(step, PooledTransformer | FrozenEstimator) or not hasattr(step, "transform"):
        return False
    return get_tags(step).requires_fit and not _takes(step, "clients")


def _parameters(method: Any) -> Any:
    return inspect.signature(method).parameters


def _request(step: Any, routing: MetadataRequest, param: str) -> Any:
    """Return a step's request for a parameter of fit: None if only the signature has it."""
    default = None if param in _parameters(step.fit) else False
    return routing.fit.requests.get(param, default)


def _takes(step: Any, param: str) -> bool:
    """Return whether a step's fit, or that of an estimator in it, takes a parameter."""
    routing = get_routing_for_object(step)
    if isinstance(routing, MetadataRequest):
        return _request(step, routing, param) is not False
    return _is_requested(routing, param)


def _is_requested(routing: MetadataRequest | MetadataRouter, param: str) -> bool:
    if isinstance(routing, MetadataRequest):
        return routing.fit.requests.get(param, False) is not False
    return any(_is_requested(pair.router, param) for _, pair in routing)
