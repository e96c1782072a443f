"""What a contestant is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

Sentences = Sequence[Sequence[str]]


class Contestant(Protocol):
    """What `load(options, weights, vocabulary)` of a contestant's module returns."""

    def embed(self, sentences: Sentences) -> object:
        """Words to contextual vectors, one mixed vector a word. This is what is timed."""

    def layers(self, sentences: Sentences) -> np.ndarray:
        """RETURNS (ndarray): float32, (words, layers, width), every sentence from zero state."""

    def forget(self) -> None:
        """Drop what was remembered of words seen earlier."""
