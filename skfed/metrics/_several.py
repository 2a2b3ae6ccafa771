"""Several fitted models, such as of several seeds: their checks, and means of their scores."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import is_classifier

from skfed._federation import find_ids
from skfed.metrics._scorers import clients_of, federated_step
from skfed.utils._ids import native


def models_of(given: Any, name: str) -> list[Any]:
    """Return the models of a list, or one model in a list; errors call what is given ``name``."""
    if not is_several(given):
        return [given]
    if not given:
        raise ValueError(f"{name} is empty: pass at least one fitted model.")
    for i, model in enumerate(given):
        with _noting(f"{name}[{i}]"):
            federated_step(model)
    return list(given)


def is_several(given: Any) -> bool:
    """Tell whether a list of models is given, rather than one; a Pipeline has a length too."""
    return isinstance(given, list | tuple)


def mean_scores(models: Sequence[Any], score: Callable[[Any], pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of tables of scores by client, and the deviations in columns ``_std``."""
    _check_alike(models)
    tables = []
    for i, model in enumerate(models):
        with _noting(f"model[{i}]"):
            tables.append(score(model))
    same = tables[0][["n_samples", "priority"]]
    measures = tables[0].columns.drop(same.columns)
    values = {name: pd.DataFrame([table[name].to_numpy() for table in tables]) for name in measures}
    means = {name: of.mean(skipna=False).to_numpy() for name, of in values.items()}
    # As in pandas, of n - 1, and NaN of one model.
    deviations = {f"{name}_std": of.std(skipna=False).to_numpy() for name, of in values.items()}
    return same.assign(**means, **deviations)


def _check_alike(models: Sequence[Any]) -> None:
    """Check that models have the same classes, clients and priority clients."""
    first, *others = map(_traits, models)
    for i, other in enumerate(others, 1):
        for (a, one), (b, two) in permutations([(0, first), (i, other)]):
            for trait, members in one.items():
                missing = find_ids(two[trait], members) < 0
                if missing.any():
                    raise ValueError(
                        f"model[{a}] has the {trait} {native(members[missing.argmax()])!r}, which "
                        f"model[{b}] has not: pass models with the same classes, clients and "
                        "priority clients, or score each alone."
                    )


def _traits(model: Any) -> dict[str, np.ndarray]:
    """Return by name what models are to have in common; a regressor has no classes."""
    return {
        "class": model.classes_ if is_classifier(model) else np.array([]),
        "client": clients_of(model),
        "priority client": clients_of(model, priority=True),
    }


@contextmanager
def _noting(position: str) -> Iterator[None]:
    """Context manager that adds to errors of which model they are."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised for {position}")
        raise
