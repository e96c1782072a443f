"""How much of a text the words of a vocabulary are: what a run says of its text before it begins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from .corpus import CorpusReport
from .vocabulary import SPECIALS, UNKNOWN_ID, Vocabulary
from .word_counts import WordCounts

_SIZES = tuple(digit * 10**zeros for zeros in range(3, 8) for digit in (1, 3, 5))


@dataclass(frozen=True)
class HeldOutCoverage:
    """What a vocabulary is worth on other text.

    words (int): Words of that text.
    unknown (float): Share of them that are not in the vocabulary.
    long_words (int): Words of which the biLM does not see all bytes.
    unigram_perplexity (float): Of predicting each word, and the end of each sentence, by its frequency alone: what a biLM has
        to be better than. Frequencies are those of the counted text, with one added to each; words outside the vocabulary
        are one word, the unknown, as for the perplexity of a biLM.
    """

    words: int
    unknown: float
    long_words: int
    unigram_perplexity: float


@dataclass(frozen=True)
class Coverage:
    """What a vocabulary is worth on the text that it was counted in.

    words (int): Words of the text.
    types (int): Different words of it; fewer than there are if rare ones were dropped.
    undercount (int): By how much counts are too small at most: 0 if they are exact.
    long_words (int): Words that have more than `max_bytes` bytes, of which the biLM sees no more.
    max_bytes (int): Bytes of a word that the biLM sees.
    vocabulary (int): Size of the vocabulary, special words included.
    covered (float): Share of the words that are in it.
    at_size (dict[int, float]): The share that a vocabulary of so many of the most frequent words would cover.
    held_out (HeldOutCoverage | None): The same of the held-out text, if there is any.
    """

    words: int
    types: int
    undercount: int
    long_words: int
    max_bytes: int
    vocabulary: int
    covered: float
    at_size: dict[int, float]
    held_out: HeldOutCoverage | None

    def to_dict(self) -> dict[str, Any]:
        """RETURNS (dict): For JSON."""
        return asdict(self)


def measure_coverage(
    counts: WordCounts, vocabulary: Vocabulary, held_out: Iterable[Sequence[str]] | None = None
) -> Coverage:
    """Compare a vocabulary with the text that it is for.

    counts (WordCounts): The words of the text.
    vocabulary (Vocabulary): Built from it or given.
    held_out (Iterable | None): Sentences of other text; may be empty.
    RETURNS (Coverage): The shares.
    """
    known = sum(counts.counts[word] for word in vocabulary.words[len(SPECIALS) :])
    falling = sorted(counts.counts.values(), reverse=True)
    covered = list(accumulate(falling))
    types, words = len(falling), max(1, counts.words)
    sizes = [*(size for size in _SIZES if size < types), *([types] if types else [])]
    return Coverage(
        words=counts.words,
        types=types,
        undercount=counts.undercount,
        long_words=counts.long_words(),
        max_bytes=counts.max_bytes,
        vocabulary=len(vocabulary),
        covered=known / words,
        at_size={size: covered[size - 1] / words for size in sizes},
        held_out=_measure_held_out(counts, vocabulary, known, held_out or ()),
    )


def coverage_report(coverage: Coverage, lines: CorpusReport, max_words: int) -> str:
    """Say what a text holds, for people.

    coverage (Coverage): From `measure_coverage`.
    lines (CorpusReport): What was met while the text was read.
    max_words (int): The bound at which its lines were cut.
    RETURNS (str): Some lines.
    """
    at_least = "at least " if coverage.undercount else ""
    found = [
        f"Text: {coverage.words:,} words in {lines.sentences:,} sentences, {at_least}{coverage.types:,} different",
        f"  left out: {lines.empty_lines:,} empty lines, {lines.nul_lines:,} lines with a NUL byte",
        f"  cut: {lines.cut_lines:,} lines longer than {max_words:,} words; the longest line has "
        f"{lines.longest_line_words:,} words, {lines.longest_line_bytes:,} bytes",
        f"  seen in part: {coverage.long_words:,} words longer than {coverage.max_bytes} bytes",
        f"Vocabulary: {coverage.vocabulary:,}, of which {len(SPECIALS)} are special, covers {coverage.covered:.2%} of the words",
        *(f"  {size:>12,} words would cover {share:7.2%}" for size, share in coverage.at_size.items()),
    ]
    if coverage.undercount:
        found.append(f"  rare words did not fit into memory: counts are too small by {coverage.undercount:,} at most")
    if coverage.held_out is not None:
        other = coverage.held_out
        found.append(
            f"Held-out text: {other.words:,} words, {other.unknown:.2%} outside the vocabulary, {other.long_words:,} seen in "
            f"part; perplexity by frequency alone {other.unigram_perplexity:,.1f}"
        )
    return "\n".join(found)


def _measure_held_out(
    counts: WordCounts, vocabulary: Vocabulary, known: int, sentences: Iterable[Sequence[str]]
) -> HeldOutCoverage | None:
    # Nothing but a begin of a sentence is never predicted.
    total = math.log(counts.words + counts.sentences + len(vocabulary) - 1)
    end, unknown = math.log(counts.sentences + 1), math.log(counts.words - known + 1)
    words = missing = long_words = ends = 0
    loss = 0.0
    for sentence in sentences:
        ends += 1
        words += len(sentence)
        for word in sentence:
            long_words += len(word.encode("utf-8")) > counts.max_bytes
            is_known = vocabulary.id_of(word) != UNKNOWN_ID
            missing += not is_known
            loss += total - (math.log(counts.counts[word] + 1) if is_known else unknown)
    if not words:
        return None
    loss += ends * (total - end)
    return HeldOutCoverage(words, missing / words, long_words, math.exp(loss / (words + ends)))
