"""The bytes of messages."""

import numpy as np
import pytest

from skfed.exchanges import Message, bytes_of


def test_bytes_of_a_message_are_those_of_its_models_scalars_and_tensors():
    message = Message(True, ("variates",), {"loss": 1, "norms": 2}, {"counts": 5, "text": 2})
    assert message.n_bytes(100) == 2 * 100 + 3 * 8 + 7
    assert Message().n_bytes(100) == 0


@pytest.mark.parametrize(
    ("value", "n_bytes"),
    [
        (np.zeros((2, 3), dtype=np.float32), 24),
        (np.array(["red", "grün"]), 3 + 5),
        (np.array([b"xy", "z", 1.5, None], dtype=object), 2 + 1 + 8 + 8),
        ([np.zeros(2), np.array(["a"], dtype=object)], 17),
        ([], 0),
        (True, 1),
    ],
)
def test_bytes_of_values(value, n_bytes):
    assert bytes_of(value) == n_bytes
