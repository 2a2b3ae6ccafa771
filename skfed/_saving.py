"""Fitted estimators and Pipelines in one file of safetensors and JSON, without code."""

from os import PathLike
from typing import Any, TypeVar

from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from skfed._estimator import BaseFederated
from skfed.checkpoint._fitted import restore, state_of
from skfed.checkpoint._save import read_fitted, write_fitted

Estimator = TypeVar("Estimator", bound=BaseEstimator)


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
        If the estimator is not fitted.
    OSError
        If the file cannot be written.
    TypeError
        If a fitted attribute is another object; the message names the class and the attribute.

    See Also
    --------
    load : Reads the file.
    """
    check_is_fitted(estimator)
    if isinstance(estimator, BaseFederated):
        estimator.save(path)
    else:
        write_fitted(path, type(estimator).__name__, {"fitted": state_of(estimator)})


def load(like: Estimator, path: str | PathLike) -> Estimator:
    """Read a fitted estimator or Pipeline from a file that :func:`skfed.save` has written.

    The file has neither parameters nor code, and nothing in it is executed.

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
        If it was not written by ``save``, is damaged, or is of another estimator.

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
        return restore(estimator, content.get("fitted"))

    return read_fitted(path, type(estimator).__name__, use)
