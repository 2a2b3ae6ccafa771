"""Worked decisions: small rounds whose cohorts were derived by hand, in ``worked_decisions/``.

The format is described in the user guide, so that other frameworks can read the files.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.testing import assert_allclose
from sklearn.base import clone

from skfed.selection import BaseSelector, Cohort
from skfed.selection._base import admission_of
from skfed.selection._mock_round import MockRound, mock_round
from skfed.utils._selector_answers import polled
from skfed.utils._selector_statistics import assert_mean

# Draws of a decision, each with a generator of its own.
_N_DRAWS = 1000
_N_DRAWS_OF_FIXED = 20  # of a decision in which chance plays no part
_SEED = 11
_FOLDER = files("skfed.utils") / "worked_decisions"

Draws = list[tuple[Cohort, MockRound]]


def check_worked_decisions(selector: BaseSelector, rule: str) -> None:
    """Check a selector against decisions that were derived by hand.

    They are in ``skfed/utils/worked_decisions``, a JSON file a rule.

    Parameters
    ----------
    selector : BaseSelector
        An implementation of the rule, with the parameters that its decisions name.
    rule : str
        The name of the file.

    Raises
    ------
    AssertionError
        If it decides otherwise; the message has the name and the derivation of each such decision.
    ValueError
        If there are no decisions of the rule.
    """
    failures = []
    for decision in worked_decisions(rule):
        try:
            _check_decision(selector, decision)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, f"{selector!r} is not {rule}:\n" + "\n\n".join(failures)


def rules_with_worked_decisions() -> list[str]:
    """Return the names of the rules of which there are worked decisions."""
    names = (file.name for file in _FOLDER.iterdir())
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def worked_decisions(rule: str) -> list[dict[str, Any]]:
    """Return the decisions of a rule as they are in its file."""
    if rule not in (known := rules_with_worked_decisions()):
        raise ValueError(f"rule={rule!r} has no worked decisions; there are those of {known}.")
    return json.loads((_FOLDER / f"{rule}.json").read_text("utf-8"))["decisions"]


def _check_decision(selector: BaseSelector, decision: Mapping[str, Any]) -> None:
    """Raise an AssertionError if a selector decides otherwise in some round of a decision."""
    selector = clone(selector).set_params(**decision["parameters"])
    rounds = _rounds(selector, decision["rounds"])
    for t, given in enumerate(decision["rounds"]):
        try:
            _check_round(selector, given["decision"], next(rounds))
        except Exception as error:
            derived = "\n".join(decision["derivation"])
            raise AssertionError(f"{decision['name']}, round {t}: {error}\n{derived}") from error


def _rounds(selector: BaseSelector, rounds: list[dict[str, Any]]) -> Iterator[Draws]:
    """Yield the draws of each round; the memory of a draw goes on to its next round."""
    fixed = not any(_is_random(given["decision"]) for given in rounds)
    memories: list[Mapping[str, Any]] = [{}] * (_N_DRAWS_OF_FIXED if fixed else _N_DRAWS)
    for t, given in enumerate(rounds):
        draws = []
        for i, memory in enumerate(memories):
            view = _view(given, memory, np.random.default_rng((_SEED, i, t)), selector.needs)
            draws.append((selector.select(view), view))
        yield draws
        memories = [
            memory if cohort.memory is None else cohort.memory
            for memory, (cohort, _) in zip(memories, draws, strict=True)
        ]


def _is_random(expected: Mapping[str, Any]) -> bool:
    """Tell whether draws of a decision may differ in what is checked."""
    admitted = expected.get("admitted")
    is_fixed = not expected or "cohort" in expected
    return not is_fixed or (admitted is not None and _is_random(admitted))


def _view(
    given: Mapping[str, Any], memory: Mapping[str, Any], rng: np.random.Generator, needs: Any
) -> MockRound:
    """Return the round of a decision."""
    view, answers = dict(given["view"]), dict(given.get("answers", {}))
    past = {name: _numbers(values) for name, values in view.pop("past", {}).items()}
    counts = {name: view.pop(name) for name in ("index", "n_rounds")}
    masks = {"available": np.array(view.pop("available", [True] * len(view["sizes"])), bool)}
    sizes = {"sizes": np.array(view.pop("sizes"))}
    rest = {name: _numbers(values) for name, values in {**view, **answers}.items()}
    losses = rest.pop("losses", np.ones(len(sizes["sizes"])))
    arguments: dict[str, Any] = counts | masks | sizes | rest
    return mock_round(losses, **arguments, past=past, memory=memory, rng=rng, needs=needs)


def _numbers(values: Any) -> np.ndarray:
    """Return an array: null is NaN, and "inf" infinity; whole numbers stay so."""
    array = np.array(values)
    return array if array.dtype.kind in "iufb" else array.astype(float)


def _check_round(selector: BaseSelector, expected: Mapping[str, Any], draws: Draws) -> None:
    """Check what came of one round against what is expected."""
    if unknown := expected.keys() - _DECIDED:
        raise ValueError(f"a decision has {sorted(unknown)}: it may have {sorted(_DECIDED)}.")
    cohorts = [cohort for cohort, _ in draws]
    n_clients = len(draws[0][1].sizes)
    for name, check in _CHECKS.items():
        if name in expected:
            check(expected, cohorts, n_clients)
    for name, asked in _ASKED.items():
        if name in expected:
            for _, view in draws:
                found = asked(view)
                assert found == expected[name], f"{name} is {found}, not {expected[name]}"
    if "admitted" in expected:
        admit = admission_of(selector)
        assert admit is not None, "the rule has no admit"
        admitted = [(admit(view, view.reports(cohort)), view) for cohort, view in draws]
        _check_round(selector, expected["admitted"], admitted)


def _clients(cohort: Cohort) -> list[int]:
    return sorted(np.asarray(cohort.clients).tolist())


def _check_cohort(expected: Mapping[str, Any], cohorts: list[Cohort], n_clients: int) -> None:
    for cohort in cohorts:
        found = _clients(cohort)
        assert found == expected["cohort"], f"the cohort is {found}, not {expected['cohort']}"


def _check_cohorts(expected: Mapping[str, Any], cohorts: list[Cohort], n_clients: int) -> None:
    """Check that each possible cohort comes out, as often as it should, and no other."""
    possible = expected["cohorts"]
    found = list(map(_clients, cohorts))
    others = [one for one in found if one not in possible]
    assert not others, f"a cohort is {others[0]}, not one of {possible}"
    draws = np.array([[one == each for each in possible] for one in found], float)
    if (probabilities := expected.get("probabilities")) is None:
        never = [one for one, n in zip(possible, draws.sum(0), strict=True) if not n]
        assert not never, f"{never} were never a cohort in {len(found)} draws"
    else:
        assert_mean(draws, np.array(probabilities), 1.0, f"the probabilities of {possible}")


def _check_expected(expected: Mapping[str, Any], cohorts: list[Cohort], n_clients: int) -> None:
    draws = np.array([np.bincount(c.clients, minlength=n_clients) for c in cohorts], float)
    assert_mean(draws, np.array(expected["expected"]), draws.max(), "the clients' expected numbers")


def _check_weights(expected: Mapping[str, Any], cohorts: list[Cohort], n_clients: int) -> None:
    for cohort in cohorts:
        weights = np.asarray(cohort.weights)[np.argsort(cohort.clients, kind="stable")]
        assert_allclose(weights, expected["weights"], atol=1e-4, err_msg="weights")


def _check_mean_weights(expected: Mapping[str, Any], cohorts: list[Cohort], n_clients: int) -> None:
    draws = np.array([np.bincount(c.clients, c.weights, n_clients) for c in cohorts])
    message = "the clients' expected weights"
    assert_mean(draws, np.array(expected["expected_weights"]), draws.max(), message)


def _check_unbiased(expected: Mapping[str, Any], cohorts: list[Cohort], n_clients: int) -> None:
    for cohort in cohorts:
        wrong = f"unbiased is {cohort.unbiased}, not {expected['unbiased']}"
        assert cohort.unbiased == expected["unbiased"], wrong


_CHECKS: dict[str, Callable[[Mapping[str, Any], list[Cohort], int], None]] = {
    "cohort": _check_cohort,
    "cohorts": _check_cohorts,
    "expected": _check_expected,
    "weights": _check_weights,
    "expected_weights": _check_mean_weights,
    "unbiased": _check_unbiased,
}
_ASKED: dict[str, Callable[[MockRound], Any]] = {
    "polled": lambda view: sorted(polled(view)),
    "trials": lambda view: len(view.trials),
    "sketched": lambda view: sorted(k for clients in view.sketched for k in clients),
}
# What a decision may have; weights and probabilities go with a cohort and with cohorts.
_DECIDED = _CHECKS.keys() | _ASKED.keys() | {"probabilities", "admitted"}
