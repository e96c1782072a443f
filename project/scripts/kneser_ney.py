"""Interpolated n-gram language models with modified Kneser-Ney discounts (Chen & Goodman 1999, section 4.1.6).

A text is one row of word ids, <S> w1 … wn </S> of all its sentences one after another. Forward predicts each word from
the words on its left, then </S> after the last word; backward predicts each word from the words on its right, then <S>
after the first word.

- Probabilities sum to 1 over the vocabulary without the token that is never predicted (forward <S>, backward </S>).
- The start of a sentence stands in the context once: padding with more of it would add nothing that is not known.
  Lower orders use continuation counts (of how many tokens does one stand before this n-gram?), except for n-grams that
  begin at the start of the sentence: nothing ever stands before those, so their plain counts are used.
- Nothing is pruned. The unigram level is interpolated with the uniform distribution.
- Where counts are too few to estimate the three discounts of an order, 0.5, 1 and 1.5 are used, and this is reported.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.float64]

SENTENCE_START, SENTENCE_END = range(2)
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)


class Direction(NamedTuple):
    """The order in which a sentence is read: which boundary is given, and which one is predicted at the end."""

    name: str
    given: int
    predicted: int


FORWARD = Direction("forward", SENTENCE_START, SENTENCE_END)
BACKWARD = Direction("backward", SENTENCE_END, SENTENCE_START)


def orient(stream: IntArray, direction: Direction) -> IntArray:
    """Put a row of <S> … </S> sentences into reading order; reversed as a whole, every sentence is reversed."""
    return stream if direction.given == SENTENCE_START else np.ascontiguousarray(stream[::-1])


def positions_in_sentences(stream: IntArray, given: int) -> IntArray:
    """Number the tokens of each sentence, in reading order, from 0 at the boundary that is given."""
    positions = np.arange(len(stream), dtype=np.int32)
    starts = np.where(stream == given, positions, np.int32(0))
    positions -= np.maximum.accumulate(starts)
    return positions


class NgramCounts(NamedTuple):
    """All different n-grams of one order; an n-gram's id is its row.

    keys (int64 (ngrams,)): id of the context (the first n - 1 tokens) * vocabulary size + last word, rising.
    counts (int32 (ngrams,)): Occurrences.
    ids (int32 (tokens,)): The n-gram that ends at each token, -1 where the sentence has fewer than n tokens so far.
    examples (int64 (ngrams,)): A token at which each n-gram ends.
    """

    keys: IntArray
    counts: IntArray
    ids: IntArray
    examples: IntArray


def count_ngrams(
    stream: IntArray, positions: IntArray, context_ids: IntArray, order: int, n_vocabulary: int
) -> NgramCounts:
    """Count the n-grams of one order, given the ids of those one order below.

    stream (int32 (tokens,)): Word ids in reading order.
    positions (int32 (tokens,)): Place of each token in its sentence, 0 for the boundary that is given.
    context_ids (int32 (tokens,)): The (order - 1)-gram that ends at each token.
    order (int): Length of the n-grams, at least 2.
    n_vocabulary (int): Size of the vocabulary.
    RETURNS (NgramCounts): The n-grams, their counts and their places.
    """
    ends = np.flatnonzero(positions >= order - 1)
    keys = context_ids[ends - 1].astype(np.int64)
    keys *= n_vocabulary
    keys += stream[ends]
    ranking = np.argsort(keys)
    keys = keys[ranking]
    ends = ends[ranking]
    del ranking
    is_first = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    ids = np.full(len(stream), -1, dtype=np.int32)
    ids[ends] = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    counts = np.diff(first, append=len(keys)).astype(np.int32)
    return NgramCounts(keys[first], counts, ids, ends[first])


@dataclass(frozen=True)
class Discounts:
    """What is taken off the counts of one order.

    amounts (float64 (4,)): Discount of n-grams counted 0, 1, 2, 3 times or more.
    counts_of_counts (list[int]): How many n-grams were counted 1, 2, 3, 4 times.
    estimated (bool): Whether the amounts were estimated; if not, they are the fallback.
    """

    amounts: FloatArray
    counts_of_counts: list[int]
    estimated: bool

    def of(self, counts: IntArray) -> FloatArray:
        """Give the discount of each count."""
        return self.amounts[np.minimum(counts, 3)]


def estimate_discounts(counts: IntArray) -> Discounts:
    """Estimate the three discounts of modified Kneser-Ney smoothing.

    counts (int (ngrams,)): Counts of one order (continuation counts below the highest).
    RETURNS (Discounts): The estimate, or the fallback if a count of counts it divides by is 0 or the estimate is not
        within 0 < D(i) <= i.
    """
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == value)) for value in range(1, 5))
    amounts = FALLBACK_DISCOUNTS
    estimated = False
    if n1 and n2 and n3:
        share = n1 / (n1 + 2 * n2)
        candidate = (1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3)
        estimated = all(0 < amount <= limit for limit, amount in enumerate(candidate, start=1))
        amounts = candidate if estimated else amounts
    return Discounts(np.array([0.0, *amounts]), [n1, n2, n3, n4], estimated)


@dataclass(frozen=True)
class NgramLevel:
    """The smoothed n-grams of one order (2 or more).

    keys (int64 (ngrams,)): See `NgramCounts`.
    counts (int32 (ngrams,)): Counts at the highest order; below, continuation counts where there are any.
    discounts (Discounts): The discounts of this order.
    context_totals (float64 (contexts,)): Sum of the counts after each context.
    context_masses (float64 (contexts,)): Sum of the discounts after each context, which goes to the lower order.
    """

    keys: IntArray
    counts: IntArray
    discounts: Discounts
    context_totals: FloatArray
    context_masses: FloatArray

    @classmethod
    def from_counts(cls, keys: IntArray, counts: IntArray, n_contexts: int, n_vocabulary: int) -> "NgramLevel":
        """Estimate the discounts and sum over contexts; `n_contexts` is the number of n-grams one order below."""
        discounts = estimate_discounts(counts)
        contexts = keys // n_vocabulary
        totals, masses = (
            np.bincount(contexts, weights=weights, minlength=n_contexts).astype(np.float64, copy=False)
            for weights in (counts, discounts.of(counts))
        )
        return cls(keys, counts, discounts, totals, masses)

    def find(self, keys: IntArray) -> IntArray:
        """Find the rows of n-grams by key; -1 for those that were never seen."""
        rows = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[rows] == keys, rows, -1)

    def interpolate(self, contexts: IntArray, rows: IntArray, lower: FloatArray) -> FloatArray:
        """Interpolate discounted relative frequencies with the probabilities of the lower order.

        contexts (int64 (queries,)): Ids of the contexts, all seen.
        rows (int64 (queries,)): Rows of the n-grams, -1 if not seen.
        lower (float64 (queries,)): Probabilities in the lower order.
        RETURNS (float64 (queries,)): Probabilities in this order.
        """
        counts = np.where(rows >= 0, self.counts[rows], 0)
        kept = counts - self.discounts.of(counts)
        return (np.maximum(kept, 0.0) + self.context_masses[contexts] * lower) / self.context_totals[contexts]


@dataclass(frozen=True)
class KneserNeyModel:
    """An interpolated modified Kneser-Ney language model of one direction.

    direction (Direction): The reading order.
    unigrams (float64 (vocabulary,)): Probability of each word without a context; 0 for the boundary that is given.
    unigram_discounts (Discounts): The discounts behind `unigrams`.
    levels (list[NgramLevel]): Orders 2, 3, ….
    """

    direction: Direction
    unigrams: FloatArray
    unigram_discounts: Discounts
    levels: list[NgramLevel]

    def probabilities(self, stream: IntArray) -> FloatArray:
        """Give the probability of each token of a row of sentences.

        stream (int (tokens,)): Word ids in reading order, each sentence beginning with the boundary that is given.
        RETURNS (float64 (tokens,)): Probability of each token after those before it in its sentence; nan for the
            boundary that is given.
        """
        positions = positions_in_sentences(stream, self.direction.given)
        probabilities = self.unigrams[stream]
        ids = stream.astype(np.int64)
        for order, level in enumerate(self.levels, start=2):
            ends = np.flatnonzero(positions >= order - 1)
            ends = ends[ids[ends - 1] >= 0]
            contexts = ids[ends - 1]
            # A context seen only as the end of a sentence has no continuation and leaves the lower order as it is.
            known = level.context_totals[contexts] > 0
            ends, contexts = ends[known], contexts[known]
            rows = level.find(contexts * len(self.unigrams) + stream[ends])
            probabilities[ends] = level.interpolate(contexts, rows, probabilities[ends])
            ids = np.full(len(stream), -1, dtype=np.int64)
            ids[ends] = rows
        probabilities[positions == 0] = np.nan
        return probabilities


def smooth_unigrams(counts: IntArray, given: int) -> tuple[FloatArray, Discounts]:
    """Interpolate unigram counts (vocabulary,) with a uniform distribution over all but the given boundary."""
    discounts = estimate_discounts(counts)
    amounts = discounts.of(counts)
    uniform = np.full(len(counts), 1 / (len(counts) - 1))
    uniform[given] = 0.0
    return (np.maximum(counts - amounts, 0.0) + amounts.sum() * uniform) / counts.sum(), discounts


def fit(stream: IntArray, direction: Direction, order: int, n_vocabulary: int) -> KneserNeyModel:
    """Count n-grams of all orders and smooth them.

    stream (int32 (tokens,)): Training text as `encode` gives it (left to right, whatever the direction).
    direction (Direction): The reading order of the model.
    order (int): Length of the longest n-grams, at least 1.
    n_vocabulary (int): Size of the vocabulary, special words included.
    RETURNS (KneserNeyModel): The model.
    RAISES (ValueError): If the text is empty or the order is below 1.
    """
    if order < 1:
        raise ValueError(f"The order of an n-gram model must be at least 1, but is {order}.")
    if not len(stream):
        raise ValueError("The training text is empty: nothing can be counted.")
    stream = orient(stream, direction)
    positions = positions_in_sentences(stream, direction.given)
    counts: IntArray = np.bincount(stream[positions > 0], minlength=n_vocabulary)
    ids: IntArray = stream
    keys: IntArray = np.arange(n_vocabulary)
    n_contexts = 1
    finished: list[tuple[IntArray, IntArray, int]] = []
    for longer in range(2, order + 1):
        ngrams = count_ngrams(stream, positions, ids, longer, n_vocabulary)
        # Each longer n-gram is one more token before its suffix. Suffixes without one begin at the sentence's start.
        preceding = np.bincount(ids[ngrams.examples], minlength=len(counts))
        finished.append((keys, np.where(preceding > 0, preceding, counts).astype(np.int32), n_contexts))
        n_contexts = len(counts)
        keys, counts, ids = ngrams.keys, ngrams.counts, ngrams.ids
        del ngrams, preceding
    finished.append((keys, counts, n_contexts))
    unigrams, unigram_discounts = smooth_unigrams(finished[0][1], direction.given)
    levels = [NgramLevel.from_counts(*counted, n_vocabulary) for counted in finished[1:]]
    return KneserNeyModel(direction, unigrams, unigram_discounts, levels)


def score(model: KneserNeyModel, stream: IntArray) -> dict[str, float]:
    """Score held-out text.

    model (KneserNeyModel): The model of one direction.
    stream (int32 (tokens,)): The text as `encode` gives it.
    RETURNS (dict[str, float]): Perplexity over every word and the predicted boundary, and over the words alone.
    """
    stream = orient(stream, model.direction)
    losses = -np.log(model.probabilities(stream))
    scored = stream != model.direction.given
    words = scored & (stream != model.direction.predicted)
    return {
        "perplexity": float(np.exp(losses[scored].mean())),
        "perplexity_without_boundary": float(np.exp(losses[words].mean())),
        "tokens": int(scored.sum()),
        "tokens_without_boundary": int(words.sum()),
    }


def describe(model: KneserNeyModel) -> list[dict[str, Any]]:
    """List the discounts and the number of n-grams of each order for the report."""
    discounts = [model.unigram_discounts, *(level.discounts for level in model.levels)]
    sizes = [int(np.count_nonzero(model.unigrams)), *(len(level.keys) for level in model.levels)]
    return [
        {
            "order": order,
            "ngrams": size,
            "discounts": each.amounts[1:].tolist(),
            "counts_of_counts": each.counts_of_counts,
            "discounts_estimated": each.estimated,
        }
        for order, (each, size) in enumerate(zip(discounts, sizes, strict=True), start=1)
    ]
