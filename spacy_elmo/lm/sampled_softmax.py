"""Output heads that train on a sample of the vocabulary (Jean et al. 2015; Peters et al. 2018).

The words that do not occur are stood for by a sample, shared by all places of a batch. From the logit of each word, sampled or
true, goes the logarithm of how often it was expected in the sample. A sampled word that is the true one at a place does not
count there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import ConfigError, Errors
from .devices import to_device
from .full_softmax import FullSoftmax
from .output_head import require_whole
from .precision import add_product, product_dtype, rounded_rows, with_rows
from .word_sampling import Distribution, WordSampler, usable_counts

# Logits that are worked on at the same time: few enough for the caches of a CPU, and all of them on other devices.
_LOGITS_AT_A_TIME = 2**21
# Of a word that does not count; finite, so that a place where none counts has a gradient of 0 and not of no number.
_NO_LOGIT = -1e30


class Sample(NamedTuple):
    """Words that stand for the vocabulary, on the CPU.

    needed (Tensor): int64, (samples + places,): the words drawn, and then the true word of each place.
    log_expected (Tensor): (samples + places,): of each, how often it was expected.
    same (Tensor): int64, (places,): which of the samples is the true word of a place, −1 if none.
    """

    needed: Tensor
    log_expected: Tensor
    same: Tensor

    @property
    def sizes(self) -> tuple[int, int]:
        """Samples and places."""
        return len(self.needed) - len(self.same), len(self.same)


class SampledSoftmax(FullSoftmax):
    """A full softmax that is trained on a sample of its words.

    projection (int): Width of a hidden state.
    n_words (int): Words of the vocabulary.
    n_samples (int): Words of a sample. More than half of the vocabulary are not drawn, but all words used.
    distribution (str): Which words are drawn, see `WordSampler`; "unigram" needs `set_counts`.
    """

    kind = "sampled"

    def __init__(
        self, projection: int, n_words: int, n_samples: int = 8192, distribution: Distribution = "log-uniform"
    ) -> None:
        super().__init__(projection, n_words)
        self.sampling = Sampling(n_words, n_samples, distribution)
        self.settings |= {"kind": self.kind, **self.sampling.settings}

    def training_log_probabilities(
        self, hidden: Tensor, words: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """An estimate of the log-probabilities of words by a sample of the vocabulary.

        hidden (Tensor): (places, projection). words (Tensor): int64, (places,).
        generator (torch.Generator | None): On the CPU, decides what is sampled; None for torch's own.
        RETURNS (Tensor): (places,), in nats.
        RAISES (ElmoError): E022 if the words are drawn by counts and the counts are not known.
        """
        if self.sampling.takes_all:
            return super().training_log_probabilities(hidden, words)
        sample = self.sampling.draw(words, generator)
        # One gather for both, since the gradient of each takes as much memory as all weights.
        needed = to_device(sample.needed, hidden.device)
        weight, bias = (values.index_select(0, needed) for values in (self.output.weight, self.output.bias))
        return sampled_log_probabilities(hidden, weight, bias, sample)

    def set_counts(self, counts: Sequence[int]) -> None:
        """Tell how often each word was counted in the text.

        counts (Sequence[int]): From 0 up, one for each word. They travel with the weights if words are drawn by them.
        RAISES (ConfigError): E023 if they cannot be.
        """
        self.sampling.set_counts(counts)


class Sampling(torch.nn.Module):
    """How a head draws its samples.

    n_words (int): Words of the vocabulary.
    n_samples (int): Words of a sample.
    distribution (str): Which words are drawn.

    RAISES (ConfigError): E001 for settings that cannot be.
    """

    counts: Tensor

    def __init__(self, n_words: int, n_samples: int, distribution: Distribution) -> None:
        super().__init__()
        require_whole(1, n_samples=n_samples)
        self.settings: dict[str, Any] = {"n_samples": n_samples, "distribution": distribution}
        self.sampler = WordSampler(distribution, n_words)
        # Drawing most of a vocabulary takes more tries than it saves.
        self.takes_all = n_samples > n_words // 2
        if distribution == "unigram":
            self.register_buffer("counts", torch.zeros(n_words))

    def set_counts(self, counts: Sequence[int]) -> None:
        """As `SampledSoftmax.set_counts`."""
        given, expected = torch.as_tensor(counts, dtype=torch.float64), self.sampler.n_words
        fits = given.shape == (expected,) and bool((given >= 0).all()) and bool(given.isfinite().all())
        if not fits or not given.any():
            raise ConfigError(Errors.E023.format(found=tuple(given.shape), expected=expected))
        if self.sampler.distribution == "unigram":
            with torch.no_grad():
                self.counts.copy_(usable_counts(given))

    def draw(self, words: Tensor, generator: torch.Generator | None) -> Sample:
        """Draw a sample for places whose true words are `words`, int64, (places,)."""
        counts = self.counts if self.sampler.distribution == "unigram" else None
        samples, tries = self.sampler.draw(self.settings["n_samples"], generator, counts)
        words = words.cpu()
        # Only what is read here was written before: a fresh table of the whole vocabulary would cost more than the draw.
        where = torch.empty(self.sampler.n_words, dtype=torch.long)
        where[words] = 0
        where[samples] = torch.arange(len(samples))
        found = where[words]
        same = torch.where(samples[found] == words, found, -1)
        needed = torch.cat([samples, words])
        return Sample(needed, self.sampler.log_expected(needed, tries, counts), same)


def sampled_log_probabilities(hidden: Tensor, weight: Tensor, bias: Tensor, sample: Sample) -> Tensor:
    """Log-probabilities of the true words among themselves and a sample, corrected.

    hidden (Tensor): (places, projection).
    weight (Tensor): (samples + places, projection), bias (Tensor): (samples + places,): of the words of `sample.needed`.
    RETURNS (Tensor): (places,), in nats.
    """
    weight, true_weight = weight.split(sample.sizes)
    bias, true_bias = bias.split(sample.sizes)
    log_expected, log_expected_true = to_device(sample.log_expected, hidden.device).split(sample.sizes)
    same = to_device(sample.same, hidden.device)
    with torch.autocast(hidden.device.type, enabled=False):
        wide = hidden if hidden.dtype == torch.float64 else hidden.float()
        of_truth: Tensor = (wide * true_weight).sum(1) + true_bias - log_expected_true
    offsets = bias - log_expected
    of_others: Tensor = _LogSumExp.apply(hidden, weight, offsets, same)  # type: ignore[no-untyped-call]
    return of_truth - torch.logaddexp(of_truth, of_others)


class _LogSumExp(torch.autograd.Function):
    """log Σ exp(hidden · weightᵀ + offsets) over the samples, without the one that is the true word: one node of the graph,
    which keeps the softmax and nothing else of that size."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, offsets: Tensor, same: Tensor) -> Tensor:
        low, rows = product_dtype(weight), rounded_rows(len(hidden), weight)
        hidden_low, weight_low = with_rows(hidden, rows, low), weight.to(low)
        same = torch.nn.functional.pad(same, (0, rows - len(same)), value=-1)
        shares = hidden_low.new_empty(rows, weight.shape[0])
        found = offsets.new_empty(rows)
        for part in _parts(shares):
            logits = _logits(hidden_low[part], weight_low, offsets)
            _leave_out(logits, same[part])
            largest = logits.amax(1)
            if low == offsets.dtype:
                softmax = torch.softmax(logits, 1, out=shares[part])
            else:
                softmax = torch.softmax(logits, 1)
                shares[part].copy_(softmax)
            # The largest share is exp(0) over the sum.
            torch.sub(largest, softmax.amax(1).log_(), out=found[part])
        ctx.save_for_backward(hidden_low, weight_low, shares)
        ctx.dtypes = hidden.dtype, weight.dtype
        return found[: len(hidden)]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_found: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, shares = ctx.saved_tensors
        places = len(d_found)
        d_found = torch.nn.functional.pad(d_found, (0, len(hidden) - places))
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=d_found.dtype)
        d_offsets = d_found.new_zeros(weight.shape[0])
        for part in _parts(shares):
            d_logits = shares[part] * d_found[part, None].to(shares.dtype)
            torch.mm(d_logits, weight, out=d_hidden[part])
            add_product(d_weight, d_logits.t(), hidden[part])
            d_offsets.add_(d_logits.sum(0, dtype=d_found.dtype))
        d_hidden_dtype, d_weight_dtype = ctx.dtypes
        return d_hidden[:places].to(d_hidden_dtype), d_weight.to(d_weight_dtype), d_offsets, None


def _logits(hidden: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    if hidden.dtype == offsets.dtype:
        return torch.addmm(offsets, hidden, weight.t())
    return torch.mm(hidden, weight.t()).to(offsets.dtype).add_(offsets)


def _leave_out(logits: Tensor, same: Tensor) -> None:
    """Overwrite, in each row, the logit of the sample that is the true word."""
    column = same.clamp(min=0).unsqueeze(1)
    kept = logits.gather(1, column)
    logits.scatter_(1, column, kept.masked_fill_((same >= 0).unsqueeze(1), _NO_LOGIT))


def _parts(shares: Tensor) -> list[slice]:
    """Cut places into runs."""
    places, samples = shares.shape
    size = max(1, _LOGITS_AT_A_TIME // samples) if shares.device.type == "cpu" else places
    return [slice(start, start + size) for start in range(0, places, size or 1)]
