from __future__ import annotations

import copy
import pickle

import torch

from spacy_elmo.lm.word_cache import WordCache

VECTORS = {bytes([65 + index]): torch.full((3,), float(index)) for index in range(20)}


def encode(keys: list[bytes]) -> torch.Tensor:
    return torch.stack([VECTORS[key] for key in keys]) if keys else torch.zeros(0, 3)


def expected(keys: list[bytes]) -> torch.Tensor:
    return encode(keys)


def test_words_stored_by_another_thread_meanwhile_keep_their_vectors() -> None:
    """Encoding runs outside the lock: what two threads encode at the same time must be stored once."""
    cache = WordCache()

    def encode_while_another_thread_does(keys: list[bytes]) -> torch.Tensor:
        cache.look_up(keys, (), encode)
        return encode(keys)

    first, second = [b"A", b"B", b"C"], [b"D", b"E", b"F"]
    cache.look_up(first, (), encode_while_another_thread_does)
    cache.look_up(second, (), encode)
    assert torch.equal(cache.look_up(first + second, (), encode), expected(first + second))
    assert len(cache) == 6


def test_copies_and_pickles_are_empty() -> None:
    """The lock is none of a cache's own, so that a cache with words in it can be copied too."""
    cache = WordCache()
    cache.look_up([b"A"], (), encode)
    assert [len(copied) for copied in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache)), cache)] == [0, 0, 1]
