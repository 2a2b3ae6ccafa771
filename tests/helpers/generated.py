"""Tests by generated inputs, counted. SKFED_PROPERTIES=long draws 10 times as many, other ones."""

import functools
import inspect
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LONG = os.environ.get("SKFED_PROPERTIES") == "long"
PROFILE = settings(
    derandomize=not LONG,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)

N_INPUTS = {}  # by file and test


def generated(n, *strategies):
    """Test a function of ``n`` inputs, one drawn from each strategy, and of pytest's fixtures."""

    def decorate(check):
        given_first = list(inspect.signature(check).parameters.values())[: len(strategies)]
        N_INPUTS[check.__code__.co_filename, check.__name__] = n
        wanted = n * (10 if LONG else 1)

        @functools.wraps(check)
        def test(**fixtures):
            n_seen = 0

            @settings(PROFILE, max_examples=wanted)
            @given(st.tuples(*strategies))
            def run(drawn):
                nonlocal n_seen
                n_seen += 1
                check(*drawn, **fixtures)

            run()
            assert n_seen >= n  # of small spaces there may be no more

        others = [p for p in inspect.signature(check).parameters.values() if p not in given_first]
        test.__signature__ = inspect.Signature(others)
        return test

    return decorate
