"""Which methods of an estimator take which metadata, with metadata routing on and off."""

import inspect
from typing import Any

from sklearn.utils.metadata_routing import MetadataRequest, MetadataRouter, get_routing_for_object


def parameters(method: Any) -> Any:
    """Return the parameters of a method."""
    return inspect.signature(method).parameters


def fit_request(step: Any, routing: MetadataRequest, param: str) -> Any:
    """Return a step's request for a parameter of fit: None if only the signature has it."""
    default = None if param in parameters(step.fit) else False
    return routing.fit.requests.get(param, default)


def takes_in_fit(step: Any, param: str) -> bool:
    """Return whether a step's fit, or that of an estimator in it, takes a parameter."""
    routing = get_routing_for_object(step)
    if isinstance(routing, MetadataRequest):
        return fit_request(step, routing, param) is not False
    return _is_requested(routing, param, "fit")


def takes_clients_in(method: str, step: Any) -> bool:
    """Return whether a method of a step, or of an estimator in it, requests clients."""
    return _is_requested(get_routing_for_object(step), "clients", method, unset=None)


def _is_requested(
    routing: MetadataRequest | MetadataRouter, param: str, method: str, unset: bool | None = False
) -> bool:
    """``unset`` is a further value that is no request: None, where a signature does not count."""
    if isinstance(routing, MetadataRequest):
        return getattr(routing, method).requests.get(param, False) not in (False, unset)
    return any(_is_requested(pair.router, param, method, unset) for _, pair in routing)
