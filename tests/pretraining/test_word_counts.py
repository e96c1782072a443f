"""Counts of words: exact where they fit, and known to be too small by how much where they do not."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from spacy_elmo.pretraining import word_counts
from spacy_elmo.pretraining.word_counts import WordCounts


def counted(text: list[list[str]], max_characters: int = 50) -> WordCounts:
    counts = WordCounts(max_characters)
    counts.add(text)
    return counts


def long_tail(sentences: int = 3000) -> list[list[str]]:
    chance = random.Random(5)
    return [[f"w{int(chance.paretovariate(0.6))}" for _ in range(10)] for _ in range(sentences)]


def test_counts_are_exact_where_they_fit():
    text = long_tail()
    counts = counted(text)
    assert counts.counts == Counter(word for sentence in text for word in sentence)
    assert (counts.words, counts.sentences, counts.undercount) == (30_000, 3000, 0)


def test_text_may_come_in_portions():
    text = long_tail(1000)
    counts = WordCounts()
    for start in range(0, len(text), 300):
        counts.add(iter(text[start : start + 300]))
    assert (counts.counts, counts.words) == (counted(text).counts, counted(text).words)


def test_words_are_ranked_by_count_and_then_by_the_word():
    counts = counted([["b", "c", "a"], ["d", "b"], ["d", "c", "é"]])
    assert counts.ranked() == ["b", "c", "d", "a", "é"]
    assert counts.ranked(2) == ["b", "c", "d"]


@pytest.mark.parametrize("limit", ["_MOST_TYPES", "_MOST_CHARACTERS"])
def test_what_does_not_fit_is_too_small_by_no_more_than_said(monkeypatch, limit):
    text = long_tail()
    exact = counted(text)
    monkeypatch.setattr(word_counts, limit, 600 if limit == "_MOST_TYPES" else 2500)
    monkeypatch.setattr(word_counts, "_SENTENCES_AT_ONCE", 10)
    counts = counted(text)
    assert len(counts.counts) < 700 < len(exact.counts)
    assert 0 < counts.undercount < 100
    assert counts.words == exact.words
    for word, count in exact.counts.items():
        assert count - counts.undercount <= counts.counts[word] <= count
    assert counts.ranked()[:20] == exact.ranked()[:20]


def test_words_all_as_frequent_are_bounded_too(monkeypatch):
    monkeypatch.setattr(word_counts, "_MOST_TYPES", 20)
    text = [[f"w{number % 5000}"] * 3 for number in range(10_000)]
    counts = counted([*text, *[["often"]] * 7])
    assert len(counts.counts) <= 20 + word_counts._SENTENCES_AT_ONCE
    assert counts.counts["often"] == 7


def test_words_longer_than_the_bilm_sees_are_counted_in_bytes():
    text = [["a" * 48, "b" * 49, "é" * 24, "é" * 25, "𝄞" * 12, "𝄞" * 13], ["b" * 49]]
    assert counted(text).long_words() == 4
    assert counted(text, max_characters=51).long_words() == 2


def test_long_words_are_counted_where_they_were_dropped_too(monkeypatch):
    monkeypatch.setattr(word_counts, "_MOST_TYPES", 20)
    monkeypatch.setattr(word_counts, "_SENTENCES_AT_ONCE", 5)
    text = [[f"{number:060}", "the"] for number in range(1000)]
    counts = counted(text)
    assert counts.undercount and counts.long_words() == 1000
