"""Dropout of a training run, from generators of its own, so that a run can go on exactly where it was."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..lm.batching import Packing
from ..lm.devices import to_device


class _Dropout:
    """rate (float): Share of values set to zero. generator (torch.Generator): Decides which, on their device."""

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        self.rate = rate
        self.generator = generator


class SeededDropout(_Dropout):
    """Each value by itself, as in bilm-tf.

    rate (float): Share of values set to zero.
    generator (torch.Generator): Decides which, on the device of the values.
    """

    def __call__(self, values: Tensor, packing: Packing) -> Tensor:
        """values (Tensor): (places, width). packing (Packing): Their layout. RETURNS (Tensor): (places, width)."""
        return values * _mask(self.rate, self.generator, values.shape, values)


class VariationalDropout(_Dropout):
    """One mask for all words of a sentence, another one for each layer and direction (Gal and Ghahramani 2016).

    rate (float): Share of features set to zero.
    generator (torch.Generator): Decides which, on the device of the values.
    """

    def __call__(self, values: Tensor, packing: Packing) -> Tensor:
        """values (Tensor): (places, width). packing (Packing): Their layout. RETURNS (Tensor): (places, width)."""
        rows = packing.sizes[0] if packing.sizes else 0
        mask = _mask(self.rate, self.generator, (rows, *values.shape[1:]), values)
        return values * mask.index_select(0, _rows(packing.sizes, values.device))


def _mask(rate: float, generator: torch.Generator, shape: tuple[int, ...], like: Tensor) -> Tensor:
    kept = torch.rand(shape, generator=generator, device=like.device) >= rate
    return kept.to(like.dtype).div_(1 - rate)


def _rows(sizes: list[int], device: torch.device) -> Tensor:
    """The row of each place: step by step, every step has the first rows of the one before."""
    size = np.asarray(sizes, dtype=np.int64)
    starts = np.cumsum(size) - size
    return to_device(torch.from_numpy(np.arange(int(size.sum())) - np.repeat(starts, size)), device)
