"""Draws of words without replacement, and how often each word was to be expected among them.

As TensorFlow's candidate samplers have it: words are drawn with replacement until there are enough distinct ones. Given the
number of tries that took, a word of probability P is expected 1 − (1 − P)^tries times among them.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, ElmoError, Errors

Distribution = Literal["log-uniform", "uniform", "unigram"]

# Draws at a time for each word wanted: mostly enough at the first time.
_DRAWS_PER_WORD = 4
# No word is rarer than this share of its part in a uniform distribution, or draws would find no end.
_LEAST_SHARE = 1e-3


class Draw(NamedTuple):
    """Distinct words, and the draws it took to get them.

    words (Tensor): int64, on the CPU, in the order in which they came up.
    tries (int): Draws with replacement.
    """

    words: Tensor
    tries: int


class _Unigram(NamedTuple):
    """counts: (words,), as they were given. cumulative: (words,), float64, up to 1. Both on the CPU."""

    counts: Tensor
    cumulative: Tensor


class WordSampler:
    """A distribution over word ids.

    distribution (str): "log-uniform": P(k) = log((k + 2) / (k + 1)) / log(n_words + 1), close to that of natural text
        where ids are ordered by falling frequency. "uniform". "unigram": by the counts of the words.
    n_words (int): Words of the vocabulary.

    RAISES (ConfigError): E001 for an unknown distribution.
    """

    def __init__(self, distribution: Distribution, n_words: int) -> None:
        known = get_args(Distribution)
        if distribution not in known:
            raise ConfigError(
                Errors.E001.format(name="softmax.distribution", value=distribution, expected=f"one of {known}")
            )
        self.distribution, self.n_words = distribution, n_words
        self._known: tuple[tuple[int, int], _Unigram] | None = None

    def draw(self, number: int, generator: torch.Generator | None, counts: Tensor | None = None) -> Draw:
        """Draw distinct words.

        number (int): How many, well below `n_words`.
        generator (torch.Generator | None): On the CPU; None for torch's own.
        counts (Tensor | None): (n_words,), for "unigram".
        RETURNS (Draw): The words.
        RAISES (ElmoError): E022 if the counts are not known.
        """
        drawn = np.empty(0, dtype=np.int64)
        first_place = np.empty(self.n_words, dtype=np.int64)
        while True:
            uniform = torch.rand(_DRAWS_PER_WORD * number, generator=generator, dtype=torch.float64)
            drawn = np.concatenate([drawn, self._words_at(uniform, counts).numpy()])
            places = np.arange(len(drawn))
            # Where a word stands several times, the assignment that comes last holds: that of its first place.
            first_place[drawn[::-1]] = places[::-1]
            first = np.flatnonzero(first_place[drawn] == places)
            if len(first) >= number:
                return Draw(torch.from_numpy(drawn[first[:number]]), int(first[number - 1]) + 1)

    def log_expected(self, words: Tensor, tries: int, counts: Tensor | None = None) -> Tensor:
        """How often words are to be expected in a draw.

        words (Tensor): int64, any, on the CPU. tries (int): Of the draw. counts (Tensor | None): As for `draw`.
        RETURNS (Tensor): The logarithms of the expected counts.
        RAISES (ElmoError): As `draw`.
        """
        return torch.log(-torch.expm1(tries * torch.log1p(-self._probability(words, counts))))

    def _probability(self, words: Tensor, counts: Tensor | None) -> Tensor:
        if self.distribution == "log-uniform":
            return torch.log1p(1 / (words.float() + 1)) / math.log1p(self.n_words)
        if self.distribution == "uniform":
            return torch.full(words.shape, 1 / self.n_words)
        weights = self._unigram(counts).counts
        return weights[words] / weights.sum()

    def _words_at(self, uniform: Tensor, counts: Tensor | None) -> Tensor:
        """The words at points of [0, 1) of the cumulative distribution."""
        if self.distribution == "log-uniform":
            words = torch.expm1(uniform * math.log1p(self.n_words)).long()
        elif self.distribution == "uniform":
            words = (uniform * self.n_words).long()
        else:
            words = torch.searchsorted(self._unigram(counts).cumulative, uniform, right=True)
        return words.clamp_(max=self.n_words - 1)  # rounding may reach the end

    def _unigram(self, counts: Tensor | None) -> _Unigram:
        """What the counts say, brought to the CPU when they are new."""
        if counts is None:
            raise ElmoError(Errors.E022)
        key = (counts.data_ptr(), counts._version)
        if self._known is None or self._known[0] != key:
            here = counts.cpu()
            cumulative = here.double().cumsum(0)
            if not cumulative[-1] > 0:
                raise ElmoError(Errors.E022)
            self._known = (key, _Unigram(here, cumulative / cumulative[-1]))
        return self._known[1]


def usable_counts(counts: Tensor) -> Tensor:
    """Counts that can be drawn by: none is 0 or out of all proportion.

    counts (Tensor): (words,), from 0 up. RETURNS (Tensor): float32, (words,).
    """
    wide = counts.double()
    return wide.clamp(min=max(1.0, float(wide.mean()) * _LEAST_SHARE)).float()
