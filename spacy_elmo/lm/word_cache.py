"""Vectors of word types, remembered: most of a text consists of words seen before."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from .characters import BoundaryWord

WORDS_CACHED = 32_768

WordKey = bytes | BoundaryWord
WeightsKey = tuple[tuple[int, int], ...]


class WordCache:
    """A bounded table of word vectors, exact by its key: the bytes that the character encoder sees.

    Full, it starts anew. It belongs to one set of weights and empties itself when they change. It may be shared by threads;
    copies and pickles of it are empty.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
        if len(distinct) > WORDS_CACHED:
            return encode(keys)
        with self._lock:
            if weights != self._weights:
                self._rows, self._table, self._weights = {}, None, weights
            missing = [key for key in distinct if key not in self._rows]
            if len(self._rows) + len(missing) > WORDS_CACHED:
                self._rows, missing = {}, distinct
            if missing or self._table is None:
                self._remember(missing, encode(missing))
            rows = torch.tensor([self._rows[key] for key in keys], dtype=torch.long, device=self._table.device)  # type: ignore[union-attr]
            return self._table[rows]  # type: ignore[index]

    def _remember(self, keys: list[WordKey], vectors: Tensor) -> None:
        if self._table is None:
            # A table made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self._table = torch.empty(WORDS_CACHED, vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
        first = len(self._rows)
        self._table[first : first + len(keys)] = vectors
        self._rows.update(zip(keys, range(first, first + len(keys))))
