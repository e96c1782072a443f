"""What is told of a text and its vocabulary before training: against numbers that were reckoned by hand."""

from __future__ import annotations

import json
import math

import pytest

from spacy_elmo.pretraining import word_counts
from spacy_elmo.pretraining.corpus import CorpusReport
from spacy_elmo.pretraining.coverage import coverage_report, measure_coverage
from spacy_elmo.pretraining.vocabulary import SPECIALS, Vocabulary
from spacy_elmo.pretraining.word_counts import WordCounts

TEXT = [["the", "cat", "the"], ["the", "dog", "the", "x" * 50], ["cat"]]


def counted(text: list[list[str]]) -> WordCounts:
    counts = WordCounts()
    counts.add(text)
    return counts


def test_shares_of_the_words():
    counts = counted(TEXT)
    coverage = measure_coverage(counts, Vocabulary.of_counts(counts, 5))
    assert (coverage.words, coverage.types, coverage.vocabulary) == (8, 4, 5)
    assert coverage.covered == 6 / 8
    assert coverage.at_size == {4: 1.0}
    assert (coverage.long_words, coverage.max_bytes, coverage.undercount) == (1, 48, 0)
    assert coverage.held_out is None


def test_coverage_at_several_sizes():
    text = [["often"] * 3000, [f"w{number}" for number in range(6999)]]
    counts = counted(text)
    found = measure_coverage(counts, Vocabulary.of_counts(counts, 100)).at_size
    assert list(found) == [1000, 3000, 5000, 7000]
    assert list(found.values()) == [size / 9999 for size in (3999, 5999, 7999, 9999)]


def test_specials_in_the_text_cover_nothing():
    counts = counted([["<S>", "<UNK>", "a", "b"]])
    assert measure_coverage(counts, Vocabulary.of_counts(counts, 100)).covered == 0.5


def test_a_given_vocabulary():
    counts = counted(TEXT)
    coverage = measure_coverage(counts, Vocabulary([*SPECIALS, "dog", "bird"]))
    assert coverage.covered == 1 / 8


def test_the_held_out_text():
    counts = counted(TEXT)
    held_out = [["the", "bird"], ["cat", "y" * 49, "dog"]]
    found = measure_coverage(counts, Vocabulary.of_counts(counts, 5), held_out).held_out
    assert found is not None
    assert (found.words, found.unknown, found.long_words) == (5, 3 / 5, 1)
    # the: 4, cat: 2, unknown: 2, ends of sentences: 3, one more of each.
    total = 4 + 2 + 2 + 3 + 4
    chances = [5 / total, 3 / total, 4 / total, 3 / total, 3 / total, 3 / total, 4 / total]
    assert found.unigram_perplexity == pytest.approx(math.exp(-sum(map(math.log, chances)) / 7))


def test_chances_of_all_predictions_add_up():
    """A text that has every prediction once has the mean of their logarithms as its own."""
    counts = counted(TEXT)
    vocabulary = Vocabulary.of_counts(counts, 100)
    words = vocabulary.words[len(SPECIALS) :]
    found = [measure_coverage(counts, vocabulary, [[word]]).held_out for word in [*words, "unknown"]]
    end = math.log((3 + 1) / (8 + 3 + len(vocabulary) - 1))
    chances = [math.exp(-2 * math.log(one.unigram_perplexity) - end) for one in found if one is not None]
    assert sum(chances) + math.exp(end) == pytest.approx(1)


def test_no_held_out_text():
    counts = counted(TEXT)
    vocabulary = Vocabulary.of_counts(counts, 5)
    assert measure_coverage(counts, vocabulary, []).held_out is None
    assert measure_coverage(counts, vocabulary, iter([])).held_out is None


def test_as_json():
    counts = counted(TEXT)
    coverage = measure_coverage(counts, Vocabulary.of_counts(counts, 5), TEXT)
    found = json.loads(json.dumps(coverage.to_dict()))
    assert found["covered"] == 0.75 and found["at_size"] == {"4": 1.0} and found["held_out"]["words"] == 8


def test_the_report_says_all_of_it():
    counts = counted(TEXT)
    coverage = measure_coverage(counts, Vocabulary.of_counts(counts, 5), TEXT)
    lines = CorpusReport(sentences=3, words=8, empty_lines=11, nul_lines=12, cut_lines=13, longest_line_words=4444)
    report = coverage_report(coverage, lines, max_words=200)
    for said in (
        "8 words in 3 sentences, 4 different",
        "11 empty lines",
        "12 lines with a NUL",
        "13 lines longer than 200",
    ):
        assert said in report
    for said in ("4,444 words", "1 words longer than 48 bytes", "covers 75.00%", "4 words would cover 100.00%"):
        assert said in report
    assert "Held-out text: 8 words, 25.00% outside the vocabulary, 1 seen in part" in report
    assert "too small" not in report


def test_the_report_says_where_counts_are_not_exact(monkeypatch):
    monkeypatch.setattr(word_counts, "_MOST_TYPES", 20)
    counts = counted([["often", f"w{number}"] for number in range(1000)])
    coverage = measure_coverage(counts, Vocabulary.of_counts(counts, 5))
    assert coverage.undercount == counts.undercount > 0
    report = coverage_report(coverage, CorpusReport(), 200)
    assert "at least" in report and f"too small by {counts.undercount} at most" in report
