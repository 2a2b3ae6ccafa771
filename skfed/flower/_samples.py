"""What a client says of its X: the shape of a row, dtype and names; of a dict, each array."""

from typing import Any

from sklearn.base import clone

from skfed._dict_input import sliceable
from skfed._estimator import BaseFederated
from skfed._input import validate_samples
from skfed.flower._messages import Refusal, to_text
from skfed.nets import sample_shape


def with_rows(X: Any, client: str) -> Any:
    """Return a dict of arrays as one that has rows, anything else as it is."""
    try:
        return sliceable(X)
    except (TypeError, ValueError) as error:
        raise Refusal(f"the data of client {client!r}: {error}") from error


def describe_samples(estimator: BaseFederated, X: Any) -> dict[str, Any]:
    """Describe the rows of X."""
    estimator = clone(estimator)
    X = validate_samples(estimator, X, reset=True)  # as fit does
    shape = sample_shape(X)
    if isinstance(shape, dict):
        return {"arrays": to_text(shape)}
    columns = getattr(estimator, "feature_names_in_", None)
    return {
        "shape": shape,
        "dtype": X.dtype.name,
        "columns": None if columns is None else columns.tolist(),
    }
