"""Each property test runs in an empty folder of its own; it may warn users, but not compute ill."""

import warnings

import pytest


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def users_may_be_warned():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        # scikit-learn casts targets to see whether they are whole.
        warnings.filterwarnings("ignore", "invalid value encountered in cast")
        # It sums them to see whether they are finite; inf and -inf have no sum.
        warnings.filterwarnings("ignore", "invalid value encountered in reduce")
        yield
