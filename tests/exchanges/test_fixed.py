"""What is sent once to each client, by hand."""

import numpy as np

from skfed.exchanges import FixedTensors


def of(received, versions=None):
    versions = versions or {"a": 1, "b": 3, "c": 3}
    n_bytes, known = {"a": 100, "b": 10, "c": 1}, np.array(received)
    return FixedTensors(n_bytes, versions, len(known), known.__getitem__)


def test_a_client_is_sent_what_is_newer_than_what_it_has():
    tensors = of([0, 1, 2, 3])
    assert tensors.version == 3
    assert tensors.lacking(np.arange(4)).tolist() == [111, 11, 11, 0]
    assert [tensors.names_lacking(k) for k in range(4)] == [
        *(["a", "b", "c"], ["b", "c"], ["b", "c"], [])
    ]


def test_copies_of_a_client_are_sent_it_once():
    assert of([0, 1]).lacking(np.array([1, 0, 1, 1])).tolist() == [11, 111, 0, 0]


def test_in_a_round_it_is_sent_with_the_first_model():
    tensors = of([0, 1, 3])
    tensors.note(np.array([1, 2]))
    assert tensors.lacking(np.arange(3)).tolist() == [111, 0, 0]
    clients, versions = tensors.news()
    assert clients.tolist() == [1] and versions.tolist() == [3]


def test_who_has_lost_it_is_sent_all_of_it_again_beside_what_came_with_it():
    tensors = of([3, 3])
    tensors.resend(1, 8)
    assert tensors.resent(np.array([0, 1, 1])).tolist() == [0, 119, 0]
    assert tensors.resent(np.array([1])).tolist() == [0]
