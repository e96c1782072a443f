"""Vectors of word types, remembered: most of a text consists of words seen before."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from .characters import BoundaryWord

WORDS_CACHED = 32_768

WordKey = bytes | BoundaryWord
WeightsKey = tuple[tuple[int, int], ...]


class _Shared:
    """One lock for all caches, held only while looking and storing, so that no cache carries a lock through a fork."""

    lock = threading.Lock()


def _renew_lock() -> None:
    _Shared.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    # A thread that holds the lock while the process forks would leave it taken in the child forever.
    os.register_at_fork(after_in_child=_renew_lock)


class WordCache:
    """A bounded table of word vectors, exact by its key: the bytes that the character encoder sees.

    Full, it starts anew. It belongs to one set of weights and empties itself when they change. It may be shared by threads;
    copies and pickles of it are empty.
    """

    def __init__(self) -> None:
        self._rows: dict[WordKey, int] = {}
        self._table: Tensor | None = None
        self._weights: WeightsKey = ()

    def __reduce__(self) -> tuple[type[WordCache], tuple[()]]:
        return WordCache, ()

    def __len__(self) -> int:
        return len(self._rows)

    def look_up(self, keys: list[WordKey], weights: WeightsKey, encode: Callable[[list[WordKey]], Tensor]) -> Tensor:
        """Vectors of words, encoding those that are not there yet.

        keys (list[bytes | BoundaryWord]): The words, from `characters.word_key`.
        weights (tuple): Changes when the weights of the encoder change.
        encode (Callable): From keys to vectors, (words, projection).
        RETURNS (Tensor): (words, projection), a copy.
        """
        distinct = list(dict.fromkeys(keys))
        with _Shared.lock:
            if weights != self._weights:
                self._rows, self._table, self._weights = {}, None, weights
            known = [key for key in distinct if key in self._rows]
            vectors = [] if self._table is None else [self._table[[self._rows[key] for key in known]]]
        hits = set(known)
        missing = [key for key in distinct if key not in hits]
        if missing or not vectors:
            vectors.append(encode(missing))
            with _Shared.lock:
                if weights == self._weights:
                    self._remember(missing, vectors[-1])
        place = {key: index for index, key in enumerate([*known, *missing])}
        rows = torch.tensor([place[key] for key in keys], dtype=torch.long, device=vectors[-1].device)
        return torch.cat(vectors)[rows]

    def _remember(self, keys: list[WordKey], vectors: Tensor) -> None:
        if self._table is None:
            # A table made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self._table = torch.empty(WORDS_CACHED, vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
        # Another thread may have stored some of them meanwhile.
        fresh = [(key, index) for index, key in enumerate(keys) if key not in self._rows]
        if len(self._rows) + len(fresh) > WORDS_CACHED:
            self._rows, fresh = {}, [(key, index) for index, key in enumerate(keys)][:WORDS_CACHED]
        first = len(self._rows)
        self._table[first : first + len(fresh)] = vectors[[index for _, index in fresh]]
        self._rows.update((key, first + row) for row, (key, _) in enumerate(fresh))
