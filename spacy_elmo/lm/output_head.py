"""What every output head is: from a hidden state of an LM to the log-probability of a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, Errors
from .devices import to_device
from .precision import is_low, rounded_rows

Encode = Callable[[Sequence[int]], Tensor]
"""From ids of the vocabulary to the vectors of the words, (ids, projection)."""

# Logits that exist at the same time without gradients; with gradients all are needed at once.
_MOST_LOGITS = 2**26


class OutputHead(nn.Module):
    """A distribution over the words of a vocabulary. One head serves both directions. Word ids are ordered by falling
    frequency (see `pretraining.vocabulary`). They are best given on the CPU: most heads decide by them what to compute, and
    would have to wait for a GPU to tell them.

    settings (dict[str, Any]): What `softmax.build_head` builds the same head from, with new weights.
    """

    kind: str
    settings: dict[str, Any]

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Log-probabilities of words, normalised over the whole vocabulary.

        hidden (Tensor): (places, projection). words (Tensor): int64, (places,). RETURNS (Tensor): (places,), in nats.
        """
        raise NotImplementedError

    def training_log_probabilities(
        self, hidden: Tensor, words: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """What training maximises: an estimate of the log-probabilities where the head samples, else these themselves.

        hidden (Tensor): (places, projection). words (Tensor): int64, (places,).
        generator (torch.Generator | None): On the CPU, decides what is sampled; None for torch's own.
        RETURNS (Tensor): (places,), in nats.
        """
        log_probabilities: Tensor = self(hidden, words)
        return log_probabilities

    def set_counts(self, counts: Sequence[int]) -> None:
        """Tell how often each word was counted in the text. Only a head that samples by these counts keeps them."""

    def bind(self, encode: Encode) -> None:
        """Tell how to get vectors of words. Only a head that is tied to them keeps it."""

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Score any number of batches in a `with` block, in which no weight changes: what depends on the weights alone is
        computed once. There are no gradients within."""
        with torch.no_grad():
            yield


def log_probabilities(logits: Tensor, words: Tensor) -> Tensor:
    """RETURNS (Tensor): (places,): the logarithm of the softmax of (places, words) at one word of each place."""
    wide = logits.float() if is_low(logits.dtype) else logits
    return -nn.functional.cross_entropy(wide, to_device(words, wide.device), reduction="none")


def log_probabilities_of(logits: Callable[[Tensor], Tensor], hidden: Tensor, words: Tensor) -> Tensor:
    """Log-probabilities of words whose logits are yet to be computed, see `rounded_rows`.

    logits (Callable): From (places, projection) to (places, vocabulary).
    hidden (Tensor): (places, projection). words (Tensor): int64, (places,). RETURNS (Tensor): (places,), in nats.
    """
    rows = len(words)
    more = rounded_rows(rows, hidden) - rows
    if more:
        hidden, words = nn.functional.pad(hidden, (0, 0, 0, more)), nn.functional.pad(words, (0, more))
    return log_probabilities(logits(hidden), words)[:rows]


def linear_log_probabilities(hidden: Tensor, weight: Tensor, bias: Tensor, words: Tensor) -> Tensor:
    """Log-probabilities of words whose logits are hidden · weightᵀ + bias, no more at a time than memory is sure to hold.

    hidden (Tensor): (places, projection). weight (Tensor): (vocabulary, projection). bias (Tensor): (vocabulary,).
    words (Tensor): int64, (places,). RETURNS (Tensor): (places,), in nats.
    """
    places = max(1, _MOST_LOGITS // weight.shape[0])
    logits = partial(nn.functional.linear, weight=weight, bias=bias)
    if torch.is_grad_enabled() or len(words) <= places:
        return log_probabilities_of(logits, hidden, words)
    parts = zip(hidden.split(places), words.split(places))
    return torch.cat([log_probabilities_of(logits, part, targets) for part, targets in parts])


def require_whole(least: int, **sizes: object) -> None:
    """Refuse settings that are no whole numbers.

    RAISES (ConfigError): E001 for one that is none, or below the least.
    """
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            expected = f"a whole number from {least} up"
            raise ConfigError(Errors.E001.format(name=f"softmax.{name}", value=value, expected=expected))
