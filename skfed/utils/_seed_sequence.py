"""numpy's SeedSequence for many seeds in a few array operations.

numpy takes 10 us for one stream, which is a tenth of the time of a round of small clients. The
algorithms (M. E. O'Neill's seed_seq_fe128 and PCG64) are fixed: numpy promises that streams do not
change. A test compares them with numpy's own.
"""

from functools import cache
from itertools import accumulate, pairwise, product, repeat
from typing import Any

import numpy as np

_WORDS = 4  # of the pool
_MIXING = 0x43B0D7E5, 0x931E8875  # the first constant, and what gives the next by a product
_SHIFT = np.uint32(16)
_MULTIPLIER_OF_PCG64 = 0x2360ED051FC65DA44385DF649FCCF645


@cache
def _constants(start: int, multiplier: int, n: int) -> np.ndarray:
    """Return the constants of n hashes and one more."""
    steps = accumulate(repeat(multiplier, n), lambda a, b: a * b % 2**32, initial=start)
    return np.array(list(steps), dtype=np.uint32)


@cache
def _mixing_constants(n_words: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Return, for each word of the entropy, the constants that hash it into the words of the pool.

    They are those of ``_hashed``, each a column with one entry a word of the pool; 0 where a word
    of the pool would be mixed into itself.
    """
    constants = iter(pairwise(_constants(*_MIXING, _WORDS**2 + _WORDS * (n_words - _WORDS))))
    for _ in range(_WORDS):
        next(constants)
    columns = np.zeros((n_words, 2, _WORDS, 1), dtype=np.uint32)
    for i, j in product(range(n_words), range(_WORDS)):
        if i != j:
            columns[i, :, j, 0] = next(constants)
    return tuple((xor, factor) for xor, factor in columns)


def _hashed(words: np.ndarray, xor: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return hashes of words; the constants may have more rows than the words."""
    result: np.ndarray = words ^ xor
    result *= factor
    result ^= result >> _SHIFT
    return result


def generate_states(entropy: np.ndarray) -> np.ndarray:
    """Return ``SeedSequence(row).generate_state(4, numpy.uint64)`` of each row.

    Parameters
    ----------
    entropy : ndarray of shape (n, n_words), dtype=uint32
        At least 4 words each.

    Returns
    -------
    ndarray of shape (n, 4), dtype=uint64
    """
    words = np.ascontiguousarray(entropy.T)
    constants = _constants(*_MIXING, _WORDS)[:, None]
    pool = _hashed(words[:_WORDS], constants[:-1], constants[1:])
    for i, (xor, factor) in enumerate(_mixing_constants(len(words))):
        word = pool[i].copy() if i < _WORDS else words[i]
        pool *= np.uint32(0xCA01F9DD)
        pool -= _hashed(word, xor, factor) * np.uint32(0x4973F715)
        pool ^= pool >> _SHIFT
        if i < _WORDS:
            pool[i] = word
    constants = _constants(0x8B51F9DD, 0x58F38DED, 2 * _WORDS)[:, None]
    states = _hashed(np.tile(pool, (2, 1)), constants[:-1], constants[1:])
    return np.ascontiguousarray(states.T).astype("<u4", copy=False).view("<u8")


def seeded_pcg64(high: int, low: int, stream_high: int, stream_low: int) -> Any:
    """Return the state of PCG64 seeded with the four words of ``generate_states``."""
    increment = ((stream_high << 64 | stream_low) << 1 | 1) % 2**128
    state = ((increment + (high << 64 | low)) * _MULTIPLIER_OF_PCG64 + increment) % 2**128
    return {
        "bit_generator": "PCG64",
        "state": {"state": state, "inc": increment},
        "has_uint32": 0,
        "uinteger": 0,
    }
