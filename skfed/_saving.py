"""Fitted estimators and Pipelines in one file of safetensors and JSON, without code."""

from os import PathLike
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from skfed._estimator import BaseFederated
from skfed.checkpoint import parts_of, read_fitted, restore, state_of, write_fitted

Estimator = TypeVar("Estimator", bound=BaseEstimator)

# Parameters that say how to fit, or how to compute, and do not change what a fitted one returns.
_OF_FIT = {
    *("priority", "min_count", "min_holders", "privacy", "bounds", "random_state", "categories"),
    *("copy", "n_jobs", "verbose", "memory"),
}
_PLAIN = (type(None), bool, int, float, str)


def save(estimator: BaseEstimator, path: str | PathLike) -> None:
    """Write a fitted estimator or Pipeline to a file of safetensors and JSON, without pickle.

    The file has the clients' ids: in ``clients_`` and ``history_`` of an estimator, and in
    ``exchange_`` of a transformer. With ``scope="client"`` it also has the statistics of each
    client's own rows (``by_client_``): who gets the file gets them.

    Parameters
    ----------
    estimator : estimator
        A federated estimator, a transformer, or a Pipeline of them, also with a ColumnTransformer
        or FeatureUnion. Other estimators are written too if their fitted attributes are numbers,
        strings, arrays, or tuples, lists and dicts of them.
    path : str or path
        The file; an existing one is replaced as a whole.

    Raises
    ------
    NotFittedError
        If the estimator, or a step of it, is not fitted.
    OSError
        If the file cannot be written.
    TypeError
        If a fitted attribute is another object; the message names the class and the attribute. Of a
        search, ``best_estimator_`` can be saved.

    See Also
    --------
    load : Reads the file.
    """
    _check_fitted(estimator)
    if hasattr(estimator, "best_estimator_"):
        raise TypeError(
            f"{type(estimator).__name__} is a search, which is not written to files: save its "
            "best_estimator_, and cv_results_ as a table."
        )
    if isinstance(estimator, BaseFederated):
        estimator.save(path)
    else:
        content = {"fitted": state_of(estimator), "parameters": _parameters_of(estimator)}
        write_fitted(path, type(estimator).__name__, content)


def load(like: Estimator, path: str | PathLike) -> Estimator:
    """Read a fitted estimator or Pipeline from a file that :func:`skfed.save` has written.

    The file has no code, and nothing in it is executed. Parameters come from ``like``: those of its
    transformers that are numbers, strings, types, or sequences or dicts of them, are compared with
    the saved ones, unless they matter in fit only (``priority``, ``min_count``, ``random_state``,
    ...).

    Parameters
    ----------
    like : estimator
        An estimator or Pipeline with the parameters of the saved one, and the same names of steps;
        it is not changed. Functions of a FunctionTransformer and fitted estimators in a
        FrozenEstimator are parameters.
    path : str or path
        The file.

    Returns
    -------
    estimator
        A fitted copy of ``like``.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the file was not written by ``save``, is damaged, or is of another estimator, or of one
        with other parameters; the message names the step, the parameter and both values.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import skfed
    >>> from sklearn.datasets import load_iris
    >>> from skfed.preprocessing import FederatedStandardScaler
    >>> X, y = load_iris(return_X_y=True)
    >>> model = skfed.FederatedClassifier(n_rounds=5, random_state=0)
    >>> pipe = skfed.make_pipeline(FederatedStandardScaler(), model)
    >>> fitted = skfed.make_pipeline(FederatedStandardScaler(), model)
    >>> fitted = fitted.fit(X, y, clients=[i % 6 for i in range(150)])
    >>> path = Path(tempfile.mkdtemp()) / "iris.safetensors"
    >>> skfed.save(fitted, path)
    >>> skfed.load(pipe, path).score(X, y) == fitted.score(X, y)
    True
    """
    estimator = clone(like)
    if isinstance(estimator, BaseFederated):
        return estimator.load(path)

    def use(content: dict[str, Any]) -> Estimator:
        _check_parameters(estimator, content.get("parameters"))
        _check_fitted(restore(estimator, content.get("fitted")))
        return estimator

    return read_fitted(path, type(estimator).__name__, use)


def _check_fitted(estimator: BaseEstimator) -> None:
    """Raise a NotFittedError, a ValueError, if an estimator or a step of it is not fitted."""
    check_is_fitted(estimator)
    for _, part in parts_of(estimator):
        if isinstance(part, BaseEstimator):
            _check_fitted(part)


def _parameters_of(estimator: BaseEstimator, step: str = "") -> dict[str, dict[str, Any]]:
    """Return the class and plain parameters of each part, by its name as set_params takes it.

    Parameters that matter in fit only, and all of federated estimators, are left out.
    """
    own: dict[str, Any] = {"class": type(estimator).__name__}
    found = {step: own}
    if isinstance(estimator, BaseFederated):
        return found
    for name, value in estimator.get_params().items():
        if isinstance(value, BaseEstimator) and "__" not in name:
            found |= _parameters_of(value, f"{step}__{name}" if step else name)
        elif "__" not in name and name not in _OF_FIT and _is_plain(value):
            own[name] = _plain(value)
    return found


def _check_parameters(estimator: BaseEstimator, saved: Any) -> None:
    """Raise a ValueError if a parameter is another than in the file; ``saved`` may be anything."""
    if not isinstance(saved, dict) or not all(isinstance(one, dict) for one in saved.values()):
        raise ValueError("it is not valid: it has no parameters.")
    for step, own in _parameters_of(estimator).items():
        theirs = saved.get(step, {})
        if theirs.get("class") != own["class"]:
            continue  # ``restore`` tells it
        for name in own.keys() & theirs.keys():
            if not _is_same(own[name], theirs[name]):
                where = f"step {step!r}, a {own['class']}," if step else f"the {own['class']}"
                raise ValueError(
                    f"{where} was saved with {name}={theirs[name]!r}, but like has "
                    f"{name}={own[name]!r}: pass like with the parameters of the saved one."
                )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | np.ndarray):
        return all(map(_is_plain, np.ravel(value) if isinstance(value, np.ndarray) else value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value.keys(), *value.values()]))
    return isinstance(value, (*_PLAIN, np.bool_, np.number, np.str_, type))


def _plain(value: Any) -> Any:
    """Return lists for sequences and names for types, so that equal parameters are equal."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return sorted(([_plain(name), _plain(one)] for name, one in value.items()), key=repr)
    return value.__name__ if isinstance(value, type) else value


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    both_nan = one != one and other != other
    return both_nan or (type(other) in _PLAIN and bool(one == other))
