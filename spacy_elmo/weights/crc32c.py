"""The CRC-32C sum (Castagnoli), fast enough for gigabytes in plain numpy.

A sum is the remainder of the data, read as a polynomial over GF(2), so data may be replaced by anything shorter that leaves
the same remainder. The data is laid out in rows; a row is shifted to the place of the next one, which keeps its remainder,
and added to it: all words of a row at a time, until one row is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # the highest power stands in the lowest bit
_ONES = 0xFFFFFFFF
# Bytes of a row, as powers of two: the first suits the processor's cache, the second leaves little to do byte by byte.
_ROWS = (16, 10)

Words = NDArray[np.uint32]


def crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """RETURNS (int): The CRC-32C sum of the bytes."""
    octets = np.frombuffer(data, np.uint8)
    words = np.frombuffer(octets, "<u4", len(octets) // 4)
    state = _ONES
    for log_bytes in _ROWS:
        if len(words) >= 2 << log_bytes - 2:
            words, state = _fold(words, log_bytes, state), 0
    for octet in words.tobytes() + octets[len(octets) // 4 * 4 :].tobytes():
        state = state >> 8 ^ _step_table()[(state ^ octet) & 0xFF]
    return state ^ _ONES


def _fold(words: Words, log_bytes: int, state: int) -> Words:
    """One row with the remainder of all words; rows are complete from the end, and zeros before the first change nothing."""
    width = 1 << log_bytes - 2
    low, high = _shift_tables(log_bytes)
    first = words[: len(words) % width or width].copy()
    first[0] ^= state
    row = np.zeros(width, np.uint32)
    row[width - len(first) :] = first
    for start in range(len(first), len(words), width):
        row = low.take(row & 0xFFFF) ^ high.take(row >> 16) ^ words[start : start + width]
    return row


@cache
def _step_table() -> list[int]:
    """What a byte that leaves the sum adds to it."""
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (_POLYNOMIAL if value & 1 else 0) for value in table]
    return table


@cache
def _shift_tables(log_bytes: int) -> tuple[Words, Words]:
    """The remainder of a word shifted by 2^log_bytes bytes, for its lower and its upper half; their sum is the word's."""
    single = [1 << bit for bit in range(32)]
    images = np.array([bit >> 8 ^ _step_table()[bit & 0xFF] for bit in single], np.uint32)
    for _ in range(log_bytes):
        low, high = _spread(images[:16]), _spread(images[16:])
        images = low[images & 0xFFFF] ^ high[images >> 16]
    return _spread(images[:16]), _spread(images[16:])


def _spread(images: Sequence[int] | Words) -> Words:
    """The images of all 16-bit numbers under a linear map, from those of the single bits."""
    table = np.zeros(1, np.uint32)
    for image in images:
        table = np.concatenate([table, table ^ np.uint32(image)])
    return table
