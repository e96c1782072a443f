"""Vectors of word types, remembered: most of a text consists of words seen before."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from .devices import indices
from .locks import ForkSafeLock

WORDS_CACHED = 32_768

WordKey = Hashable
WeightsKey = tuple[tuple[int, int], ...]

# One for all caches, held only while looking and storing.
_LOCK = ForkSafeLock()


class WordCache:
    """A bounded table of word vectors, exact by its key: what the encoder sees of a word.

    Full, it starts anew. It belongs to one set of weights and empties itself when they change. It may be shared by
    threads; copies and pickles of it are empty.
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

        keys (list[Hashable]): The words, from the encoder's `key`.
        weights (tuple): Changes when the weights of the encoder change.
        encode (Callable): From keys to vectors, (words, projection).
        RETURNS (Tensor): (words, projection), a copy.
        """
        distinct = list(dict.fromkeys(keys))
        with _LOCK.held():
            if weights != self._weights:
                self._rows, self._table, self._weights = {}, None, weights
            known = [key for key in distinct if key in self._rows]
            vectors = [] if self._table is None else [_rows_of(self._table, [self._rows[key] for key in known])]
        hits = set(known)
        missing = [key for key in distinct if key not in hits]
        if missing or not vectors:
            vectors.append(encode(missing))
            with _LOCK.held():
                if weights == self._weights:
                    self._remember(missing, vectors[-1])
        place = {key: index for index, key in enumerate([*known, *missing])}
        return _rows_of(torch.cat(vectors), [place[key] for key in keys])

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
        self._table[first : first + len(fresh)] = _rows_of(vectors, [index for _, index in fresh])
        self._rows.update((key, first + row) for row, (key, _) in enumerate(fresh))


def _rows_of(table: Tensor, rows: list[int]) -> Tensor:
    return table.index_select(0, indices(rows, table.device))
