"""Sentences of many lengths as one dense batch: sorted, packed time step by time step, without padding.

A packed batch holds, for step 0, the first word of every sentence, longest sentence first; for step 1 the second word of
those that have one; and so on. The rows that are active shrink as sentences end, so no work is spent on padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .devices import to_device

_Ints = np.ndarray


class Packing(NamedTuple):
    """How the words of a batch of sentences are laid out by time step.

    sizes (list[int]): Active rows of each step.
    order (Tensor): int64, (sentences,): which sentence each row holds.
    forward (Tensor): int64, (words,): which word of the batch each place holds, read from the left.
    backward (Tensor): int64, (words,): the same, each sentence read from its right end.
    previous (Tensor): int64, (words − rows,): the place one step before, for the places from step 1 on.
    last (Tensor): int64, (rows,): the last place of each row; rows are the sentences that have words.
    """

    sizes: list[int]
    order: Tensor
    forward: Tensor
    backward: Tensor
    previous: Tensor
    last: Tensor

    def to(self, device: torch.device) -> Packing:
        """RETURNS (Packing): The same with its indices on a device."""
        moved = [to_device(tensor, device) for tensor in self[1:]]
        return Packing(self.sizes, *moved)


def pack(lengths: Sequence[int]) -> Packing:
    """Lay out sentences whose words stand one after another.

    lengths (Sequence[int]): Words of each sentence; 0 is allowed.
    RETURNS (Packing): The layout.
    """
    length = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-length, kind="stable")
    starts = (np.cumsum(length) - length)[order]
    sorted_length = length[order]
    rows = int((sorted_length > 0).sum())
    # sizes[t] = sentences with more than t words
    sizes = rows - np.searchsorted(sorted_length[:rows][::-1], np.arange(length.max(initial=0)), side="right")
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    step = np.repeat(np.arange(len(sizes)), sizes)
    row = np.arange(offsets[-1]) - offsets[step]
    forward = starts[row] + step
    backward = starts[row] + sorted_length[row] - 1 - step
    previous = offsets[step[rows:] - 1] + row[rows:]
    last = offsets[sorted_length[:rows] - 1] + np.arange(rows)
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in (order, forward, backward, previous, last)]
    return Packing(sizes.tolist(), *tensors)


def group_by_length(lengths: Sequence[int], max_words: int) -> Iterator[list[int]]:
    """Group sentences of like lengths into batches of bounded size.

    lengths (Sequence[int]): Words of each sentence.
    max_words (int): Words of a batch; a longer sentence makes a batch of its own.
    YIELDS (list[int]): Indices of the sentences of a batch, longest first.
    """
    group: list[int] = []
    words = 0
    for index in np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist():
        if group and words + lengths[index] > max_words:
            yield group
            group, words = [], 0
        group.append(index)
        words += lengths[index]
    if group:
        yield group
